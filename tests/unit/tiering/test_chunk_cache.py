"""Chunk cache: shared downloads, memory and disk within their budgets, cancelled readers, and readers of
evicted chunks."""

import asyncio
import errno
import gc
import random
import threading
import uuid
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tierlog.base.files import Buffer, FileSlice, OsFiles, Part
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.tiering import chunk_cache
from tierlog.tiering.chunk_cache import BatchMarks, Chunk, ChunkCache, ChunkKey
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError

SEGMENT = uuid.UUID(int=1)
PARTITION, OTHER = (TopicIdPartition(uuid.UUID(int=2), number) for number in range(2))


SIZE = 4096  # a chunk fills its buffer


def key(number: int) -> ChunkKey:
    return ChunkKey(PARTITION, SEGMENT, number * SIZE, (number + 1) * SIZE)


def letter(number: int) -> bytes:
    """The content of a chunk."""
    return bytes([ord("a") + number])


def bytes_of(part: Part) -> bytes:
    return part.read() if isinstance(part, FileSlice) else bytes(part)


class Source:
    """Downloads that wait until released, and count."""

    def __init__(self) -> None:
        self.started = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: BaseException | None = None

    async def download(self, buffer: memoryview) -> BatchMarks:
        letter = bytes([ord("a") + self.started])
        self.started += 1
        await self.gate.wait()
        buffer[:] = letter * len(buffer)
        if self.failure is not None:
            raise self.failure
        return BatchMarks(array("I", [0]), array("q", [0]), end_offset=7)


class LimitedDisk(OsFiles):
    """A disk that is full with `files_max` files."""

    files_max = 1000

    def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if len(list(self.directory.iterdir())) > self.files_max:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().writev_at(fd, buffers, position)

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory


@pytest.fixture
async def tasks():
    failures: list[BaseException] = []
    group = TaskGroup(lambda name, failure: failures.append(failure))
    yield group
    await group.close()
    assert not failures


@pytest.fixture
def disk(tmp_path: Path) -> LimitedDisk:
    return LimitedDisk(tmp_path / "cache")


@pytest.fixture
def cache(tmp_path, tasks, disk):
    """Memory and disk for four chunks each."""
    cache = ChunkCache(tmp_path / "cache", 4 * SIZE, disk, tasks, memory_bytes=4 * SIZE)
    yield cache
    cache.check()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def all_released(cache: ChunkCache) -> None:
    """Wait until nothing refers to a buffer: the thread of a failed write drops it a moment later. As a load
    that waits for memory does, or no release would be reported."""
    cache._loop = asyncio.get_running_loop()
    async with asyncio.timeout(120):
        while True:
            cache._released.clear()
            if not cache.pool.used_bytes:
                return
            await cache._released.wait()


async def test_concurrent_readers_share_one_download(cache):
    source = Source()
    source.gate.clear()
    waiting = [asyncio.ensure_future(cache.get(key(0), source.download)) for _ in range(5)]
    await turns()
    source.gate.set()
    chunks = await asyncio.gather(*waiting)
    assert source.started == 1
    assert all(chunk is chunks[0] for chunk in chunks)
    assert chunks[0].batches.end_offset == 7
    assert await cache.get(key(0), source.download) is chunks[0]
    assert source.started == 1


async def test_cancelled_reader_does_not_cancel_the_download(cache):
    source = Source()
    source.gate.clear()
    waiting = asyncio.ensure_future(cache.get(key(0), source.download))
    await turns()
    waiting.cancel()
    await turns()
    source.gate.set()
    assert isinstance(await cache.get(key(0), source.download), Chunk)
    assert source.started == 1


async def load(cache: ChunkCache, source: Source, *numbers: int) -> None:
    for number in numbers:
        await cache.get(key(number), source.download)


async def test_chunk_used_longest_ago_leaves_memory_and_stays_readable(cache):
    source = Source()
    await load(cache, source, 0, 1, 2, 3)
    second = await cache.get(key(1), source.download)
    await load(cache, source, 2, 3, 0, 4)
    assert (source.started, cache.memory_bytes, cache.counts.spills) == (5, 3 * SIZE, 0)
    assert bytes(second.content(0, 5)) == b"bbbbb"
    del second
    await load(cache, source, 0, 4, 1)
    assert source.started == 6


async def test_chunk_that_a_reader_still_needs_leaves_memory_for_the_disk(cache, tmp_path):
    source = Source()
    cache.is_needed = lambda chunk: chunk.key == key(1)
    await load(cache, source, 0, 1, 2, 3, 4, 5, 6)
    assert (cache.counts.spills, len(list((tmp_path / "cache").iterdir()))) == (1, 1)
    chunk = await cache.get(key(1), source.download)
    assert source.started == 7, "it is not downloaded again"
    part = await cache.part(chunk, 10, 15)
    assert isinstance(part, FileSlice) and part.read() == b"bbbbb"


async def test_full_memory_writes_a_chunk_to_disk_before_the_next_load(tmp_path, tasks, disk):
    """A cold read waited for the write, which took as long as its own requests to the store."""
    cache = ChunkCache(tmp_path / "cache", 8 * SIZE, disk, tasks, memory_bytes=8 * SIZE)
    cache.is_needed = lambda chunk: True
    source = Source()
    await load(cache, source, *range(7))
    await cache.idle()
    assert cache.counts.spills == 0
    await load(cache, source, 7)
    await cache.idle()
    assert cache.counts.spills == 1
    assert cache.pool.used_bytes == 7 * SIZE


async def test_chunk_that_was_downloaded_before_leaves_memory_for_the_disk(cache):
    source = Source()
    await load(cache, source, 0, 1, 2, 3, 4, 0)
    assert (source.started, cache.counts.spills) == (6, 0)
    await load(cache, source, 5, 6, 7, 8)
    assert cache.counts.spills == 1
    await cache.get(key(0), source.download)
    assert source.started == 10


async def test_chunk_that_was_read_to_its_end_leaves_memory_first(cache):
    source = Source()
    await load(cache, source, 0, 1, 2, 3)
    cache.passed(await cache.get(key(3), source.download))
    await load(cache, source, 4, 0, 1, 2)
    assert source.started == 5
    cache.is_needed = lambda chunk: True
    cache.passed(await cache.get(key(2), source.download))
    cache.is_needed = lambda chunk: False
    await load(cache, source, 5, 2)
    assert source.started == 6, "another reader needed it"


async def test_response_keeps_its_bytes_while_other_chunks_use_the_memory(cache):
    source = Source()
    chunk = await cache.get(key(0), source.download)
    part = await cache.part(chunk, 10, 15)
    assert isinstance(part, memoryview)
    await load(cache, source, *range(1, 8))
    assert bytes(part) == b"aaaaa"
    assert await cache.get(key(0), source.download) is chunk, "memory that a response holds cannot be freed"


async def test_responses_that_hold_half_of_the_memory_get_files(cache):
    source = Source()
    chunks = [await cache.get(key(number), source.download) for number in range(3)]
    parts = [await cache.part(chunk, 0, SIZE) for chunk in (*chunks, *chunks)]
    assert [isinstance(part, FileSlice) for part in parts] == [False, False, True] * 2
    assert [bytes_of(part) for part in parts] == [letter(number) * SIZE for number in (0, 1, 2)] * 2
    assert cache.counts.spills == 1
    await load(cache, source, *range(3, 8))  # there is memory for loads


async def test_load_waits_until_memory_is_free(cache):
    source = Source()
    source.gate.clear()
    loads = [asyncio.ensure_future(load(cache, source, number)) for number in range(6)]
    await turns(10)
    assert source.started == 4, "the others have no buffer"
    source.gate.set()
    await asyncio.gather(*loads)
    assert source.started == 6


async def test_files_stay_within_their_budget(cache, tmp_path):
    source = Source()
    cache.is_needed = lambda chunk: True
    first = await cache.get(key(0), source.download)
    await load(cache, source, *range(1, 5))
    assert first.buffer is None
    part = await cache.part(first, 10, 15)
    await load(cache, source, *range(5, 15))
    await cache.idle()
    assert len(list((tmp_path / "cache").iterdir())) == 4
    assert cache.bytes == 8 * SIZE
    assert bytes_of(part) == b"aaaaa", "its file is gone, but a response holds it"


async def test_deleted_records_leave_memory_and_disk(cache, tmp_path):
    source = Source()
    cache.is_needed = lambda chunk: True
    await load(cache, source, *range(6))
    assert cache.bytes == 6 * SIZE
    cache.forget(OTHER, 7, 100)
    cache.forget(PARTITION, 6, 100)
    assert cache.bytes == 6 * SIZE
    cache.forget(PARTITION, 7, 100)
    assert cache.bytes == 0
    await cache.idle()
    assert list((tmp_path / "cache").iterdir()) == []
    assert cache.pool.used_bytes == 0


@pytest.mark.parametrize("failure", [ObjectStoreError("503"), CorruptObject("bad"), OSError(28, "disk full")])
async def test_failed_download_fails_all_its_readers_and_is_not_cached(cache, failure):
    source = Source()
    source.gate.clear()
    source.failure = failure
    waiting = [asyncio.ensure_future(cache.get(key(0), source.download)) for _ in range(2)]
    await turns()
    source.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results == [failure, failure]
    assert cache.bytes == 0
    assert cache.pool.used_bytes == 0, "the failure keeps no memory"
    source.failure = None
    await cache.get(key(0), source.download)
    assert source.started == 2


async def test_concurrent_downloads_are_limited(tmp_path, tasks):
    cache, source = ChunkCache(tmp_path / "cache", SIZE, OsFiles(), tasks, downloads_at_once=2), Source()
    source.gate.clear()
    waiting = [asyncio.ensure_future(cache.get(key(number), source.download)) for number in range(4)]
    await turns()
    assert source.started == 2
    source.gate.set()
    await asyncio.gather(*waiting)
    assert source.started == 4


async def test_cancelled_reader_that_waited_for_a_slot_starts_no_download(tmp_path, tasks):
    cache, source = ChunkCache(tmp_path / "cache", SIZE, OsFiles(), tasks, downloads_at_once=1), Source()
    source.gate.clear()
    first = asyncio.ensure_future(cache.get(key(0), source.download))
    await turns()
    for _ in range(3):
        second = asyncio.ensure_future(cache.get(key(1), source.download))
        await turns()
        second.cancel()
        await turns()
        assert len(tasks) == 1
    both = [asyncio.ensure_future(cache.get(key(1), source.download)) for _ in range(2)]
    await turns()
    source.gate.set()
    await asyncio.gather(first, *both)
    assert source.started == 2


async def test_download_limit_changes_during_downloads(tmp_path, tasks):
    cache, source = ChunkCache(tmp_path / "cache", SIZE, OsFiles(), tasks, downloads_at_once=1), Source()
    source.gate.clear()
    waiting = [asyncio.ensure_future(cache.get(key(number), source.download)) for number in range(2)]
    await turns()
    assert source.started == 1
    cache.limit_downloads(2)
    waiting += [asyncio.ensure_future(cache.get(key(number), source.download)) for number in range(2, 5)]
    await turns()
    assert source.started == 3
    source.gate.set()
    await asyncio.gather(*waiting)
    assert source.started == 5


async def test_read_ahead_takes_half_of_the_memory_until_readers_ask_for_it(cache):
    source = Source()
    source.gate.clear()
    assert [cache.read_ahead(key(number), source.download) for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    await turns()
    assert source.started == 2
    waiting = asyncio.ensure_future(cache.get(key(0), source.download))
    await turns()
    assert cache.read_ahead(key(2), source.download)
    source.gate.set()
    await waiting
    await load(cache, source, 1, 2)
    assert source.started == 3
    assert cache.read_ahead(key(1), source.download)
    await cache.idle()
    assert source.started == 3


async def test_read_ahead_leaves_downloads_for_waiting_readers(tmp_path, tasks):
    cache, source = ChunkCache(tmp_path / "cache", SIZE, OsFiles(), tasks, downloads_at_once=4), Source()
    source.gate.clear()
    assert [cache.read_ahead(key(number), source.download) for number in range(3)] == [True, True, False]
    waiting = [asyncio.ensure_future(cache.get(key(number), source.download)) for number in range(3, 5)]
    await turns()
    assert source.started == 4
    source.gate.set()
    await asyncio.gather(*waiting)


async def test_files_of_a_previous_process_are_removed_at_startup(tmp_path, tasks):
    directory = tmp_path / "cache"
    directory.mkdir()
    (directory / "0.chunk").write_bytes(b"from before")
    cache = ChunkCache(directory, SIZE, OsFiles(), tasks)
    assert list(directory.iterdir()) == []
    source = Source()
    await cache.get(key(0), source.download)
    assert source.started == 1


async def test_full_disk_evicts_all_files(cache, disk, tmp_path):
    source = Source()
    cache.is_needed = lambda chunk: True
    disk.files_max = 2
    await load(cache, source, *range(6))
    await cache.idle()
    assert cache.counts.spills == 2
    await load(cache, source, 6)
    await cache.idle()
    files = len(list((tmp_path / "cache").iterdir()))
    assert files < cache.counts.spills - 1, "the two files before it were removed"
    assert cache.bytes == cache.memory_bytes + files * SIZE


async def test_chunk_that_cannot_be_written_is_dropped(cache, disk, tmp_path):
    source = Source()
    cache.is_needed = lambda chunk: True
    disk.files_max = 0
    await load(cache, source, *range(6))
    assert list((tmp_path / "cache").iterdir()) == []
    source.started = 0
    chunks = [await cache.get(key(number), source.download) for number in range(6, 9)]
    held = [await cache.part(chunk, 0, 5) for chunk in chunks[:2]]
    with pytest.raises(OSError, match="No space"):
        await cache.part(chunks[2], 0, 5)
    assert [bytes(part) for part in held] == [b"aaaaa", b"bbbbb"]


@pytest.fixture
def no_garbage_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("seed", range(8))
async def test_readers_under_memory_pressure_get_the_bytes_of_their_chunk(
    cache, disk, tasks, no_garbage_collector, seed
):
    rng = random.Random(seed)
    cache.is_needed = lambda chunk: rng.random() < 0.5

    def download_of(number: int):
        async def download(buffer: memoryview) -> BatchMarks:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.1:
                raise CorruptObject("damaged")
            buffer[:] = letter(number) * SIZE
            return BatchMarks(array("I", [0]), array("q", [0]), end_offset=7)

        return download

    async def read(number: int) -> Part:
        return await cache.part(await cache.get(key(number), download_of(number)), 0, SIZE)

    async def consume() -> None:
        held: list[tuple[int, Part]] = []
        for _ in range(50):
            number = rng.randrange(12)
            cache.read_ahead(key(number + 1), download_of(number + 1))
            with suppress(CorruptObject, OSError, TimeoutError):
                async with asyncio.timeout(rng.choice((0, 30))):
                    held.append((number, await read(number)))
            if rng.random() < 0.1:
                disk.files_max = rng.choice((0, 2, 1000))
            if rng.random() < 0.05:
                cache.forget(PARTITION, 7, 100)
            while len(held) > rng.randrange(4):
                number, part = held.pop(rng.randrange(len(held)))
                assert bytes_of(part) == letter(number) * SIZE
            cache.check()

    await asyncio.gather(*(tasks.spawn("consumer", consume()) for _ in range(6)))
    await cache.idle()
    cache.forget(PARTITION, 7, 100)
    await cache.idle()
    await all_released(cache)
    assert (cache.bytes, cache.pool.lent_bytes) == (0, 0)
    assert list(disk.directory.iterdir()) == []


def test_marks_find_the_batch_before_an_offset_or_a_position() -> None:
    marks = BatchMarks(array("I", [0, 20_000, 40_000]), array("q", [5, 90, 200]), end_offset=300)
    assert [marks.position_for(offset) for offset in (0, 5, 89, 90, 250)] == [0, 0, 0, 20_000, 40_000]
    assert [marks.at_or_below(position) for position in (0, 19_999, 20_000, 60_000)] == [0, 0, 20_000, 40_000]


async def test_release_between_a_failed_attempt_and_the_wait_wakes_the_load(cache, monkeypatch):
    monkeypatch.setattr(chunk_cache, "MEMORY_WAIT_S", 3600)
    held = [cache.pool.take(SIZE) for _ in range(4)]
    free_one = cache._free_one

    def release_in_another_thread() -> bool:
        freed = free_one()
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        return freed

    monkeypatch.setattr(cache, "_free_one", release_in_another_thread)
    async with asyncio.timeout(30):
        await load(cache, Source(), 0)


async def test_load_takes_memory_above_the_budget_if_none_is_released_for_long(cache, monkeypatch):
    monkeypatch.setattr(chunk_cache, "MEMORY_WAIT_S", 0.01)
    held = [cache.pool.take(SIZE) for _ in range(4)]
    with capture_logs() as logs:
        await load(cache, Source(), 0, 1)
    assert cache.counts.above_budget == 2
    assert [line["event"] for line in logs] == ["remote_cache.above_budget"]
    held.clear()
    await load(cache, Source(), 2)
    assert cache.counts.above_budget == 2


class HangingDisk(OsFiles):
    """Writes wait for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.gate = 0, threading.Event()

    def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self.writes += 1
        self.gate.wait()
        return super().writev_at(fd, buffers, position)


async def test_reads_continue_while_the_disk_of_the_cache_hangs(tmp_path, tasks, monkeypatch):
    monkeypatch.setattr(chunk_cache, "SPILL_S", 0.01)
    disk, source = HangingDisk(), Source()
    cache = ChunkCache(tmp_path / "cache", 4 * SIZE, disk, tasks, memory_bytes=4 * SIZE)
    cache.is_needed = lambda chunk: True
    try:
        async with asyncio.timeout(30):
            await load(cache, source, *range(12))
            assert await cache.run(lambda: 7) == 7, "verification has threads of its own"
        assert (disk.writes, cache.counts.spills) == (1, 0), "none is written while one hangs"
    finally:
        disk.gate.set()
    while cache._hanging:
        await asyncio.wait(list(cache._hanging))
        await turns()
    await cache.idle()
    assert list((tmp_path / "cache").iterdir()) == [], "what was written too late is removed"
    await load(cache, source, *range(12, 18))
    assert cache.counts.spills > 0
    await cache.idle()
    cache.check()
    cache.close()


async def test_chunk_that_was_loaded_again_during_its_write_is_a_chunk_of_its_own(tmp_path, tasks):
    disk, source = HangingDisk(), Source()
    cache = ChunkCache(tmp_path / "cache", 4 * SIZE, disk, tasks, memory_bytes=4 * SIZE)
    first = await cache.get(key(0), source.download)
    await cache.get(key(1), source.download)
    held = [await cache.part(await cache.get(key(n), source.download), 0, SIZE) for n in (2, 3)]
    writing = asyncio.ensure_future(cache.part(first, 0, SIZE))
    await turns()
    cache.forget(PARTITION, 7, 100)
    second = await cache.get(key(0), source.download)
    again = asyncio.ensure_future(cache.part(second, 0, SIZE))
    await turns()
    disk.gate.set()
    assert [bytes_of(await work) for work in (writing, again)] == [letter(0) * SIZE, letter(4) * SIZE]
    cache.check()
    del held
    await cache.idle()
    cache.close()
