"""Remote log over real segments: complete, verified batches from any offset, chunk and page."""

import asyncio
import random
import uuid
from bisect import bisect_right
from pathlib import Path

import pytest
from connection_harness import until
from faulty_store import FaultyStore
from loop_steps import LoopSteps
from msgspec.structs import replace
from tier_node import START_MS, TierNode, content, produce

from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.records import chunks
from tierlog.records.batch import iter_batches
from tierlog.tiering import copier, download, remote_log, segment_index
from tierlog.tiering.download import verify_chunk
from tierlog.tiering.format.manifest import decode_root
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError
from tierlog.tiering.remote_log import RemoteReadFailed
from tierlog.tiering.segment_index import INDEX_OVERHEAD_BYTES


@pytest.fixture(params=["chunk table", "earlier version"])
async def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # a constant, not a collaborator: chunks of 1 KB make every read of these small segments cross chunks
    for module in (chunks, segment_index):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    if request.param == "earlier version":
        monkeypatch.setattr(copier, "ChunkTable", lambda *fields: None)
        monkeypatch.setattr(copier, "_check_index", lambda *index: None)
    async with TierNode(tmp_path, FaultyStore(MemoryStore())) as node:
        yield node


async def tiered(node: TierNode, batches: int = 60):
    """A topic whose rolled segments are all remote: its replica and all its batches."""
    replica = await node.create("t")
    produce(replica, batches, records=3)
    await node.log_manager.flush("t")
    data = b"".join(
        [
            await node.store.inner.get(node.keys.log(node.where(replica), entry))
            for entry in node.remote(replica).entries
        ]
    )
    return replica, data


async def read(node: TierNode, replica, offset: int, max_bytes: int = 700, **options: object) -> bytes:
    options = {"min_one": True, **options}
    return content(await node.remote_log.read(replica.id, offset, max_bytes, **options))


async def test_read_from_any_offset_returns_complete_batches(node):
    replica, data = await tiered(node)
    bases = [header.base_offset for _, header in iter_batches(data)]
    positions = [at for at, _ in iter_batches(data)]
    for offset in range(replica.log_end_offset):
        for limit in (1, 250, 600, 5000):
            got = await read(node, replica, offset, limit)
            start = positions[bisect_right(bases, offset) - 1]
            assert data[start : start + len(got)] == got
            sizes = [header.size for _, header in iter_batches(got)]
            assert sum(sizes) == len(got)
            assert len(got) <= limit or len(sizes) == 1


async def test_slice_has_its_end_offset(node):
    replica, _ = await tiered(node)
    for offset in range(0, replica.log_end_offset, 7):
        found = await node.remote_log.read(node.where(replica), offset, 600, min_one=True)
        headers = [header for _, header in iter_batches(content(found))]
        assert (found.base_offset, found.end_offset) == (headers[0].base_offset, headers[-1].next_offset)


async def test_oversized_first_batch_needs_min_one(node):
    replica, _ = await tiered(node)
    assert len(await read(node, replica, 5, 10)) > 10
    assert await read(node, replica, 5, 10, min_one=False) == b""


async def test_next_chunk_and_segment_are_read_ahead(node):
    replica, _ = await tiered(node)
    offset = 0
    while offset < replica.log_end_offset:
        offset = list(iter_batches(await read(node, replica, offset, 5000)))[-1][1].next_offset
        await node.cache.idle()
    assert node.cache.counts.read_aheads > 10
    assert node.cache.counts.misses <= len(node.remote(replica).entries)


async def test_window_of_a_sequential_reader_crosses_segments_and_pages(node):
    replica, data = await tiered(node)
    await spill(node, replica, 3)
    log = node.fresh_remote_log()
    offset, got = 0, b""
    while len(got) < len(data):
        found = await log.read(replica.id, offset, 5000, min_one=True)
        offset, got = found.end_offset, got + content(found)
        await log.cache.idle()
    assert got == data
    assert log.cache.counts.misses <= 2, (
        "the first chunk, and the one behind the page that was not in memory yet"
    )


class HeldStore(FaultyStore):
    """Calls wait while `passes` is not set."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.passes = asyncio.Event()
        self.passes.set()
        self.in_flight = 0

    async def _next(self, operation: str) -> str:
        fault = await super()._next(operation)
        self.in_flight += 1
        await self.passes.wait()
        self.in_flight -= 1
        return fault


async def test_sequential_reader_has_four_downloads_in_flight_across_segments(node):
    replica, data = await tiered(node, batches=150)
    node.store = store = HeldStore(node.store.inner)
    log = node.fresh_remote_log()
    for entry in node.remote(replica).entries:
        await log._indexes.index(node.where(replica), entry)
    offset, got = 0, b""
    for _ in range(4):
        found = await log.read(replica.id, offset, 5000, min_one=True)
        offset, got = found.end_offset, got + content(found)
        await log.cache.idle()
    store.passes.clear()
    while found := log.read_cached(replica.id, offset, 5000, min_one=True):
        offset, got = found.end_offset, got + content(found)
        await asyncio.sleep(0)
    await until(lambda: store.in_flight >= 4)
    store.passes.set()
    found = await log.read(replica.id, offset, 5000, min_one=True)
    assert data.startswith(got + content(found))


async def test_read_of_cached_records_needs_no_wait(node, monkeypatch):
    replica, data = await tiered(node)
    where = node.where(replica)
    assert node.remote_log.read_cached(where, 0, 700, min_one=True) is None
    read = await node.remote_log.read(where, 0, 700, min_one=True)
    hits = node.cache.counts.hits
    again = node.remote_log.read_cached(where, 0, 700, min_one=True)
    assert node.cache.counts.hits == hits + 1
    assert node.remote_log.read_cached(where, 0, 700, min_one=True, committed=True) == again
    entry = replace(await node.remote_log.entry(where, 0), has_aborts=True)
    with monkeypatch.context() as patch:
        patch.setattr(node.remote_log, "_entry_ahead", lambda *_: entry)
        assert node.remote_log.read_cached(where, 0, 700, min_one=True) is not None
        assert node.remote_log.read_cached(where, 0, 700, min_one=True, committed=True) is None
    assert again is not None and content(again) == content(read) and again[2:] == read[2:]
    assert data.startswith(content(again))
    assert node.remote_log.read_cached(where, 0, 1, min_one=False).size == 0
    assert node.remote_log.read_cached(where, replica.log_end_offset, 700, min_one=True) is None


async def test_first_chunk_of_a_reader_is_requested_in_pieces(node, monkeypatch):
    replica, data = await tiered(node)
    monkeypatch.setattr(download, "URGENT_PIECE_BYTES", 300)
    for fault in ("", "fail", "cut short", "corrupt"):
        log = node.fresh_remote_log()
        await log._indexes.index(node.where(replica), node.remote(replica).entries[0])
        before = node.store.calls.count("get")
        if fault:
            node.store.arm(fault, 2, "get")
        if fault == "fail":
            with pytest.raises(RemoteReadFailed):
                await log.read(replica.id, 0, 700, min_one=True)
        found = await log.read(replica.id, 0, 700, min_one=True)
        assert data.startswith(content(found))
        assert node.store.calls.count("get") - before >= 3
        await log.cache.idle()


async def spill(node: TierNode, replica, count: int) -> None:
    """Moves the oldest entries of the manifest to a page."""
    oldest, where = node.remote(replica).entries[:count], node.where(replica)
    await node.metadata.submit(
        c.StartSpill(
            topic_id=where.topic_id,
            partition=0,
            leader_epoch=replica.leader_epoch,
            uuid=uuid.UUID(int=77),
            base_offset=oldest[0].base_offset,
            last_offset=oldest[-1].last_offset,
        )
    )
    page = await node.manager.write_page(where, uuid.UUID(int=77), oldest)
    await node.metadata.submit(
        c.SpillEntries(topic_id=where.topic_id, partition=0, leader_epoch=replica.leader_epoch, page=page)
    )


async def test_entries_in_spilled_pages_are_readable(node):
    replica, data = await tiered(node)
    entries = node.remote(replica).entries
    where = node.where(replica)
    await spill(node, replica, 3)
    assert len(node.remote(replica).entries) == len(entries) - 3
    assert data.startswith(await read(node, replica, 0))
    last = entries[2].last_offset
    assert next(iter_batches(await read(node, replica, last)))[1].last_offset == last
    found = await node.remote_log.offset_for_timestamp(where, START_MS + 4)
    assert found == (4, START_MS + 4, 0)


async def test_missing_object_is_an_error_and_skips_no_offset(node):
    replica, _ = await tiered(node)
    lost = node.remote(replica).entries[1]
    for key in (node.keys.log(node.where(replica), lost), node.keys.index(node.where(replica), lost)):
        kept = await node.store.inner.get(key)
        await node.store.inner.delete([key])
        with pytest.raises(RemoteReadFailed):
            await node.fresh_remote_log().read(node.where(replica), lost.base_offset, 700, min_one=True)
        await node.store.inner.put(key, kept)
    assert next(iter_batches(await read(node, replica, lost.base_offset)))[1].base_offset == lost.base_offset


async def test_stale_manifest_is_refreshed(node):
    replica, data = await tiered(node)
    old = RemotePartition()
    entries = node.remote(replica).entries
    gone = replace(entries[0], uuid=uuid.UUID(int=5))
    for stale in (old, replace(old, entries=(gone, *entries[1:]))):
        found = await node.fresh_remote_log(stale).read(replica.id, 0, 700, min_one=True)
        assert found.size and data.startswith(content(found))


async def test_offset_above_the_remote_end_is_a_retriable_error(node):
    replica, _ = await tiered(node)
    with pytest.raises(ObjectStoreError):
        await read(node, replica, replica.log_end_offset)


@pytest.mark.parametrize("kind", ["log", "index"])
async def test_bytes_that_contradict_the_manifest_are_never_served(node, kind):
    replica, _ = await tiered(node, batches=8)
    where, entry = node.where(replica), node.remote(replica).entries[0]
    key = node.keys.log(where, entry) if kind == "log" else node.keys.index(where, entry)
    good = await node.store.inner.get(key)
    rng = random.Random(3)
    headers = (
        [at + byte for at, _ in iter_batches(good) for byte in (0, 7, 11, 12, 15)] if kind == "log" else []
    )
    for at in [*headers, *(rng.randrange(len(good)) for _ in range(40))]:
        await node.store.inner.put(
            key, good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]
        )
        fresh = node.fresh_remote_log()
        offset, got = 0, b""
        try:
            while offset <= entry.last_offset:
                found = await fresh.read(where, offset, 5000, min_one=True)
                got += content(found)
                offset = found.end_offset
        except CorruptObject:
            pass
        source = good if kind == "log" else await node.store.inner.get(node.keys.log(where, entry))
        assert source.startswith(got), "also what no CRC covers: it is compared with the manifest"


async def test_a_segment_with_another_segments_bytes_is_refused(node):
    replica, _ = await tiered(node)
    where = node.where(replica)
    first, second = node.remote(replica).entries[:2]
    other = await node.store.inner.get(node.keys.log(where, second))
    await node.store.inner.put(node.keys.log(where, first), other)
    with pytest.raises(CorruptObject):
        await read(node, replica, first.base_offset)


async def test_damaged_download_is_retried(node):
    replica, data = await tiered(node)
    await read(node, replica, 100)  # loads nothing of the first segment
    for fault in ("corrupt", "cut short"):
        fresh = node.fresh_remote_log()
        node.store.arm(fault, 1, "get")  # 0 is the index
        found = await fresh.read(node.where(replica), 0, 700, min_one=True)
        assert node.store.fired.is_set()
        assert data.startswith(content(found))


async def test_bucket_alone_lists_all_data(node):
    replica, _ = await tiered(node)
    root = decode_root(await node.store.get(node.keys.root(node.where(replica))))
    assert root.entries == node.remote(replica).entries
    assert root.entries[-1].end_offset == replica.log_end_offset


@pytest.mark.parametrize("spilled", [0, 3], ids=["named by the manifest", "named by a page"])
async def test_segments_that_left_the_manifest_are_evicted_on_all_brokers(node, spilled: int):
    """On the broker that deletes the objects, and on others that read them."""
    replica, _ = await tiered(node)
    entries = node.remote(replica).entries
    other = node.fresh_remote_log()
    node.node.publish_to([Publisher("other", other.follow)])
    if spilled:
        await spill(node, replica, spilled)
    for reader in (node.remote_log, other):
        for entry in entries:
            await reader.read(node.where(replica), entry.base_offset, 700, min_one=True)
        assert reader.index_bytes >= len(entries) * INDEX_OVERHEAD_BYTES
    held, cached = node.remote_log.index_bytes, node.cache.bytes
    await node.move_log_start(replica, entries[-2].end_offset)
    for reader in (node.remote_log, other):
        await until(lambda reader=reader: reader.index_bytes < held / len(entries) * 2)
        assert reader.index_bytes > 0
    await until(lambda: node.cache.bytes < cached)
    assert node.cache.bytes > 0
    assert await read(node, replica, entries[-1].base_offset)
    await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    await until(lambda: node.remote_log.index_bytes == other.index_bytes == node.cache.bytes == 0)


async def test_deletion_of_many_partitions_that_were_read_takes_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_log, "LOOKS_PER_TURN", 4)
    most = []
    for partitions in (10, 40):
        async with TierNode(tmp_path / str(partitions), MemoryStore()) as node:
            await node.create("t", partitions, segment_bytes="2000")
            for replica in node:
                produce(replica, 20)
            await node.log_manager.flush("t")
            for replica in node:
                for entry in node.remote(replica).entries:
                    await node.remote_log.read(replica.id, entry.base_offset, 700, min_one=True)
            with LoopSteps(
                "tiering/chunk_cache.py", "tiering/remote_log.py", "tiering/single_flight.py"
            ) as steps:
                await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
                await until(lambda node=node: node.remote_log.index_bytes == 0)
            await until(lambda node=node: node.cache.bytes == 0)
            most.append(steps.most)
    assert most[1] < most[0] * 1.5


async def test_wrong_base_offset_at_the_end_of_a_chunk_is_refused(node):
    """No batch after it in the chunk shows the damage, and offsets may have gaps."""
    replica, _ = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    index = await node.remote_log._indexes.index(node.where(replica), entry)
    key = index.chunk_at(0)
    assert key.end < entry.log_bytes
    whole = await node.store.inner.get(node.keys.log(node.where(replica), entry))
    content = bytearray(whole[: key.end])
    assert verify_chunk("t", index, key, bytes(content)).end_offset > 0
    at, last = list(iter_batches(content))[-1]
    assert at > 0
    content[at : at + 8] = (last.base_offset + 8).to_bytes(8, "big")
    with pytest.raises(CorruptObject, match=r"checksum|a batch has the offsets"):
        verify_chunk("t", index, key, bytes(content))
