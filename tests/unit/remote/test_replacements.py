"""Replacements by a job: what the leader announces, verifies and commits, and what becomes of leases."""

import asyncio
import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tier_node import ABORT, START_MS, TierNode, content, produce, write_transactional

from tierlog.broker.remote.replacements import (
    LEASE_MS,
    LEASES_MAX,
    LONGEST_MS,
    ReplacementLease,
    Replacements,
    TierBusy,
    _check_entry,
)
from tierlog.broker.remote.tier_views import TierConflict, TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord
from tierlog.spark.history.plan import Source
from tierlog.spark.jobs.rewriting import Announced, RewriteTask, Rewritten, rewrite_segments
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.bundle import decode_bundle, encode_bundle
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError
from tierlog.tiering.page_tree import Spill

HOUR_MS = 3_600_000
LATE_MS = 1 << 62


class Bench:
    """A leader with small segments in a directory store, and the job that replaces them."""

    def __init__(self, node: TierNode, root: Path, replica: Replica) -> None:
        self.node, self.root, self.replica = node, root, replica
        self.where = node.where(replica)
        parts = node.metadata, node.log_manager, node.remote_log, node.store, node.keys, node.clock
        self.replacements = Replacements(*parts, node.tasks)

    @property
    def entries(self) -> tuple[RemoteSegment, ...]:
        return self.node.remote(self.replica).entries

    async def begin(self, old: tuple[RemoteSegment, ...]) -> ReplacementLease:
        ids = [entry.uuid for entry in old]
        return await self.replacements.begin(self.where, old[0].base_offset, ids, [old[-1].end_offset])

    async def write(
        self, lease: ReplacementLease, old: tuple[RemoteSegment, ...], codec: Codec | None = Codec.ZSTD
    ) -> RemoteSegment:
        """Write the objects as an executor does."""
        written = await self.attempt(lease, old, codec)
        assert written.failure == ""
        assert written.entry is not None
        return written.entry

    async def attempt(
        self,
        lease: ReplacementLease,
        old: tuple[RemoteSegment, ...],
        codec: Codec | None = Codec.ZSTD,
        until_ms: int = LATE_MS,
    ) -> Rewritten:
        task = RewriteTask(
            store=StoreAddress(path=str(self.root)),
            cluster=self.node.keys.cluster_id,
            source=Source("t", *self.where),
            old=old,
            new=Announced(lease.attempt.uuid, lease.attempt.leader_epoch, until_ms),
            codec=codec,
            index_interval_bytes=500,
            tags=(("codec", "zstd"),),
        )
        return await asyncio.to_thread(rewrite_segments, task)

    async def commit(self, old: tuple[RemoteSegment, ...], *new: RemoteSegment) -> None:
        await self.replacements.commit(self.where, [entry.uuid for entry in old], new)

    async def records(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """All records of the remote log, as a reader of its newest manifest finds them."""
        log, offset, found = self.node.fresh_remote_log(), 0, []
        while offset < (self.node.remote(self.replica).end_offset or 0):
            part = await log.read(self.replica.id, offset, 1 << 20, min_one=True)
            data, offset = content(part), part.end_offset
            for at, _ in iter_batches(data):
                found += [
                    (one.offset, one.timestamp, one.key, one.value)
                    for one in iter_records(data, at, max_bytes=1 << 20)
                ]
        return found

    async def sweep(self) -> list[str]:
        """The objects that are left after the grace."""
        await self.node.finish_tiering()
        while self.node.metadata.image.delete_queue:
            self.node.clock.pass_time(HOUR_MS)
            await self.node.storage_cleaner.clean()
        return await self.node.objects(self.node.keys.data(self.where))


class Opened:
    """`async with Opened(tmp_path) as bench`."""

    def __init__(self, directory: Path, segments: int = 12, *, with_abort: bool = False) -> None:
        self._root = directory / "objects"
        self._node = TierNode(directory / "node", LocalStore(self._root))
        self._segments, self._with_abort = segments, with_abort

    async def __aenter__(self) -> Bench:
        node = await self._node.__aenter__()
        replica = await node.create("t", segment_bytes="1000000")
        if self._with_abort:
            write_transactional(replica, [NewRecord(START_MS, None, b"aborted")])
        for number in range(self._segments):
            produce(replica, 3)
            if self._with_abort and number == 4:
                write_transactional(replica, ABORT, control=True)
                produce(replica, 1)
            if not self._with_abort or number >= 4:
                await node.log_manager.flush("t")
            else:
                replica.log.roll(START_MS)
        await node.finish_tiering()
        return Bench(node, self._root, replica)

    async def __aexit__(self, *failure: object) -> None:
        await self._node.__aexit__(*failure)


async def test_segments_of_a_job_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    async with Opened(tmp_path, with_abort=True) as bench:
        old, records = bench.entries, await bench.records()
        lease = await bench.begin(old)
        new = await bench.write(lease, old)
        assert bench.entries == old
        await bench.commit(old, new)
        assert bench.entries == (new,)
        assert (new.base_offset, new.last_offset) == (0, old[-1].last_offset)
        assert new.has_aborts and new.control_records == 1
        assert await bench.records() == records
        assert len(await bench.sweep()) == 2, "one segment and its index"
        assert bench.node.log_manager.editor.copies == set()
        assert bench.node.log_manager.editor.leased == set()
        await bench.commit(old, new)  # the job repeats a request whose response was lost
        assert bench.entries == (new,)


async def test_segments_of_a_page_are_replaced_within_it(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        spilled, records = bench.entries[:8], await bench.records()
        await bench.node.log_manager.editor.spill(
            bench.where, bench.replica.leader_epoch, Spill(None, spilled), is_tree=True
        )
        old = spilled[2:6]
        new = await bench.write(await bench.begin(old), old)
        await bench.commit(old, new)
        [page] = bench.node.remote(bench.replica).pages
        assert page.entries == 5
        assert await bench.records() == records


async def test_run_that_crosses_the_end_of_a_page_is_refused(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        await bench.node.log_manager.editor.spill(
            bench.where, bench.replica.leader_epoch, Spill(None, old[:8]), is_tree=True
        )
        with pytest.raises(TierConflict, match="no longer these segments"):
            await bench.begin(old[6:10])


async def test_lease_that_is_not_renewed_ends_and_its_objects_are_deleted(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        lease = await bench.begin(old)
        new = await bench.write(lease, old)
        bench.node.clock.pass_time(LEASE_MS * 2 // 3)
        assert bench.replacements.renew([lease.attempt.uuid]) == [lease.attempt.uuid]
        bench.node.clock.pass_time(LEASE_MS * 2 // 3)
        bench.replacements.end_expired()
        await bench.node.finish_tiering()
        assert bench.node.remote(bench.replica).started, "it was renewed in time"
        bench.node.clock.pass_time(LEASE_MS)
        bench.replacements.end_expired()
        assert len(await bench.sweep()) == 2 * len(old)
        with pytest.raises(TierConflict, match="the lease has ended"):
            await bench.commit(old, new)
        assert bench.entries == old
        assert bench.replacements.renew([lease.attempt.uuid]) == []


async def test_leader_without_leases_abandons_what_an_earlier_process_has_announced(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        new = await bench.write(await bench.begin(old), old)
        bench.node.log_manager.editor.copies.clear()  # as after a restart
        restarted = Bench(bench.node, bench.root, bench.replica)
        assert len(await restarted.sweep()) == 2 * len(old)
        with pytest.raises(TierConflict, match="the lease has ended"):
            await restarted.commit(old, new)


async def test_cancelled_lease_gives_the_offsets_back(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        lease = await bench.begin(old)
        with pytest.raises(TierBusy):
            await bench.begin(old[2:4])
        bench.replacements.cancel([lease.attempt.uuid])
        await bench.begin(old[2:4])


async def test_merger_leaves_a_partition_alone_while_a_job_has_a_lease(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        lease = await bench.begin(old[:2])
        await bench.node.merger.merge_all()
        assert bench.entries == old
        bench.replacements.cancel([lease.attempt.uuid])
        await bench.node.merger.merge_all()
        assert len(bench.entries) == 1


async def test_segments_that_were_merged_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        lease = await bench.begin(old)
        new = await bench.write(lease, old)
        # a merge of the same offsets abandons the copy of the job
        await bench.node.merger.merge(bench.replica, old[:4])
        with pytest.raises(TierConflict):
            await bench.commit(old, new)
        assert len(bench.entries) == len(old) - 3
        assert len(await bench.sweep()) == 2 * (len(old) - 3)


async def test_segments_that_retention_has_deleted_are_not_replaced(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        lease = await bench.begin(old)
        new = await bench.write(lease, old)
        await bench.node.move_log_start(bench.replica, old[2].end_offset)
        with pytest.raises(TierConflict):
            await bench.commit(old, new)
        assert bench.entries == old[3:]


@pytest.mark.parametrize("part", ["log", "index"])
async def test_object_that_differs_from_its_entry_is_not_committed(tmp_path: Path, part: str) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        new = await bench.write(await bench.begin(old), old)
        path = bench.root / getattr(bench.node.keys, part)(bench.where, new)
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
        with pytest.raises(CorruptObject):
            await bench.commit(old, new)
        assert bench.entries == old


@pytest.mark.parametrize(
    "change",
    [
        {"records": 1},
        {"max_timestamp": 5},
        {"leader_epochs": ((0, 3),)},
        {"leader_epochs": ((0, 0), (9, 3))},
        {"has_aborts": True},
        {"leader_epoch": 9},
        {"tags": (("junk", "1"),)},
        {"tags": (("grouped.bytes", "x"),)},
        {"tags": (("grouped.bytes", "1"), ("grouped.bytes", "2"))},
        {"tags": (("grouped.bytes", "1" * 1000),)},
        {"tags": (("codec", "c" * 1000),)},
    ],
)
async def test_entry_that_contradicts_the_old_ones_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        new = await bench.write(await bench.begin(old), old)
        with pytest.raises(TierConflict):
            await bench.commit(old, replace(new, **change))
        assert bench.entries == old


@pytest.mark.parametrize("start", [1, 5])
async def test_leader_epoch_that_begins_elsewhere_is_refused(tmp_path: Path, start: int) -> None:
    """The next election would compare the log with it, and remove history that is right."""
    async with Opened(tmp_path) as bench:
        lease = await bench.begin(bench.entries)
        new = await bench.write(lease, bench.entries)
        old = (replace(bench.entries[0], leader_epochs=((0, 0), (7, 3))), *bench.entries[1:])
        with pytest.raises(TierConflict, match="other leader epochs"):
            _check_entry(lease, old, replace(new, leader_epochs=((0, 0), (7, start))))
        _check_entry(lease, old, replace(new, leader_epochs=((0, 0), (7, 3))))


async def test_producer_state_of_another_segment_is_refused(tmp_path: Path) -> None:
    """A replica that begins with it would take duplicates for new batches."""
    async with Opened(tmp_path, with_abort=True) as bench:
        old = bench.entries
        assert len(old) > 2
        new = await bench.write(await bench.begin(old[:2]), old[:2])
        path = bench.root / bench.node.keys.index(bench.where, old[1])
        bundle = decode_bundle(path.read_bytes())
        path.write_bytes(encode_bundle(dataclasses.replace(bundle, producer_snapshot=b"other")))
        with pytest.raises(CorruptObject, match="another producer state"):
            await bench.commit(old[:2], new)
        assert bench.entries == old


async def test_leases_of_two_requests_cannot_be_committed_together(tmp_path: Path) -> None:
    """The rules of one of them, which compacts, would count for both."""
    async with Opened(tmp_path) as bench:
        old = bench.entries[:2]
        new = [await bench.write(await bench.begin((entry,)), (entry,)) for entry in old]
        with pytest.raises(TierConflict, match="by one"):
            await bench.commit(old, *new)
        assert bench.entries[:2] == old


async def test_leases_of_a_partition_are_limited(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        for entry in bench.entries[:LEASES_MAX]:
            await bench.begin((entry,))
        with pytest.raises(TierBusy):
            await bench.begin(bench.entries[-1:])


async def test_commit_is_repeated_after_a_failure_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        new = await bench.write(await bench.begin(old), old)

        async def fail(*_: object) -> None:
            raise ObjectStoreError("503 Slow Down")

        with monkeypatch.context() as patch:
            patch.setattr(bench.node.store, "head", fail)
            with pytest.raises(ObjectStoreError):
                await bench.commit(old, new)
        await bench.node.finish_tiering()
        await bench.commit(old, new)
        assert bench.entries == (new,)
        assert bench.node.log_manager.editor.leased == set()


async def test_commit_is_repeated_after_a_page_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as bench:
        spilled, editor = bench.entries[:8], bench.node.log_manager.editor
        old = spilled[2:6]
        new = await bench.write(await bench.begin(old), old)
        commit = editor.commit

        async def spill(*arguments: Any) -> None:
            await editor.spill(bench.where, bench.replica.leader_epoch, Spill(None, spilled), is_tree=True)
            await commit(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(editor, "commit", spill)
            with pytest.raises(TierBusy):
                await bench.commit(old, new)
        await bench.commit(old, new)
        assert bench.node.remote(bench.replica).pages[0].entries == 5


async def test_commit_whose_outcome_was_unknown_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as bench:
        old, editor = bench.entries, bench.node.log_manager.editor
        new = await bench.write(await bench.begin(old), old)
        commit = editor.commit

        async def lose(*arguments: Any) -> None:
            await commit(*arguments)
            raise MetadataUnavailable("the response was lost", applied_unknown=True)

        with monkeypatch.context() as patch:
            patch.setattr(editor, "commit", lose)
            with pytest.raises(MetadataUnavailable):
                await bench.commit(old, new)
        await bench.commit(old, new)
        assert bench.entries == (new,)


async def test_leases_of_concurrent_requests_are_limited(tmp_path: Path) -> None:
    """The quorum refuses uploads of a partition with too many copies."""
    async with Opened(tmp_path) as bench:
        begun = [bench.begin((entry,)) for entry in bench.entries]
        results = await asyncio.gather(*begun, return_exceptions=True)
        assert sum(isinstance(one, ReplacementLease) for one in results) == LEASES_MAX
        assert len(bench.node.remote(bench.replica).started) == LEASES_MAX


async def test_repeated_request_gets_the_same_lease(tmp_path: Path) -> None:
    """A job whose response was lost would otherwise wait for the end of its own lease."""
    async with Opened(tmp_path) as bench:
        old, request_id = bench.entries, uuid.UUID(int=5)

        async def begin(request_id: uuid.UUID | None) -> ReplacementLease:
            ids, ends = [entry.uuid for entry in old], [old[-1].end_offset]
            return await bench.replacements.begin(bench.where, 0, ids, ends, request_id=request_id)

        first, second = await asyncio.gather(begin(request_id), begin(request_id), return_exceptions=True)
        assert isinstance(first, ReplacementLease)
        assert isinstance(second, TierBusy), "it is being announced"
        assert await begin(request_id) is first
        for other in None, uuid.UUID(int=6):
            with pytest.raises(TierBusy):
                await begin(other)


async def test_renewed_lease_ends_at_last(tmp_path: Path) -> None:
    """A job that hangs must not stop merges of the partition."""
    async with Opened(tmp_path) as bench:
        lease = await bench.begin(bench.entries)
        for _ in range(2 * LONGEST_MS // LEASE_MS):
            bench.node.clock.pass_time(LEASE_MS // 2 + 1)
            bench.replacements.renew([lease.attempt.uuid])
            bench.replacements.end_expired()
        assert bench.replacements.renew([lease.attempt.uuid]) == []
        assert bench.node.log_manager.editor.leased == set()


async def test_lease_ends_with_the_leader_epoch(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        lease = await bench.begin(bench.entries)
        bench.replica.become_leader(bench.replica.leader_epoch + 1, 9, (1,), (1,))
        bench.replacements.end_expired()
        assert bench.replacements.renew([lease.attempt.uuid]) == []


async def test_unknown_topics_and_ranges_are_refused(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        nowhere = bench.where._replace(topic_id=uuid.UUID(int=5))
        with pytest.raises(TierRefused, match="no topic"):
            await bench.replacements.begin(nowhere, 0, [old[0].uuid], [old[0].end_offset])
        for ends in ([old[0].last_offset], [3, 2, old[0].end_offset], []):
            with pytest.raises(TierConflict):
                await bench.replacements.begin(bench.where, 0, [old[0].uuid], ends)
        assert not bench.node.remote(bench.replica).started


async def test_task_puts_nothing_too_late_and_nothing_that_would_not_change(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        before = await bench.node.objects()
        late = await bench.attempt(await bench.begin(old[:2]), old[:2], until_ms=0)
        assert late.entry is None and "too late" in late.failure
        same = await bench.attempt(await bench.begin(old[4:5]), old[4:5], codec=Codec.NONE)
        assert same == Rewritten()
        assert await bench.node.objects() == before


async def test_object_that_is_missing_fails_the_task_alone(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        old = bench.entries
        (bench.root / bench.node.keys.log(bench.where, old[1])).unlink()
        found = await bench.attempt(await bench.begin(old), old)
        assert found.entry is None and found.failure
        assert bench.entries == old
