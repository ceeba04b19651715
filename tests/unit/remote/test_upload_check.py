"""Upload check: flipped bits on the leader's disk are not uploaded, and the log may change during the
check."""

import asyncio
import errno
import gc
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from connection_harness import until
from crc32c import crc32c
from tier_node import START_MS, TierNode, flip_a_bit, produce

from tierlog.base.files import OsFiles
from tierlog.base.segments import DescribedSegments, SegmentDescriptor
from tierlog.broker.remote import upload_check
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.broker.remote.upload_check import CheckedSegment, checked_segment
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageFound
from tierlog.broker.storage.segment_scrub import SegmentScrub
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.protocol.errors import ErrorCode
from tierlog.records.chunks import ChunkBuilder, ChunkEntry
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.manager import TierLimits
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import Body, Condition, ObjectInfo


class HeldThreads(Executor):
    """Threads of a disk which completes each operation when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.came = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        self.came.set()
        return future

    def answer(self, failure: OSError | None = None) -> None:
        """Complete all submitted operations, or fail them with `failure`."""
        self.came.clear()
        waiting, self.waiting = self.waiting, []
        for future, work in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if failure is None:
                future.set_result(work())
            else:
                future.set_exception(failure)


async def filled(node: TierNode, batches: int = 60, **changes: str) -> Replica:
    """Some rolled segments; no upload starts before `allow_copies`."""
    held = {"remote_log_copy_disable": "true", "local_retention_ms": "-1", **changes}
    replica = await node.create("t", **held)
    produce(replica, batches)
    assert len(replica.segments) > 4
    return replica


async def allow_copies(node: TierNode) -> None:
    change = c.ConfigChange(key="remote.log.copy.disable", operation=c.ConfigOperation.SET, value="false")
    resource = c.ConfigResource(scope=c.ConfigScope.TOPIC, name="t", changes=(change,))
    await node.metadata.submit(c.AlterConfigs(resources=(resource,)))


async def reading(node: TierNode, replica: Replica) -> HeldThreads:
    """The check has begun, and waits for the disk."""
    threads = HeldThreads()
    replica.log_dir = SimpleNamespace(refusal=None, threads=threads, mark_hung=lambda timeout_s: None)
    await allow_copies(node)
    await threads.came.wait()
    return threads


async def remote_bytes(node: TierNode, replica: Replica) -> bytes:
    where = node.where(replica)
    entries = node.remote(replica).entries
    return b"".join([await node.store.get(node.keys.log(where, entry)) for entry in entries])


def local_bytes(replica: Replica) -> bytes:
    return b"".join(data for _, data in replica.log.batches(replica.local_log_start_offset))


async def test_damaged_segment_and_those_after_it_are_not_uploaded(tmp_path: Path) -> None:
    async with TierNode(tmp_path, LocalStore(tmp_path / "bucket")) as node:
        replica = await filled(node)
        log, third = local_bytes(replica), replica.segments[2].base_offset
        flip_a_bit(replica, third + 7)
        await allow_copies(node)
        await node.finish_tiering()
        assert node.causes == ["upload"] and node.repair.damaged == [replica]
        assert [(one.start_offset, one.end_offset) for one in replica.log.damage] == [(third + 5, third + 10)]
        for offset in range(third + 5, third + 10):
            assert replica.read(offset, 1).error is ErrorCode.CORRUPT_MESSAGE
        for offset in (third + 4, third + 10):
            assert replica.read(offset, 1).error is ErrorCode.NONE

        (line,) = await node.log_manager.status("t")
        assert line.last_error == f"the local segment from {third} is damaged"
        with pytest.raises(TierRefused, match="is damaged"):
            await node.log_manager.flush("t")
        produce(replica, 20)
        await node.finish_tiering()
        remote = node.remote(replica)
        assert (remote.end_offset, remote.started) == (third, ())
        assert len(await node.objects(node.keys.data(node.where(replica)))) == 2 * len(remote.entries) == 4
        assert await remote_bytes(node, replica) == log[: sum(entry.log_bytes for entry in remote.entries)]
        assert node.causes == ["upload"], "what is known is not looked for again"

        other = await node.create("other")
        produce(other, 20)
        await node.log_manager.flush("other")
        assert node.remote(other).end_offset == other.log_end_offset


@pytest.mark.parametrize("byte", [7, 15], ids=["base offset", "leader epoch"])
async def test_segment_with_a_wrong_header_is_not_uploaded(tmp_path: Path, byte: int) -> None:
    """No CRC covers these fields."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        third = replica.segments[2].base_offset
        flip_a_bit(replica, third + 7, byte)
        await allow_copies(node)
        await node.finish_tiering()
        assert node.causes == ["upload"]
        assert [one.start_offset for one in replica.log.damage] == [third + 5]
        assert node.remote(replica).end_offset == third


async def test_uploads_continue_after_the_damage_is_deleted(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        fourth = replica.segments[3].base_offset
        flip_a_bit(replica, replica.segments[2].base_offset)
        await allow_copies(node)
        await node.finish_tiering()
        assert replica.log.damage
        await node.move_log_start(replica, fourth)
        await node.log_manager.flush("t")
        assert node.remote(replica).entries[0].base_offset == fourth
        assert await remote_bytes(node, replica) == local_bytes(replica)
        assert (await node.log_manager.status("t"))[0].last_error is None and node.repair.damaged == []


async def test_each_attempt_reads_the_segment_again(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        threads = await reading(node, replica)
        threads.answer(OSError(errno.EIO, "Input/output error"))
        await threads.came.wait()
        assert "Input/output error" in ((await node.log_manager.status("t"))[0].last_error or "")
        assert node.causes == [] and not await node.objects(node.keys.data(node.where(replica)))
        flip_a_bit(replica, 0)
        threads.answer()
        await node.finish_tiering()
        assert node.causes == ["upload"]
        assert not await node.objects(node.keys.data(node.where(replica)))


async def test_read_error_is_not_damage(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        threads = await reading(node, replica)
        replica.log_dir = SimpleNamespace(refusal=None, threads=None)
        threads.answer(OSError(errno.EIO, "Input/output error"))
        await node.log_manager.flush("t")
        assert node.causes == [] and (await node.log_manager.status("t"))[0].last_error is None
        assert await remote_bytes(node, replica) == local_bytes(replica)


async def test_hanging_disk_does_not_keep_the_copy_slot(tmp_path: Path) -> None:
    limits = TierLimits(copies_at_once=1, check_seconds=0.3)
    async with TierNode(tmp_path, MemoryStore(), limits=limits) as node:
        replica = await filled(node)
        await reading(node, replica)
        other = await node.create("other")
        produce(other, 1)
        await node.log_manager.flush("other")
        assert node.remote(other).end_offset == other.log_end_offset
        assert "the disk did not respond in 0.3 s" in (
            (await node.log_manager.status("t"))[0].last_error or ""
        )


async def test_step_beside_an_upload_reads_few_of_the_segments_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node, 600)
        assert len(replica.segments) > 60
        await reading(node, replica)
        read: list[int] = []
        begin = DescribedSegments.__init__

        def counted(
            self: DescribedSegments, count: int, describe: Callable[[int], SegmentDescriptor]
        ) -> None:
            begin(self, count, lambda at: read.append(at) or describe(at))

        monkeypatch.setattr(DescribedSegments, "__init__", counted)
        node.log_manager.wake(replica.id)
        await until(lambda: bool(read))
        assert len(read) < 10


async def test_topic_deleted_during_the_check_is_not_uploaded(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        flip_a_bit(replica, 0)
        threads = await reading(node, replica)
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        threads.answer()
        await node.finish_tiering()
        assert node.causes == []
        assert not await node.objects(node.keys.data(node.where(replica)))


async def test_log_truncated_during_the_check_is_not_uploaded(tmp_path: Path) -> None:
    """It was leader, follower, and is leader again: the segment read between belongs to another log."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        flip_a_bit(replica, 0)
        threads = await reading(node, replica)
        epoch, partition_epoch = replica.leader_epoch, replica.partition_epoch
        replica.become_follower(2, epoch + 1, partition_epoch + 1)
        replica.as_follower.truncate_to(20, node.clock.now_ms())
        replica.become_leader(epoch + 2, partition_epoch + 2, (1,))
        threads.answer()
        unknown = "AbandonCopy: leader epoch 2 is not known"  # the controller has not elected this leader
        await until(lambda: unknown in (node.log_manager.status_of(replica).last_error or ""))
        assert node.causes == [] and replica.log.damage == ()
        assert not await node.objects(node.keys.data(node.where(replica)))


async def test_log_moved_during_the_check_is_read_from_its_new_directory(tmp_path: Path) -> None:
    """Damage of the former file does not matter."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        threads = await reading(node, replica)
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(replica.log.directory, elsewhere)
        flip_a_bit(replica, 0)
        replica.log.switch_directory(elsewhere, OsFiles())
        replica.log_dir = SimpleNamespace(refusal=None, threads=None)
        threads.answer()
        await node.log_manager.flush("t")
        assert node.causes == [] and replica.log.damage == ()
        assert await remote_bytes(node, replica) == local_bytes(replica)


class HeldStore(MemoryStore):
    """A store which takes long for the first object."""

    def __init__(self) -> None:
        super().__init__()
        self.put_started, self.may_continue = asyncio.Event(), asyncio.Event()

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        self.put_started.set()
        await self.may_continue.wait()
        return await super().put(key, body, crc32c=crc32c, condition=condition)


async def test_segment_found_damaged_during_its_upload_is_not_committed(tmp_path: Path) -> None:
    store = HeldStore()
    async with TierNode(tmp_path, store) as node:
        replica = await filled(node)
        await allow_copies(node)
        await store.put_started.wait()
        flip_a_bit(replica, 0)
        scrub = SegmentScrub(replica.log, replica.log.rolled_below(replica.log_end_offset)[0])
        while not scrub.done:
            scrub.step()
        node.emit(DamageFound(replica, scrub.segment, scrub.found, "scrub"))
        store.may_continue.set()
        await node.finish_tiering()
        assert node.remote(replica).entries == ()
        assert (await node.log_manager.status("t"))[0].last_error == "the local segment from 0 is damaged"


async def test_bit_flipped_between_check_and_upload_is_not_uploaded(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)

        def flip_once(_: ClusterImage, image: ClusterImage) -> None:
            if node.remote(replica).started:  # the segment has been checked, and nothing of it is read yet
                stop_listening()
                flip_a_bit(replica, 0)

        stop_listening = node.node.publish_to([Publisher("test", flip_once)])
        await allow_copies(node)
        await node.finish_tiering()
        assert node.remote(replica).entries == ()
        assert replica.log.rolled_below(replica.log_end_offset)[0].damage  # the next check has found it


async def test_check_finds_out_whether_a_segment_has_transactions(tmp_path: Path) -> None:
    """Unknown after a start; reading the segment on the event loop would block it."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        (segment, *_) = replica.log.rolled_below(replica.log_end_offset)
        segment.has_transactions = None
        body = checked_segment(replica, 0, node.emit, lambda: True, 30.0)
        assert body is not None
        await body.read_into(memoryview(bytearray(body.size)))
        exported, _ = body.finish()
        assert segment.has_transactions is False and exported.descriptor.has_transactions is False


async def test_upload_that_ends_early_keeps_no_file_open(tmp_path: Path) -> None:
    """A cycle of objects would keep a deleted segment's space until the garbage collector runs."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node)
        body = checked_segment(replica, 0, node.emit, lambda: True, 30.0)
        assert body is not None
        await body.read_into(memoryview(bytearray(1)))
        freed, loop = asyncio.Event(), asyncio.get_running_loop()
        weakref.finalize(body, loop.call_soon_threadsafe, freed.set)
        gc.disable()
        try:
            del body
            async with asyncio.timeout(30):  # the thread of its last step lets go of it a moment later
                await freed.wait()
        finally:
            gc.enable()


async def reported(node: TierNode) -> str:
    """The first error in the status of the topic."""
    while True:
        [status] = await node.log_manager.status("t")
        if status.last_error is not None:
            return str(status.last_error)
        await asyncio.sleep(0)


BATCH_SIZES = (1, 90_000, 500_000, 3, 7_000, 300_000, 250_000, 1, 600_000, 40_000)


@pytest.mark.parametrize("buffer_bytes", [100, 65_537, 256 << 10, 700_000, 1 << 30])
async def test_batches_are_read_into_buffers_of_any_size(tmp_path: Path, buffer_bytes: int) -> None:
    files = CountedReads()
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await large_batches(node, files)
        content, body = segment_bytes(replica), body_of(replica)
        found = await all_of(body, buffer_bytes)
        chunks = body.finish()[1]
        assert found == content
        assert (chunks.checksum, chunks.records) == (crc32c(content), len(BATCH_SIZES))
        if buffer_bytes >= len(content):
            assert (files.read_bytes, files.read_into_bytes) == (0, len(content))


@pytest.mark.parametrize("buffer_bytes", [256 << 10, 1 << 30])
async def test_bit_that_was_only_read_wrongly_does_not_reach_the_upload(
    tmp_path: Path, buffer_bytes: int
) -> None:
    files = CountedReads()
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await large_batches(node, files)
        for wrong_read in range(8):
            files.wrong_reads = {wrong_read}
            files.reads = 0
            body = body_of(replica)
            assert await all_of(body, buffer_bytes) == segment_bytes(replica)
            body.finish()
        assert node.causes == []


class CountedReads(OsFiles):
    """Counts reads into buffers, and flips a bit in some."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = self.read_into_bytes = self.reads = 0
        self.wrong_reads: set[int] = set()

    def read_at(self, fd: int, count: int, position: int) -> bytes:  # type: ignore[override]
        content = OsFiles.read_at(fd, count, position)
        self.read_bytes += len(content)
        return content

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        count = super().read_into(fd, buffer, position)
        self.read_into_bytes += count
        if self.reads in self.wrong_reads:
            buffer[count // 2] ^= 4
        self.reads += 1
        return count


async def large_batches(node: TierNode, files: OsFiles) -> Replica:
    """A rolled segment with batches of very different sizes, which is read with these files."""
    changes = {"remote_log_copy_disable": "true", "local_retention_ms": "-1"}
    replica = await node.create("t", segment_bytes="16000000", max_message_bytes="1000000", **changes)
    for size in BATCH_SIZES:
        batch = memoryview(encode_batch([NewRecord(START_MS, b"", b"v" * size, ())]))
        assert replica.as_leader.append(batch, START_MS).error is ErrorCode.NONE
    node.log_manager.roll(replica)
    replica.log.segment_files[0].files = files
    return replica


def body_of(replica: Replica) -> CheckedSegment:
    body = checked_segment(replica, 0, lambda _: None, lambda: True, 10.0)
    assert body is not None
    return body


def segment_bytes(replica: Replica) -> bytes:
    return replica.log.segment_files[0].path().read_bytes()


async def all_of(body: CheckedSegment, buffer_bytes: int) -> bytes:
    """The body, read through two buffers that are used in turn."""
    buffers = [memoryview(bytearray(min(buffer_bytes, body.size))) for _ in range(2)]
    parts: list[bytes] = []
    for number, at in enumerate(range(0, body.size, buffer_bytes)):
        part = buffers[number % 2][: body.size - at]
        await body.read_into(part)
        parts.append(bytes(part))
    return b"".join(parts)


async def test_index_that_contradicts_its_segment_is_not_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a fault in what builds the chunk table. Readers would notice it only after the local drop."""

    class Faulty(ChunkBuilder):
        @property
        def chunks(self) -> tuple[ChunkEntry, ...]:
            first, *others = super().chunks
            return first._replace(first_offset=first.first_offset + 1), *others

    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await filled(node, local_retention_ms="0")
        monkeypatch.setattr(upload_check, "ChunkBuilder", Faulty)
        await allow_copies(node)
        error = await reported(node)
        assert "the index contradicts its segment" in error
        assert node.remote(replica).entries == ()
        assert replica.log.local_log_start_offset == 0
        monkeypatch.undo()
        await node.finish_tiering()
        assert node.remote(replica).end_offset == replica.segments[-1].base_offset
