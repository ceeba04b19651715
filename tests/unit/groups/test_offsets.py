"""Committed offsets: checks of a commit, durability and expiry."""

from dataclasses import replace

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import Producer
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.core.events import DeleteOffsets, ExpireOffsets
from tierlog.broker.groups.core.formats import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    encode_key,
    encode_offset,
)
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.protocol.errors import ErrorCode as E

T0 = TopicPartition("t", 0)
DAY_MS = 86_400_000


def offset(b, topic="t", group="g"):
    committed = b.core.offsets(group).get(TopicPartition(topic, 0))
    return committed and committed.offset


def test_simple_consumer_commits_without_a_group(bench):
    b = bench()
    b.commit(5, metadata="note")
    committed = CommittedOffset(5, 3, "note", b.now_ms, topic_id=b.topics["t"])
    assert b.core.offsets("g").get(T0) == committed
    assert b.state == "Empty"
    b.restart()
    assert b.core.offsets("g").get(T0) == committed


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "m1", "generation": 1}, E.NONE),
        ({"member_id": "m1", "generation": 2}, E.ILLEGAL_GENERATION),
        ({"member_id": "stranger", "generation": 1}, E.UNKNOWN_MEMBER_ID),
        ({}, E.UNKNOWN_MEMBER_ID),
        ({"group": "missing", "member_id": "m1", "generation": 1}, E.ILLEGAL_GENERATION),
        ({"group": "simple"}, E.NONE),
    ],
)
def test_commit_checks(bench, fields, error):
    b = bench()
    b.stable()
    assert b.error(b.commit(1, **fields)) == error


def test_commit_behind_a_sync_group_that_is_not_durable_yet(bench):
    """One connection may send both: Kafka handles the commit after the response to SyncGroup."""
    b = bench()
    b.join()
    b.fire_due_timers()
    b.hold_appends = True
    synced, committed = b.sync("m1", 1, {"m1": b"mine"}), b.commit(7, member_id="m1", generation=1)
    b.release()
    assert (b.error(synced), b.error(committed), offset(b)) == (E.NONE, E.NONE, 7)


def test_commit_is_rejected_before_the_assignment_and_accepted_while_revoking(bench):
    b = bench()
    b.join()
    b.fire_due_timers()
    assert b.error(b.commit(1, member_id="m1", generation=1)) == E.REBALANCE_IN_PROGRESS
    b.sync("m1", 1)
    b.join()
    assert b.state == "PreparingRebalance"
    assert b.error(b.commit(2, member_id="m1", generation=1)) == E.NONE
    assert offset(b) == 2


def test_commit_counts_only_when_it_is_durable(bench):
    b = bench(offset_metadata_max_bytes=4)
    b.hold_appends = True
    first, second = b.commit(1), b.commit(2)
    assert b.waiting == [first, second] and offset(b) is None
    b.release()
    assert b.waiting == [] and offset(b) == 2
    failed = b.commit(3)
    b.release(E.NOT_ENOUGH_REPLICAS)
    assert b.error(failed) == E.COORDINATOR_NOT_AVAILABLE and offset(b) == 2
    too_long = b.commit(4, metadata="12345")
    assert b.response(too_long).partitions == ((T0, E.OFFSET_METADATA_TOO_LARGE),)


def test_empty_group_expires_with_its_offsets(bench):
    b = bench(offsets_retention_ms=7 * DAY_MS)
    b.stable()
    b.commit(9, member_id="m1", generation=1)
    for _ in range(10):
        b.timers.clear()  # the member lives on
        b.advance(DAY_MS)
        b.send(ExpireOffsets())
    assert offset(b) == 9
    b.leave("m1")
    b.advance(7 * DAY_MS - 1)
    b.send(ExpireOffsets())
    assert offset(b) == 9
    b.advance(1)
    b.send(ExpireOffsets())
    assert offset(b) is None and b.core.list_groups() == []
    assert [record.value for record in b.log[-2:]] == [None, None]
    b.restart()
    assert b.core.list_groups() == []


def test_offset_of_a_consumer_group_expires_after_its_last_member_has_left(bench):
    """A group that is stopped for a minute keeps the offsets of partitions without news."""
    b = bench(offsets_retention_ms=7 * DAY_MS)
    b.consume("a")
    b.commit(9, member_id="a", generation=2)
    b.timers.clear()  # the member lives on
    b.advance(8 * DAY_MS)
    b.consume("a", -1)
    b.advance(7 * DAY_MS - 1)
    b.send(ExpireOffsets())
    assert offset(b) == 9
    b.advance(1)
    b.send(ExpireOffsets())
    assert offset(b) is None and b.core.list_groups() == []


def test_offset_does_not_expire_while_a_commit_of_it_is_pending(bench):
    b = bench(offsets_retention_ms=DAY_MS)
    b.commit(5)
    b.commit(6, topic="u")
    b.advance(DAY_MS)
    b.hold_appends = True
    committed = b.commit(7)
    b.send(ExpireOffsets())
    b.release()
    assert b.error(committed) == E.NONE and offset(b) == 7
    assert offset(b, "u") is None
    b.restart()
    assert offset(b) == 7
    b.hold_appends = False
    b.advance(DAY_MS)
    b.send(ExpireOffsets())
    assert offset(b) is None and b.core.list_groups() == []


def test_expiry_by_commit_retention_and_of_unsubscribed_topics(bench):
    b = bench(offsets_retention_ms=7 * DAY_MS)
    b.commit(1, group="simple", retention_ms=1_000)
    b.commit(1, group="simple", topic="u")
    b.stable()
    b.commit(1, member_id="m1", generation=1)
    b.commit(1, topic="u", member_id="m1", generation=1)
    b.timers.clear()
    b.advance(1_000)
    b.send(ExpireOffsets())
    assert offset(b, group="simple") is None and offset(b, "u", "simple") == 1
    b.advance(7 * DAY_MS)
    b.send(ExpireOffsets())
    assert offset(b) == 1, "the group consumes t"
    assert offset(b, "u") is None, "no member subscribes to u any more"


def test_deleting_groups(bench):
    b = bench()
    assert b.error(b.delete()) == E.GROUP_ID_NOT_FOUND
    b.stable()
    b.commit(1, member_id="m1", generation=1)
    assert b.error(b.delete()) == E.NON_EMPTY_GROUP
    b.leave("m1")
    assert b.error(b.delete()) == E.NONE
    assert offset(b) is None and b.core.describe("g") is None
    b.restart()
    assert offset(b) is None and b.core.describe("g") is None


def test_failed_append_of_a_deletion_restores_the_group(bench):
    b = bench()
    b.commit(1)
    b.append_error = E.KAFKA_STORAGE_ERROR
    assert b.error(b.delete()) == E.NOT_COORDINATOR
    assert offset(b) == 1 and b.state == "Empty"


def test_offset_delete_keeps_subscribed_topics(bench):
    b = bench()
    b.stable()
    b.commit(1, member_id="m1", generation=1)
    b.commit(1, topic="u", member_id="m1", generation=1)
    token = b.ask(
        DeleteOffsets, group_id="g", partitions=(T0, TopicPartition("u", 0), TopicPartition("v", 0))
    )
    assert [code for _, code in b.response(token).partitions] == [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE, E.NONE]
    assert offset(b) == 1 and offset(b, "u") is None
    assert b.error(b.ask(DeleteOffsets, group_id="none", partitions=(T0,))) == E.GROUP_ID_NOT_FOUND


def test_offsets_of_deleted_topics_are_removed(bench):
    b = bench()
    b.commit(1)
    b.commit(1, topic="u")
    b.recreate("t")
    assert offset(b) is None and offset(b, "u") == 1
    assert decode_key(b.log[-1].key) == OffsetKey("g", "t", 0) and b.log[-1].value is None


def test_offset_of_an_earlier_topic_is_removed_by_a_load(bench):
    b = bench()
    b.commit(1000)
    b.recreate("t", seen=False)
    b.restart()
    assert offset(b) is None
    assert b.log[-1].value is None, "the next coordinator does not find it either"


def test_offset_of_an_earlier_topic_is_removed_even_if_its_tombstone_fails(bench):
    b = bench()
    b.commit(1000)
    b.append_error = E.NOT_ENOUGH_REPLICAS
    b.recreate("t")
    assert offset(b) is None
    b.restart()
    assert offset(b) is None


def test_commit_durable_after_its_topic_was_deleted_does_not_count(bench):
    b = bench()
    b.hold_appends = True
    b.commit(1000)
    b.recreate("t")
    b.commit(7)
    b.release()
    assert offset(b) == 7
    b.restart()
    assert offset(b) == 7


def test_offset_without_a_topic_id_belongs_to_the_topic_of_its_name(bench):
    b = bench()
    for topic in ("t", "gone"):
        key = encode_key(OffsetKey("g", topic, 0))
        b.log.append(StoredRecord(key, encode_offset(CommittedOffset(5, 3, "", b.now_ms))))
    b.restart()
    assert offset(b) == 5
    assert offset(b, "gone") is None
    b.recreate("t")
    assert offset(b) is None


@pytest.mark.parametrize("is_deleted", (False, True))
def test_load_keeps_the_offset_of_a_committed_transaction_unless_its_topic_was_deleted(bench, is_deleted):
    b = bench()
    committed = CommittedOffset(5, 3, "", b.now_ms, topic_id=b.topics["t"])
    if is_deleted:
        b.recreate("t", seen=False)
    b.core = Coordinator(b.settings)
    b.core.replay(encode_key(OffsetKey("g", "t", 0)), encode_offset(committed), producer_id=7)
    b.core.replay_marker(7, committed=True)
    b.core.finish_replay(b.now_ms, b.view())
    assert offset(b) == (None if is_deleted else 5)


def test_offset_in_a_transaction_outlives_that_of_an_earlier_topic(bench):
    """The tombstone of the old offset failed, and the coordinator moved before the transaction ended."""
    b = bench()
    key = encode_key(OffsetKey("g", "t", 0))
    old = CommittedOffset(1000, 3, "", b.now_ms, topic_id=b.topics["t"])
    b.recreate("t", seen=False)
    new = replace(old, offset=7, topic_id=b.topics["t"])
    b.log += [StoredRecord(key, encode_offset(old)), StoredRecord(key, encode_offset(new))]

    def load() -> None:
        b.core = Coordinator(b.settings)
        for number, record in enumerate(b.log):
            b.core.replay(*record, producer_id=7 if number == 1 else NO_PRODUCER_ID)

    load()
    b._perform(b.core.finish_replay(b.now_ms, b.view()))
    assert offset(b) is None and b.core.unstable_partitions("g") == [T0]
    b.core.replay_marker(7, committed=True)
    assert offset(b) == 7
    load()
    b.core.replay_marker(7, committed=True)
    b._perform(b.core.finish_replay(b.now_ms, b.view()))
    assert offset(b) == 7


def test_commit_in_flight_outlives_the_offset_of_an_earlier_topic(bench):
    b = bench()
    b.commit(1000)
    b.recreate("t", seen=False)
    b.hold_appends = True
    token = b.commit(7)
    b.send_topics("t")
    b.release()
    assert b.error(token) == E.NONE
    b.restart()
    assert offset(b) == 7


def test_offset_of_a_transaction_is_unstable_before_it_is_durable(bench):
    """Else another consumer could begin at the last one, and process again what the transaction commits."""
    b = bench()
    b.hold_appends = True
    b.commit(6, topic="u")
    token = b.commit(7, producer=Producer(7, 0))
    assert b.core.unstable_partitions("g") == [T0] and b.core.unstable_partitions("h") == []
    b.release()
    assert b.error(token) == E.NONE and b.core.unstable_partitions("g") == [T0]
    failed = b.commit(8, topic="v", producer=Producer(7, 0))
    b.release(E.NOT_ENOUGH_REPLICAS)
    assert b.error(failed) == E.COORDINATOR_NOT_AVAILABLE and b.core.unstable_partitions("g") == [T0]
