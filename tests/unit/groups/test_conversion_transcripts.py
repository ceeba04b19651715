"""Groups that change their protocol, as transcripts: the time in ms, `#n` a request, and later its answer."""

from textwrap import dedent

import pytest

from tierlog.broker.groups.core.consumer.embedded_protocol import encode_assignment
from tierlog.broker.groups.core.consumer.group import NEW_IDS_REMEMBERED
from tierlog.broker.groups.core.events import TimerKind
from tierlog.broker.groups.core.turn import MigrationPolicy
from tierlog.protocol.errors import ErrorCode as E


def same(got: str, want: str) -> bool:
    assert got == dedent(want).strip(), got
    return True


def classic_group(b, topics: str = "t") -> None:
    """The classic member m1 has all three partitions of t."""
    b.join_cooperative(topics=topics)
    b.fire_due_timers()
    version = b"\0\3"
    b.sync("m1", 1, {"m1": encode_assignment({"t": [0, 1, 2]}, version)})
    b.lines.clear()


def test_classic_group_becomes_a_consumer_group_and_classic_again(bench):
    b = bench()
    classic_group(b)
    b.consume("a")
    b.beat("m1", 1)
    b.join_cooperative("m1", owned="t0 t1 t2")
    b.sync("m1", 1)
    b.consume("a", 2)
    b.beat("m1", 1)
    b.join_cooperative("m1", owned="t0 t1")
    b.sync("m1", 2)
    b.beat("m1", 2)
    b.consume("a", 2)
    b.consume("a", -1)
    b.beat("m1", 2)
    b.join_cooperative("m1", owned="t0 t1")
    assert b.core.list_groups() == [("g", "consumer", "CompletingRebalance", "classic")]
    assert same(
        b.transcript,
        """
        0 #3 consume a 0 topics=t
            append -g, +member/g/m1, +member/g/a, +group/g, +target/g/m1, +targets/g,
                +current/g/m1, +current/g/a
            append +target/g/m1, +target/g/a, +targets/g, +current/g/a
            #3 member a epoch=2 []
        0 #4 heartbeat m1 1
            #4 REBALANCE_IN_PROGRESS
        0 #5 join m1
            append +member/g/m1, +current/g/m1
            #5 joined m1 gen=1 leader= []
        0 #6 sync m1 1
            #6 assigned t0 t1
        0 #7 consume a 2
            #7 member a epoch=2
        0 #8 heartbeat m1 1
            #8 REBALANCE_IN_PROGRESS
        0 #9 join m1
            append +member/g/m1, +current/g/m1
            #9 joined m1 gen=2 leader= []
        0 #10 sync m1 2
            #10 assigned t0 t1
        0 #11 heartbeat m1 2
            #11 ok
        0 #12 consume a 2
            append +current/g/a
            #12 member a epoch=2 [t2]
        0 #13 consume a -1
            append -current/g/a, -target/g/a, -member/g/a, +group/g
            append -current/g/a, -current/g/m1, -target/g/a, -target/g/m1, -member/g/a,
                -member/g/m1, -targets/g, -group/g, +g
            #13 member a epoch=-1
        0 #14 heartbeat m1 2
            #14 REBALANCE_IN_PROGRESS
        0 #15 join m1
            #15 joined m1 gen=4 leader=m1 [m1]
        """,
    )


def became_classic_again(b) -> None:
    """The classic member m1 is in epoch 2 when the only consumer leaves."""
    classic_group(b)
    b.consume("a")
    b.join_cooperative("m1", owned="t0 t1 t2")
    assert b.response(b.join_cooperative("m1", owned="t0 t1")).generation == 2
    b.consume("a", -1)
    assert b.core.list_groups() == [("g", "consumer", "PreparingRebalance", "classic")]


def test_members_of_a_group_that_becomes_classic_commit_before_they_rejoin(bench):
    """ILLEGAL_GENERATION would take their partitions away, and they would process records again."""
    b = bench()
    became_classic_again(b)
    assert b.error(b.beat("m1", 2)) == E.REBALANCE_IN_PROGRESS
    assert b.error(b.sync("m1", 2)) == E.REBALANCE_IN_PROGRESS
    assert b.error(b.commit(7, member_id="m1", generation=2)) == E.NONE
    for generation in (1, 3):
        assert b.error(b.commit(8, member_id="m1", generation=generation)) == E.ILLEGAL_GENERATION
    generation = b.response(b.join_cooperative("m1", owned="t0 t1")).generation
    assert b.error(b.commit(8, member_id="m1", generation=2)) == E.ILLEGAL_GENERATION
    b.sync("m1", generation)
    assert b.error(b.commit(8, member_id="m1", generation=generation)) == E.NONE


def test_members_rejoin_if_the_coordinator_fails_just_after_their_group_became_classic(bench):
    """The next coordinator finds a stable group, in which no member has the partitions of the consumer."""
    b = bench()
    became_classic_again(b)
    b.restart()
    assert b.error(b.beat("m1", 2)) == E.ILLEGAL_GENERATION


def test_eager_member_has_given_everything_up_when_it_rejoins(bench):
    b = bench()
    classic_group(b)
    b.consume("a")
    b.join_cooperative("m1")
    b.sync("m1", 2)
    b.consume("a", 2)
    assert same(
        b.transcript,
        """
        0 #3 consume a 0 topics=t
            append -g, +member/g/m1, +member/g/a, +group/g, +target/g/m1, +targets/g,
                +current/g/m1, +current/g/a
            append +target/g/m1, +target/g/a, +targets/g, +current/g/a
            #3 member a epoch=2 []
        0 #4 join m1
            append +current/g/m1
            #4 joined m1 gen=2 leader= []
        0 #5 sync m1 2
            #5 assigned t0 t1
        0 #6 consume a 2
            append +current/g/a
            #6 member a epoch=2 [t2]
        """,
    )


def test_classic_member_that_does_not_rejoin_is_removed(bench):
    b = bench()
    classic_group(b)
    b.consume("a")
    for _ in range(3):
        b.beat("m1", 1)
        b.advance(9_000)
    b.beat("m1", 1)
    b.advance(3_000)
    b.consume("a", 2)
    assert same(
        b.transcript,
        """
        0 #3 consume a 0 topics=t
            append -g, +member/g/m1, +member/g/a, +group/g, +target/g/m1, +targets/g,
                +current/g/m1, +current/g/a
            append +target/g/m1, +target/g/a, +targets/g, +current/g/a
            #3 member a epoch=2 []
        0 #4 heartbeat m1 1
            #4 REBALANCE_IN_PROGRESS
        9000 #5 heartbeat m1 1
            #5 REBALANCE_IN_PROGRESS
        18000 #6 heartbeat m1 1
            #6 REBALANCE_IN_PROGRESS
        27000 #7 heartbeat m1 1
            #7 REBALANCE_IN_PROGRESS
        30000 join timer m1
            append -current/g/m1, -target/g/m1, -member/g/m1, +group/g
            append +target/g/a, +targets/g
        30000 #8 consume a 2
            append +current/g/a
            #8 member a epoch=3 [t0 t1 t2]
        """,
    )


def test_removed_classic_member_learns_that_it_lost_its_partitions(bench):
    """Else it would give them up in its new generation, and commit offsets over those of their new owner."""
    b = bench()
    classic_group(b)
    b.consume("a")
    b.advance(11_000)
    b.consume("a", 2)
    b.lines.clear()
    b.join_cooperative("m1", owned="t0 t1 t2")
    b.join_cooperative("m1")
    assert same(
        b.transcript,
        """
        11000 #5 join m1
            #5 UNKNOWN_MEMBER_ID m1
        11000 #6 join m1
            append +member/g/m1, +group/g, +current/g/m1
            append +target/g/a, +target/g/m1, +targets/g, +current/g/m1
            #6 joined m1 gen=4 leader= []
        """,
    )


def test_removed_classic_member_that_still_names_its_partitions_joins(bench):
    """As franz-go and kafka-python do: after UNKNOWN_MEMBER_ID they drop their id only."""
    b = bench()
    classic_group(b)
    b.consume("a")
    b.advance(11_000)
    member_id = "m1"
    for error in (E.UNKNOWN_MEMBER_ID, E.MEMBER_ID_REQUIRED, E.NONE):
        joined = b.response(b.join_cooperative(member_id, owned="t0 t1 t2", member_id_required=True))
        assert joined.error == error
        member_id = joined.member_id if error != E.UNKNOWN_MEMBER_ID else ""
    b.beat(member_id, joined.generation)
    b.advance(11_000)
    assert b.error(b.join_cooperative(member_id, owned="t0")) == E.UNKNOWN_MEMBER_ID, "it was removed again"


def test_new_ids_that_are_never_used_are_forgotten(bench):
    b = bench()
    classic_group(b)
    b.consume("a")
    ids = [
        b.response(b.join_cooperative(owned="t0", member_id_required=True)).member_id
        for _ in range(NEW_IDS_REMEMBERED + 1)
    ]
    assert b.error(b.join_cooperative(ids[0], owned="t0")) == E.UNKNOWN_MEMBER_ID
    assert b.error(b.join_cooperative(ids[1], owned="t0")) == E.NONE


def test_converted_group_survives_a_restart_of_the_coordinator(bench):
    b = bench()
    classic_group(b)
    b.consume("a")
    before = b.core.describe_consumer("g"), b.core.member_bytes
    b.restart()
    assert (b.core.describe_consumer("g"), b.core.member_bytes) == before
    assert [member.member_type for member in before[0].members] == [0, 1]
    b.join_cooperative("m1")
    assert b.error(b.sync("m1", 2)) == E.NONE


def test_empty_groups_change_their_kind_in_any_case(bench):
    b = bench(group_consumer_migration_policy=MigrationPolicy.DISABLED)
    classic_group(b)
    assert b.error(b.consume("a")) == E.GROUP_ID_NOT_FOUND
    b.leave("m1")
    b.fire_due_timers()
    assert b.error(b.consume("a")) == E.NONE
    assert b.error(b.consume("a", -1)) == E.NONE
    assert b.error(b.join("m1")) == E.UNKNOWN_MEMBER_ID
    assert b.core.list_groups() == [("g", "consumer", "Empty", "consumer")]
    b.join()
    b.fire_due_timers()
    assert b.core.list_groups() == [("g", "consumer", "CompletingRebalance", "classic")]
    b.restart()
    assert b.core.describe_consumer("g") is None


@pytest.mark.parametrize(
    "protocols",
    [
        (("mine", b"not a subscription"),),
        (("mine", b""),),
    ],
)
def test_group_whose_members_are_no_consumers_stays_classic(bench, protocols):
    b = bench()
    b.join(protocols=protocols)
    b.fire_due_timers()
    assert b.error(b.consume("a")) == E.GROUP_ID_NOT_FOUND
    assert b.state == "CompletingRebalance"


def test_downgrade_follows_the_policy(bench):
    b = bench(group_consumer_migration_policy=MigrationPolicy.UPGRADE)
    classic_group(b)
    b.consume("a")
    b.consume("a", -1)
    assert b.core.list_groups() == [("g", "consumer", "Reconciling", "consumer")]


@pytest.mark.parametrize("generation", [0, 1])
def test_classic_member_that_has_not_joined_yet_does_not_keep_the_group_classic(bench, generation):
    b = bench(group_consumer_migration_policy=MigrationPolicy.DISABLED)
    if generation:
        b.leave(*b.stable())
    pending = b.response(b.join(member_id_required=True)).member_id
    assert b.response(b.consume("c", subscribed_regex="[t]")).member_epoch == 2
    assert b.core.list_groups() == [("g", "consumer", "Reconciling", "consumer")]
    assert b.error(b.join_cooperative(pending)) == E.NONE
    b.advance(20_000)
    assert b.waiting == []


def test_partitions_that_do_not_exist_are_left_out_of_a_converted_group(bench):
    b = bench()
    b.join_cooperative()
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": encode_assignment({"t": range(-9, 9_999), "x": [0]}, b"\0\3")})
    b.consume("c")
    m1 = next(each for each in b.core.describe_consumer("g").members if each.member_id == "m1")
    assert [each.partitions for each in m1.assignment.topic_partitions] == [[0, 1, 2]]


def test_late_response_of_a_converted_group_sets_no_timer_of_the_classic_one(bench):
    """The classic group has one timer for all its members."""
    b = bench()
    b.consume("c")
    m1 = b.response(b.join_cooperative()).member_id
    b.hold_appends = True
    joining = b.join_cooperative(m1, topics="tu")
    b.consume("c", -1)
    assert b.core.describe("g").group_state == "PreparingRebalance"
    b.hold_appends = False
    b.release()
    assert b.error(joining) == E.NONE
    assert {key.kind for key in b.timers if key.member_id} == {TimerKind.SESSION}


def test_unusable_subscription_of_another_protocol_does_not_break_a_converted_group(bench):
    b = bench()
    shared = ("sticky", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0")
    tokens = [b.join(protocols=(("own", b"\0"), shared)), b.join(protocols=(shared,))]
    b.fire_due_timers()
    m1, m2 = (b.response(token).member_id for token in tokens)
    b.sync(m2, 1)
    b.sync(m1, 1, {m1: b"", m2: b""})
    b.consume("c")  # converts the group
    b.consume("c", -1)  # and converts it back
    assert b.core.describe("g").group_state == "PreparingRebalance"


def test_refused_heartbeat_does_not_convert(bench):
    b = bench()
    classic_group(b)
    before = b.core.member_bytes
    assert b.error(b.consume("a", free_bytes=0)) == E.COORDINATOR_NOT_AVAILABLE
    assert (b.state, b.core.member_bytes) == ("Stable", before)


def test_waiting_requests_of_the_classic_group_are_answered(bench):
    b = bench()
    first = b.join_cooperative()
    b.fire_due_timers()
    waiting = b.join_cooperative()
    syncing = b.sync("m1", 1)
    assert b.error(first) == E.NONE and b.response(waiting) is None
    b.consume("a")
    assert b.error(waiting) == E.REBALANCE_IN_PROGRESS
    assert b.error(syncing) == E.REBALANCE_IN_PROGRESS


def test_classic_member_may_take_the_place_of_a_static_consumer(bench):
    b = bench()
    b.consume("a", instance_id="i")
    b.join_cooperative(instance="i")
    assert b.core.list_groups() == [("g", "consumer", "PreparingRebalance", "classic")]


def test_classic_members_of_a_consumer_group_are_checked(bench):
    b = bench()
    classic_group(b)
    b.consume("a")
    assert b.error(b.beat("m1", 2)) == E.ILLEGAL_GENERATION
    assert b.error(b.beat("a", 2)) == E.UNKNOWN_MEMBER_ID
    assert b.error(b.beat("m1", 1, group_instance_id="i")) == E.UNKNOWN_MEMBER_ID
    assert b.error(b.sync("m1", 2)) == E.ILLEGAL_GENERATION
    assert b.error(b.sync("m1", 1)) == E.REBALANCE_IN_PROGRESS
    assert b.error(b.join(protocols=(("other", b""),))) == E.INCONSISTENT_GROUP_PROTOCOL
    assert b.error(b.join_cooperative(member_id_required=True)) == E.MEMBER_ID_REQUIRED
    assert b.error(b.commit(1, member_id="m1", generation=2)) == E.ILLEGAL_GENERATION
    assert b.error(b.commit(1, member_id="m1", generation=1)) == E.NONE
    b.join_cooperative("m1")
    assert b.error(b.sync("m1", 2, protocol_name="other")) == E.INCONSISTENT_GROUP_PROTOCOL
    assert b.response(b.leave("b", "m1")).members[0][1] == E.UNKNOWN_MEMBER_ID
    assert b.core.describe_consumer("g").members[0].member_id == "a"
