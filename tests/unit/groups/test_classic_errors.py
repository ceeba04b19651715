"""Every error that a client of a classic group can get, each with its cause."""

import pytest

from tierlog.broker.groups.core.events import Leaver
from tierlog.protocol.errors import ErrorCode as E


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, E.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, E.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_rejected_join_leaves_no_group(bench, fields, error):
    b = bench()
    assert b.error(b.join(**fields)) == error
    assert b.core.list_groups() == []


def test_join_with_an_inconsistent_protocol_is_rejected(bench):
    b = bench(group_max_size=1)
    b.stable()
    assert b.error(b.join(protocols=(("roundrobin", b""),))) == E.GROUP_MAX_SIZE_REACHED
    assert b.error(b.join("stranger")) == E.GROUP_MAX_SIZE_REACHED
    b = bench()
    b.stable()
    assert b.error(b.join(protocols=(("roundrobin", b""),))) == E.INCONSISTENT_GROUP_PROTOCOL
    assert b.error(b.join(protocol_type="connect")) == E.INCONSISTENT_GROUP_PROTOCOL
    assert b.error(b.join("stranger")) == E.UNKNOWN_MEMBER_ID
    assert b.error(b.join("m1", instance="never-seen")) == E.UNKNOWN_MEMBER_ID
    assert b.state == "Stable"


def test_static_member_is_fenced(bench):
    b = bench()
    b.join(instance="a")
    b.fire_due_timers()
    waiting = b.sync("m1", 1, group_instance_id="a")
    assert b.response(waiting).error == E.NONE
    b.join(instance="a")
    assert b.error(b.join("m1", instance="a")) == E.FENCED_INSTANCE_ID
    assert b.error(b.sync("m1", 1, group_instance_id="a")) == E.FENCED_INSTANCE_ID
    assert b.error(b.commit(1, member_id="m1", generation=1, group_instance_id="a")) == E.FENCED_INSTANCE_ID
    assert b.response(b.leave(Leaver("m1", "a"))).members[0][1] == E.FENCED_INSTANCE_ID
    assert b.response(b.leave(Leaver("", "a"))).members[0][1] == E.NONE
    assert b.state == "Empty"


def test_waiting_join_of_the_old_static_member_is_fenced(bench):
    b = bench()
    b.stable()
    parked = b.join(instance="a")
    b.join(instance="a")
    assert b.error(parked) == E.FENCED_INSTANCE_ID
    assert b.state == "PreparingRebalance"


def test_sync_errors(bench):
    b = bench()
    assert b.error(b.sync("m1", 1)) == E.UNKNOWN_MEMBER_ID
    b.stable(2)
    assert b.error(b.sync("stranger", 1)) == E.UNKNOWN_MEMBER_ID
    assert b.error(b.sync("m1", 2)) == E.ILLEGAL_GENERATION
    assert b.error(b.sync("m1", 1, protocol_type="connect")) == E.INCONSISTENT_GROUP_PROTOCOL
    assert b.error(b.sync("m1", 1, protocol_name="sticky")) == E.INCONSISTENT_GROUP_PROTOCOL
    b.join("m1")
    assert b.error(b.sync("m2", 1)) == E.REBALANCE_IN_PROGRESS


def test_heartbeat_errors(bench):
    b = bench()
    assert b.error(b.beat("m1", 1)) == E.UNKNOWN_MEMBER_ID
    assert b.error(b.beat("m1", 1, group_id="")) == E.INVALID_GROUP_ID
    b.stable()
    assert b.error(b.beat("m1", 0)) == E.ILLEGAL_GENERATION
    assert b.error(b.beat("m1", 1)) == E.NONE


def test_leave_has_one_result_per_member(bench):
    b = bench()
    b.stable(2)
    response = b.response(b.leave("m1", "stranger", Leaver("m2", "static")))
    assert [code for _, code in response.members] == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert b.response(b.leave("m1", group="other")).members[0][1] == E.UNKNOWN_MEMBER_ID


def test_protocol_is_chosen_by_votes_among_the_common_ones(bench):
    b = bench()
    tokens = [
        b.join(protocols=(("only-mine", b""), ("range", b"1"), ("sticky", b"2"))),
        b.join(protocols=(("sticky", b""), ("range", b""))),
        b.join(protocols=(("sticky", b""), ("range", b""))),
    ]
    b.fire_due_timers()
    assert [b.response(token).protocol_name for token in tokens] == ["sticky"] * 3
    assert b.response(tokens[0]).members[0] == ("m1", None, b"2")


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout(bench):
    b = bench()
    b.join(session_timeout_ms=100_000)
    silent = b.join(session_timeout_ms=100_000)
    b.fire_due_timers()
    assert b.response(silent).generation == 1
    synced = b.sync("m1", 1, {"m1": b"x"})
    assert b.response(synced).assignment == b"x"
    b.advance(29_999)
    assert b.error(b.beat("m1", 1)) == E.NONE
    b.advance(1)
    assert b.error(b.beat("m1", 1)) == E.REBALANCE_IN_PROGRESS
    assert b.error(b.beat("m2", 1)) == E.UNKNOWN_MEMBER_ID


def test_failed_append_of_an_assignment_starts_another_rebalance(bench):
    b = bench()
    b.join()
    b.fire_due_timers()
    b.append_error = E.NOT_ENOUGH_REPLICAS
    assert b.error(b.sync("m1", 1, {"m1": b"x"})) == E.COORDINATOR_NOT_AVAILABLE
    assert b.state == "PreparingRebalance"
    b.append_error = E.NONE
    assert b.response(b.join("m1")).generation == 2


def test_assignment_counts_only_when_it_is_durable(bench):
    b = bench()
    b.join()
    b.fire_due_timers()
    b.hold_appends = True
    waiting = b.sync("m1", 1, {"m1": b"x"})
    assert b.response(waiting) is None and b.state == "CompletingRebalance"
    again = b.sync("m1", 1, {"m1": b"other"})
    assert b.error(waiting) == E.REBALANCE_IN_PROGRESS
    b.release()
    assert b.response(again).assignment == b"x" and b.state == "Stable"


def test_static_member_keeps_its_old_id_if_the_new_one_cannot_be_stored(bench):
    b = bench()
    b.join(instance="a")
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": b"x"}, group_instance_id="a")
    b.append_error = E.KAFKA_STORAGE_ERROR
    assert b.error(b.join(instance="a")) == E.NOT_COORDINATOR
    assert b.error(b.beat("m1", 1, group_instance_id="a")) == E.NONE


def test_member_lost_after_its_join_expires_after_one_session(bench):
    b = bench()
    b.join()
    b.fire_due_timers()
    b.advance(9_999)
    assert b.state == "CompletingRebalance"
    b.advance(1)
    assert b.state == "Empty"


def test_lowered_group_max_size_removes_the_last_members_to_rejoin(bench):
    b = bench()
    b.stable(3)
    b.settings = type(b.settings)(group_initial_rebalance_delay_ms=0, group_max_size=2)
    b.restart()
    assert b.state == "PreparingRebalance"
    tokens = [b.join(member_id) for member_id in ("m2", "m3", "m1")]
    assert [b.response(token).error for token in tokens] == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]
    assert b.response(tokens[0]).leader == "m2"
