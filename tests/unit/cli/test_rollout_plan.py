"""Plan and checks of `tierlog cluster rollout`, on responses of nodes built by hand, and its state file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from waiting import until

from tierlog.broker.diagnosis.evidence import BROKERS, QUORUM, UNHEALTHY_PARTITIONS, Answers
from tierlog.broker.diagnosis.findings import HEALTH_RULES
from tierlog.cli import rollout_run
from tierlog.cli.commands.cluster_rollout import _finish, _planned, _texts
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.rollout import (
    IGNORABLE_RULES,
    VERSIONS,
    Rollout,
    Step,
    cluster_doubts,
    member_doubts,
    nodes_of,
    not_back,
    plan,
    stop_doubts,
    wrong_versions,
)
from tierlog.cli.rollout_run import StateFile

RESTART = "ssh {host} restart {nodes}"
URLS = {
    1: "http://voter-1.example:9644",
    2: "http://voter-2.example:9644",
    3: "http://voter-3.example:9644",
    11: "http://broker-1.example:9644",
    12: "http://broker-1.example:9645",
    21: "http://broker-2.example:9644",
}
VOTERS, ON_BROKERS = (1, 2, 3), (11, 12, 21)


def answers(*, leader: int = 1, silent: tuple[int, ...] = (), **changes: Any) -> Answers:
    """Three voters, and three brokers on two hosts. `builds`: node -> changes of GET /v1/versions. `brokers`:
    of their rows. `unhealthy`: rows of partitions."""
    builds, brokers = changes.get("builds", {}), changes.get("brokers", {})
    rows = [
        {"id": one, "fenced": False, "stopping": False, "epoch": 7, "admin_url": URLS[one]}
        | brokers.get(one, {})
        for one in ON_BROKERS
    ]
    unhealthy = changes.get("unhealthy", [])
    counts = {
        condition: sum(condition in row["conditions"] for row in unhealthy)
        for condition in ("offline", "below-min-in-sync", "under-replicated", "moving")
    }
    documents: dict[int, dict[str, Any]] = {
        node: {
            QUORUM: {
                "node_id": node,
                "cluster_id": "c",
                "role": "leader" if node == leader else "follower",
                "term": 4,
                "applied_index": 50,
                "voters": {str(one): URLS[one] for one in VOTERS},
                "learners": {},
            },
            VERSIONS: {
                "version": "1.0.0",
                "commit": "46ccc503527b",
                "format": 3,
                "started_at_ms": 1000 + node,
                "problems": [],
            }
            | builds.get(node, {}),
            BROKERS: {"brokers": rows, "assigned": [*ON_BROKERS], "partitions": {"total": 9, **counts}},
            UNHEALTHY_PARTITIONS: {"partitions": unhealthy},
        }
        for node in URLS
        if node not in silent
    }
    return Answers(urls=URLS, documents=documents)


def planned(*hosts: str, version: str | None = None, **other: Any) -> Rollout:
    found = nodes_of(answers(**other))
    return plan(hosts, found, cluster_id="c", commands=[RESTART], version=version)


def partition(number: int, replicas: list[int], in_sync: list[int], *conditions: str) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": number,
        "replicas": replicas,
        "in_sync": in_sync,
        "min_in_sync": 2,
        "adding": [],
        "conditions": [*conditions],
    }


# ---- the plan


def test_brokers_come_before_voters_and_the_leader_of_the_quorum_last() -> None:
    made = planned("hosts")
    names = [step.name.partition(".")[0] for step in made.order(2)]
    assert names == ["broker-1", "broker-2", "voter-1", "voter-3", "voter-2"]
    assert made.steps[0].nodes == (11, 12)


def test_next_step_follows_the_leader_of_the_quorum() -> None:
    made = planned("1", "2", "3")
    assert made.next_step(1) is made.steps[1]
    made.steps[1].seconds = made.steps[2].seconds = 1.0
    assert made.next_step(1) is made.steps[0]
    made.steps[0].seconds = 1.0
    assert made.next_step(3) is None


def test_a_step_that_has_begun_comes_first_even_if_it_leads_the_quorum_now() -> None:
    made = planned("1", "2", "3")
    made.steps[2].before = {3: (1003, None)}
    assert made.next_step(3) is made.steps[2]


def test_placeholders_are_replaced_and_other_braces_stay() -> None:
    made = planned("broker-1.example", version="1.2.0")
    made.commands = ("ssh {host} 'run {version} {nodes} ${HOME} {}'",)
    assert made.command(0, made.steps[0]) == "ssh broker-1.example 'run 1.2.0 11 12 ${HOME} {}'"


def test_hosts_that_run_the_version_are_done() -> None:
    builds = {one: {"version": "1.2.0"} for one in (1, 11)}
    made = planned("hosts", version="1.2.0", builds=builds)
    assert [step.name for step in made.steps if step.has_ended] == ["voter-1.example"]
    assert all(step.has_ended for step in planned("nodes", version="46ccc503").steps)


def test_hosts_have_their_registered_names_and_not_that_of_a_tunnel() -> None:
    """A command for the host of the given address would restart this machine, or any host behind it."""
    seen = answers()
    tunnels = {node: f"http://localhost:{9000 + node}" for node in URLS}
    seen = Answers(urls=tunnels, documents=seen.documents)
    assert {node.id: node.url for node in nodes_of(seen).values()} == URLS


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (["nowhere"], "no host or node 'nowhere'"),
        (["99"], "no host or node '99'"),
        (["11", "broker-1.example"], "node 11 is named twice"),
        ([], "no host given"),
    ],
)
def test_wrong_hosts_are_refused(hosts: list[str], message: str) -> None:
    with pytest.raises(CliError, match=message):
        planned(*hosts)


def test_voters_of_one_host_do_not_stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(URLS, 2, "http://voter-1.example:9645")
    with pytest.raises(CliError, match="has the voters 1, 2") as refused:
        planned("hosts")
    assert "--hosts 1,2" in refused.value.hint
    assert len(planned("nodes").steps) == len(URLS)


@pytest.mark.parametrize(
    ("commands", "version", "message"),
    [
        ([], None, "no command given"),
        (["restart-all"], None, "the same for each host"),
        (["ssh {host} upgrade {version}"], None, "no version is given"),
        (["ssh {host} upgrade {version}"], "1; rm -r /", "a shell or program would"),
    ],
)
def test_wrong_commands_are_refused(commands: list[str], version: str | None, message: str) -> None:
    with pytest.raises(CliError, match=message):
        plan(["hosts"], nodes_of(answers()), cluster_id="c", commands=commands, version=version)


def test_host_that_a_shell_would_interpret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(URLS, 21, "http://a;b:9644")
    with pytest.raises(CliError, match="a shell or program would"):
        planned("hosts")


def test_host_that_a_program_would_take_for_an_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(URLS, 21, "http://-v:9644")
    with pytest.raises(CliError, match="'-v' cannot stand in a command"):
        planned("hosts")


# ---- the checks


def test_whole_cluster_raises_no_doubt() -> None:
    assert cluster_doubts(answers()) == []


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"silent": (3,)}, "node 3: it does not respond"),
        ({"leader": 0}, "the quorum has no leader"),
        ({"brokers": {21: {"fenced": True}}}, "node 21: its broker is fenced"),
        ({"unhealthy": [partition(0, [11, 21], [11], "under-replicated")]}, "1 partition under-replicated"),
        ({"builds": {2: {"format": 4}}}, "an upgrade is being finalised"),
    ],
)
def test_cluster_that_is_not_whole_raises_a_doubt(changes: dict[str, Any], doubt: str) -> None:
    assert any(doubt in one.what for one in cluster_doubts(answers(**changes)))


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"leader": -1, "role": "candidate"}, "voter 3 does not follow node 1, the leader of the quorum"),
        ({"leader": 3, "role": "leader", "term": 3}, "voter 3 does not follow node 1"),
        ({"leader": 1, "applied_index": 2_000}, "voter 3 has not applied the last 8,000 changes"),
    ],
)
def test_voter_that_responds_and_cannot_vote_raises_a_doubt(changes: dict[str, Any], doubt: str) -> None:
    """Without it, the next voter to stop would be the one that makes the majority."""
    seen = answers()
    documents = {node: {**found} for node, found in seen.documents.items()}
    for node, found in documents.items():
        found[QUORUM] = {**found[QUORUM], "leader": 1, "applied_index": 10_000}
        if node == 3:
            found[QUORUM] |= changes
    seen = Answers(urls=URLS, documents=documents)
    [found_doubt] = cluster_doubts(seen)
    assert doubt in found_doubt.what and "tierlog quorum status" in found_doubt.next
    assert cluster_doubts(seen, absent=[3]) == []


def test_broker_whose_admin_api_is_out_of_reach_raises_a_doubt() -> None:
    """Its leaderships would not be handed over, and its restart would not be seen."""
    seen = answers(silent=(21,), brokers={21: {"admin_url": "http://127.0.0.1:9644"}})
    seen = Answers(urls={one: url for one, url in URLS.items() if one != 21}, documents=seen.documents)
    [doubt] = cluster_doubts(seen)
    assert "cannot reach the admin API of broker 21 (http://127.0.0.1:9644)" in doubt.what
    assert "admin.listener" in doubt.next
    assert cluster_doubts(seen, absent=[21]) == []


def test_absence_of_the_steps_nodes_explains_their_part_only() -> None:
    down = answers(
        silent=(21,),
        brokers={21: {"fenced": True, "stopping": True}},
        unhealthy=[
            partition(0, [11, 21], [11], "below-min-in-sync", "under-replicated"),
            partition(1, [21], [21], "offline"),
        ],
    )
    assert cluster_doubts(down, absent=[21]) == []
    assert len(cluster_doubts(down)) > 1
    more = answers(silent=(21,), unhealthy=[partition(0, [11, 12, 21], [11], "under-replicated")])
    [doubt] = cluster_doubts(more, absent=[21])
    assert "orders-0" in doubt.what
    assert cluster_doubts(answers(silent=(21, 3)), absent=[21])


def test_nodes_of_the_step_that_still_run_may_lead_the_quorum() -> None:
    """It comes last. After a command has failed there, the next run must not miss the leader."""
    assert cluster_doubts(answers(leader=1), absent=[1]) == []
    drained = answers(leader=11, brokers={11: {"stopping": True}})
    assert cluster_doubts(drained, absent=[11, 12]) == []


def test_ignored_rules_raise_no_doubt_and_redundancy_cannot_be_ignored() -> None:
    expiring = answers()
    row = {"listener": "SSL", "days_left": 3, "reload_error": None}
    documents = {node: {**found} for node, found in expiring.documents.items()}
    documents[11]["/v1/certificates"] = {"certificates": [row]}
    expiring = Answers(urls=URLS, documents=documents)
    assert len(cluster_doubts(expiring)) == 1
    assert cluster_doubts(expiring, ignored=["certificate"]) == []
    assert HEALTH_RULES.keys() - IGNORABLE_RULES == {"quorum", "node", "partitions"}


def test_node_that_does_not_tell_when_it_started_raises_a_doubt() -> None:
    """Otherwise each process of it would count as another one than before the step."""
    seen = answers()
    documents = {node: {**found} for node, found in seen.documents.items()}
    del documents[21][VERSIONS]
    seen = Answers(urls=URLS, documents=documents)
    [doubt] = cluster_doubts(seen)
    assert doubt.what == "node 21 does not tell its version and when it started"
    assert cluster_doubts(seen, absent=[21]) == []


def test_partitions_that_would_not_take_records_are_named() -> None:
    nodes = nodes_of(answers())
    step = Step(name="broker-2", host="broker-2", nodes=(21,))
    enough = [partition(0, [11, 12, 21], [11, 12, 21]), partition(1, [11], [11])]
    assert stop_doubts(step, nodes, enough) == []
    [doubt] = stop_doubts(step, nodes, [*enough, partition(2, [11, 21], [11, 21]), partition(3, [21], [21])])
    assert "2 partitions" in doubt.what and "orders-2, orders-3" in doubt.what
    old = [{name: value for name, value in enough[0].items() if name != "min_in_sync"}]
    assert stop_doubts(step, nodes, old) == []


def test_quorum_keeps_its_majority() -> None:
    nodes = nodes_of(answers())
    assert stop_doubts(Step(name="1", host="h", nodes=(1,)), nodes, []) == []
    alone = {1: nodes[1], 11: nodes[11]}
    assert stop_doubts(Step(name="11", host="h", nodes=(11,)), alone, []) == []
    [doubt] = stop_doubts(Step(name="1", host="h", nodes=(1,)), alone, [])
    assert "0 of 1 voter would be left" in doubt.what


# ---- nodes that come back


def begun(*nodes: int) -> Step:
    found = nodes_of(answers())
    before = {one: (found[one].started, found[one].epoch) for one in nodes}
    return Step(name="h", host="h", nodes=nodes, before=before)


def doubts(step: Step, version: str | None = None, **changes: Any) -> list[str]:
    seen = answers(**changes)
    return [one.what for one in not_back(step, nodes_of(seen), seen, version)]


def test_node_is_back_once_another_process_of_the_version_responds() -> None:
    new = {"started_at_ms": 5000, "version": "1.2.0"}
    assert doubts(begun(21), silent=(21,)) == ["node 21 does not respond"]
    assert "has not restarted" in doubts(begun(21))[0]
    assert "has not restarted" in doubts(begun(11, 12), builds={11: new})[0]
    assert doubts(begun(11, 12), builds={11: new, 12: new}) == []
    assert doubts(begun(21), "1.2.0", builds={21: new}) == []
    [wrong] = doubts(begun(21), "1.3.0", builds={21: new})
    assert wrong == "node 21 runs 1.2.0 (46ccc503527b), not 1.3.0"


def test_a_wrong_version_is_known_before_all_nodes_are_back() -> None:
    seen = answers(builds={11: {"started_at_ms": 5000}})
    assert len(wrong_versions(begun(11, 12), nodes_of(seen), "1.2.0")) == 1
    assert wrong_versions(begun(11, 12), nodes_of(answers()), "1.2.0") == []


def test_node_of_a_version_that_does_not_tell_its_start_is_known_by_its_epoch() -> None:
    silent: dict[str, Any] = {"builds": {one: {"started_at_ms": None} for one in URLS}}
    step = begun(21, 1)
    step.before = {21: (None, 7), 1: (None, None)}
    assert doubts(step, **silent) == ["node 21 has not restarted: it is the process from before the commands"]
    assert doubts(step, brokers={21: {"epoch": 9}}, **silent) == []


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


def test_placeholder_that_would_become_a_variable_of_the_shell_is_refused() -> None:
    with pytest.raises(CliError, match=r"a command has \$\{host\}") as refused:
        plan(["1"], nodes_of(answers()), cluster_id="c", commands=["ssh ${host} x"], version=None)
    assert "{host}" in refused.value.hint


def test_node_without_an_admin_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(URLS, 21, "")
    with pytest.raises(CliError, match="node 21 has registered no admin URL"):
        planned("21", brokers={21: {"admin_url": ""}})


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
