"""Chunk cache: shared downloads, byte budget, cancelled readers, and readers of evicted chunks."""

import asyncio
import errno
import uuid
from array import array
from pathlib import Path

import pytest

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.tiering.chunk_cache import BatchMarks, Chunk, ChunkCache, ChunkKey
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError

SEGMENT = uuid.UUID(int=1)
PARTITION, OTHER = (TopicIdPartition(uuid.UUID(int=2), number) for number in range(2))


def key(number: int, size: int = 100) -> ChunkKey:
    return ChunkKey(PARTITION, SEGMENT, number * size, (number + 1) * size)


class Source:
    """Downloads that wait until released, and count."""

    def __init__(self) -> None:
        self.started = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: BaseException | None = None

    async def download(self, path: Path) -> BatchMarks:
        self.started += 1
        await self.gate.wait()
        path.write_bytes(b"x" * 100)
        if self.failure is not None:
            raise self.failure
        return BatchMarks(array("I", [0]), array("q", [0]), end_offset=7)


@pytest.fixture
async def tasks():
    failures: list[BaseException] = []
    group = TaskGroup(lambda name, failure: failures.append(failure))
    yield group
    await group.close()
    assert not failures


@pytest.fixture
def cache(tmp_path, tasks):
    cache = ChunkCache(tmp_path / "cache", 250, OsFiles(), tasks)
    yield cache
    cache.check()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


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


async def test_least_recently_used_chunk_is_evicted_and_stays_readable(cache, tmp_path):
    source = Source()
    first = await cache.get(key(0), source.download)
    await cache.get(key(1), source.download)
    await cache.get(key(0), source.download)
    await cache.get(key(2), source.download)  # 300 bytes of 250: the second goes
    await cache.get(key(0), source.download)
    assert source.started == 3
    await cache.get(key(1), source.download)
    assert source.started == 4
    assert cache.bytes == 200
    assert len(list((tmp_path / "cache").iterdir())) == 2
    cache.forget(OTHER, first.batches.end_offset)
    cache.forget(PARTITION, first.batches.end_offset - 1)
    assert cache.bytes == 200
    cache.forget(PARTITION, first.batches.end_offset)
    assert cache.bytes == 0
    assert list((tmp_path / "cache").iterdir()) == []
    assert FileSlice(first.file, 10, 5).read() == b"xxxxx"


@pytest.mark.parametrize("failure", [ObjectStoreError("503"), CorruptObject("bad"), OSError(28, "disk full")])
async def test_failed_download_fails_all_its_readers_and_is_not_cached(cache, tmp_path, failure):
    source = Source()
    source.gate.clear()
    source.failure = failure
    waiting = [asyncio.ensure_future(cache.get(key(0), source.download)) for _ in range(2)]
    await turns()
    source.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results == [failure, failure]
    assert list((tmp_path / "cache").iterdir()) == []
    source.failure = None
    await cache.get(key(0), source.download)
    assert source.started == 2


async def test_concurrent_downloads_are_limited(tmp_path, tasks):
    cache, source = ChunkCache(tmp_path / "cache", 250, OsFiles(), tasks, downloads_at_once=2), Source()
    source.gate.clear()
    waiting = [asyncio.ensure_future(cache.get(key(number), source.download)) for number in range(4)]
    await turns()
    assert source.started == 2
    source.gate.set()
    await asyncio.gather(*waiting)
    assert source.started == 4


async def test_cancelled_reader_that_waited_for_a_slot_starts_no_download(tmp_path, tasks):
    cache, source = ChunkCache(tmp_path / "cache", 250, OsFiles(), tasks, downloads_at_once=1), Source()
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
    cache, source = ChunkCache(tmp_path / "cache", 1000, OsFiles(), tasks, downloads_at_once=1), Source()
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


async def test_read_ahead_is_limited_and_shared_with_readers(cache):
    source = Source()
    source.gate.clear()
    for number in range(4):
        cache.read_ahead(key(number), source.download)
    await turns()
    assert source.started == 2
    waiting = asyncio.ensure_future(cache.get(key(0), source.download))
    await turns()
    source.gate.set()
    await waiting
    assert source.started == 2
    await cache.get(key(1), source.download)
    cache.read_ahead(key(1), source.download)
    await turns()
    assert source.started == 2


async def test_files_of_a_previous_process_are_removed_at_startup(tmp_path, tasks):
    directory = tmp_path / "cache"
    directory.mkdir()
    (directory / "0.chunk").write_bytes(b"from before")
    cache = ChunkCache(directory, 250, OsFiles(), tasks)
    assert list(directory.iterdir()) == []
    source = Source()
    await cache.get(key(0), source.download)
    assert source.started == 1


async def test_full_disk_evicts_all_chunks(cache, tmp_path):
    source, refused = Source(), []
    await cache.get(key(0), source.download)

    async def download(path: Path) -> int:
        if len(list((tmp_path / "cache").glob("*.chunk"))) > 0:
            path.write_bytes(b"x" * 10)
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        return await source.download(path)

    assert (await cache.get(key(1), download)).batches.end_offset == 7
    assert len(refused) == 1
    cache.check()
    with pytest.raises(OSError, match="No space"):
        await cache.get(key(2), full_download)


async def full_download(path: Path) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_marks_find_the_batch_before_an_offset_or_a_position() -> None:
    marks = BatchMarks(array("I", [0, 20_000, 40_000]), array("q", [5, 90, 200]), end_offset=300)
    assert [marks.position_for(offset) for offset in (0, 5, 89, 90, 250)] == [0, 0, 0, 20_000, 40_000]
    assert [marks.at_or_below(position) for position in (0, 19_999, 20_000, 60_000)] == [0, 0, 20_000, 40_000]
