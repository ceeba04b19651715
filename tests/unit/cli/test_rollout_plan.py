"""Plan and checks of `tierlog cluster rollout`, on responses of nodes built by hand."""

from typing import Any

import pytest
from rollout_answers import URLS, answers, partition, planned

from tierlog.broker.diagnosis.evidence import QUORUM, Answers
from tierlog.broker.diagnosis.findings import HEALTH_RULES
from tierlog.cli.errors import CliError
from tierlog.cli.rollout import (
    IGNORABLE_RULES,
    VERSIONS,
    Step,
    cluster_doubts,
    nodes_of,
    not_back,
    plan,
    stop_doubts,
    wrong_versions,
)

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


def test_placeholder_that_would_become_a_variable_of_the_shell_is_refused() -> None:
    with pytest.raises(CliError, match=r"a command has \$\{host\}") as refused:
        plan(["1"], nodes_of(answers()), cluster_id="c", commands=["ssh ${host} x"], version=None)
    assert "{host}" in refused.value.hint


def test_node_without_an_admin_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(URLS, 21, "")
    with pytest.raises(CliError, match="node 21 has registered no admin URL"):
        planned("21", brokers={21: {"admin_url": ""}})


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
