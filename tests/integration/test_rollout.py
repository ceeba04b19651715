"""`tierlog cluster rollout` on three real nodes: an upgrade under load, and each way in which it stops."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builds import changed_copy
from cli_inline import call, json_output, succeed
from confluent_kafka import Consumer, TopicPartition
from rolling_load import Load
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.rollout_run import StateFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 6
NODES = ("--hosts", "nodes")


class RolledCluster:
    """A local cluster of three nodes, and commands as an operator would give them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        up = ("cluster", "up", "--nodes", "3", "--data-dir", str(directory), "--port", "0", "--detach")
        [made] = json_output(*up, "--set", "leader.imbalance.check.interval.seconds=1")
        self.bootstrap: str = made["bootstrap"]
        self.admin = {one["node"]: one["admin"] for one in made["nodes"]}
        self.state = StateFile.default(made["cluster_id"])
        succeed("topic", "create", "orders", "-p", str(PARTITIONS), "--config", "min.insync.replicas=2")
        until(lambda: call("cluster", "health").code == 0, "a new cluster is whole")

    def tierlog(self, verb: str, **environment: Path) -> str:
        """The command that does this with the nodes of a step."""
        words = ["env", *(f"{name}={value}" for name, value in environment.items()), sys.executable]
        words += ["-m", "tierlog.cli.main", "cluster", verb]
        return f"{shlex.join(words)} {{nodes}} --data-dir {shlex.quote(str(self.directory))}"

    def builds(self) -> dict[int, tuple[str, int]]:
        """Node -> its version, and when it started."""
        found = {node: AdminApi(url).get("/v1/versions") for node, url in self.admin.items()}
        return {node: (seen["version"], seen["started_at_ms"]) for node, seen in found.items()}

    def leader(self) -> int:
        """The leader of the quorum."""
        return int(AdminApi(next(iter(self.admin.values()))).get("/v1/quorum")["leader"])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RolledCluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield RolledCluster(tmp_path / "cluster")
    call("cluster", "down", "--data-dir", str(tmp_path / "cluster"), "--yes")


def roll(*words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the document and standard error of `tierlog cluster rollout`."""
    ended = call("cluster", "rollout", *words, "--json")
    return ended.code, json.loads(ended.stdout) if ended.stdout else {}, ended.stderr


def given(*commands: str) -> list[str]:
    return [word for command in commands for word in ("--command", command)]


def read(bootstrap: str, partition: int, count: int) -> list[bytes]:
    """The first `count` values of the partition, or fewer if it has fewer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", partition, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(60)
        if message is None or message.error() is not None:
            break
        found.append(message.value() or b"")
    consumer.close()
    return found


def test_no_produce_fails_while_all_nodes_are_upgraded(cluster: RolledCluster, tmp_path: Path) -> None:
    other = changed_copy(tmp_path / "next", {"__init__.py": {"__version__": '"99.0.0"'}})
    words = [*NODES, "--to-version", "99.0.0"]
    words += given(cluster.tierlog("stop"), cluster.tierlog("start", PYTHONPATH=other))
    leader = cluster.leader()
    code, document, _ = roll(*words, "--dry-run")
    assert code == 0 and document["doubts"] == []
    assert document["steps"][-1]["nodes"] == [leader]
    assert f"stop {leader} --data-dir" in document["steps"][-1]["commands"][0]
    assert {version for version, _ in cluster.builds().values()} != {"99.0.0"}

    load = Load({"bootstrap.servers": cluster.bootstrap}, "orders", PARTITIONS)
    try:
        load.wait_for_progress()
        code, document, said = roll(*words)
        assert code == 0, said
        load.wait_for_progress()
    finally:
        load.stop()
    assert document["ended"] and {step["state"] for step in document["steps"]} == {"done"}
    assert {version for version, _ in cluster.builds().values()} == {"99.0.0"}
    assert not load.deliveries.failures
    assert load.sent == len(load.deliveries.acknowledged)
    for partition in range(PARTITIONS):
        sent = [b"%d record" % n for n in range(partition, load.sent, PARTITIONS)]
        assert read(cluster.bootstrap, partition, len(sent) + 1) == sent

    before = cluster.builds()
    assert roll(*words)[0] == 0, "nothing is left to do"
    assert cluster.builds() == before and cluster.state.load() is None


def test_a_node_that_does_not_come_back_stops_it_and_the_same_command_continues(
    cluster: RolledCluster, tmp_path: Path
) -> None:
    [first, second, third] = [
        one["nodes"][0] for one in roll(*NODES, "--dry-run", "--command", "echo {nodes}")[1]["steps"]
    ]
    kept_down = tmp_path / "kept-down"
    kept_down.touch()
    start = f"if [ {{nodes}} != {second} ] || [ ! -e {kept_down} ]; then {cluster.tierlog('start')}; fi"
    words = [*NODES, "--wait", "30", *given(cluster.tierlog("stop"), start)]
    before = cluster.builds()

    code, document, said = roll(*words)
    assert code == 5 and not document["ended"]
    assert f"{second} was not back after 30 s; node {second} does not respond" in document["stopped"]["what"]
    assert "1 of 3 steps done" in said and "run the same command again: it continues" in said
    assert [step["state"] for step in sorted(document["steps"], key=by_state)] == ["begun", "done", "waits"]
    assert AdminApi(cluster.admin[third]).get("/v1/versions")["started_at_ms"] == before[third][1]

    code, document, said = roll(*words)  # it runs the commands again, of which the first fails
    assert "continues the rollout of" in said and "1 of 3 steps done. --start-over" in said
    assert code == 1 and f"node {second} is not running" in document["stopped"]["what"], said
    restarted = AdminApi(cluster.admin[first]).get("/v1/versions")["started_at_ms"]

    succeed("cluster", "start", str(second))  # by hand
    by_hand = AdminApi(cluster.admin[second]).get("/v1/versions")["started_at_ms"]
    code, document, said = roll(*words, "--by-hand")
    assert code == 0 and document["ended"], said
    after = {node: started for node, (_, started) in cluster.builds().items()}
    assert (after[first], after[second]) == (restarted, by_hand)
    assert after[third] != before[third][1]


def by_state(step: dict[str, Any]) -> str:
    return str(step["state"])


def test_a_command_that_fails_stops_it_and_a_corrected_one_continues(cluster: RolledCluster) -> None:
    code, document, _ = roll(*NODES, *given("echo no such host; exit 7 # {nodes}"))
    assert code == 1 and "ended with exit code 7" in document["stopped"]["what"]
    assert document["stopped"]["what"].endswith("\n  no such host")
    assert {version for version, _ in cluster.builds().values()}  # all respond
    code, document, said = roll(*NODES, *given(cluster.tierlog("stop"), cluster.tierlog("start")))
    assert code == 0 and document["ended"], said


def test_commands_that_restart_nothing_or_another_version_are_a_doubt(cluster: RolledCluster) -> None:
    code, document, _ = roll(*NODES, "--wait", "3", *given("echo {nodes}"))
    assert code == 5 and "has not restarted" in document["stopped"]["what"]
    words = [*NODES, "--to-version", "99.0.0", *given(cluster.tierlog("stop"), cluster.tierlog("start"))]
    code, _, said = roll(*words)
    assert code == 2 and "another rollout has not ended" in said
    code, document, _ = roll(*words, "--start-over")
    assert code == 5, "the broker that was drained is still about to stop"
    drained = next(one["id"] for one in brokers(cluster) if one["stopping"])
    succeed("cluster", "stop", str(drained))
    succeed("cluster", "start", str(drained))
    succeed("cluster", "health", "--wait", "60")
    code, document, _ = roll(*words, "--start-over")
    assert code == 5 and "not 99.0.0" in document["stopped"]["what"]
    assert "install that version" in document["stopped"]["next"]


def brokers(cluster: RolledCluster) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = AdminApi(next(iter(cluster.admin.values()))).get("/v1/brokers")["brokers"]
    return rows


def test_it_refuses_to_begin_in_a_cluster_that_is_not_whole(cluster: RolledCluster, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    succeed("topic", "create", "single", "-p", "3", "-r", "1")
    code, document, _ = roll(*NODES, *given(f"touch {ran}.{{nodes}}"))
    assert code == 5 and "would not take records with acks=all: single-" in document["stopped"]["what"]
    code, document, _ = roll(*NODES, "--dry-run", *given("touch {nodes}"))
    assert code == 5 and "would not take records with acks=all: single-" in document["doubts"][0]
    succeed("topic", "delete", "single", "--yes")

    succeed("cluster", "kill", "3")
    until(lambda: call("cluster", "health").code == 5, "others lead")
    code, document, said = roll(*NODES, *given(f"touch {ran}.{{nodes}}"))
    assert code == 5 and "under-replicated" in document["stopped"]["what"]
    assert "0 of 3 steps done" in said and "tierlog partition list --under-replicated" in said
    code, document, _ = roll(*NODES, "--dry-run", *given("touch {nodes}"))
    assert code == 5 and document["doubts"]
    assert not list(tmp_path.glob("ran*"))
