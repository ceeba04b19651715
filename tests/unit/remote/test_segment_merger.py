"""Segment merger: which runs are merged, and what readers find afterwards."""

import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tier_node import ABORT, PRODUCER, START_MS, TierNode, content, produce, write_transactional

from tierlog.broker.remote import segment_merger
from tierlog.broker.remote.remote_log_manager import CommandRejected
from tierlog.broker.remote.segment_merger import MergeLimits, limits_of, run_to_merge
from tierlog.broker.replication.replica import Replica
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import read_header
from tierlog.records.writer import NewRecord
from tierlog.tiering.copier import NotUploadable
from tierlog.tiering.format.bundle import IndexBundle
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.page_tree import Spill

HOUR_MS = 3_600_000
LIMITS = MergeLimits(segments_min=4, bytes_max=1000)


def entries_of(*sizes: int, timestamps: Sequence[int] = ()) -> list[RemoteSegment]:
    """Successive segments of these sizes, with one record each."""
    return [
        RemoteSegment(
            uuid=uuid.UUID(int=at + 1),
            base_offset=at,
            last_offset=at,
            leader_epochs=((0, 0),),
            log_bytes=size,
            index_bytes=1,
            records=1,
            first_timestamp=START_MS,
            max_timestamp=timestamps[at] if timestamps else START_MS,
            has_transactions=False,
            has_aborts=False,
            log_crc32c=0,
            index_crc32c=0,
            leader_epoch=0,
        )
        for at, size in enumerate(sizes)
    ]


def sizes_of_run(*sizes: int, limits: MergeLimits = LIMITS, timestamps: Sequence[int] = ()) -> list[int]:
    return [entry.log_bytes for entry in run_to_merge(entries_of(*sizes, timestamps=timestamps), limits)]


# -- which runs


def test_run_is_as_long_as_the_size_of_a_segment_allows() -> None:
    assert sizes_of_run(*[100] * 12) == [100] * 10


def test_fewer_segments_than_the_minimum_are_left() -> None:
    assert sizes_of_run(10, 10, 10) == []


def test_segment_that_is_large_beside_its_neighbours_is_not_written_again() -> None:
    assert sizes_of_run(240, 10, 10, 10, 10, 10) == [10] * 5
    assert sizes_of_run(10, 10, 240, 10, 10) == []
    assert sizes_of_run(240, 240, 240, 240, 100) == [240] * 4


def test_large_segments_are_left() -> None:
    assert sizes_of_run(900, 900, 300, 300, 300, 300) == []


def test_merged_segment_spans_at_most_a_part_of_the_retention() -> None:
    times = [START_MS + hour * HOUR_MS for hour in range(12)]
    limits = replace(LIMITS, span_ms_max=5 * HOUR_MS)
    assert sizes_of_run(*[10] * 12, limits=limits, timestamps=times) == [10] * 6
    assert sizes_of_run(*[10] * 12, limits=replace(LIMITS, span_ms_max=HOUR_MS), timestamps=times) == []


def test_merged_bundle_is_one_that_readers_accept() -> None:
    limits = replace(LIMITS, index_bytes_max=6)
    assert sizes_of_run(*[10] * 12, limits=limits) == [10] * 6


def test_limits_follow_the_topic() -> None:
    forever = TopicConfig(segment_bytes=1 << 30, retention_ms=-1, retention_bytes=-1)
    assert limits_of(forever, 8) == MergeLimits(8, 1 << 30, None)
    limited = TopicConfig(segment_bytes=1 << 30, retention_ms=80 * HOUR_MS, retention_bytes=8 << 20)
    assert limits_of(limited, 8) == MergeLimits(8, 1 << 20, 10 * HOUR_MS)
    lags = {"min_compaction_lag_ms": 8 * HOUR_MS, "max_compaction_lag_ms": 16 * HOUR_MS}
    compacted = TopicConfig(segment_bytes=1 << 30, cleanup_policy=frozenset(["compact"]), **lags)
    assert limits_of(compacted, 8) == MergeLimits(8, 1 << 30, HOUR_MS)


@pytest.mark.parametrize("seed", range(5))
def test_a_record_is_written_again_only_a_few_times(seed: int) -> None:
    """Small segments arrive one by one, and are merged whenever a run is found."""
    rng, limits = random.Random(seed), MergeLimits(8, 1 << 20)
    sizes: list[int] = []
    written = merged = 0
    for _ in range(3000):
        sizes.append(rng.randrange(500, 2000))
        written += sizes[-1]
        entries = entries_of(*sizes)
        while run := run_to_merge(entries, limits):
            at = entries.index(run[0])
            size = sum(entry.log_bytes for entry in run)
            merged += size
            sizes[at : at + len(run)] = [size]
            entries = entries_of(*sizes)
    assert merged < 4 * written
    assert len(sizes) < 40


# -- with a leader and a store


async def tiny_segments(node: TierNode, count: int = 12, **settings: str) -> Replica:
    """A tiered topic with `count` small segments, which fit into one merged segment."""
    replica = await node.create("t", **{"segment_bytes": "1000000", **settings})
    for _ in range(count):
        produce(replica, 3)
        await node.log_manager.flush("t")
    await node.finish_tiering()
    assert len(node.remote(replica).entries) == count
    return replica


async def all_bytes(node: TierNode, replica: Replica) -> bytes:
    log, offset, data = node.fresh_remote_log(), node.remote(replica).log_start_offset, b""
    while offset < (node.remote(replica).end_offset or 0):
        part = await log.read(replica.id, offset, 1 << 20, min_one=True)
        data, offset = data + content(part), part.end_offset
    return data


async def bundle_of(node: TierNode, replica: Replica, entry: RemoteSegment) -> IndexBundle:
    return await node.fresh_remote_log().indexes.bundle(node.where(replica), entry)


async def test_tiny_segments_become_one_with_the_same_bytes(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node)
        before, data = node.remote(replica).entries, await all_bytes(node, replica)
        last = await bundle_of(node, replica, before[-1])
        await node.merger.merge_all()
        [merged] = node.remote(replica).entries
        assert (merged.base_offset, merged.last_offset) == (0, before[-1].last_offset)
        assert merged.records == sum(entry.records for entry in before)
        assert merged.max_timestamp == before[-1].max_timestamp
        assert merged.min_timestamp == before[0].min_timestamp
        assert await all_bytes(node, replica) == data
        bundle = await bundle_of(node, replica, merged)
        assert bundle.producer_snapshot == last.producer_snapshot
        assert bundle.leader_epochs == last.leader_epochs
        await node.finish_tiering()
        while node.metadata.image.delete_queue:
            node.clock.pass_time(HOUR_MS)
            await node.storage_cleaner.clean()
        assert len(await node.objects(node.keys.data(node.where(replica)))) == 2
        assert await all_bytes(node, replica) == data
        assert (node.merger.merges, node.merger.segments, node.merger.bytes) == (1, 12, len(data))


async def test_every_offset_and_time_is_found_in_a_merged_segment(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node, index_interval_bytes="1")
        await node.merger.merge_all()
        log = node.fresh_remote_log()
        for offset in range(0, replica.log_end_offset, 7):
            found = await log.read(replica.id, offset, 1, min_one=True)
            assert read_header(content(found)).base_offset <= offset < found.end_offset
            record = await log.offset_for_timestamp(replica.id, START_MS + offset)
            assert record is not None and record[:2] == (offset, START_MS + offset)


async def test_aborted_transaction_over_several_segments_stays_known(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", segment_bytes="1000000")
        first = write_transactional(replica, [NewRecord(START_MS, None, b"aborted")])
        for _ in range(8):
            produce(replica, 3)
            replica.log.roll(START_MS)
        marker = write_transactional(replica, ABORT, control=True)
        produce(replica, 1)  # moves the last stable offset
        await node.log_manager.flush("t")
        await node.finish_tiering()
        entries = node.remote(replica).entries
        before = await aborted_up_to(node, replica, marker + 1)
        await node.merger.merge_all()
        [merged] = node.remote(replica).entries
        assert len(entries) > 8 and merged.has_aborts and merged.has_transactions
        assert merged.control_records == 1
        assert await aborted_up_to(node, replica, marker + 1) == before == {(PRODUCER, first)}


async def aborted_up_to(node: TierNode, replica: Replica, end: int) -> set[tuple[int, int]]:
    """The aborted transactions that a consumer of the remote log learns of; each read must list them."""
    log, offset, found = node.fresh_remote_log(), 0, set[tuple[int, int]]()
    while offset < end:
        part, aborted = await log.read_committed(replica.id, offset, 1 << 20, min_one=True)
        assert aborted
        found.update(aborted)
        offset = part.end_offset
    return found


async def test_merge_of_an_earlier_leader_is_refused(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node)
        before = node.remote(replica).entries
        earlier = SimpleNamespace(id=replica.id, name=replica.name, leader_epoch=replica.leader_epoch - 1)
        with pytest.raises(CommandRejected):
            await node.merger.merge(earlier, before)  # type: ignore[arg-type]
        assert node.remote(replica).entries == before
        assert node.log_manager.editor.copies == set()


async def test_segments_that_retention_deletes_meanwhile_are_not_merged(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node)
        before = node.remote(replica).entries
        await node.move_log_start(replica, before[2].end_offset)
        with pytest.raises(CommandRejected):
            await node.merger.merge(replica, before)
        await node.finish_tiering()
        assert node.remote(replica).entries == before[3:] and not node.remote(replica).started


async def test_damaged_segment_is_not_merged_and_delays_the_next_attempt(tmp_path: Path) -> None:
    async with TierNode(tmp_path / "node", LocalStore(tmp_path / "objects")) as node:
        replica = await tiny_segments(node)
        before = node.remote(replica).entries
        key = node.keys.log(node.where(replica), before[5])
        path = node.store._path(key)
        intact = path.read_bytes()
        path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        await node.merger.merge_all()
        await node.finish_tiering()
        assert node.merger.errors == 1 and node.remote(replica).entries == before
        assert not node.remote(replica).started, "the planner abandons the copy"
        path.write_bytes(intact)
        node.clock.pass_time(HOUR_MS)
        for recheck in node.remote_log.quarantine.due():  # as the tiering timer does
            await recheck()
        for _ in range(2):  # passes that are skipped
            await node.merger.merge_all()
            assert node.remote(replica).entries == before
        await node.merger.merge_all()
        assert len(node.remote(replica).entries) == 1


async def test_nothing_is_merged_without_need(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node)
        before = node.remote(replica).entries
        settings = node.merger._settings
        node.merger.configure(replace(settings, remote_log_merge_min_segments=0))
        await node.merger.merge_all()
        assert node.remote(replica).entries == before
        node.merger.configure(settings)
        change = c.ConfigChange(key="remote.log.copy.disable", operation=c.ConfigOperation.SET, value="true")
        resource = c.ConfigResource(scope=c.ConfigScope.TOPIC, name="t", changes=(change,))
        await node.metadata.submit(c.AlterConfigs(resources=(resource,)))
        await asyncio.sleep(0)
        await node.merger.merge_all()
        assert node.remote(replica).entries == before


async def test_merge_waits_until_the_bytes_of_the_one_before_are_paid_off(tmp_path: Path) -> None:
    """remote.log.merge.max.bytes.per.second, which may change while a merge waits."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node)
        before, settings = node.remote(replica).entries, node.merger._settings
        node.merger.configure(replace(settings, remote_log_merge_max_bytes_per_second=1))
        await node.merger.merge(replica, before[:6])
        waiting = asyncio.create_task(node.merger.merge(replica, before[6:]))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done() and node.remote(replica).entries[1:] == before[6:]
        assert not node.remote(replica).started, "a merge that waits is not announced"
        node.merger.configure(settings)
        await waiting
        assert len(node.remote(replica).entries) == 2


# -- what a merge must not do


class HeldStore(MemoryStore):
    """Holds each read of one object until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.held = ""
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == self.held:
            self.reached.set()
            await self.released.wait()
        return await super().get(key, start, end)


async def test_merge_whose_copy_was_abandoned_puts_no_object(tmp_path: Path) -> None:
    """The copy is abandoned, as the next leader does it. Its objects are deleted after the grace, so an
    object that is put later would stay forever."""
    store = HeldStore()
    async with TierNode(tmp_path, store) as node:
        replica = await tiny_segments(node)
        before = node.remote(replica).entries
        store.held = node.keys.log(node.where(replica), before[5])
        merging = asyncio.create_task(node.merger.merge(replica, before))
        await store.reached.wait()
        [copy] = node.remote(replica).started
        abandon = c.AbandonCopy(
            topic_id=replica.topic_id, partition=0, leader_epoch=replica.leader_epoch, uuid=copy.uuid
        )
        await node.metadata.submit(abandon)
        while node.metadata.image.delete_queue:
            node.clock.pass_time(HOUR_MS)
            await node.storage_cleaner.clean()
        store.released.set()
        with pytest.raises(NotUploadable):
            await merging
        assert len(await node.objects(node.keys.data(node.where(replica)))) == 2 * len(before)


async def test_damaged_segment_does_not_prevent_other_merges(tmp_path: Path) -> None:
    async with TierNode(tmp_path / "node", LocalStore(tmp_path / "objects")) as node:
        replica = await tiny_segments(node, 24)
        before = node.remote(replica).entries
        path = node.store._path(node.keys.log(node.where(replica), before[10]))
        intact = path.read_bytes()
        path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        for _ in range(4):  # two are skipped after the one that finds the damage
            await node.merger.merge_all()
        first, damaged, last = node.remote(replica).entries
        assert damaged == before[10] and node.merger.errors == 1
        assert (first.base_offset, last.last_offset) == (0, before[-1].last_offset)


async def test_partitions_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        for topic in "ab":
            replica = await node.create(
                topic, segment_bytes="1000000", retention_ms="-1", retention_bytes="-1"
            )
            for _ in range(24):
                produce(replica, 3)
                await node.log_manager.flush(topic)
        await node.finish_tiering()
        size = max(entry.log_bytes for entry in node.remote(replica).entries)
        limits = MergeLimits(8, 8 * size)
        monkeypatch.setattr(segment_merger, "limits_of", lambda config, segments_min: limits)
        merged: list[str] = []
        merge = node.merger.merge

        async def noted(replica: Replica, old: Sequence[RemoteSegment]) -> None:
            merged.append(replica.name.topic)
            await merge(replica, old)

        monkeypatch.setattr(node.merger, "merge", noted)
        await node.merger.merge_all()
        assert merged[:4] == ["a", "b", "a", "b"]


async def spilled(node: TierNode, replica: Replica, count: int) -> None:
    """Move so many entries into a page."""
    spill = Spill(None, node.remote(replica).entries[:count])
    await node.log_manager.editor.spill(node.where(replica), replica.leader_epoch, spill, is_tree=True)


async def test_pages_are_searched_again_by_new_limits(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node)
        await spilled(node, replica, 10)
        settings = node.merger._settings
        node.merger.configure(replace(settings, remote_log_merge_min_segments=20))
        await node.merger.merge_all()
        assert node.remote(replica).pages[0].entries == 10
        node.merger.configure(settings)
        await node.merger.merge_all()
        assert node.remote(replica).pages[0].entries == 1


async def test_deleted_records_of_a_page_are_not_written_again(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiny_segments(node, 24)
        entries = node.remote(replica).entries
        await spilled(node, replica, 20)
        await node.move_log_start(replica, entries[9].end_offset)
        await node.merger.merge_all()
        await node.finish_tiering()
        assert node.merger.segments == 10
        assert node.remote(replica).pages[0].entries == 11


async def test_unreadable_page_does_not_prevent_other_merges(tmp_path: Path) -> None:
    async with TierNode(tmp_path / "node", LocalStore(tmp_path / "objects")) as node:
        replica = await tiny_segments(node, 24)
        await spilled(node, replica, 10)
        page = node.remote(replica).pages[0]
        path = node.store._path(node.keys.page(node.where(replica), page))
        path.write_bytes(path.read_bytes()[:-1])
        await node.merger.merge_all()
        assert len(node.remote(replica).entries) == 1 and node.merger.errors == 0


async def test_nothing_is_merged_while_many_deletions_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=HOUR_MS) as node:
        replica = await tiny_segments(node)
        await node.metadata.submit(
            c.StartSpill(
                topic_id=replica.topic_id,
                partition=0,
                leader_epoch=replica.leader_epoch,
                uuid=uuid.UUID(int=1),
                base_offset=0,
                last_offset=1,
            )
        )
        monkeypatch.setattr(segment_merger, "QUEUED_DELETES_MAX", 0)
        await node.merger.merge_all()
        assert node.merger.merges == 0
        monkeypatch.undo()
        await node.merger.merge_all()
        assert node.merger.merges == 1
