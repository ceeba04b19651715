"""Replica roles: a leader and a follower replica, connected by the test."""

import errno
import random
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from opened_replica import opened_replica

from tierlog.base.files import Buffer, FileSlice, OsFiles
from tierlog.base.leader_epochs import UNKNOWN_END, EpochEntry
from tierlog.base.types import NO_LEADER, InvariantViolation, TopicPartition
from tierlog.broker.replication.core.follower import (
    STALE,
    Fetched,
    Retry,
    StartAt,
    StartFromTier,
    Step,
    Truncate,
)
from tierlog.broker.replication.replica import ReadResult, Replica
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import assign, iter_batches
from tierlog.records.markers import EndMarker
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
ALL = [1, 2, 3]
UNLIMITED = 1 << 30


def replica(directory: Path, broker_id: int, config: TopicConfig | None = None, **options: int) -> Replica:
    return opened_replica(
        TopicPartition("t", 0),
        uuid.UUID(int=1),
        broker_id,
        directory / f"{broker_id}" / "t-0",
        config or TopicConfig(),
        OsFiles(),
        NOW,
        clean=False,
        rng=random.Random(1),
        **options,
    )


def batch(count: int = 1, **options: object) -> memoryview:
    return memoryview(encode_batch([NewRecord(NOW, b"k", b"v", ())] * count, **options))  # type: ignore[arg-type]


def content(result: ReadResult) -> memoryview:
    parts = result.slice.parts if result.slice is not None else ()
    return memoryview(
        bytearray().join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
    )


def fetch(follower: Replica, leader: Replica, max_bytes: int = UNLIMITED) -> Step:
    """One fetch, as the fetcher does it."""
    requested = follower.as_follower.fetch_position()
    assert requested is not None
    found = leader.read_for_follower(
        requested.offset, max_bytes, last_fetched_epoch=requested.last_fetched_epoch
    )
    if not found.error and found.diverging == UNKNOWN_END:
        leader.as_leader.follower_fetched(follower._core.broker_id, 1, requested.offset, NOW)
    answer = Fetched(found.error, leader.high_watermark, found.log_start_offset, found.diverging)
    step = follower.as_follower.take_fetched(requested, answer, content(found), NOW)
    follower.check()
    leader.check()
    return step


def lead(one: Replica, epoch: int, *others: Replica, in_sync: list[int] | None = None) -> None:
    broker_id = one._core.broker_id
    one.become_leader(epoch, epoch, in_sync or ALL[: 1 + len(others)], ALL, NOW)
    for other in others:
        other.become_follower(broker_id, epoch, epoch)


def whole(one: Replica) -> bytes:
    """The bytes of all records."""
    return b"".join(data for _, data in one.log.batches(one.local_log_start_offset))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Replica, Replica]:
    leader, follower = replica(tmp_path, 1), replica(tmp_path, 2)
    lead(leader, 0, follower)
    return leader, follower


def test_follower_copies_the_bytes_and_the_high_watermark(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    for count in (1, 3, 2):
        leader.as_leader.append(batch(count), NOW)
    fetch(follower, leader)
    assert whole(follower) == whole(leader) != b""
    assert (leader.high_watermark, follower.high_watermark) == (0, 0)
    assert leader.as_leader.acknowledgement(6) is None
    fetch(follower, leader)
    assert (leader.high_watermark, follower.high_watermark) == (6, 6)
    assert leader.as_leader.acknowledgement(6) == ErrorCode.NONE


def test_has_nothing_for_is_true_only_for_a_caught_up_follower(tmp_path: Path) -> None:
    one, two = replica(tmp_path, 1), replica(tmp_path, 2)
    lead(one, 3)
    one.as_leader.append(batch(3), NOW, acks=1)
    lead(two, 4, in_sync=[2])  # with other records from the same offset on
    two.as_leader.append(batch(2), NOW, acks=1)
    one.become_follower(2, 4, 4)
    fetch(one, two)
    fetch(one, two)
    lead(one, 5)
    one.as_leader.append(batch(2), NOW, acks=1)
    found = {
        (offset, epoch): one.as_leader.has_nothing_for(offset, epoch)
        for offset in range(-1, 6)
        for epoch in range(-1, 7)
    }
    assert [at for at, nothing in found.items() if nothing] == [(4, -1), (4, 5)]
    for offset, epoch in [(4, -1), (4, 5)]:
        result = one.read_for_follower(offset, UNLIMITED, last_fetched_epoch=epoch)
        assert (result.error, content(result), result.diverging) == (ErrorCode.NONE, b"", UNKNOWN_END)
    assert one.read_for_follower(4, UNLIMITED, last_fetched_epoch=4).diverging == (4, 2)
    one.become_follower(2, 6, 6)
    assert not one.as_leader.has_nothing_for(4, 5)


def test_consumer_reads_committed_records_from_a_follower(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    leader.as_leader.append(batch(3), NOW)
    fetch(follower, leader)
    assert not content(follower.read(0, UNLIMITED))
    fetch(follower, leader)
    assert bytes(content(follower.read(0, UNLIMITED))) == whole(leader)


def test_fetched_batches_are_one_write_and_roll_by_the_followers_settings(tmp_path: Path) -> None:
    class Counting(OsFiles):
        writes = 0

        def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
            self.writes += 1
            return super().writev_at(fd, buffers, position)

    leader = replica(tmp_path, 1)
    follower = replica(tmp_path, 2, TopicConfig(segment_bytes=300, index_interval_bytes=0))
    lead(leader, 0, follower)
    for _ in range(4):
        leader.as_leader.append(batch(), NOW)
    counting = follower.log.active.files = Counting()
    fetch(follower, leader)
    assert counting.writes == 1 and len(follower.segments) == 1
    for _ in range(8):
        leader.as_leader.append(batch(), NOW)
    fetch(follower, leader)
    assert [segment.end_offset - segment.base_offset for segment in follower.segments] == [4, 4, 4]
    assert whole(follower) == whole(leader)
    for offset in range(12):
        assert follower.log.read(offset, 1, 12, min_one=True).base_offset == offset


def test_follower_builds_producer_state_and_transactions_from_batches(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    leader.as_leader.append(batch(2, producer_id=5, producer_epoch=0, base_sequence=0), NOW)
    opening = batch(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    leader.as_leader.append(opening, NOW, must_verify=False)
    leader.as_leader.append_marker(7, 0, EndMarker(False, 0), NOW, transaction_version=1)
    fetch(follower, leader)
    fetch(follower, leader)
    assert follower.log.aborted(0, 5) == leader.log.aborted(0, 5) != []
    assert follower.last_stable_offset == leader.last_stable_offset == 5
    lead(follower, 1, leader, in_sync=[2])
    retried = follower.as_leader.append(batch(2, producer_id=5, producer_epoch=0, base_sequence=0), NOW)
    assert (retried.error, retried.base_offset, follower.log_end_offset) == (ErrorCode.NONE, 0, 5)


def test_follower_appends_no_damaged_batch(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    leader.as_leader.append(batch(1), NOW)
    leader.as_leader.append(batch(1), NOW)
    good = content(leader.read_for_follower(0, UNLIMITED))
    size = len(good) // 2

    def taken(records: memoryview) -> ErrorCode:
        return follower.as_follower.append_replicated(
            records, leader_epoch=0, high_watermark=0, log_start_offset=0, now_ms=NOW
        )

    def spoilt(change: Callable[[bytearray], None]) -> memoryview:
        records = bytearray(good)
        change(records)
        return memoryview(records)

    flipped = spoilt(lambda records: records.__setitem__(size + 65, records[size + 65] ^ 1))
    backwards = spoilt(lambda records: assign(records, size, 0, 0))
    later_epoch = spoilt(lambda records: assign(records, size, 1, 1))
    for records in (flipped, backwards, later_epoch, good[:50]):
        assert taken(records) == ErrorCode.CORRUPT_MESSAGE
        assert follower.log_end_offset == 0
    assert taken(good[:-1]) == ErrorCode.NONE and follower.log_end_offset == 1, "the incomplete batch waits"
    assert taken(good) == ErrorCode.CORRUPT_MESSAGE, "the first is there already"


def test_gaps_of_compaction_are_accepted_after_the_policy_changed(tmp_path: Path) -> None:
    """Its own cleaner may never see that log, and where no gaps are known recovery cuts a log at one."""
    follower = replica(tmp_path, 2, TopicConfig(cleanup_policy=("compact",)))
    follower.become_follower(1, 0, 0)
    first, second = bytearray(batch()), bytearray(batch())
    assign(first, 0, 0, 0)
    assign(second, 0, 7, 0)
    code = follower.as_follower.append_replicated(
        memoryview(first + second), leader_epoch=0, high_watermark=8, log_start_offset=0, now_ms=NOW
    )
    assert (code, follower.log_end_offset, follower.log.cleaned_to) == (ErrorCode.NONE, 8, 0)


def test_uncommitted_records_of_a_former_leader_are_truncated_by_epoch(tmp_path: Path) -> None:
    first, second, third = (replica(tmp_path, number) for number in ALL)
    lead(first, 0, second, third)
    first.as_leader.append(batch(2, producer_id=5, producer_epoch=0, base_sequence=0), NOW)
    fetch(second, first)
    first.as_leader.append(batch(4, producer_id=5, producer_epoch=0, base_sequence=2), NOW)
    lead(second, 1, first, third, in_sync=[2])
    second.as_leader.append(batch(1), NOW)
    assert first.as_leader.acknowledgement(6, -1, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetch(first, second) == Truncate(2)
    producer = first.log.producers.get(5)
    assert producer is not None and producer.batches[-1].last_sequence == 1
    fetch(first, second)
    assert whole(first) == whole(second)
    assert first.log.epochs.entries == ((0, 0), (1, 2))


def test_former_leader_drops_an_epoch_without_records(tmp_path: Path) -> None:
    """Otherwise its epoch would be compared with the leader's, although it has no record."""
    first, second = replica(tmp_path, 1), replica(tmp_path, 2)
    lead(first, 0, second)
    first.as_leader.append(batch(2), NOW)
    fetch(second, first)
    lead(first, 1, second)
    lead(second, 2, first)
    second.as_leader.append(batch(1), NOW)
    assert first.log.epochs.entries == ((0, 0),)
    fetch(first, second)
    assert whole(first) == whole(second)


def test_late_and_repeated_responses_change_nothing(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    leader.as_leader.append(batch(2), NOW)
    requested = follower.as_follower.fetch_position()
    assert requested is not None
    records = content(leader.read_for_follower(0, UNLIMITED))
    answer = Fetched(ErrorCode.NONE, 0, 0)
    follower.as_follower.take_fetched(requested, answer, records, NOW)
    assert follower.as_follower.take_fetched(requested, answer, records, NOW) == STALE
    late = follower.as_follower.fetch_position()
    assert late is not None
    follower.become_follower(3, 1, 1)
    assert follower.as_follower.take_fetched(late, answer._replace(high_watermark=2), records, NOW) == STALE
    assert (follower.log_end_offset, follower.high_watermark) == (2, 0)
    assert (
        follower.as_follower.append_replicated(
            records, leader_epoch=0, high_watermark=2, log_start_offset=0, now_ms=NOW
        )
        == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_roles_change_only_with_higher_leader_epochs(pair: tuple[Replica, Replica]) -> None:
    leader, _ = pair
    leader.become_follower(NO_LEADER, 1, 1)
    assert not leader.is_leader and leader.leader == -1 and leader.as_follower.fetch_position() is None
    assert leader.as_leader.append(batch(), NOW).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.read_for_follower(0, 1).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.become_leader(0, 0, [1], ALL, NOW)
    assert not leader.is_leader, "an older epoch"
    leader.become_leader(2, 2, [1, 2], ALL, NOW)
    assert leader.is_leader and leader.log.epochs.latest == (2, 0)
    with pytest.raises(InvariantViolation):
        leader.as_follower.truncate_to(0, NOW)
    with pytest.raises(InvariantViolation):
        leader.become_follower(2, 2, 3)


def test_listeners_are_called_when_a_leader_becomes_a_follower(pair: tuple[Replica, Replica]) -> None:
    leader, _ = pair
    end = leader.as_leader.append(batch(2), NOW).last_offset + 1
    heard: list[ErrorCode | None] = []
    leader.listeners.append(lambda one: heard.append(one.as_leader.acknowledgement(end, -1, 0)))
    leader.become_follower(2, 1, 1)
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_follower_calls_its_listeners_after_the_flush_of_an_append(tmp_path: Path) -> None:
    """The leader's high watermark reaches the flushed records only."""
    leader, follower = replica(tmp_path, 1), replica(tmp_path, 2, TopicConfig(flush_messages=1))
    lead(leader, 0, follower)
    flushing: list[Replica] = []
    heard: list[int] = []
    follower.flusher = flushing.append
    follower.listeners.append(lambda one: heard.append(one.high_watermark))
    leader.as_leader.append(batch(2), NOW)
    fetch(follower, leader)
    assert (flushing, heard) == ([follower], [])
    follower.flush()
    follower.flushed()
    assert heard == [0]
    fetch(follower, leader)
    assert heard == [0, 2], "a fetch without records brought the high watermark"


def test_append_fails_after_the_in_sync_set_shrinks_below_min_insync_replicas(tmp_path: Path) -> None:
    leader = replica(tmp_path, 1, TopicConfig(min_insync_replicas=2))
    leader.become_leader(0, 0, [1, 2], ALL, NOW)
    end = leader.as_leader.append(batch(2), NOW).last_offset + 1
    heard: list[ErrorCode | None] = []
    leader.listeners.append(lambda one: heard.append(one.as_leader.acknowledgement(end, -1, 0)))
    leader.become_leader(0, 1, [1], ALL, NOW)
    assert heard == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert leader.high_watermark == 0


def test_high_watermark_of_a_new_leader_is_not_current_at_once(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    leader.as_leader.append(batch(2), NOW)
    fetch(follower, leader)
    lead(follower, 1, leader)
    assert follower.is_leader and not follower.high_watermark_is_current
    fetch(leader, follower)
    assert follower.high_watermark_is_current and follower.high_watermark == 2


def test_follower_continues_after_a_partial_append(tmp_path: Path) -> None:
    leader = replica(tmp_path, 1)
    follower = replica(tmp_path, 2, TopicConfig(segment_bytes=200))
    lead(leader, 0, follower)
    for _ in range(5):
        leader.as_leader.append(batch(), NOW)

    class Full(OsFiles):
        is_full = True

        def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
            if self.is_full and path.suffix == ".snapshot":  # written by the roll
                raise OSError(errno.ENOSPC, "no room")
            return super().open(path, create=create, exclusive=exclusive)

    full = follower.log._files = Full()
    assert fetch(follower, leader) == Retry(ErrorCode.KAFKA_STORAGE_ERROR)
    assert 0 < follower.log_end_offset < 5
    full.is_full = False
    fetch(follower, leader)
    assert whole(follower) == whole(leader)


# -- where the leader's log begins --


def test_log_start_follows_the_leaders(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    leader.as_leader.append(batch(4), NOW)
    fetch(follower, leader)
    fetch(follower, leader)
    leader.raise_log_start(3)
    fetch(follower, leader)
    assert follower.log_start_offset == 3


def test_follower_below_the_leaders_log_start_starts_at_it_even_within_a_batch(tmp_path: Path) -> None:
    leader, follower = replica(tmp_path, 1), replica(tmp_path, 2)
    lead(leader, 0, follower, in_sync=[1])
    leader.as_leader.append(batch(10), NOW)
    leader.as_leader.append(batch(10), NOW)
    leader.raise_log_start(14)
    assert fetch(follower, leader) == StartAt(14)
    assert (follower.log_start_offset, follower.log_end_offset, follower.high_watermark) == (14, 14, 14)
    fetch(follower, leader)
    assert (follower.log_start_offset, follower.log_end_offset, follower.high_watermark) == (14, 20, 20)
    assert [header.base_offset for _, header in iter_batches(whole(follower))] == [10]


def test_start_from_tier_is_left_to_the_caller(tmp_path: Path) -> None:
    config = TopicConfig(remote_storage_enable=True, segment_bytes=100)
    leader, follower = replica(tmp_path, 1, config), replica(tmp_path, 2, config)
    lead(leader, 0, follower, in_sync=[1])
    for sequence in range(5):
        leader.as_leader.append(batch(producer_id=5, producer_epoch=0, base_sequence=sequence), NOW)
    leader.delete_local_before(3, NOW)
    assert fetch(follower, leader) == StartFromTier(0)
    state = ProducerStateManager()
    for at, header in iter_batches(batch(producer_id=5, producer_epoch=0, base_sequence=2)):
        state.apply(header, at + 2)
    follower.as_follower.start_at(
        3, NOW, log_start_offset=0, epochs=[EpochEntry(0, 0)], producer_snapshot=state.encode()
    )
    fetch(follower, leader)
    fetch(follower, leader)
    assert (follower.log_start_offset, follower.local_log_start_offset) == (0, 3)
    assert (follower.log_end_offset, follower.high_watermark) == (5, 5)
    assert follower.log.epochs.epoch_of(1) == 0
    lead(follower, 1, leader, in_sync=[2])
    assert (
        follower.as_leader.append(batch(producer_id=5, producer_epoch=0, base_sequence=5), NOW).base_offset
        == 5
    )


# -- over restarts, and beside flushes --


def test_leader_epochs_after_a_truncation_are_recovered_from_batches(tmp_path: Path) -> None:
    """The leader epoch checkpoint is older than the truncation, and the records after it have an older
    epoch."""
    first, second = replica(tmp_path, 1), replica(tmp_path, 2)
    lead(first, 4, second)
    first.as_leader.append(batch(2), NOW)
    fetch(second, first)
    first.as_leader.append(batch(3), NOW)
    lead(second, 5, first)
    second.as_leader.append(batch(4), NOW)
    second.flush()
    lead(first, 6, second)
    assert fetch(second, first) == Truncate(2)
    recovery_point = second.checkpoint[0]
    fetch(second, first)
    assert second.log.epochs.entries == ((4, 0),)
    second.close(clean=False)
    again = replica(tmp_path, 2, recovery_point=recovery_point)
    assert (again.log_end_offset, again.log.epochs.entries) == (5, ((4, 0),))


def test_records_after_a_truncation_are_synced_when_their_segment_rolls(tmp_path: Path) -> None:
    """The recovery point on disk may be older than the truncation, and above the durable log end."""
    leader, other = replica(tmp_path, 1), replica(tmp_path, 3)
    follower = replica(tmp_path, 2, TopicConfig(segment_bytes=300))
    lead(leader, 0, follower)
    for _ in range(20):
        leader.as_leader.append(batch(), NOW)
    fetch(follower, leader)
    assert follower.flush() == 20
    lead(other, 1, follower, in_sync=[2, 3])
    for _ in range(30):
        other.as_leader.append(batch(), NOW)
    fetch(follower, other)
    assert follower.log.recovery_point == 0
    fetch(follower, other)
    rolled = [segment.end_offset for segment in follower.segments if segment.rolled]
    assert follower.log.recovery_point == max(end for end in rolled if end <= 20) < max(rolled)


def test_high_watermark_survives_a_restart_up_to_the_log_end(tmp_path: Path) -> None:
    leader, follower = replica(tmp_path, 1), replica(tmp_path, 2)
    lead(leader, 0, follower)
    leader.as_leader.append(batch(4), NOW)
    fetch(follower, leader)
    fetch(follower, leader)
    assert follower.checkpoint == (0, 0, 0), "not what is not on this disk"
    follower.flush()
    assert follower.checkpoint == (4, 0, 4)
    follower.close(clean=False)
    assert replica(tmp_path, 2, high_watermark=4).high_watermark == 4
    assert replica(tmp_path, 2, high_watermark=9).high_watermark == 4


def test_checkpoint_without_other_replicas_has_no_high_watermark(tmp_path: Path) -> None:
    one = replica(tmp_path, 1)
    one.become_leader(0, 0, [1])
    assert one.checkpoint == (0, 0, None)


def test_follower_fetches_only_above_what_flush_messages_requires_to_be_durable(tmp_path: Path) -> None:
    leader = replica(tmp_path, 1)
    follower = replica(tmp_path, 2, TopicConfig(flush_messages=1))
    flush_requests: list[Replica] = []
    follower.flusher = flush_requests.append
    lead(leader, 0, follower)
    leader.as_leader.append(batch(2), NOW)
    fetch(follower, leader)
    assert flush_requests == [follower] and follower.as_follower.fetch_position() is None
    follower.flush()
    follower.flushed()
    position = follower.as_follower.fetch_position()
    assert position is not None and position.offset == 2


def test_record_is_committed_after_both_leader_and_follower_have_flushed_it(tmp_path: Path) -> None:
    config = TopicConfig(flush_messages=1)
    leader, follower = replica(tmp_path, 1, config), replica(tmp_path, 2, config)
    lead(leader, 0, follower)
    waiting: list[Replica] = []
    leader.flusher = follower.flusher = waiting.append
    reported: list[int] = []
    leader.listeners.append(lambda one: reported.append(one.log_end_offset))
    leader.as_leader.append(batch(2), NOW)
    assert (reported, leader.flushed_offset, waiting) == ([2], 0, [leader])  # consumers are notified at once
    fetch(follower, leader)
    assert whole(follower) == whole(leader) and waiting == [leader, follower]
    follower.flush()
    follower.flushed()
    fetch(follower, leader)
    assert (leader.high_watermark, leader.as_leader.acknowledgement(2)) == (0, None)
    leader.flush()
    leader.flushed()
    assert (leader.high_watermark, leader.as_leader.acknowledgement(2)) == (2, ErrorCode.NONE)


def test_truncation_fails_during_a_flush(tmp_path: Path) -> None:
    begun, go_on = Event(), Event()

    class Slow(OsFiles):
        def sync(self, fd: int) -> None:  # type: ignore[override]
            begun.set()
            assert go_on.wait(30)

    follower = replica(tmp_path, 2)
    follower.log.flusher._files = Slow()
    follower.log.active.files = Slow()
    other = replica(tmp_path, 1)
    lead(other, 0, follower)
    other.as_leader.append(batch(4), NOW)
    fetch(follower, other)
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(follower.flush)
        assert begun.wait(30)
        with pytest.raises(BlockingIOError):
            follower.as_follower.truncate_to(0, NOW)
        requested = follower.as_follower.fetch_position()
        assert requested is not None
        answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, 9, 9)
        assert follower.as_follower.take_fetched(requested, answer, memoryview(b""), NOW) == Retry(
            ErrorCode.KAFKA_STORAGE_ERROR
        )
        go_on.set()
        assert flush.result(30) == 4
    follower.as_follower.truncate_to(0, NOW)
    assert (follower.log_end_offset, follower.log.recovery_point) == (0, 0)


def test_follower_knows_its_offset_lag(pair: tuple[Replica, Replica]) -> None:
    leader, follower = pair
    for _ in range(3):
        leader.as_leader.append(batch(2), NOW)
    for _ in range(3):
        fetch(follower, leader)
    assert (leader.high_watermark, follower.offset_lag, leader.offset_lag) == (6, 0, 0)
    follower.become_follower(1, 0, 1)
    follower.as_follower.append_replicated(
        memoryview(b""), leader_epoch=0, high_watermark=9, log_start_offset=0, now_ms=NOW
    )
    assert (follower.high_watermark, follower.offset_lag) == (6, 3)


class FullDisk:
    refusal: str | None = None
    threads = None

    def found_hanging(self, timeout_s: float) -> None:
        return


def test_follower_on_a_full_disk_deletes_records(tmp_path: Path) -> None:
    """Deletion may free space, and DeleteRecords waits for every follower."""
    leader, follower, disk = replica(tmp_path, 1), replica(tmp_path, 2), FullDisk()
    lead(leader, 0, follower)
    leader.as_leader.append(batch(4), NOW)
    fetch(follower, leader)
    fetch(follower, leader)
    leader.as_leader.append(batch(1), NOW)
    follower.log_dir, disk.refusal = disk, "full"
    leader.raise_log_start(4)
    assert leader.log_start_offset == 4
    assert fetch(follower, leader) == Retry(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (follower.log_start_offset, follower.log_end_offset) == (4, 4)
    disk.refusal = None
    fetch(follower, leader)
    assert whole(follower) == whole(leader)
