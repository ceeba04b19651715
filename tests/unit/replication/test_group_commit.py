"""Group commit: one fsync covers all waiting appends. No append is acknowledged before its fsync, and a slow
fsync does not delay other partitions."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from opened_replica import opened_replica
from structlog.testing import capture_logs
from watched_disk import WatchedDisk

from tierlog.base.types import TopicPartition
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log_flusher import SyncFailed
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
ALL, LEADER = -1, 1


def open_replica(
    directory: Path,
    files: WatchedDisk,
    flush_messages: int = 1,
    *,
    number: int = 0,
    segment_bytes: int = 1 << 20,
) -> Replica:
    name = TopicPartition("t", number)
    config = TopicConfig(flush_messages=flush_messages, segment_bytes=segment_bytes)
    replica = opened_replica(
        name,
        uuid.UUID(int=1),
        1,
        directory / str(name),
        config,
        files,
        NOW,
        clean=False,
        rng=random.Random(1),
    )
    replica.become_leader(replica.leader_epoch + 1, 0, [1])
    return replica


def batch(sequence: int, *, producer: int = 7) -> memoryview:
    records = [NewRecord(NOW, None, b"%d from %d" % (sequence, producer))]
    data = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    return memoryview(bytearray(data))


def append(replica: Replica, sequence: int, *, acks: int = ALL, producer: int = 7) -> int:
    """Append a batch of one record. Returns the log end offset after it."""
    result = replica.as_leader.append(batch(sequence, producer=producer), NOW, acks=acks)
    assert result.error == ErrorCode.NONE, result
    return result.last_offset + 1


async def outcome(replica: Replica, end_offset: int, acks: int = ALL) -> ErrorCode:
    """Wait until the append is acknowledged or fails, as a produce request does. Returns its error code."""
    changed = asyncio.Event()
    replica.listeners.append(lambda _: changed.set())
    while (error := replica.as_leader.acknowledgement(end_offset, acks)) is None:
        await changed.wait()
        changed.clear()
    return error


@pytest.fixture
async def commits() -> AsyncIterator[GroupCommit]:
    commits = GroupCommit()
    yield commits
    await commits.drain(30)


def held(disk: WatchedDisk, replica: Replica) -> Callable[[], "asyncio.Future[bool]"]:
    """Make fsyncs of the log wait until `disk.release`. Returns a function to wait for the first of them."""
    entered = disk.hold(str(replica.name))
    return lambda: asyncio.ensure_future(asyncio.to_thread(entered.wait))


async def test_one_fsync_covers_all_waiting_appends(tmp_path: Path, commits: GroupCommit) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    entered = held(disk, replica)
    first = append(replica, 0)
    await entered()
    ends = [append(replica, 0, producer=n) for n in range(100, 150)]
    assert (replica.high_watermark, replica.flushed_offset) == (0, 0)
    assert [
        replica.as_leader.acknowledgement(end, acks) for end in (first, *ends) for acks in (ALL, LEADER)
    ] == [None] * 102
    disk.release("t-0")
    assert await outcome(replica, first) == ErrorCode.NONE
    assert await asyncio.gather(*(outcome(replica, end, LEADER) for end in ends)) == [ErrorCode.NONE] * 50
    assert disk.syncs["t-0"] == 2
    assert replica.high_watermark == replica.log.recovery_point == 51


async def test_appends_in_one_turn_of_the_event_loop_share_an_fsync(
    tmp_path: Path, commits: GroupCommit
) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    ends = [append(replica, n) for n in range(20)]
    assert await outcome(replica, ends[-1]) == ErrorCode.NONE
    await commits.drain(30)
    assert disk.syncs["t-0"] == 1


async def test_append_below_flush_messages_does_not_wait(tmp_path: Path, commits: GroupCommit) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk, flush_messages=10)
    replica.flusher = commits.request
    entered = held(disk, replica)
    ends = [append(replica, n) for n in range(10)]
    assert [replica.as_leader.acknowledgement(end) for end in ends] == [ErrorCode.NONE] * 9 + [None]
    await entered()
    ends += [append(replica, n) for n in range(10, 15)]  # these wait for the tenth, too
    assert replica.high_watermark == 9
    disk.release("t-0")
    assert await outcome(replica, ends[-1]) == ErrorCode.NONE
    assert (replica.high_watermark, replica.log.recovery_point, disk.syncs["t-0"]) == (15, 10, 1)


async def test_hanging_disk_delays_only_its_own_partitions(tmp_path: Path, commits: GroupCommit) -> None:
    disk = WatchedDisk()
    hanging, other = (open_replica(tmp_path, disk, number=n) for n in (0, 1))
    hanging.flusher = other.flusher = commits.request
    entered = held(disk, hanging)
    end = append(hanging, 0)
    await entered()
    assert await outcome(other, append(other, 0)) == ErrorCode.NONE
    assert hanging.as_leader.acknowledgement(end, LEADER) is None
    disk.release("t-0")
    assert await outcome(hanging, end) == ErrorCode.NONE


async def test_retry_waits_for_the_same_fsync(tmp_path: Path, commits: GroupCommit) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    entered = held(disk, replica)
    end = append(replica, 0)
    await entered()
    assert append(replica, 0) == end
    assert replica.log_end_offset == 1
    assert replica.as_leader.acknowledgement(end, LEADER) is None
    disk.release("t-0")
    assert await outcome(replica, end) == ErrorCode.NONE


async def test_failed_fsync_fails_waiting_appends_and_the_replica(
    tmp_path: Path, commits: GroupCommit
) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    synced = append(replica, 0)
    assert await outcome(replica, synced) == ErrorCode.NONE
    entered = held(disk, replica)
    ends = [append(replica, 1)]
    await entered()
    ends.append(append(replica, 2))
    disk.broken.add("t-0")
    disk.release("t-0")
    errors = [await outcome(replica, end, acks) for end in ends for acks in (ALL, LEADER)]
    assert errors == [ErrorCode.KAFKA_STORAGE_ERROR] * 4
    assert replica.as_leader.acknowledgement(synced) == ErrorCode.NONE
    disk.broken.clear()
    assert replica.as_leader.append(batch(1), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(SyncFailed):
        await commits.flush(replica)
    assert (replica.high_watermark, replica.log.recovery_point) == (1, 1)


async def test_full_disk_fails_waiting_appends_and_a_later_retry_succeeds(
    tmp_path: Path, commits: GroupCommit
) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    disk.full.add("t-0")  # the leader epoch checkpoint cannot be replaced
    end = append(replica, 0)
    assert await outcome(replica, end) == ErrorCode.KAFKA_STORAGE_ERROR
    disk.full.clear()
    assert append(replica, 0) == end
    assert await outcome(replica, end) == ErrorCode.NONE
    assert (replica.log_end_offset, replica.high_watermark) == (1, 1)


async def test_flush_of_a_closed_log_is_not_a_disk_failure(tmp_path: Path, commits: GroupCommit) -> None:
    """A topic may be deleted while a checkpoint flushes its logs."""
    replica = open_replica(tmp_path, WatchedDisk(), flush_messages=1000)
    append(replica, 0)
    with capture_logs() as logged:
        flush = asyncio.ensure_future(commits.flush(replica))
        replica.close(clean=False)
        with pytest.raises(SyncFailed):
            await flush
    assert logged == []


async def test_flush_by_log_maintenance_advances_the_high_watermark_after_a_failed_flush(
    tmp_path: Path, commits: GroupCommit
) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    disk.full.add("t-0")
    assert replica.as_leader.append(batch(0), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    disk.full.clear()
    await commits.flush(replica)
    assert (replica.log.recovery_point, replica.high_watermark) == (1, 1)


async def test_drain_waits_for_pending_flushes(tmp_path: Path, commits: GroupCommit) -> None:
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    entered = held(disk, replica)
    append(replica, 0)
    await entered()
    end = append(replica, 1)
    draining = asyncio.ensure_future(commits.drain(30))
    await asyncio.sleep(0)
    assert not draining.done()
    disk.release("t-0")
    await draining
    assert replica.as_leader.acknowledgement(end, LEADER) == ErrorCode.NONE


async def test_drain_ends_if_one_of_its_flushes_is_cancelled(
    tmp_path: Path, commits: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, flushes, flush = WatchedDisk(), list["asyncio.Future[None]"](), commits.flush
    replica = open_replica(tmp_path, disk)
    replica.flusher = commits.request
    entered = held(disk, replica)
    append(replica, 0)
    await entered()
    monkeypatch.setattr(commits, "flush", lambda one: flushes.append(flush(one)) or flushes[-1])
    draining = asyncio.ensure_future(commits.drain(30))
    await asyncio.sleep(0)
    flushes[0].cancel()
    disk.release("t-0")
    await draining


@pytest.mark.parametrize("segment_bytes", [1 << 20, 700])
async def test_acknowledged_records_survive_a_power_failure(
    tmp_path: Path, commits: GroupCommit, segment_bytes: int
) -> None:
    """Eight producers append at the same time. The power may fail at any acknowledgement: the log that opens
    from the synced bytes alone has every record that was acknowledged by then.
    """
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk, segment_bytes=segment_bytes)
    replica.flusher = commits.request
    acknowledged: list[int] = []
    power_failures: list[tuple[int, dict[str, bytes]]] = []  # (acknowledged end offset, synced files)

    async def produce(producer: int) -> None:
        for sequence in range(15):
            end = append(replica, sequence, producer=producer, acks=ALL if producer % 2 else LEADER)
            assert await outcome(replica, end, ALL if producer % 2 else LEADER) == ErrorCode.NONE
            acknowledged.append(end)
            power_failures.append((max(acknowledged), disk.surviving(replica.log.directory)))

    await asyncio.gather(*map(produce, range(8)))
    assert len(power_failures) == 120 and disk.syncs["t-0"] < 90
    for number, (end, files) in enumerate(power_failures[::7]):
        directory = tmp_path / f"after-{number}" / "t-0"
        directory.mkdir(parents=True)
        for name, content in files.items():
            (directory / name).write_bytes(content)
        recovered = open_replica(directory.parent, WatchedDisk())
        assert recovered.log_end_offset >= end
        recovered.check()


async def test_records_of_a_killed_process_are_synced_before_a_retry_is_acknowledged(tmp_path: Path) -> None:
    killed = open_replica(tmp_path, WatchedDisk(), flush_messages=10)
    end = append(killed, 0)
    disk = WatchedDisk()
    replica = open_replica(tmp_path, disk, flush_messages=1)
    assert disk.syncs["t-0"] == 1
    assert append(replica, 0) == end
    assert replica.as_leader.acknowledgement(end) == ErrorCode.NONE


async def test_append_of_a_listener_when_a_flush_ends_is_flushed_once(
    tmp_path: Path, commits: GroupCommit
) -> None:
    """A coordinator appends the next record as soon as the last one is durable."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    replica = open_replica(tmp_path, WatchedDisk())
    replica.flusher = commits.request
    ends = [append(replica, 0)]

    def append_next(_: Replica) -> None:
        if replica.high_watermark == ends[-1] < 5:
            ends.append(append(replica, len(ends)))

    replica.listeners.append(append_next)
    assert await outcome(replica, 5) == ErrorCode.NONE
    await asyncio.sleep(0)  # for a second begin of a flush
    assert failures == []
