"""Damaged objects in a real directory store: reported once, not downloaded for each reader, and served again
once they are right."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from connection_harness import until
from faulty_store import FaultyStore
from structlog.testing import capture_logs
from tier_handlers import dependencies
from tier_node import TierNode, content, produce

from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.offsets import list_offsets_handler
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.records import chunks
from tierlog.records.batch import iter_batches
from tierlog.tiering import quarantine, segment_index
from tierlog.tiering.format.bundle import Section, read_places
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import CorruptObject
from tierlog.tiering.quarantine import (
    LOG_LINES_PER_MINUTE,
    RECHECK_FIRST_MS,
    RECHECK_MAX_MS,
    ObjectRange,
)
from tierlog.tiering.remote_log import RemoteReadFailed

CHUNK_BYTES = 1000
RECHECK = "re-check of damaged objects"


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # a constant, not a collaborator: these small segments have several chunks
    for module in (chunks, segment_index):
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)
    async with TierNode(tmp_path / "node", FaultyStore(LocalStore(tmp_path / "objects"))) as node:
        yield node


async def tiered(node: TierNode, batches: int = 60, **settings: Any) -> Replica:
    """Partition 0 of a topic, whose records are all remote."""
    replica = await node.create("t", **settings)
    for one in node:
        produce(one, batches, records=3)
    await node.log_manager.flush("t")
    while jobs := node.log_manager.jobs():
        await asyncio.wait(jobs)
    return replica


def path_of(node: TierNode, key: str) -> Path:
    path: Path = node.store.inner._path(key)
    return path


def flip(node: TierNode, key: str, at: int) -> None:
    """Flip a bit of the object. Flipping it again restores the object."""
    data = bytearray(path_of(node, key).read_bytes())
    data[at] ^= 0x10
    path_of(node, key).write_bytes(data)


def log_key(node: TierNode, replica: Replica, segment: int = 0) -> str:
    return node.keys.log(node.where(replica), node.remote(replica).entries[segment])


def gets(node: TierNode) -> int:
    return node.store.calls.count("get")


async def read(node: TierNode, replica: Replica, offset: int) -> bytes:
    found = await node.remote_log.read(replica.id, offset, 5000, min_one=True)
    await node.cache.idle()  # read-ahead
    return content(found)


async def refused(node: TierNode, replica: Replica, offset: int) -> int:
    """GETs of a read that must fail."""
    before = gets(node)
    with pytest.raises(CorruptObject):
        await node.remote_log.read(replica.id, offset, 5000, min_one=True)
    return gets(node) - before


async def test_damaged_object_is_downloaded_twice_and_then_once_per_back_off(node: TierNode) -> None:
    replica = await tiered(node)
    flip(node, log_key(node, replica), 100)
    assert await refused(node, replica, 0) == 3  # with the index
    assert node.remote_log.quarantine.damaged_reads == 2
    backoff_ms, waited = RECHECK_FIRST_MS, []
    for _ in range(9):
        assert [await refused(node, replica, offset) for offset in (0, 1, 0)] == [0, 0, 0]
        node.clock.pass_time(backoff_ms - 1000)
        assert await refused(node, replica, 0) == 0
        node.clock.pass_time(1000)
        assert [await refused(node, replica, 0) for _ in range(3)] == [1, 0, 0]
        waited.append(backoff_ms)
        backoff_ms = min(2 * backoff_ms, RECHECK_MAX_MS)
    assert waited[:3] == [10_000, 20_000, 40_000] and waited[-1] == RECHECK_MAX_MS


async def test_one_log_line_names_the_damage_and_one_its_end(node: TierNode) -> None:
    replica = await tiered(node)
    key = log_key(node, replica)
    flip(node, key, 100)
    with capture_logs() as lines:
        for _ in range(5):
            await refused(node, replica, 0)
        node.clock.pass_time(RECHECK_FIRST_MS)
        await refused(node, replica, 0)
    [line] = lines
    [damaged] = node.remote_log.quarantine.damaged
    assert line["log_level"] == "error" and "checksum" in line["error"]
    assert (line["partition"], line["object"], line["first_offset"]) == ("t-0", key, 0)
    assert line["end_offset"] == damaged.place.end_offset
    assert node.remote_log.quarantine.objects == 1

    flip(node, key, 100)
    node.clock.pass_time(2 * RECHECK_FIRST_MS)
    with capture_logs() as lines:
        good = path_of(node, key).read_bytes()
        assert good.startswith(await read(node, replica, 0))
    assert [line["event"] for line in lines] == ["remote_object.well"]
    assert (node.remote_log.quarantine.damaged, node.remote_log.quarantine.objects) == ([], 0)


async def test_restored_object_leaves_without_a_consumer(node: TierNode) -> None:
    replica = await tiered(node)
    for key, at in ((log_key(node, replica), 100), (log_key(node, replica, 2), 2500)):
        flip(node, key, at)
    third = node.remote(replica).entries[2]
    index = await node.remote_log._indexes.index(node.where(replica), third)
    await refused(node, replica, 0)
    await refused(node, replica, index.row(index.chunk_at(2500)).first_offset)
    damaged = [(one.place.key, one.place.position) for one in node.remote_log.quarantine.damaged]
    assert len(damaged) == 2 and damaged[1][1] > 0
    idle = len(node.tasks)
    flip(node, log_key(node, replica), 100)
    node.remote_log.recheck()
    assert len(node.tasks) == idle  # none is due
    node.clock.pass_time(RECHECK_FIRST_MS)
    node.remote_log.recheck()
    node.remote_log.recheck()
    assert len(node.tasks) == idle + 1
    await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == RECHECK])
    assert [(one.place.key, one.place.position) for one in node.remote_log.quarantine.damaged] == damaged[1:]


async def test_other_chunks_of_the_object_and_other_partitions_are_served(node: TierNode) -> None:
    replica = await tiered(node)
    entry = node.remote(replica).entries[0]
    good = path_of(node, log_key(node, replica)).read_bytes()
    batches = [(header.base_offset, header.next_offset, at) for at, header in iter_batches(good)]
    index = await node.remote_log._indexes.index(node.where(replica), entry)
    chunk = index.chunk_at(CHUNK_BYTES + 500)
    assert 0 < chunk.start < chunk.end < entry.log_bytes
    flip(node, log_key(node, replica), chunk.start + 100)
    behind = next((base, end) for base, end, at in batches if at == chunk.end)
    for base, _, at in batches:
        if chunk.start <= at < chunk.end:
            await refused(node, replica, base)
        else:
            assert await read(node, replica, base)
    [damaged] = node.remote_log.quarantine.damaged
    assert damaged.place.end_offset == behind[0]
    following = next(iter_batches(await read(node, replica, damaged.place.end_offset)))[1]
    assert (following.base_offset, following.next_offset) == behind
    await refused(node, replica, damaged.place.first_offset)
    assert await read(node, replica, damaged.place.first_offset - 3)


@pytest.mark.parametrize("kind", ["index", "page"])
async def test_damaged_index_or_page_is_quarantined(node: TierNode, kind: str) -> None:
    replica = await tiered(node)
    where, entries = node.where(replica), node.remote(replica).entries
    if kind == "page":
        await spill(node, replica)
        [ref] = node.remote(replica).pages
        key, last = node.keys.page(where, ref), ref.last_offset
    else:
        key, last = node.keys.index(where, entries[0]), entries[0].last_offset
    flip(node, key, 40)
    remote = node.remote_log = node.fresh_remote_log()
    assert [await refused(node, replica, offset) for offset in (0, 3, last)] == [2, 0, 0]
    [damaged] = remote.quarantine.damaged
    assert damaged.place == ObjectRange(where, key, 0, 0, last + 1)
    assert await read(node, replica, last + 1)
    flip(node, key, 40)
    node.clock.pass_time(RECHECK_FIRST_MS)
    assert await read(node, replica, 0)
    assert remote.quarantine.damaged == []


async def spill(node: TierNode, replica: Replica) -> None:
    """Move the two oldest entries of the manifest to a page."""
    where, page_id = node.where(replica), uuid.UUID(int=77)
    oldest = node.remote(replica).entries[:2]
    common: dict[str, Any] = {
        "topic_id": where.topic_id,
        "partition": 0,
        "leader_epoch": replica.leader_epoch,
    }
    offsets = {"base_offset": oldest[0].base_offset, "last_offset": oldest[1].last_offset}
    await node.metadata.submit(c.StartSpill(uuid=page_id, **offsets, **common))
    page = await node.manager.write_page(where, page_id, oldest)
    await node.metadata.submit(c.SpillEntries(page=page, **common))
    await node.finish_tiering()  # the manifest is written, and read back


async def test_object_that_is_cut_short_is_quarantined(node: TierNode) -> None:
    replica = await tiered(node)
    path = path_of(node, log_key(node, replica))
    path.write_bytes(path.read_bytes()[:500])
    assert await refused(node, replica, 0) == 3
    assert await refused(node, replica, 0) == 0


async def test_log_lines_and_kept_ranges_are_bounded(node: TierNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "RANGES_MAX", 3)
    replica = await tiered(node, batches=30 * (LOG_LINES_PER_MINUTE + 5))
    entries = node.remote(replica).entries
    assert len(entries) > LOG_LINES_PER_MINUTE + 3
    with capture_logs() as lines:
        for number, entry in enumerate(entries):
            flip(node, log_key(node, replica, number), 100)
            await refused(node, replica, entry.base_offset)
    assert len(node.remote_log.quarantine.damaged) == 3
    assert [line["event"] for line in lines] == [
        *(["remote_object.damaged"] * LOG_LINES_PER_MINUTE),
        "remote_object.damaged.more",
    ]
    node.clock.pass_time(60_000)
    with capture_logs() as lines:
        await refused(node, replica, entries[-1].base_offset)
    assert [line["event"] for line in lines] == ["remote_object.damaged"]


async def test_damage_below_a_new_log_start_and_of_deleted_topics_is_forgotten(node: TierNode) -> None:
    replica = await tiered(node)
    entries = node.remote(replica).entries
    for number in (0, 2):
        flip(node, log_key(node, replica, number), 100)
        await refused(node, replica, entries[number].base_offset)
    damage = node.remote_log.quarantine
    assert damage.objects == 2
    await node.move_log_start(replica, entries[0].end_offset)
    await until(lambda: damage.objects == 1)
    assert [one.place.first_offset for one in damage.damaged] == [entries[2].base_offset]
    await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    await until(lambda: damage.damaged == [])


async def test_fetch_refuses_the_damaged_range_and_serves_the_other_partition(node: TierNode) -> None:
    replica = await tiered(node, partitions=2)
    flip(node, log_key(node, replica), 100)
    for _ in range(3):
        answers = await fetch(node)
        assert [(one.error_code, bool(one.records)) for one in answers] == [
            (ErrorCode.CORRUPT_MESSAGE, False),
            (ErrorCode.NONE, True),
        ]
    requested = [ListOffsetsPartition(partition_index=number, timestamp=0) for number in range(2)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=requested)])
    response: Any = await list_offsets_handler(dependencies(node))(_context(2, 8), request)  # type: ignore[misc]
    codes = [one.error_code for one in response.topics[0].partitions]
    assert codes == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]


async def test_damaged_range_is_served_from_local_segments_while_they_exist(node: TierNode) -> None:
    replica = await tiered(node, local_retention_ms="-1")
    flip(node, log_key(node, replica), 100)
    await refused(node, replica, 0)
    before = gets(node)
    [answer] = await fetch(node, partitions=1)
    assert (answer.error_code, answer.records.size > 0) == (ErrorCode.NONE, True)
    assert gets(node) == before


def _context(key: int, version: int) -> RequestContext:
    return RequestContext(key, version, 1, "test", Connection(1, "127.0.0.1", 1))


async def fetch(node: TierNode, partitions: int = 2) -> list[Any]:
    requested = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(partitions)
    ]
    request = FetchRequest(max_bytes=100 << 20, topics=[FetchTopic(topic="t", partitions=requested)])
    reply: Any = fetch_handler(dependencies(node))(_context(1, 12), request)
    response = await reply if hasattr(reply, "__await__") else reply
    found: list[Any] = response.responses[0].partitions
    return found


async def test_damage_that_only_followers_meet_does_not_stop_consumers(node: TierNode) -> None:
    """A follower that starts from the tier reads the complete bundle, a consumer its chunk table."""
    replica = await tiered(node)
    entry = node.remote(replica).entries[0]
    key = node.keys.index(node.where(replica), entry)
    position = read_places(path_of(node, key).read_bytes())[Section.LEADER_EPOCHS].position
    flip(node, key, position)
    with pytest.raises(CorruptObject):
        await node.remote_log.history(replica.id, entry.base_offset)
    assert await read(node, replica, 0)
    node.clock.pass_time(RECHECK_FIRST_MS)
    await recheck(node)
    assert node.remote_log.quarantine.objects == 1
    flip(node, key, position)
    node.clock.pass_time(2 * RECHECK_FIRST_MS)
    await recheck(node)
    assert node.remote_log.quarantine.objects == 0


async def recheck(node: TierNode) -> None:
    node.remote_log.recheck()
    await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == RECHECK])


@pytest.mark.parametrize("kind", ["log", "index", "page"])
async def test_missing_object_is_reported_and_served_once_it_is_back(node: TierNode, kind: str) -> None:
    replica = await tiered(node)
    where, entry = node.where(replica), node.remote(replica).entries[0]
    key = node.keys.log(where, entry) if kind == "log" else node.keys.index(where, entry)
    if kind == "page":
        await spill(node, replica)
        key = node.keys.page(where, node.remote(replica).pages[0])
    path = path_of(node, key)
    path.rename(path.with_suffix(".away"))
    remote = node.remote_log = node.fresh_remote_log()
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(RemoteReadFailed, match="does not exist"):
                await remote.read(replica.id, 0, 5000, min_one=True)
            before = gets(node)
    assert gets(node) == before, "no further reads until the back-off has passed"
    [line] = [line for line in lines if line["log_level"] == "error"]
    assert (line["event"], line["object"]) == ("remote_object.missing", key)
    [found] = remote.quarantine.damaged
    assert (found.is_missing, found.place.key) == (True, key)
    assert (remote.quarantine.objects, remote.quarantine.missing_objects) == (1, 1)
    assert remote.quarantine.damaged_reads == 0
    path.with_suffix(".away").rename(path)
    node.clock.pass_time(RECHECK_FIRST_MS)
    await recheck(node)
    assert remote.quarantine.missing_objects == 0
    assert await read(node, replica, 0)


async def test_object_that_left_the_manifest_is_not_missing(node: TierNode) -> None:
    """A reader may have found its entry in an older manifest."""
    replica = await tiered(node)
    before, entries = node.remote(replica), node.remote(replica).entries
    await node.move_log_start(replica, entries[0].end_offset)
    for key_of in (node.keys.log, node.keys.index):
        path_of(node, key_of(node.where(replica), entries[0])).unlink()
    remote = node.fresh_remote_log(before)
    with capture_logs() as lines, pytest.raises(RemoteReadFailed):
        await remote.read(replica.id, 0, 5000, min_one=True)
    assert (remote.quarantine.damaged, lines) == ([], [])
