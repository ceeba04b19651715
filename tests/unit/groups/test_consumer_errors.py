"""Refused requests of the consumer protocol, and what members may do with committed offsets."""

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import Producer
from tierlog.broker.groups.core.consumer.member import MEMBER_OVERHEAD_BYTES
from tierlog.broker.groups.core.events import ConsumerHeartbeat, DeleteOffsets, ExpireOffsets
from tierlog.broker.groups.core.turn import ConsumerSettings
from tierlog.protocol.errors import ErrorCode as E

JOIN = {"rebalance_timeout_ms": 30_000, "topics": "t", "owned": ""}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"group_id": " "}, E.INVALID_REQUEST),
        ({"instance_id": ""}, E.INVALID_REQUEST),
        ({"rack_id": ""}, E.INVALID_REQUEST),
        ({"epoch": -3}, E.INVALID_REQUEST),
        ({"epoch": -2}, E.INVALID_REQUEST),  # without an instance id
        ({"member": ""}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"owned": None}, E.INVALID_REQUEST),
        ({"owned": "t0"}, E.INVALID_REQUEST),
        ({"topics": None, "subscribed_regex": None}, E.INVALID_REQUEST),
        ({"server_assignor": "mine"}, E.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_regex": "("}, E.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_regex": "t" * 10_001}, E.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 1}, E.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, E.GROUP_ID_NOT_FOUND),
        ({"free_bytes": MEMBER_OVERHEAD_BYTES}, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_refused_request_leaves_no_group_behind(bench, more, error):
    b = bench()
    fields = {"member": "a", "epoch": 0, **JOIN, **more}
    assert b.error(b.consume(fields.pop("member"), fields.pop("epoch"), **fields)) == error
    assert b.core.list_groups() == [] and b.core.member_bytes == 0


def test_member_without_an_id_gets_the_generated_one(bench):
    b = bench()
    assert b.response(b.consume("", generated_member_id="made")).member_id == "made"


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        (3, "t0", E.NONE),
        (3, None, E.NONE),
        (2, "t0 t1 t2", E.NONE),  # the response with epoch 3 was lost
        (2, "t0 t1 t2 s0", E.FENCED_MEMBER_EPOCH),
        (2, None, E.FENCED_MEMBER_EPOCH),
        (1, "t0", E.FENCED_MEMBER_EPOCH),
        (4, "t0", E.FENCED_MEMBER_EPOCH),
        (0, "", E.NONE),
    ],
)
def test_epoch_of_a_member_is_checked(bench, epoch, owned, error):
    b = bench()
    b.consume("a")
    b.consume("a", 2, topics="tu")
    more = JOIN if epoch == 0 else {"owned": owned}
    assert b.error(b.consume("a", epoch, **more)) == error


def test_static_members_are_fenced_and_released(bench):
    b = bench()
    b.consume("a", instance_id="i")
    assert b.error(b.consume("b", instance_id="i")) == E.UNRELEASED_INSTANCE_ID
    assert b.error(b.consume("b", 2, instance_id="i")) == E.FENCED_INSTANCE_ID
    assert b.error(b.consume("b", -1, instance_id="i")) == E.FENCED_INSTANCE_ID
    assert b.error(b.consume("a", 2, instance_id="j")) == E.UNKNOWN_MEMBER_ID
    b.consume("a", -2, instance_id="i")
    assert b.error(b.consume("b", instance_id="i")) == E.NONE
    assert b.error(b.consume("a", 2)) == E.UNKNOWN_MEMBER_ID


def test_group_max_size_counts_new_members_only(bench):
    b = bench(group_consumer_max_size=1)
    b.consume("a", instance_id="i")
    assert b.error(b.consume("b")) == E.GROUP_MAX_SIZE_REACHED
    assert b.error(b.consume("a", 2)) == E.NONE
    b.consume("a", -2, instance_id="i")
    assert b.error(b.consume("c", instance_id="i")) == E.NONE  # it takes the place of the first


def test_most_members_choose_the_assignor(bench):
    b = bench()
    b.consume("a")
    assert b.core.describe_consumer("g").assignor_name == "uniform"
    b.consume("a", 2, server_assignor="range")
    assert b.core.describe_consumer("g").assignor_name == "range"
    b.consume("b", server_assignor="uniform")
    assert b.core.describe_consumer("g").assignor_name == "uniform"  # equal: the order of the setting


def test_failed_assignor_is_an_error_of_the_request_and_is_tried_again(bench):
    b = bench()
    b.hold_computations = True
    token = b.consume("a")
    b.fail_computation()
    assert b.error(token) == E.UNKNOWN_SERVER_ERROR
    b.hold_computations = False
    b.advance(1_000)
    b.consume("a")
    assert b.core.describe_consumer("g").group_state == "Stable"


def test_member_removed_while_it_waits_is_answered(bench):
    b = bench()
    b.hold_computations = True
    token = b.consume("a")
    again = b.consume("a")
    assert b.error(token) == E.COORDINATOR_NOT_AVAILABLE  # its client has given it up
    b.advance(45_000)
    assert b.error(again) == E.UNKNOWN_MEMBER_ID


def test_heartbeat_of_the_previous_epoch_brings_the_assignment_again(bench):
    """librdkafka names what it owns, and no more: it missed the response with the next epoch."""
    b = bench()
    epoch = b.response(b.consume("a")).member_epoch
    missed = b.response(b.consume("a", epoch, topics="tu", owned="t0 t1 t2"))
    assert missed.member_epoch > epoch
    again = b.response(b.consume("a", epoch, owned="t0 t1 t2"))
    assert (again.member_epoch, again.assignment) == (missed.member_epoch, missed.assignment)


# ---- committed offsets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "epoch", "error"),
    [
        ("a", 3, E.NONE),
        ("a", 2, E.NONE),  # a partition that it has had since epoch 2 (KIP-1251)
        ("a", 1, E.STALE_MEMBER_EPOCH),
        ("a", 4, E.STALE_MEMBER_EPOCH),
        ("b", 3, E.UNKNOWN_MEMBER_ID),
        ("", -1, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_checks_the_epoch_of_the_member(bench, member, epoch, error):
    b = bench()
    b.consume("a")
    b.consume("a", 2, topics="tu")
    token = b.commit(7, member_id=member, generation=epoch, has_epochs=True)
    response = b.response(token)
    assert (response.error or response.partitions[0][1]) == error


def test_partition_assigned_later_refuses_a_commit_of_an_earlier_epoch(bench):
    b = bench()
    b.consume("a")
    b.consume("a", 2, topics="tu")
    assert (
        b.error(b.commit(7, topic="u", member_id="a", generation=2, has_epochs=True)) == E.STALE_MEMBER_EPOCH
    )


@pytest.mark.parametrize(
    ("member", "epoch", "error"),
    [
        ("a", 3, E.NONE),
        ("a", 2, E.NONE),
        ("a", 1, E.ILLEGAL_GENERATION),
        ("a", 4, E.ILLEGAL_GENERATION),
        ("b", 3, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_offset_in_a_transaction_of_another_epoch_gets_an_error_that_producers_know(
    bench, member, epoch, error
):
    """Producers abort after ILLEGAL_GENERATION, and fail for good after STALE_MEMBER_EPOCH."""
    b = bench()
    b.consume("a")
    b.consume("a", 2, topics="tu")
    token = b.commit(7, member_id=member, generation=epoch, has_epochs=True, producer=Producer(1, 0))
    response = b.response(token)
    assert (response.error or response.partitions[0][1]) == error


def test_transaction_of_an_older_client_may_commit(bench):
    b = bench()
    b.consume("a")
    assert b.error(b.commit(7, producer=Producer(1, 0))) == E.NONE


@pytest.mark.parametrize(
    ("member", "epoch", "error"),
    [
        ("a", 2, E.NONE),
        ("", -1, E.NONE),
        ("a", 1, E.STALE_MEMBER_EPOCH),
        ("b", 2, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_fetch_checks_the_epoch_of_the_member(bench, member, epoch, error):
    b = bench()
    b.consume("a")
    assert b.core.check_fetch("g", member, epoch) == error
    assert b.core.check_fetch("another", member, epoch) == E.NONE


def test_offsets_of_subscribed_topics_stay(bench):
    b = bench(offsets_retention_ms=1_000)
    b.commit(1, topic="t")
    b.commit(1, topic="u")
    b.consume("a", subscribed_regex="t")
    b.consume("a", 2)
    places = TopicPartition("t", 0), TopicPartition("u", 0)
    token = b.ask(DeleteOffsets, group_id="g", partitions=places[:1])
    assert b.response(token).partitions == ((places[0], E.GROUP_SUBSCRIBED_TO_TOPIC),)
    b.advance(2_000)
    b.send(ExpireOffsets())
    assert set(b.core.offsets("g")) == {places[0]}
    b.consume("a", -1)
    b.advance(1_000)
    b.send(ExpireOffsets())
    assert b.core.list_groups() == []


def test_offsets_of_simple_consumers_become_those_of_the_group(bench):
    b = bench()
    b.commit(1)
    assert b.core.list_groups() == [("g", "", "Empty", "classic")]
    b.consume("a")
    assert b.core.list_groups() == [("g", "consumer", "Stable", "consumer")]
    assert b.core.offsets("g")
    b.restart()
    assert b.core.list_groups() == [("g", "consumer", "Stable", "consumer")]


def test_session_timeout_is_the_groups(bench):
    b = bench(consumer=ConsumerSettings(session_timeout_ms=60_000, assignment_interval_ms=0))
    b.consume("a")
    b.advance(59_999)
    assert b.error(b.consume("a", 2)) == E.NONE
    b.advance(60_000)
    assert b.error(b.consume("a", 2)) == E.UNKNOWN_MEMBER_ID


def test_older_versions_of_offset_commit_are_refused_for_members(bench) -> None:
    b = bench()
    b.consume("a")
    old = b.commit(1, member_id="a", generation=2, has_epochs=False)
    assert b.error(old) == E.UNSUPPORTED_VERSION


def test_topic_that_comes_twice_among_the_owned_partitions_counts_twice(bench):
    b = bench()
    b.consume("a")
    second = b.response(b.consume("b"))
    t = b.topics["t"]
    b.ask(ConsumerHeartbeat, group_id="g", member_id="a", member_epoch=2, owned=((t, (0, 1, 2)), (t, ())))
    waiting = b.consume("b", second.member_epoch, owned="")
    assert b.response(waiting).assignment is None  # a still owns the partition


def test_partitions_of_a_member_that_takes_the_place_of_another_get_an_owner(bench):
    b = bench()
    b.consume("a", instance_id="one")
    b.consume("b", instance_id="two")
    b.consume("a", 2, instance_id="one", owned="t0 t1")
    b.consume("b", 3, instance_id="two")
    b.consume("b", -2, instance_id="two")
    merged = b.response(b.consume("a", instance_id="two"))
    assert b.text_of(merged.assignment) == "t0 t1 t2"
