"""The executor part of Spark's job `compact`, with a real leader and store, and without Spark and HTTP."""

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tier_node import ABORT, START_MS, TierNode, content, write_transactional

from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.replacements import Replacements
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.compaction import last_records_of_producers
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history.plan import Source
from tierlog.spark.jobs import compact, compacting
from tierlog.spark.jobs.compacting import Compacted, CompactTask, compact_partition, dirty_of
from tierlog.spark.jobs.replacing import CompactionSettings, Limits, NotReplaced
from tierlog.spark.jobs.rewriting import Announced
from tierlog.spark.jobs.segment_check import AuditTask, SegmentToCheck, check_segments
from tierlog.spark.options import StoreAddress
from tierlog.tiering.local_store import LocalStore

DAY_MS = 86_400_000
Record = tuple[int, bytes | None, bytes | None]


class Bench:
    def __init__(self, node: TierNode, root: Path, replica: Replica) -> None:
        self.node, self.root, self.replica = node, root, replica
        self.where = node.where(replica)
        parts = node.metadata, node.log_manager, node.remote_log, node.store, node.keys, node.clock
        self.replacements = Replacements(*parts, node.tasks)
        self.loop = asyncio.get_running_loop()
        self.before_commit: Callable[[], Coroutine[Any, Any, None]] | None = None

    @property
    def entries(self) -> tuple[RemoteSegment, ...]:
        return self.node.remote(self.replica).entries

    async def write(self, records: Sequence[tuple[bytes, bytes | None]], codec: Codec = Codec.NONE) -> None:
        """Write one batch, which becomes a segment of its own."""
        self.append(records, codec)
        await self.tier()

    def append(self, records: Sequence[tuple[bytes, bytes | None]], codec: Codec = Codec.NONE) -> None:
        new = [NewRecord(START_MS + self.replica.log_end_offset, key, value, ()) for key, value in records]
        result = self.replica.as_leader.append(memoryview(encode_batch(new, codec=codec)), START_MS)
        assert result.error == ErrorCode.NONE

    async def tier(self) -> None:
        await self.node.log_manager.flush("t")
        await self.node.finish_tiering()

    async def run(self, map_bytes: int = 1 << 20) -> Compacted:
        return await self.execute(self.plan(map_bytes))

    def plan(self, map_bytes: int = 1 << 20) -> CompactTask:
        return CompactTask(
            store=StoreAddress(path=str(self.root)),
            cluster=self.node.keys.cluster_id,
            source=Source("t", *self.where),
            entries=self.entries,
            limits=LocalReplacer("", 60).limits(self.where),
            admin="http://unused",
            lease_s=60,
            map_bytes=map_bytes,
        )

    async def execute(self, task: CompactTask) -> Compacted:
        done = await asyncio.to_thread(compact_partition, task)
        await self.node.finish_tiering()
        return done

    async def records(self) -> list[Record]:
        log, offset, found = self.node.fresh_remote_log(), self.entries[0].base_offset, list[Record]()
        while offset < self.entries[-1].end_offset:
            part = await log.read(self.replica.id, offset, 1 << 20, min_one=True)
            data, offset = content(part), part.end_offset
            for at, header in iter_batches(data):
                if not header.is_control:
                    records = iter_records(data, at, max_bytes=1 << 20)
                    found += [(one.offset, one.key, one.value) for one in records]
        return found

    def damages(self) -> list[Any]:
        source = Source("t", *self.where)
        segments = tuple(SegmentToCheck(source, entry) for entry in self.entries)
        address = StoreAddress(path=str(self.root))
        return check_segments(AuditTask(address, self.node.keys.cluster_id, segments)).damages


class LocalReplacer:
    """As the job's Replacer, with calls instead of requests."""

    bench: Bench

    def __init__(self, admin: str, lease_s: int) -> None:
        """The leader is that of the test."""

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self.bench.loop).result(30)
        except TierRefused as why:
            raise NotReplaced(str(why)) from None

    def limits(self, where: TopicIdPartition) -> Limits:
        replica = self.bench.replica
        config, producers = replica.config, last_records_of_producers(replica.log.producers)
        settings = CompactionSettings(config.min_compaction_lag_ms, config.delete_retention_ms, producers)
        start = replica.local_log_start_offset
        return Limits(1 << 30, None, 500, start, replica.leader_epoch, settings)

    def begin(
        self,
        where: TopicIdPartition,
        old: Sequence[RemoteSegment],
        *,
        compacts: bool = False,
        leader_epoch: int | None = None,
    ) -> Announced:
        ids, ends = [entry.uuid for entry in old], [old[-1].end_offset]
        begin = self.bench.replacements.begin
        work = begin(where, old[0].base_offset, ids, ends, compacts=compacts, leader_epoch=leader_epoch)
        lease = self._call(work)
        return Announced(lease.attempt.uuid, lease.attempt.leader_epoch, 1 << 62)

    def commit(self, where: TopicIdPartition, old: Sequence[RemoteSegment], new: RemoteSegment) -> None:
        if self.bench.before_commit is not None:
            self._call(self.bench.before_commit())
        self._call(self.bench.replacements.commit(where, [entry.uuid for entry in old], [new]))

    def cancel(self, where: TopicIdPartition, new: Announced) -> None:
        self.bench.loop.call_soon_threadsafe(self.bench.replacements.cancel, [new.uuid])

    def renew(self, where: TopicIdPartition, new: Sequence[Announced]) -> None:
        """Leases of the test do not end."""


@asynccontextmanager
async def opened(directory: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> AsyncIterator[Bench]:
    root = directory / "objects"
    async with TierNode(directory / "node", LocalStore(root)) as node:
        config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1.0", "segment_bytes": "1000000"}
        replica = await node.create("t", **{**config, **settings})
        bench = Bench(node, root, replica)
        monkeypatch.setattr(LocalReplacer, "bench", bench, raising=False)
        monkeypatch.setattr(compacting, "Replacer", LocalReplacer)
        yield bench


def newest(records: Sequence[Record]) -> list[Record]:
    return sorted({record[1]: record for record in records}.values())


@pytest.mark.parametrize("seed", range(4))
async def test_newest_record_of_each_key_stays_with_any_size_of_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A map of one page has 28 keys, so the history takes several passes."""
    rng = random.Random(seed)
    async with opened(tmp_path, monkeypatch) as bench:
        for number in range(12):
            keys = [b"key-%d" % rng.randrange(60) for _ in range(20)]
            values = [None if rng.random() < 0.1 else b"%d-%d" % (number, at) for at in range(20)]
            await bench.write(list(zip(keys, values, strict=True)), rng.choice(list(Codec)))
        before = await bench.records()
        ranges = [(entry.base_offset, entry.end_offset) for entry in bench.entries]
        done = await bench.run(1 << 20 if seed % 2 else 1)
        assert done.failure == ""
        assert done.passes > 1 or seed % 2
        assert await bench.records() == newest(before), "tombstones stay for delete.retention.ms"
        assert [(entry.base_offset, entry.end_offset) for entry in bench.entries] == ranges
        assert done.records_removed == len(before) - len(newest(before))
        assert bench.damages() == []
        assert (await bench.run()).segments == 0, "a second run finds nothing to do"


async def test_records_of_aborted_transactions_replace_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, monkeypatch) as bench:
        await bench.write([(b"a", b"1"), (b"b", b"1")])
        write_transactional(bench.replica, [NewRecord(START_MS, b"a", b"aborted", ())])
        write_transactional(bench.replica, ABORT, control=True)
        await bench.write([(b"b", b"2")])
        assert (await bench.run()).failure == ""
        assert await bench.records() == [(0, b"a", b"1"), (4, b"b", b"2")]
        assert bench.damages() == []


async def test_segment_whose_newest_record_is_gone_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last batch stays without records, and has their timestamp."""
    async with opened(tmp_path, monkeypatch) as bench:
        bench.append([(b"a", b"1")])
        await bench.write([(b"b", b"1")])
        await bench.write([(b"b", b"2")])
        assert (await bench.run()).failure == ""
        assert [entry.max_timestamp for entry in bench.entries] == [START_MS, START_MS + 2]
        assert await bench.records() == [(0, b"a", b"1"), (2, b"b", b"2")]
        assert bench.damages() == []


async def test_tombstones_go_after_delete_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, monkeypatch, delete_retention_ms="0") as bench:
        await bench.write([(b"a", b"1"), (b"b", b"1"), (b"a", None)])
        await bench.run()
        assert await bench.records() == [(1, b"b", b"1"), (2, b"a", None)]
        await bench.write([(b"c", b"1")])
        await bench.run()
        assert await bench.records() == [(1, b"b", b"1"), (3, b"c", b"1")]
        assert bench.damages() == []


async def test_leader_refuses_what_is_still_in_its_local_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, monkeypatch, local_retention_ms="-1") as bench:
        await bench.write([(b"a", b"1"), (b"a", b"2")])
        before = await bench.records()
        assert (await bench.run()).segments == 0
        [entry] = bench.entries
        with pytest.raises(TierRefused, match="local log"):
            await bench.replacements.begin(bench.where, 0, [entry.uuid], [entry.end_offset], compacts=True)
        assert await bench.records() == before


async def test_run_ends_when_retention_or_a_compaction_changes_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, monkeypatch) as bench:
        for number in range(6):
            await bench.write([(b"key-%d" % number, b"1"), (b"a", b"%d" % number)])
        before = await bench.records()

        async def move_log_start() -> None:
            await bench.node.move_log_start(bench.replica, bench.entries[1].end_offset)

        bench.before_commit = move_log_start
        done = await bench.run()
        assert done.failure and done.segments == 0
        bench.before_commit = None
        start = bench.entries[0].base_offset
        assert start > 0
        assert await bench.records() == [one for one in before if one[0] >= start]
        assert (await bench.run()).failure == ""
        assert await bench.records() == newest([one for one in before if one[0] >= start])


async def test_task_ends_when_another_leader_was_elected_after_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean election, the manifest may lack segments whose keys the task reads."""
    async with opened(tmp_path, monkeypatch) as bench:
        await bench.write([(b"a", b"1"), (b"a", b"2")])
        await bench.write([(b"a", b"3")])
        before, task = await bench.records(), bench.plan()
        bench.replica.become_leader(bench.replica.leader_epoch + 1, 9, (1,), (1,))
        done = await bench.execute(task)
        assert "the leader epoch is" in done.failure
        assert await bench.records() == before


async def test_limits_of_a_plan_are_no_newer_than_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, monkeypatch) as bench:
        await bench.write([(b"a", b"1"), (b"a", b"2")])
        epoch = bench.replica.leader_epoch

        def read_and_elect(*_: object) -> list[tuple[RemoteSegment, ...]]:
            bench.replica.become_leader(epoch + 1, 9, (1,), (1,))
            return [bench.entries]

        monkeypatch.setattr(compact, "Replacer", LocalReplacer)
        monkeypatch.setattr(compact, "runs_of", read_and_elect)
        monkeypatch.setattr(compact, "cluster_keys", lambda *_: bench.node.keys)
        monkeypatch.setattr(compact, "documents_of", lambda *_: [])
        monkeypatch.setattr(compact, "sources_of", lambda _: [Source("t", *bench.where)])
        values = {
            "path": str(bench.root),
            "admin": "",
            "lease_seconds": 60,
            "map_mib": 1,
            "min_dirty_percent": 0,
        }
        [(task, _)] = compact._plan(defaultdict(lambda: None, values), [])
        assert task.limits.leader_epoch == epoch


async def test_segment_is_not_compacted_after_the_policy_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, monkeypatch) as bench:
        await bench.write([(b"a", b"1"), (b"a", b"2")])
        await bench.write([(b"b", b"1")])
        before = await bench.records()

        async def keep_all() -> None:
            await bench.node.alter("t", {"cleanup.policy": "delete"})

        bench.before_commit = keep_all
        done = await bench.run()
        assert "cleanup.policy is not compact" in done.failure
        assert await bench.records() == before


def test_dirty_range_begins_at_the_first_segment_that_is_not_compacted() -> None:
    def entry(base: int, compacted_to: int = -1, timestamp: int = 0) -> RemoteSegment:
        return RemoteSegment(
            uuid=uuid.UUID(int=base),
            base_offset=base,
            last_offset=base + 9,
            leader_epochs=((0, 0),),
            log_bytes=10,
            index_bytes=1,
            records=1,
            first_timestamp=timestamp,
            max_timestamp=timestamp,
            has_transactions=False,
            has_aborts=False,
            log_crc32c=0,
            index_crc32c=0,
            leader_epoch=0,
            tags=() if compacted_to < 0 else (("compacted.to", str(compacted_to)),),
        )

    settings = CompactionSettings(DAY_MS, 0, {})
    entries = [entry(0, 10), entry(10, 15), entry(20, 30), entry(30), entry(40, timestamp=DAY_MS)]
    found = dirty_of(entries, settings, local_start=100, now_ms=DAY_MS)
    assert (found.start, found.end, found.bytes) == (15, 40, 30)
    assert dirty_of(entries, settings, local_start=35, now_ms=DAY_MS).end == 30
    assert dirty_of(entries[:1], settings, 100, DAY_MS).bytes == 0
