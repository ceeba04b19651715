"""Files of a local cluster: its plan, the cluster that was started last, and the processes of its nodes."""

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import call
from rich.console import Console

from tierlog.broker.diagnosis.evidence import Observation, ProcessState
from tierlog.cli import cluster_files, cluster_processes, cluster_watch
from tierlog.cli.commands import cluster_local
from tierlog.cli.commands.cluster_local import next_steps, started_message
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.process import TierlogBroker


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not see the user's own cluster."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is recorded as the node of `tmp_path`."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        cluster_processes.record_process(tmp_path, process.pid)
        yield process
        process.kill()


def test_saved_plan_is_loaded(tmp_path: Path) -> None:
    plan = cluster_files.new_plan(3, settings={"num.partitions": 4, "auto.create.topics.enable": True})
    cluster_files.save(tmp_path / "new", plan)
    assert cluster_files.load(tmp_path / "new") == plan
    assert plan.settings == {"num.partitions": "4", "auto.create.topics.enable": "true"}
    assert (tmp_path / "new" / "cluster.json").stat().st_mode & 0o077 == 0  # it holds the secret


def test_open_cluster_cannot_be_continued_as_a_secure_one(tmp_path: Path) -> None:
    cluster_files.save(tmp_path, cluster_files.new_plan(1))
    ended = call("cluster", "up", "--secure", "--data-dir", str(tmp_path))
    assert ended.code == ExitCode.USAGE and "secure-a-cluster.md" in ended.stderr


def test_nodes_have_distinct_ids_and_ports() -> None:
    chosen = cluster_files.new_plan(3, base_port=9092)
    assert [(node.id, node.port, node.admin_port) for node in chosen.nodes] == [
        (1, 9092, 9644),
        (2, 9093, 9645),
        (3, 9094, 9646),
    ]
    free = cluster_files.new_plan(5)
    assert len(set(free.ports)) == 10
    assert free.cluster_id != chosen.cluster_id and free.secret != chosen.secret


@pytest.mark.parametrize(
    ("count", "replicas", "least"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_replication_factor_follows_the_number_of_brokers(count: int, replicas: str, least: str) -> None:
    settings = cluster_files.new_plan(count).all_settings()
    assert settings["default.replication.factor"] == replicas
    assert settings["min.insync.replicas"] == least
    assert len(settings["controller.quorum.voters"].split(",")) == count


def test_controller_nodes_have_no_kafka_port() -> None:
    plan = cluster_files.new_plan(3, voters=3, base_port=9092)
    assert [(node.id, node.port, node.admin_port) for node in plan.brokers] == [
        (1, 9092, 9644),
        (2, 9093, 9645),
        (3, 9094, 9646),
    ]
    assert [(node.id, node.bootstrap, node.admin_port) for node in plan.controllers_only] == [
        (4, None, 9647),
        (5, None, 9648),
        (6, None, 9649),
    ]
    assert plan.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094" and 0 not in plan.ports
    settings = plan.all_settings()
    voters = "4@127.0.0.1:9647,5@127.0.0.1:9648,6@127.0.0.1:9649"
    assert settings["controller.quorum.voters"] == voters
    assert settings["default.replication.factor"] == "3"
    assert len(set(cluster_files.new_plan(1, voters=3).ports)) == 5


def test_plan_without_roles_is_loaded(tmp_path: Path) -> None:
    node = '{"id": 1, "port": 9092, "admin_port": 9644}'
    (tmp_path / "cluster.json").write_text(f'{{"cluster_id": "c", "secret": "s", "nodes": [{node}]}}')
    plan = cluster_files.load(tmp_path)
    assert plan is not None and plan.roles == {1: ("broker", "controller")} and not plan.controllers_only


def test_user_settings_override_the_defaults(tmp_path: Path) -> None:
    plan = cluster_files.new_plan(3, settings={"min.insync.replicas": 3})
    assert plan.all_settings()["min.insync.replicas"] == "3"
    assert cluster_files.with_settings(plan, {"a": "1"}).settings == {"min.insync.replicas": "3", "a": "1"}


def test_damaged_plan_is_an_error_and_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(CliError, match=r"cluster\.json"):
        cluster_files.load(tmp_path)
    assert (tmp_path / "cluster.json").read_text() == "{"


def test_cluster_started_last_is_the_default(tmp_path: Path) -> None:
    with pytest.raises(CliError) as nothing:
        cluster_files.find_cluster(None)
    assert nothing.value.code is ExitCode.FAILED and "cluster up" in nothing.value.hint
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        cluster_files.save(directory, cluster_files.new_plan(1))
        cluster_files.set_last_started(directory)
    assert cluster_files.find_cluster(None)[0] == other
    assert cluster_files.find_cluster(one)[1] == cluster_files.load(one)
    cluster_files.clear_last_started(one)
    assert cluster_files.last_started() == other
    cluster_files.clear_last_started(other)
    assert cluster_files.last_started() is None


def test_cluster_without_directory_is_not_the_default(tmp_path: Path) -> None:
    cluster_files.set_last_started(tmp_path / "gone")
    assert cluster_files.last_started() is None


def test_ports_in_use_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy = server.getsockname()[1]
        free = cluster_files.free_ports(1)[0]
        assert cluster_files.ports_in_use([busy, free]) == [busy]


def test_process_is_paused_resumed_and_killed(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert cluster_processes.state_of(tmp_path) is ProcessState.UP
    assert cluster_processes.pid_of(tmp_path) == sleeper.pid
    assert cluster_processes.send_signals(tmp_path, signal.SIGSTOP)
    os.waitpid(sleeper.pid, os.WUNTRACED)  # it has stopped
    assert cluster_processes.state_of(tmp_path) is ProcessState.PAUSED
    assert cluster_processes.send_signals(tmp_path, signal.SIGCONT)
    os.waitpid(sleeper.pid, os.WCONTINUED)
    assert cluster_processes.state_of(tmp_path) is ProcessState.UP
    assert cluster_processes.send_signals(tmp_path, signal.SIGKILL, wait_s=60)
    assert cluster_processes.state_of(tmp_path) is ProcessState.DOWN  # although it has not been reaped yet
    assert cluster_processes.pid_of(tmp_path) is None
    assert not cluster_processes.send_signals(tmp_path, signal.SIGTERM)


def test_process_with_a_reused_id_is_not_signalled(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / "process.json").write_text(f'{{"pid": {sleeper.pid}, "started": 1}}')
    assert cluster_processes.state_of(tmp_path) is ProcessState.DOWN
    assert not cluster_processes.send_signals(tmp_path, signal.SIGKILL)
    assert sleeper.poll() is None


def test_node_without_a_process_file_is_down(tmp_path: Path) -> None:
    assert cluster_processes.state_of(tmp_path) is ProcessState.DOWN
    assert not cluster_processes.send_signals(tmp_path, signal.SIGKILL)


@pytest.mark.parametrize("words", [("stop", "1"), ("kill", "1"), ("down",)])
def test_node_that_survives_sigkill_is_an_error(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a process that waits for a disk in the kernel: signals reach it once the disk responds."""
    cluster_files.save(tmp_path, cluster_files.new_plan(1))
    node = cluster_files.node_directory(tmp_path, 1)
    node.mkdir()
    (tmp_path / "process.json").rename(node / "process.json")
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(cluster_processes, "STOP_TIMEOUT_S", 0.01)
    monkeypatch.setattr(cluster_local, "NODE_STOP_TIMEOUT_S", 0.01)
    ended = call("cluster", *words, "--data-dir", str(tmp_path))
    assert (ended.code, ended.stdout, sleeper.poll()) == (1, "", None)
    assert "node 1 did not end within 0.01 s after SIGKILL" in ended.stderr
    assert "tierlog cluster status" in ended.stderr


def start_fails(directory: Path, plan: cluster_files.ClusterPlan) -> None:
    with pytest.raises(CliError), cluster_files.rollback_on_failure(directory, plan):
        cluster_files.save(directory, plan)
        raise CliError("a node did not start")


def test_failed_start_restores_the_settings(tmp_path: Path) -> None:
    plan = cluster_files.new_plan(1, settings={"a": "1"})
    cluster_files.save(tmp_path, plan)
    start_fails(tmp_path, cluster_files.with_settings(plan, {"b": "2"}))
    assert cluster_files.load(tmp_path) == plan


def test_failed_start_of_a_new_cluster_keeps_only_its_nodes(tmp_path: Path) -> None:
    plan = cluster_files.new_plan(1, settings={"a": "1"})
    start_fails(tmp_path, plan)
    assert cluster_files.load(tmp_path) == cluster_files.with_only_settings(plan, {})
    assert cluster_files.last_started() is None


def test_failed_start_restores_the_default_cluster(tmp_path: Path) -> None:
    before = tmp_path / "before"
    cluster_files.save(before, cluster_files.new_plan(1))
    cluster_files.set_last_started(before)
    start_fails(tmp_path / "other", cluster_files.new_plan(1))
    assert cluster_files.last_started() == before
    start_fails(before, cluster_files.new_plan(1))
    assert cluster_files.last_started() == before


def test_base_port_that_is_too_high_is_refused() -> None:
    assert cluster_files.new_plan(3, base_port=64_981).ports[-1] == 65_535
    with pytest.raises(CliError, match="too high") as refused:
        cluster_files.new_plan(3, base_port=64_982)
    assert refused.value.hint == "The highest possible value is --port 64981."


def test_start_without_a_majority_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the node's earlier runs is not shown."""
    cluster_files.save(tmp_path, cluster_files.new_plan(3))
    node = cluster_files.node_directory(tmp_path, 1)
    node.mkdir()
    (node / "broker.log").write_text("a line of yesterday\n")
    command = ["sh", "-c", "echo no quorum responded >&2; exit 1"]
    monkeypatch.setattr(TierlogBroker, "_command", lambda _: command)
    ended = call("cluster", "start", "1", "--data-dir", str(tmp_path))
    assert ended.code == 1 and "1 of 3 voters will run, which may not be a majority" in ended.stderr
    assert "no quorum responded\nA majority of the voters must run: `tierlog cluster start`" in ended.stderr
    assert "yesterday" not in ended.stderr


def test_detached_cluster_is_described() -> None:
    steps = next_steps(Path("/kept"), cluster_files.new_plan(1, base_port=9092))
    assert "http://127.0.0.1:9644" in steps and "/kept, which `tierlog cluster down` keeps" in steps
    assert "from the path file:///kept/objects." in steps
    temporary = next_steps(Path("/lost"), cluster_files.new_plan(1, temporary=True))
    assert "/lost, which `tierlog cluster down` removes" in temporary


def test_no_local_cluster_names_the_commands_for_others() -> None:
    ended = call("cluster", "status")
    assert ended.code == 1 and "`tierlog cluster health` and `tierlog cluster info`" in ended.stderr


def test_table_of_nodes_fits_a_narrow_terminal(tmp_path: Path) -> None:
    plan = cluster_files.new_plan(2, voters=1, base_port=19092)
    processes = dict.fromkeys(plan.roles, ProcessState.UP)
    seen = Observation(quorum={node: {"role": "follower", "applied_index": 123_456} for node in plan.roles})
    rows = cluster_watch.rows(tmp_path, plan, processes, seen)
    for width, has_pid in ((80, False), (120, True)):
        output = io.StringIO()
        Console(width=width, file=output).print(cluster_watch.node_table(rows, title="nodes", width=width))
        shown = output.getvalue()
        assert "…" not in shown and ("pid" in shown) is has_pid
        assert all(text in shown for text in ("127.0.0.1:19093", "admin :19646", "follower", "out of sync"))


def test_message_of_a_started_cluster_counts_its_nodes() -> None:
    assert started_message(cluster_files.new_plan(1)).startswith("1 broker serves Kafka clients at ")
    apart = started_message(cluster_files.new_plan(2, voters=1))
    assert apart.startswith("2 brokers serve Kafka clients at ") and apart.endswith("; 1 controller node")
