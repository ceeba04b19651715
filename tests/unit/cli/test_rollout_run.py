"""Runs of `tierlog cluster rollout` on responses of nodes built by hand: state file, steps and commands."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rollout_answers import RESTART, answers, partition, planned
from waiting import until

from tierlog.broker.diagnosis.evidence import QUORUM, UNHEALTHY_PARTITIONS, Answers
from tierlog.cli import rollout_run
from tierlog.cli.commands.cluster_rollout import _finish, _planned, _texts
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.rollout import Rollout, Step, member_doubts, nodes_of
from tierlog.cli.rollout_run import StateFile

# ---- the state file


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StateFile]:
    file = StateFile(tmp_path / "below" / "state.json")
    with file.lock():
        yield file


def test_state_survives_and_is_only_for_its_owner(file: StateFile) -> None:
    assert file.load() is None
    made = planned("hosts", version="1.2.0")
    made.steps[0].before, made.steps[0].commands = {11: (1011, 7), 12: (None, None)}, 1
    file.save(made)
    assert file.load() == made
    assert file.path.stat().st_mode & 0o077 == 0
    file.remove()
    assert file.load() is None


def test_damaged_state_is_named(file: StateFile) -> None:
    file.path.write_text("{")
    with pytest.raises(CliError, match="cannot read") as refused:
        file.load()
    assert "--start-over" in refused.value.hint


@pytest.mark.usefixtures("no_pause")
def test_files_that_cannot_be_written_stop_it_before_a_command_runs(file: StateFile, tmp_path: Path) -> None:
    made = with_command(planned("21"), f"touch {tmp_path}/ran.{{nodes}}")
    for path in (file.path.with_name(file.path.name + ".new"), file.log):
        path.mkdir()
        with pytest.raises(CliError, match="cannot write") as stopped:
            list(ScriptedRun(made, file, answers()).steps())
        assert stopped.value.hint.startswith("Free space")
        path.rmdir()
    assert not list(tmp_path.glob("ran*"))


def test_only_one_command_at_a_time(file: StateFile) -> None:
    with pytest.raises(CliError, match="another command"), StateFile(file.path).lock():
        pass


def test_a_second_run_continues_with_corrected_commands_and_with_no_other_hosts() -> None:
    before = planned("1", "2", version="1.2.0")
    before.steps[0].seconds, before.steps[1].commands = 5.0, 1
    saved = msgspec.json.encode(before)

    def again(
        hosts: list[str], command: str = RESTART, version: str = "1.2.0", cluster: str = "c"
    ) -> Rollout:
        known = msgspec.json.decode(saved, type=Rollout)
        return _planned(hosts, [command], version, answers(), cluster, known)

    assert again(["1", "2"]) == before
    corrected = again(["1", "2"], "ssh -4 {host} restart")
    assert [step.has_ended for step in corrected.steps] == [True, False]
    assert [step.commands for step in corrected.steps] == [0, 0]
    for other in ({"hosts": ["1"]}, {"hosts": ["1", "2"], "version": "1.3.0"}):
        with pytest.raises(CliError, match=r"has not ended: of 1,2 to version 1\.2\.0, with 2 left"):
            again(**other)
    with pytest.raises(CliError, match="of cluster c, not of d"):
        again(["1", "2"], cluster="d")


@pytest.mark.parametrize(
    ("hint", "continues"), [("Start node 3.", True), ("Begin again with --start-over.", False)]
)
def test_an_error_says_to_run_the_same_command_again_unless_another_one_helps(
    hint: str, continues: bool, file: StateFile
) -> None:
    with pytest.raises(CliError) as stopped:
        _finish(planned("1"), file, CliError("a doubt", hint=hint), as_json=False)
    assert stopped.value.hint.startswith(hint)
    assert ("run the same command again" in stopped.value.hint) is continues


def test_commands_of_a_file(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.write_text("# on each host\nssh {host} stop\n\n  ssh {host} start\n")
    assert _texts(None, steps) == ["ssh {host} stop", "ssh {host} start"]
    with pytest.raises(CliError, match="twice"):
        _texts(["ssh {host}"], steps)


# ---- a run


class ScriptedRun(rollout_run.RolloutRun):
    """A run that gets these responses, one after the other, and the last again and again."""

    def __init__(self, rollout: Rollout, file: StateFile, *seen: Answers, **options: Any) -> None:
        options = {"wait_s": 10, "command_timeout_s": 60, "tell": lambda _: None, **options}
        super().__init__(rollout, file, [], **options)
        self._seen = [*seen]

    def _ask(self) -> Answers:
        return self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]

    def _request(self, step: Step, method: str, path: str) -> Any:
        return {"partitions": [], "leads": 0}


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_run, "POLL_INTERVAL_S", 0.0)


def with_command(made: Rollout, command: str) -> Rollout:
    made.commands = (command,)
    return made


@pytest.mark.usefixtures("no_pause")
def test_a_broker_that_fails_after_the_checks_keeps_the_commands_from_running(
    file: StateFile, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    made = with_command(planned("21"), f"touch {ran}.{{nodes}}")
    fenced = answers(silent=(12,), brokers={12: {"fenced": True}})
    with pytest.raises(CliError, match="node 12: it does not respond"):
        list(ScriptedRun(made, file, answers(), answers(), answers(), fenced).steps())
    assert made.steps[0].has_begun and not list(tmp_path.glob("ran*"))


@pytest.mark.usefixtures("no_pause")
def test_a_node_that_responds_late_once_does_not_stop_it(file: StateFile) -> None:
    made = with_command(planned("21"), "true {nodes}")
    new = answers(builds={21: {"started_at_ms": 5000}})
    run = ScriptedRun(made, file, answers(), *[answers(silent=(3,))] * 2, *[answers()] * 3, new)
    assert [step.name for step in run.steps()] == ["21"]


@pytest.mark.usefixtures("no_pause")
def test_after_a_wrong_version_the_commands_run_again_and_wait_for_another_process(
    file: StateFile, tmp_path: Path
) -> None:
    made = planned("21", version="1.2.0")
    made.commands = (f"echo stop {{nodes}} >> {tmp_path}/ran", f"echo start {{nodes}} >> {tmp_path}/ran")
    made.steps[0].before, made.steps[0].commands = {21: (1021, 7)}, 1
    wrong = answers(builds={21: {"started_at_ms": 5000}})
    right = answers(builds={21: {"started_at_ms": 6000, "version": "1.2.0"}})
    assert len(list(ScriptedRun(made, file, *[wrong] * 9, right).steps())) == 1
    assert (tmp_path / "ran").read_text() == "stop 21\nstart 21\n"


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("by_hand", [False, True])
def test_commands_after_one_that_failed_are_not_forgotten_once_the_nodes_are_back(
    by_hand: bool, file: StateFile, tmp_path: Path
) -> None:
    may_pass = tmp_path / "may-pass"
    drained: list[str] = []
    made = planned("21")
    made.commands = ("true {nodes}", f"test -e {may_pass} && touch {tmp_path}/checked.{{nodes}}")

    class Run(ScriptedRun):
        def _drain(self, step: Step, brokers: Any) -> None:
            drained.append(step.name)

    back = answers(builds={21: {"started_at_ms": 5000}})
    with pytest.raises(CliError, match="test -e") as failed:
        list(Run(made, file, answers(), answers(), answers(), back).steps())
    assert "--by-hand" in failed.value.hint and drained == ["21"]
    with pytest.raises(CliError, match="test -e"):
        list(Run(made, file, back).steps())
    assert not made.steps[0].has_ended
    if not by_hand:
        may_pass.touch()
    assert len(list(Run(made, file, back, by_hand=by_hand).steps())) == 1
    assert (tmp_path / "checked.21").exists() is not by_hand
    assert drained == ["21"], "a node that is back leads partitions again, and keeps them"


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("leads", [[2, 1, 0], [2, 2, 2]])
def test_leaderships_that_wait_for_a_replica_are_handed_over_once_it_has_caught_up(
    leads: list[int], file: StateFile
) -> None:
    left = [*leads]

    class Run(ScriptedRun):
        def _request(self, step: Step, method: str, path: str) -> Any:
            return {"leads": left.pop(0)} if method == "POST" else {"partitions": []}

    made = with_command(planned("21"), "true {nodes}")
    back = answers(builds={21: {"started_at_ms": 5000}})
    run = Run(made, file, *[answers()] * 4, back)
    if leads[-1] == 0:
        assert len(list(run.steps())) == 1
        return
    with pytest.raises(CliError, match="still leads 2 partitions whose other replicas have not") as doubt:
        list(run.steps())
    assert "partition list --under-replicated" in doubt.value.hint and made.steps[0].has_begun


@pytest.mark.usefixtures("no_pause")
def test_work_done_by_hand_is_waited_for_and_not_done_again(file: StateFile, tmp_path: Path) -> None:
    """The operator has just started the node, and it does not respond yet."""
    made = with_command(planned("21"), f"touch {tmp_path}/ran.{{nodes}}")
    made.steps[0].before = {21: (1021, 7)}
    starting, back = answers(silent=(21,)), answers(builds={21: {"started_at_ms": 5000}})
    assert len(list(ScriptedRun(made, file, starting, starting, starting, back, by_hand=True).steps())) == 1
    assert not list(tmp_path.glob("ran*"))


@pytest.mark.usefixtures("no_pause")
def test_hosts_that_run_the_version_are_done_only_in_a_whole_cluster(file: StateFile) -> None:
    """As with --start-over, after a run that stopped while the last host was not back in sync."""
    made = planned("nodes", version="1.0.0")
    assert list(ScriptedRun(made, file, answers()).steps()) == []
    drained = answers(brokers={21: {"stopping": True}})
    with pytest.raises(CliError, match="node 21: its broker is shutting down") as doubt:
        list(ScriptedRun(made, file, drained).steps())
    assert doubt.value.code is ExitCode.DEGRADED


@pytest.mark.usefixtures("no_pause")
def test_step_ends_once_its_node_has_caught_up_with_the_metadata(file: StateFile) -> None:
    told: list[str] = []
    made = with_command(planned("1", "2"), "true {nodes}")
    new = {"started_at_ms": 5000}
    behind, caught_up = (answers(leader=3, builds={1: new, 2: new}) for _ in range(2))
    for late in (1, 2):
        behind.documents[late][QUORUM] = {**behind.documents[late][QUORUM], "applied_index": 49}  # type: ignore[index]
    for step in made.steps:
        step.before, step.commands = {step.nodes[0]: (1000 + step.nodes[0], None)}, 1
    seen = [behind, behind, behind, behind, behind, caught_up]
    run = ScriptedRun(made, file, *seen, tell=told.append)
    first = next(run.steps())
    assert first.name == "1" and len(run._seen) == 1
    assert told == ["1: waiting, node 1 is catching up: it has applied 49 of 50 changes of metadata"]


def test_error_within_the_lock_is_not_taken_for_another_command(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="of the body"), StateFile(tmp_path / "state.json").lock():
        raise BlockingIOError("of the body")


@pytest.mark.usefixtures("no_pause")
def test_a_node_that_has_left_the_cluster_is_a_doubt(file: StateFile) -> None:
    made = planned("21")
    made.steps[0].nodes = (99,)
    assert member_doubts(made.steps[0], nodes_of(answers()))
    with pytest.raises(CliError, match="node 99 of 21 is no longer in the cluster"):
        list(ScriptedRun(made, file, answers()).steps())


@pytest.mark.usefixtures("no_pause")
def test_a_run_continues_though_its_broker_explains_more_partitions_than_are_requested_at_once(
    file: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [partition(number, [11, 21], [11], "under-replicated") for number in range(20)]
    down = answers(silent=(21,), unhealthy=rows, brokers={21: {"fenced": True}})
    for found in down.documents.values():
        found[UNHEALTHY_PARTITIONS] = {"total": 20, "partitions": rows[:10]}  # type: ignore[index]

    class AllRows:
        def __init__(self, url: str, timeout_s: float) -> None:
            pass

        def get(self, path: str) -> Any:
            return {"total": 20, "partitions": rows}

    monkeypatch.setattr(rollout_run, "AdminApi", AllRows)
    made = with_command(planned("21"), "true {nodes}")
    made.steps[0].before = {21: (1021, 7)}
    back = answers(builds={21: {"started_at_ms": 5000}})
    assert len(list(ScriptedRun(made, file, *[down] * 5, back).steps())) == 1


# ---- commands


def run_of(file: StateFile, timeout_s: float) -> rollout_run.RolloutRun:
    return rollout_run.RolloutRun(
        planned("21"), file, [], wait_s=1, command_timeout_s=timeout_s, tell=lambda _: None
    )


def test_failed_command_is_shown_with_its_own_output(file: StateFile) -> None:
    run = run_of(file, 60)
    run._run_command(run.rollout.steps[0], "echo before")
    with pytest.raises(CliError, match=r"ended with exit code 4: echo cause; exit 4\n  cause$") as failed:
        run._run_command(run.rollout.steps[0], "echo cause; exit 4")
    assert failed.value.code is ExitCode.FAILED
    assert file.log.read_text().count("==== 21: ") == 2


def test_command_that_takes_too_long_ends_with_its_children(file: StateFile, tmp_path: Path) -> None:
    run = run_of(file, 0.5)
    pid = tmp_path / "pid"
    with pytest.raises(CliError, match="took too long"):
        run._run_command(run.rollout.steps[0], f"sleep 60 & echo $! > {pid}; wait")
    child = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    until(lambda: not child.exists() or not child.read_bytes(), "the child has ended")
