"""Cluster health, from observations built by hand."""

from dataclasses import replace
from typing import Any

import pytest

from tierlog.broker.diagnosis.evidence import Observation, ProcessState
from tierlog.broker.diagnosis.health import Status, assess

UP, PAUSED, DOWN = ProcessState.UP, ProcessState.PAUSED, ProcessState.DOWN
URLS = {1: "http://h:1", 2: "http://h:2", 3: "http://h:3"}


def quorum(node: int, *, role: str = "follower", term: int = 4, **other: Any) -> dict[str, Any]:
    return {
        "node_id": node,
        "cluster_id": "c",
        "role": role,
        "term": term,
        "applied_index": 100,
        "voters": {str(one): url for one, url in URLS.items()},
        "learners": {},
        **other,
    }


def broker(node: int, *, fenced: bool = False, stopping: bool = False) -> dict[str, Any]:
    return {"id": node, "fenced": fenced, "stopping": stopping}


def partitions(**counts: int) -> dict[str, int]:
    none = {"offline": 0, "below-min-in-sync": 0, "under-replicated": 0, "moving": 0}
    return {"total": 6, **none, **{name.replace("_", "-"): count for name, count in counts.items()}}


def cluster(**other: Any) -> Observation:
    """An observation of three healthy nodes, with the given changes."""
    brokers = {
        "brokers": other.pop("brokers", [broker(1), broker(2), broker(3)]),
        "assigned": other.pop("assigned", [1, 2, 3]),
        "partitions": other.pop("partitions", partitions()),
    }
    unhealthy = {"partitions": other.pop("unhealthy", [])}
    answers = {1: quorum(1, role="leader"), 2: quorum(2), 3: quorum(3), **other.pop("quorum", {})}
    return Observation(quorum=answers, brokers=brokers, unhealthy=unhealthy)


def row(topic: str, number: int, *conditions: str) -> dict[str, Any]:
    return {"topic": topic, "partition": number, "conditions": list(conditions)}


def test_healthy_cluster_has_no_problems() -> None:
    health = assess(cluster(), dict.fromkeys(URLS, UP))
    assert (health.status, health.problems) == (Status.HEALTHY, ())


def test_moving_partitions_are_not_a_problem() -> None:
    assert assess(cluster(partitions=partitions(moving=3))).status is Status.HEALTHY


def test_outage_of_the_object_store_names_brokers_and_the_runbook() -> None:
    row = {"available": False, "state": "open", "error": "connection refused"}
    seen = replace(cluster(), stores=({"broker": 1, **row}, {"broker": 3, **row}))
    [problem] = assess(seen).problems
    assert problem.status is Status.DEGRADED
    assert problem.what == "the object store is unavailable for brokers 1, 3: connection refused"
    assert "docs/runbooks/bucket-down.md" in problem.next
    [refused] = assess(replace(seen, stores=({"broker": 1, **row, "state": "refused"},))).problems
    assert refused.what.startswith("the object store lacks what tierlog needs for broker 1:")


def test_wrong_manifests_in_the_object_store_are_named() -> None:
    rows = tuple({"broker": 1, "object": f"root-{n}", "fault": "missing"} for n in range(7))
    [problem] = assess(replace(cluster(), manifests=rows)).problems
    assert problem.status is Status.DEGRADED
    assert "root-0 (missing)" in problem.what and problem.what.endswith("and others")
    assert "docs/runbooks/damaged-object.md" in problem.next


def certificate(broker: int, days_left: int, reload_error: str | None = None) -> dict[str, Any]:
    return {"broker": broker, "listener": "SSL", "days_left": days_left, "reload_error": reload_error}


def test_nodes_whose_versions_do_not_understand_each_other_are_named() -> None:
    problem = {"broker": 1, "node_id": 3, "why": "node 3 (tierlog 0.3.0) speaks wire version 3"}
    found = assess(replace(cluster(), versions=(problem,)))
    assert found.status is Status.DEGRADED
    assert "node 1 with node 3: node 3 (tierlog 0.3.0) speaks wire version 3" in found.problems[0].what
    assert "tierlog cluster versions" in found.problems[0].next


def test_certificates_that_expire_soon_are_named() -> None:
    rows = (certificate(1, 300), certificate(2, 20), certificate(3, 1))
    [problem] = assess(replace(cluster(), certificates=rows)).problems
    assert problem.status is Status.DEGRADED
    assert problem.what == (
        "certificates expire: listener SSL of broker 3 in 1 day, listener SSL of broker 2 in 20 days"
    )
    assert "ssl.keystore.location" in problem.next


def test_expired_certificate_makes_the_cluster_unavailable() -> None:
    [problem] = assess(replace(cluster(), certificates=(certificate(1, -1),))).problems
    assert problem.status is Status.UNAVAILABLE
    assert problem.what == "certificates expire: listener SSL of broker 1 has expired"


def test_replaced_certificate_that_is_not_used_is_reported() -> None:
    [problem] = assess(replace(cluster(), certificates=(certificate(1, 300, "no key"),))).problems
    assert problem.status is Status.DEGRADED
    assert problem.what.endswith("does not use its replaced certificate: no key")


def test_single_node_quorum_is_healthy() -> None:
    alone = Observation(
        quorum={0: quorum(0, role="leader", voters={"0": ""})},
        brokers={"brokers": [broker(0)], "assigned": [0], "partitions": partitions()},
        unhealthy={"partitions": []},
    )
    assert assess(alone).problems == ()


def test_observer_is_not_a_voter() -> None:
    observer = {"node_id": 4, "cluster_id": "c", "role": "observer", "applied_index": 101, "voters": {}}
    seen = cluster(quorum={4: observer}, brokers=[broker(one) for one in (1, 2, 3, 4)])
    assert assess(seen).problems == ()
    assert seen.voters == (1, 2, 3)


def test_dead_local_node_is_one_problem_with_its_start_command() -> None:
    seen = cluster(
        quorum={3: None},
        brokers=[broker(1), broker(2), broker(3, fenced=True)],
        partitions=partitions(under_replicated=4),
        unhealthy=[row("orders", 0, "under-replicated")],
    )
    health = assess(seen, {1: UP, 2: UP, 3: DOWN})
    assert health.status is Status.DEGRADED
    node, behind = health.problems
    assert node.what.startswith("node 3: its process is down; it does not respond, and it is a voter;")
    assert "fenced" in node.what and node.next == "Run `tierlog cluster start 3`."
    assert "4 partitions under-replicated: orders-0 and others" in behind.what


def test_dead_remote_node_suggests_start_or_decommission() -> None:
    health = assess(cluster(brokers=[broker(1), broker(2), broker(3, fenced=True)]))
    assert [problem.status for problem in health.problems] == [Status.DEGRADED]
    assert "Start node 3" in health.problems[0].next
    assert "tierlog broker decommission 3" in health.problems[0].next


def test_paused_node_suggests_resume() -> None:
    health = assess(cluster(quorum={2: None}), {1: UP, 2: PAUSED, 3: UP})
    assert health.problems[0].what.startswith("node 2: its process is paused; it does not respond")
    assert health.problems[0].next == "Run `tierlog cluster resume 2`."


def test_broker_in_shutdown_is_reported() -> None:
    health = assess(cluster(brokers=[broker(1), broker(2, stopping=True), broker(3)]))
    assert health.problems[0].what == "node 2: its broker is shutting down"


def leaving(*, voter: bool, responds: bool, registered: bool = True) -> Observation:
    """Broker 3 has no replicas left and is shutting down."""
    voters = {str(one): url for one, url in URLS.items() if voter or one != 3}
    answers = {1: quorum(1, role="leader", voters=voters), 2: quorum(2, voters=voters)}
    last = [broker(3, stopping=True, fenced=not responds)] if registered else []
    return cluster(
        quorum={**answers, 3: quorum(3, voters=voters) if responds else None},
        brokers=[broker(1), broker(2), *last],
        assigned=[1, 2],
    )


def step(seen: Observation, state: ProcessState | None = None) -> str:
    """The next step for node 3."""
    health = assess(seen, {} if state is None else {1: UP, 2: UP, 3: state})
    return next(problem.next for problem in health.problems if problem.what.startswith("node 3"))


def test_steps_of_a_broker_that_leaves_are_in_the_documented_order() -> None:
    last = "`tierlog broker decommission 3`"
    serving = leaving(voter=True, responds=True)
    assert f"run `tierlog quorum remove 3`, then `tierlog cluster stop 3`, then {last}." in step(serving, UP)
    assert f"run `tierlog quorum remove 3`, then stop its process, then {last}." in step(serving)
    removed = leaving(voter=False, responds=True)
    assert f"run `tierlog cluster stop 3`, then {last}." in step(removed, UP)
    stopped = leaving(voter=False, responds=False)
    assert step(stopped, DOWN) == (
        f"Run {last} if it is to leave the cluster, or `tierlog cluster start 3` to keep it."
    )
    assert step(stopped) == f"Start node 3 again, or remove it with {last}."
    still_voter = leaving(voter=True, responds=False)
    assert step(still_voter, DOWN).startswith(f"Run `tierlog quorum remove 3`, then {last} if")
    assert f"with `tierlog quorum remove 3`, then {last}." in step(still_voter)
    unregistered = leaving(voter=True, responds=False, registered=False)
    assert step(unregistered, DOWN) == (
        "Run `tierlog cluster start 3`, or `tierlog quorum remove 3` if it is gone for good."
    )


@pytest.mark.parametrize("state", [None, UP])
def test_drained_broker_with_replicas_is_to_be_restarted_and_not_removed(state: ProcessState | None) -> None:
    """As after a rollout that stopped between the drain and the restart: its replicas are the cluster's."""
    seen = cluster(brokers=[broker(1), broker(2), broker(3, stopping=True)])
    first, other = step(seen, state).split(" If it is to leave the cluster, ")
    assert first.startswith("If it does not end by itself, restart it") and "leads nothing before" in first
    assert other.startswith("`tierlog broker decommission 3` moves its replicas first")
    assert "quorum remove" not in step(seen, state)
    assert ("`tierlog cluster stop 3`, then `tierlog cluster start 3`" in first) is (state is UP)


def test_stopped_node_with_replicas_is_to_be_started() -> None:
    seen = cluster(quorum={3: None}, brokers=[broker(1), broker(2), broker(3, stopping=True, fenced=True)])
    assert step(seen, DOWN) == "Run `tierlog cluster start 3`."


@pytest.mark.parametrize("local", [True, False])
def test_lost_majority_is_unavailable(local: bool) -> None:
    seen = cluster(quorum={1: None, 2: None, 3: quorum(3)})
    health = assess(seen, {1: DOWN, 2: DOWN, 3: UP} if local else {})
    assert health.status is Status.UNAVAILABLE
    assert health.problems[0].what == ("the quorum has no leader: 1 of 3 voters respond, 2 are needed")
    assert health.problems[0].next.startswith(
        "Start enough of the voters that do not respond: node 1, node 2. "
    )


def test_election_in_progress_suggests_waiting() -> None:
    health = assess(cluster(quorum={1: None, 2: quorum(2), 3: quorum(3)}))
    assert "2 of 3 voters respond" in health.problems[0].what
    assert "An election takes" in health.problems[0].next


def test_leader_of_the_highest_term_is_the_leader() -> None:
    seen = cluster(quorum={2: quorum(2, role="leader", term=5)})
    assert seen.leader == 2


def test_all_processes_down_is_unavailable() -> None:
    health = assess(Observation(), {1: DOWN, 2: DOWN, 3: DOWN})
    assert health.status is Status.UNAVAILABLE
    assert "0 of 3 voters respond, 2 are needed" in health.problems[0].what
    assert [problem.next for problem in health.problems[1:]] == [
        f"Run `tierlog cluster start {node}`." for node in (1, 2, 3)
    ]


def test_partitions_without_writes_are_unavailable() -> None:
    seen = cluster(
        partitions=partitions(offline=1, below_min_in_sync=7, under_replicated=8),
        unhealthy=[
            row("orders", 0, "offline", "below-min-in-sync", "under-replicated"),
            *[row("orders", number, "below-min-in-sync") for number in range(1, 7)],
        ],
    )
    health = assess(seen)
    assert [problem.status for problem in health.problems] == [
        Status.UNAVAILABLE,
        Status.UNAVAILABLE,
        Status.DEGRADED,
    ]
    offline, below, _ = (problem.what for problem in health.problems)
    assert offline == "1 partition without a leader: orders-0"
    assert below.startswith("7 partitions below min.insync.replicas: orders-0, orders-1")
    assert below.endswith("orders-4 and others")
    assert health.problems[1].next.endswith("start the brokers that are down.")


def test_assigned_broker_that_is_not_registered_is_reported() -> None:
    seen = cluster(brokers=[broker(1), broker(2), broker(3)], assigned=[1, 2, 3, 9])
    assert assess(seen).problems[0].what == "node 9: its broker is not registered"


def test_nodes_of_different_clusters_are_reported() -> None:
    health = assess(cluster(quorum={3: quorum(3, cluster_id="other")}))
    assert health.status is Status.UNAVAILABLE
    assert "different clusters: c, other" in health.problems[0].what


def separate_roles(**answers: Any) -> Observation:
    """Broker 1, and controller nodes 2, 3 and 4."""
    voters = {"2": "http://h:2", "3": "http://h:3", "4": "http://h:4"}
    quorums = {
        1: quorum(1, role="observer", voters=voters),
        2: quorum(2, role="leader", voters=voters),
        3: quorum(3, voters=voters),
        4: quorum(4, voters=voters),
        **{int(name[1:]): answer for name, answer in answers.items()},
    }
    return cluster(brokers=[broker(1)], assigned=[1], quorum=quorums)


ROLES = {1: ("broker",), 2: ("controller",), 3: ("controller",)}


def test_controller_node_needs_no_broker() -> None:
    assert assess(separate_roles(), dict.fromkeys(URLS, UP), ROLES).problems == ()
    assert assess(separate_roles()).problems == ()


def test_dead_controller_node_is_not_reported_as_a_missing_broker() -> None:
    (problem,) = assess(separate_roles(n3=None)).problems
    assert problem.what == "node 3: it does not respond, and it is a voter"
    assert "tierlog quorum remove 3" in problem.next and "partition" not in problem.next


def test_only_voters_count_for_the_majority() -> None:
    silent = Observation(quorum=dict.fromkeys(URLS))
    problem = assess(silent, dict.fromkeys(URLS, DOWN), ROLES).problems[0]
    assert "0 of 2 voters respond, 2 are needed" in problem.what
    assert "do not respond: node 2, node 3. " in problem.next


def test_without_a_leader_no_step_needs_the_quorum() -> None:
    dead = [broker(1), broker(2, fenced=True), broker(3, fenced=True, stopping=True)]
    quorums = {1: quorum(1, role="candidate"), 2: None, 3: None}
    health = assess(cluster(quorum=quorums, brokers=dead, partitions=partitions(offline=1)))
    steps = {problem.what.partition(":")[0]: problem.next for problem in health.problems}
    for node in (2, 3):
        assert steps[f"node {node}"].startswith(f"Start node {node};")
        assert "docs/runbooks/lost-majority.md" in steps[f"node {node}"]
    assert not any("`tierlog" in step for step in steps.values()), "each of these would fail"
    leaving = cluster(quorum={1: quorum(1, role="candidate"), 2: None, 3: quorum(3)}, brokers=dead)
    assert (
        step(leaving)
        == step(leaving, UP)
        == ("Nothing can change before the quorum has a leader: see docs/runbooks/lost-majority.md.")
    )
    assert step(leaving, DOWN) == "Run `tierlog cluster start 3`."


def test_damaged_log_is_reported_with_its_broker() -> None:
    damaged = {"broker": 2, "topic": "orders", "partition": 3, "first_offset": 7, "end_offset": 8}
    health = assess(replace(cluster(), damaged=(damaged,)))
    [problem] = health.problems
    assert health.status is Status.UNAVAILABLE
    assert "orders-3 of broker 2" in problem.what and "damaged-log.md" in problem.next


def test_two_voters_are_degraded() -> None:
    voters = {"1": URLS[1], "2": URLS[2]}
    seen = Observation(
        quorum={1: quorum(1, role="leader", voters=voters), 2: quorum(2, voters=voters)},
        brokers={"brokers": [broker(1), broker(2)], "assigned": [1, 2], "partitions": partitions()},
        unhealthy={"partitions": []},
    )
    [problem] = assess(seen).problems
    assert problem.status is Status.DEGRADED
    assert "two voters" in problem.what and "tierlog quorum add" in problem.next


def test_decommissioned_node_is_not_reported() -> None:
    assert assess(cluster(), {**dict.fromkeys(URLS, UP), 4: DOWN}).problems == ()
    still_assigned = cluster(assigned=[1, 2, 3, 4])
    [problem] = assess(still_assigned, {**dict.fromkeys(URLS, UP), 4: DOWN}).problems
    assert "`tierlog partition move`" in problem.next and "`tierlog cluster start 4`" in problem.next


def test_damaged_object_is_named_once_with_its_offsets() -> None:
    damaged = {"topic": "orders", "partition": 3, "first_offset": 7, "end_offset": 9, "object": "data/x.log"}
    rows = tuple({"broker": broker, **damaged} for broker in (1, 2))
    health = assess(replace(cluster(), damaged_remote=rows))
    assert health.status is Status.UNAVAILABLE
    [problem] = health.problems
    assert problem.what.endswith("cannot be read: orders-3 offsets 7 to 8 (data/x.log)")
    assert "damaged-object.md" in problem.next
    missing = {**damaged, "broker": 1, "object": "data/y.log", "missing": True}
    both = assess(replace(cluster(), damaged_remote=(*rows, missing)))
    assert [problem.what.partition(",")[0] for problem in both.problems] == [
        "damaged objects in the object store",
        "missing objects in the object store",
    ]
    assert both.problems[1].what.endswith("orders-3 offsets 7 to 8 (data/y.log)")


def test_late_uploads_are_named_the_latest_first() -> None:
    late = {"broker": 1, "topic": "orders", "copy_lag_ms": 90_000, "partition": 3}
    later = {**late, "partition": 4, "copy_lag_ms": 7_200_000}
    health = assess(replace(cluster(), behind=(late, later)))
    [problem] = health.problems
    assert problem.status is Status.DEGRADED
    assert problem.what.endswith("orders-4 by 7,200 s, orders-3 by 90 s")
