"""`tierlog cluster` and related commands on three real processes, each command run as an operator would."""

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_inline import json_output, run
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for a cluster whose processes all end with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "cluster"
    run("cluster", "down", "--data-dir", tmp_path / "cluster")


def ask(*words: str | Path, code: int = 0) -> Any:
    return json_output(*words, code=code)[0]


def healthy() -> bool:
    return run("cluster", "health").returncode == 0


def broker(number: int) -> dict[str, Any]:
    return next(row for row in ask("broker", "list") if row["id"] == number)


def partitions(topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask("partition", "list", topic)
    return found


def metric(admin_urls: list[str], name: str) -> float:
    """The sum of the metric over the nodes."""
    found = 0.0
    for url in admin_urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            [value] = re.findall(rf"^{name} (\S+)$", answer.read().decode(), re.M)
            found += float(value)
    return found


def move_waits_for_broker_3(partition: str, two: list[str]) -> None:
    """Begins a move to the broker that is down. `two`: admin APIs of the others."""
    assert run("partition", "move", "single", partition, "--to", "3").returncode == 0
    until(lambda: metric(two, "tierlog_waiting_moves") == 1, "the move waits")
    assert metric(two, "kafka_server_replicamanager_reassigningpartitions") == 1
    [waits] = [one for one in ask("doctor", code=6)["findings"] if one["rule"] == "move-waits"]
    assert "1 partitions that it leads move to a broker that is away" in waits["what"]
    assert run("partition", "move", "single", partition, "--cancel").returncode == 0
    until(lambda: metric(two, "tierlog_waiting_moves") == 0, "the move is cancelled")


def test_cluster_recovers_from_a_killed_node(directory: Path) -> None:
    up = ask("cluster", "up", "--nodes", "3", "--data-dir", directory, "--port", "0", "--detach")
    assert [node["node"] for node in up["nodes"]] == [1, 2, 3]
    until(healthy, "a new cluster is healthy")
    quorum = ask("quorum", "status")
    assert sorted(quorum["voters"]) == ["1", "2", "3"] and quorum["role"] == "leader"
    assert run("topic", "create", "orders", "--partitions", "3").returncode == 0
    assert {len(row["replicas"]) for row in partitions("orders")} == {3}
    assert sorted(row["leader"] for row in partitions("orders")) == [1, 2, 3]

    assert run("topic", "create", "single", "-p", "3", "-r", "1").returncode == 0
    assert ask("cluster", "kill", "3") == {"killed": [3]}
    assert run("cluster", "kill", "3").returncode == 1
    until(lambda: all(row["leader"] in (1, 2) for row in partitions("orders")), "others lead")
    until(lambda: run("cluster", "health").returncode == 6, "a partition has no leader")
    sick = ask("cluster", "health", code=6)
    [lost] = [row["partition"] for row in partitions("single") if row["leader"] < 0]
    assert sick["names"]["offline"] == [f"single-{lost}"]
    described = ask("topic", "describe", "single")["partitions"]
    known = [(row["leader"] is None, row["log_end_offset"]) for row in described]
    assert known == [(number == lost, None if number == lost else 0) for number in range(3)]
    offsets = {row["topic"]: row["offsets"] for row in ask("topic", "list")}
    assert offsets == {"orders": 0, "single": None}
    two = [node["admin"] for node in up["nodes"][:2]]
    move_waits_for_broker_3(str((lost + 1) % 3), two)
    assert run("topic", "delete", "single", "--yes").returncode == 0
    sick = ask("cluster", "health", code=5)
    assert sick["status"] == "degraded"
    assert sick["names"]["under-replicated"] == ["orders-0", "orders-1", "orders-2"]
    reported = ask("cluster", "info", "--admin", f"{up['nodes'][2]['admin']},{up['nodes'][0]['admin']}")
    assert reported["partitions"]["names"] == sick["names"]
    assert reported["partitions"]["counts"]["under-replicated"] == 3
    node = next(problem for problem in sick["problems"] if problem["what"].startswith("node 3"))
    assert "its process is down" in node["what"] and node["next"] == "Run `tierlog cluster start 3`."
    assert {row["partition"] for row in ask("partition", "list", "--under-replicated")} == {0, 1, 2}

    expected = {"activecontrollercount": 1, "offlinepartitionscount": 0, "fencedbrokercount": 2}
    assert {name: metric(two, f"kafka_controller_kafkacontroller_{name}") for name in expected} == expected
    assert metric(two, "kafka_server_replicamanager_underreplicatedpartitions") == 3
    assert metric(two, "kafka_server_replicamanager_atminisrpartitioncount") == 3
    assert metric(two, "kafka_server_replicamanager_isrexpands_total") == 0

    assert ask("cluster", "start") == {"started": [3]}
    assert ask("cluster", "health", "--wait", "60")["status"] == "healthy"
    assert metric(two, "kafka_server_replicamanager_underreplicatedpartitions") == 0
    assert metric(two, "kafka_server_replicamanager_isrexpands_total") == 3
    lost = next(row for row in partitions("orders") if row["replicas"][0] == 3)
    assert lost["leader"] != 3
    elected = ask("partition", "elect", "orders", str(lost["partition"]))["outcomes"]
    assert [one["elected"] for one in elected] == [True]
    assert partitions("orders")[lost["partition"]]["leader"] == 3
    assert [broker["leads"] > 0 for broker in ask("broker", "list")] == [True] * 3

    stuck = run("broker", "drain", "3")
    assert stuck.returncode == 1 and "cannot move" in stuck.stderr
    assert run("broker", "decommission", "9").returncode == 4

    refused = run("cluster", "down")  # standard input has no answer
    assert refused.returncode == 1 and str(directory) in refused.stderr and "--yes" in refused.stderr
    assert ask("cluster", "down", "--yes")["killed"] == []
    assert run("cluster", "status").returncode == 1
    assert run("cluster", "status", "--data-dir", directory).returncode == 0
    again = ask("cluster", "up", "--data-dir", directory, "--detach")
    assert again["cluster_id"] == up["cluster_id"] and again["bootstrap"] == up["bootstrap"]
    until(healthy, "the same cluster continues")
    assert len(partitions("orders")) == 3


def test_paused_node_and_lost_majority_are_reported(directory: Path) -> None:
    ask("cluster", "up", "--data-dir", directory, "--port", "0", "--detach")
    until(healthy, "a new cluster is healthy")
    ask("cluster", "pause", "1")
    assert run("cluster", "pause", "1").returncode == 1
    until(lambda: run("cluster", "health").returncode == 5, "the others have a leader")
    sick = ask("cluster", "health", code=5)
    node = next(problem for problem in sick["problems"] if problem["what"].startswith("node 1"))
    assert node["next"] == "Run `tierlog cluster resume 1`."
    assert run("topic", "list").returncode == 0  # another node responds
    assert ask("cluster", "info")["partitions"]["counts"]["offline"] == 0
    ask("cluster", "resume", "1")
    until(healthy, "the cluster continues")

    ask("cluster", "kill", "1", "2")
    until(lambda: run("cluster", "health").returncode == 6, "one of three is no quorum")
    sick = ask("cluster", "health", code=6)
    assert "1 of 3 voters respond, 2 are needed" in sick["problems"][0]["what"]
    ask("cluster", "start", "1", "2")
    until(healthy, "all are back")
    assert run("cluster", "kill", "7").returncode == 2


def test_controller_node_without_a_broker(directory: Path) -> None:
    words = ("--nodes", "1", "--voters", "1", "--data-dir", directory, "--port", "0", "--detach")
    up = ask("cluster", "up", *words)
    assert [node["roles"] for node in up["nodes"]] == [["broker"], ["controller"]]
    until(healthy, "a new cluster is healthy")
    assert [row["role"] for row in ask("cluster", "status")] == ["observer", "leader"]
    assert run("cluster", "up", "--voters", "3", "--data-dir", directory).returncode == 2

    ask("cluster", "kill", "2")
    sick = ask("cluster", "health", code=6)
    assert "0 of 1 voters respond" in sick["problems"][0]["what"]
    ask("cluster", "kill", "1")
    assert "0 of 1 voters respond" in ask("cluster", "health", code=3)["problems"][0]["what"]
    ask("cluster", "start")
    until(healthy, "both are back")
    assert ask("cluster", "down", "--yes")["killed"] == []


@contextmanager
def killed_after(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Kill the process at the end, so that a failing test does not wait for it."""
    try:
        yield
    finally:
        process.kill()


def test_interrupted_cluster_start_leaves_nothing_behind(directory: Path) -> None:
    """In a pipe the command prints a line for each change instead of a table."""
    command = [sys.executable, "-m", "tierlog.cli.main", "cluster", "up", "--nodes", "1", "--port", "0"]
    # a shell that runs the tests in the background has them, and all that they start, ignore SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up, killed_after(up):
        signal.signal(signal.SIGINT, before)
        assert up.stdout is not None
        lines = iter(up.stdout.readline, "")
        assert "node 1: up, leader\n" in lines  # read up to it
        assert next(line for line in lines if line.startswith("cluster: healthy"))
        data = Path(ask("cluster", "status")[0]["directory"]).parent
        assert (data / "cluster.json").exists()
        assert run("cluster", "up", "--detach").returncode == 1  # one at a time, if none is named
        ask("cluster", "kill", "1")
        assert "node 1: down\n" in lines
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
    assert not data.exists()
    assert run("cluster", "status").returncode == 1


def test_broker_is_decommissioned(directory: Path) -> None:
    up = ask("cluster", "up", "--nodes", "4", "--data-dir", directory, "--port", "0", "--detach")
    words = ("topic", "create", "orders", "--partitions", "4", "--replication-factor", "2")
    assert run(*words, "--bootstrap", up["bootstrap"]).returncode == 0
    until(healthy, "a new cluster is healthy")
    plan = ask("broker", "drain", "4", "--dry-run")
    assert plan["moves"] and not plan["stuck"]
    serving = run("broker", "decommission", "4")
    assert serving.returncode == 1 and "Run `tierlog quorum remove 4`, stop its process" in serving.stderr
    assert all(4 not in row["replicas"] for row in partitions("orders"))
    assert ask("quorum", "remove", "4")["voters"].keys() == {"1", "2", "3"}
    ask("cluster", "stop", "4")
    until(lambda: run("cluster", "health").returncode == 5, "the others have leaders")
    [left] = [row for row in ask("cluster", "health", code=5)["problems"] if row["what"].startswith("node 4")]
    assert left["next"].startswith("Run `tierlog broker decommission 4` if it is to leave the cluster")
    assert ask("broker", "decommission", "4")["decommissioned"] is True
    assert [broker["id"] for broker in ask("broker", "list")] == [1, 2, 3]
    until(healthy, "the broker that is gone is not missed")

    moved = partitions("orders")[0]
    target = [*(one for one in (1, 2, 3) if one not in moved["replicas"]), moved["replicas"][0]]
    to = ",".join(map(str, target))
    assert run("partition", "move", "orders", "0", "--to", to).returncode == 0
    until(lambda: partitions("orders")[0]["in_sync"] == target, "it has moved")
    assert ask("partition", "list", "--moving") == []

    words = ("topic", "create", "whole", "--partitions", "1", "--replication-factor", "3")
    assert run(*words, "--bootstrap", up["bootstrap"]).returncode == 0
    serving = run("broker", "decommission", "3", "--force")
    assert serving.returncode == 1 and "still running" in serving.stderr
    ask("cluster", "kill", "3")
    until(lambda: broker(3)["fenced"], "its death is noticed")
    held = {row["partition"] for row in partitions("orders") if 3 in row["replicas"]}
    lost = ask("broker", "decommission", "3", "--force")
    assert lost["moving"] == len(held) > 0 and "whole-0" in lost["left"]
    assert [broker["id"] for broker in ask("broker", "list")] == [1, 2]
    until(lambda: all(set(row["replicas"]) == {1, 2} for row in partitions("orders")), "they have moved")
    assert [row["leader"] in (1, 2) for row in partitions("whole")] == [True]
