"""Compaction in the object store: what is left of a tiered topic, and what readers find at any moment."""

import asyncio
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_store import FAULTS, FaultyStore
from structlog.testing import capture_logs
from tier_node import ABORT, PRODUCER, START_MS, TierNode, content, write_transactional

from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, iter_batches, read_header
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch, with_section
from tierlog.tiering.manager import TierLimits
from tierlog.tiering.memory_store import MemoryStore

COMMIT = [NewRecord(START_MS, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 5), ())]
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "1000"}


def produce_values(replica: Replica, values: list[tuple[bytes, bytes | None]]) -> None:
    """One batch of records with these keys and values."""
    offset = replica.log_end_offset
    new = [NewRecord(START_MS + offset + n, key, value, ()) for n, (key, value) in enumerate(values)]
    result = replica.as_leader.append(memoryview(encode_batch(new)), START_MS)
    assert result.error == ErrorCode.NONE, result


async def read_all(node: TierNode, replica: Replica) -> list[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of each record of the remote log."""
    log, offset, found = node.fresh_remote_log(), node.remote(replica).log_start_offset, []
    while offset < (node.remote(replica).end_offset or 0):
        part = await log.read(replica.id, offset, 1 << 20, min_one=True)
        data = content(part)
        for position, header in iter_batches(data):
            for record in iter_records(data, position, max_bytes=1 << 20):
                if record.offset < offset:
                    continue
                found.append(
                    (record.offset, bytes(record.key), None if record.value is None else bytes(record.value))
                )
            offset = header.next_offset
    return found


def values(turn: int) -> list[tuple[bytes, bytes | None]]:
    return [(b"k%d" % n, b"%d %d" % (n, turn)) for n in range(5)]


async def tiered(node: TierNode, replica: Replica, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
    """Produce and upload each batch as a segment of its own, and drop it locally."""
    for values in batches:
        produce_values(replica, values)
        await node.log_manager.flush("t")
    await node.finish_tiering()


async def test_only_the_last_value_of_each_key_is_left(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(6)])
        before = node.remote(replica)
        await node.merger.merge_all()
        assert await read_all(node, replica) == [(25 + n, b"k%d" % n, b"%d 5" % n) for n in range(5)]
        remote = node.remote(replica)
        assert (remote.first_offset, remote.end_offset) == (before.first_offset, before.end_offset)
        assert remote.entries[-1].compacted_to == before.end_offset
        assert (
            sum(entry.log_bytes for entry in remote.entries)
            < sum(entry.log_bytes for entry in before.entries) * 0.9
        )
        assert (node.compactor.compactions, node.compactor.segments) == (1, 6)
        await node.merger.merge_all()
        assert node.remote(replica) == remote, "nothing is dirty"
        assert not list((tmp_path / "scratch").iterdir())


async def test_every_offset_can_be_read_while_readers_hold_the_old_manifest(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(6)])
        old = node.fresh_remote_log(*[node.remote(replica)] * 30)
        await node.merger.merge_all()
        for offset in range(30):
            read = await old.read(replica.id, offset, 1, min_one=True)
            assert read.end_offset > offset
            read = await node.fresh_remote_log().read(replica.id, offset, 1, min_one=True)
            assert read.end_offset > offset


async def test_read_skips_segments_that_compaction_has_emptied(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED, index_interval_bytes="1")
        await tiered(node, replica, [values(turn) for turn in range(6)])
        await node.merger.merge_all()
        assert [entry.records for entry in node.remote(replica).entries] == [0, 0, 0, 0, 0, 5]
        for offset in (0, 7, 24):
            read = await node.fresh_remote_log().read(replica.id, offset, 1, min_one=True)
            assert (read.base_offset, read.end_offset) == (25, 30)
        await tiered(node, replica, [[(b"k%d" % n, None) for n in range(5)], [(b"other", None)]])
        for _ in range(2):
            await node.merger.merge_all()
            node.clock.pass_time(2000)
            await tiered(node, replica, [[(b"last", None)]])
        remote, end = node.fresh_remote_log(), node.remote(replica).end_offset
        assert node.remote(replica).entries[-3].records == 0
        read = await remote.read(replica.id, 0, 1, min_one=True)
        assert read.size and read.base_offset >= 36 and read.end_offset <= end


async def test_clean_segments_are_not_written_again(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [[(b"first %d" % n, b"v")] for n in range(4)])
        await node.merger.merge_all()
        first = node.remote(replica).entries
        await tiered(node, replica, [[(b"second", b"v")]])
        await node.merger.merge_all()
        assert node.remote(replica).entries[:4] == first
        assert node.remote(replica).entries[4].compacted_to == 5


async def test_empty_segments_are_neither_read_nor_written_again(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(5)])
        await node.merger.merge_all()
        empty = node.remote(replica).entries[:4]
        assert not any(entry.records for entry in empty)
        await tiered(node, replica, [values(5)])
        before = node.remote(replica)
        read = node.compactor.bytes_read
        await node.merger.merge_all()
        assert node.remote(replica).entries[:4] == empty
        last, new = (entry.log_bytes for entry in before.entries[4:])
        assert node.compactor.bytes_read - read == new + last + new, "its keys, then what is filtered"
        assert [entry.records for entry in node.remote(replica).entries] == [0, 0, 0, 0, 0, 5]


async def test_malformed_batch_is_kept_and_reported_once(tmp_path: Path) -> None:
    """It was appended before the topic was compacted, when only its first records were checked."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", cleanup_policy="delete")
        good = encode_batch([NewRecord(START_MS, b"key 1", b"v", ()) for _ in range(10)])
        plain = bytearray(good[HEADER_SIZE:])
        plain[8 * len(plain) // 10 + 4] = 0x7E  # the key of the ninth is longer than the record
        batch = with_section(read_header(good), plain, Codec.NONE)
        assert not replica.as_leader.append(memoryview(batch), START_MS).error
        await node.alter("t", {key.replace("_", "."): value for key, value in COMPACTED.items()})
        with capture_logs() as logged:
            for turn in range(4):
                await tiered(node, replica, [values(turn)])
                await node.merger.merge_all()
        assert node.compactor.compactions > 1
        reported = [entry for entry in logged if entry["event"] == "compaction.batch.kept"]
        assert [entry["offset"] for entry in reported] == [0]
        kept = content(await node.fresh_remote_log().read(replica.id, 0, 1, min_one=True))
        assert bytes(kept[HEADER_SIZE : len(batch)]) == bytes(plain)


async def test_local_records_are_not_compacted(tmp_path: Path) -> None:
    """A reader of the local log sees all of them, and must find the tombstones of those that it has seen."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **{**COMPACTED, "local_retention_ms": "-1", "retention_ms": "-1"})
        await tiered(node, replica, [values(turn) for turn in range(4)])
        before = node.remote(replica)
        assert before.end_offset == 20 and replica.local_log_start_offset == 0
        await node.merger.merge_all()
        assert node.remote(replica) == before
        await node.alter("t", {"local.retention.ms": "0"})
        await node.finish_tiering()
        assert replica.local_log_start_offset == 20
        await node.merger.merge_all()
        assert len(await read_all(node, replica)) == 5


async def test_young_records_are_not_compacted(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED, min_compaction_lag_ms="20000000")
        await tiered(node, replica, [values(turn) for turn in range(4)])
        await node.merger.merge_all()
        assert len(await read_all(node, replica)) == 20
        node.clock.pass_time(20_000_000)
        await node.merger.merge_all()
        assert len(await read_all(node, replica)) == 5


async def test_dirty_ratio_and_the_largest_lag_decide(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **{**COMPACTED, "min_cleanable_dirty_ratio": "0.5"})
        await tiered(node, replica, [values(turn) for turn in range(4)])
        await node.merger.merge_all()
        clean = node.remote(replica)
        await tiered(node, replica, [[(b"k1", b"new")]])
        await node.merger.merge_all()
        assert node.remote(replica).entries[:4] == clean.entries
        await node.alter("t", {"max.compaction.lag.ms": "1000"})
        await node.merger.merge_all()
        assert (20, b"k1", b"new") in await read_all(node, replica)
        assert node.remote(replica).entries[4].compacted_to == 21


async def test_tombstone_stays_for_its_time(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [[(b"a", b"1"), (b"b", b"1")], [(b"a", None)], [(b"c", b"1")]])
        await node.merger.merge_all()
        assert await read_all(node, replica) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
        node.clock.pass_time(2000)
        await tiered(node, replica, [[(b"d", b"1")]])
        await node.merger.merge_all()
        assert await read_all(node, replica) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"d", b"1")]
        assert node.remote(replica).end_offset == 5


async def test_merged_segments_stay_compacted(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED, segment_bytes="1000000")
        await tiered(node, replica, [values(turn) for turn in range(7)])
        await node.merger.merge_all()
        assert [entry.compacted_to for entry in node.remote(replica).entries] == [5, 10, 15, 20, 25, 30, 35]
        await tiered(node, replica, [[(b"k1", b"new")]])
        compactions = node.compactor.compactions
        await node.merger.merge_all()  # merges eight, of which the last one is dirty, then compacts
        [merged] = node.remote(replica).entries
        assert merged.compacted_to == 36 and node.compactor.compactions == compactions + 1
        expected = [(30 + n, b"k%d" % n, b"%d 6" % n) for n in (0, 2, 3, 4)] + [(35, b"k1", b"new")]
        assert await read_all(node, replica) == expected


async def test_map_that_is_too_small_compacts_step_by_step(tmp_path: Path) -> None:
    """Also within a segment, whose keys do not all fit."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED, segment_bytes="1000000")
        for turn in range(3):
            for first in range(0, 300, 10):
                produce_values(replica, [(b"%d" % n, b"%d" % turn) for n in range(first, first + 10)])
            await node.log_manager.flush("t")
        await node.finish_tiering()
        node.compactor.settings = replace(node.compactor.settings, log_cleaner_dedupe_buffer_size=2000)
        ends = [0]
        while ends[-1] < 900:
            await node.merger.merge_all()
            ends.append(max(entry.compacted_to for entry in node.remote(replica).entries))
            assert ends[-1] > ends[-2]
        assert ends[1] < 300
        assert await read_all(node, replica) == [(600 + n, b"%d" % n, b"2") for n in range(300)]


async def test_aborted_records_go_and_their_marker_stays_for_its_time(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        write_transactional(replica, [NewRecord(START_MS, b"k", b"aborted")])
        replica.log.roll(START_MS)
        marker = write_transactional(replica, ABORT, control=True)
        await tiered(node, replica, [[(b"k", b"1")], [(b"k", b"2")]])
        await node.merger.merge_all()
        found = await read_all(node, replica)
        assert (3, b"k", b"2") in found and b"aborted" not in [value for _, _, value in found]
        assert [offset for offset, _, _ in found] == [marker, 3]


async def test_committed_records_stay_after_the_marker_of_an_earlier_abort_has_gone(tmp_path: Path) -> None:
    """The index of a segment between the aborted records and their marker lists the transaction, too. Without
    the marker it would never end, so that all later records of the producer would count as aborted."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        write_transactional(replica, [NewRecord(START_MS, b"k", b"aborted")])
        replica.log.roll(START_MS)
        produce_values(replica, [(b"between", b"v")])
        replica.log.roll(START_MS)
        marker = write_transactional(replica, ABORT, control=True)
        for turn in range(4):
            await tiered(node, replica, [[(b"turn %d" % turn, b"v")]])
            await node.merger.merge_all()
            node.clock.pass_time(2000)
        found = await read_all(node, replica)
        assert marker not in [offset for offset, _, _ in found]
        assert not any(entry.has_aborts for entry in node.remote(replica).entries)

        committed = write_transactional(replica, [NewRecord(START_MS, b"k", b"committed")])
        write_transactional(replica, COMMIT, control=True)
        await tiered(node, replica, [[(b"last", b"v")]])
        await node.merger.merge_all()
        assert (committed, b"k", b"committed") in await read_all(node, replica)


async def test_aborted_list_is_of_the_same_manifest_as_the_records(tmp_path: Path) -> None:
    """Compaction replaces the segments while a consumer's read runs. The old records are still cached."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        first = write_transactional(replica, [NewRecord(START_MS, b"k", b"aborted")])
        write_transactional(
            replica, [NewRecord(START_MS, b"k", b"not read, so the chunk stays in the cache")]
        )
        replica.log.roll(START_MS)
        write_transactional(replica, ABORT, control=True)
        await tiered(node, replica, [[(b"k", b"1")], [(b"k", b"2")]])
        before = node.remote(replica)
        log = node.fresh_remote_log()
        cached = await log.read(replica.id, first, 1, min_one=True)
        assert cached.base_offset == first
        for turn in range(2):  # the first removes the record, the second its transaction's entry in the index
            await node.merger.merge_all()
            await tiered(node, replica, [[(b"k", b"again %d" % turn)]])
        await node.merger.merge_all()
        assert not any(entry.has_aborts for entry in node.remote(replica).entries)
        looks = iter([before])  # the splice comes between the first look at the manifest and the next
        log._resolve = lambda where: next(looks, None) or node.remote(replica)
        found, aborted = await log.read_committed(replica.id, first, 1, min_one=True)
        assert found.base_offset > first or aborted == [(PRODUCER, first)]


async def test_compacted_and_deleted_by_retention(tmp_path: Path) -> None:
    """A segment that compaction has emptied keeps its age, so that it does not hold up retention."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **{**COMPACTED, "cleanup_policy": "compact,delete"})
        await tiered(node, replica, [values(turn) for turn in range(4)])
        await node.merger.merge_all()
        assert [entry.records for entry in node.remote(replica).entries] == [0, 0, 0, 5]
        await node.alter("t", {"retention.ms": "1", "local.retention.ms": "1"})
        await node.finish_tiering()
        assert node.remote(replica).log_start_offset == 20


async def test_new_leader_epoch_looks_for_dirty_segments_from_the_start(tmp_path: Path) -> None:
    """An unclean election may have replaced clean segments by others."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(4)])
        await node.merger.merge_all()
        assert node.compactor._clean_to == {replica.id: (replica.leader_epoch, 0)}
        await node.merger.merge_all()
        assert node.compactor._clean_to == {replica.id: (replica.leader_epoch, 20)}
        replica.become_leader(replica.leader_epoch + 1, 9, (1,), (1,))
        await node.compactor.compact(replica)
        assert node.compactor._clean_to == {replica.id: (replica.leader_epoch, 20)}
        assert node.compactor.compactions == 1


async def test_compaction_ends_when_the_leader_epoch_changes(tmp_path: Path) -> None:
    """After an unclean election, segments whose keys were read may have left the manifest."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(4)])
        clean_segment = node.compactor._clean_segment

        async def elected_meanwhile(*arguments):
            replica.become_leader(replica.leader_epoch + 1, 9, (1,), (1,))
            return await clean_segment(*arguments)

        node.compactor._clean_segment = elected_meanwhile
        await node.merger.merge_all()
        assert [entry.compacted_to for entry in node.remote(replica).entries] == [5, -1, -1, -1]
        assert node.compactor.compactions == 0 and not node.log_manager.editor.copies


async def test_pass_continues_after_retention_has_deleted_segments(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(4)])
        clean_segment = node.compactor._clean_segment

        async def deleted_before(*arguments):
            replaced = await clean_segment(*arguments)
            await node.move_log_start(replica, 12)
            return replaced

        node.compactor._clean_segment = deleted_before
        await node.merger.merge_all()
        await node.finish_tiering()
        assert (node.merger.errors, node.compactor.compactions) == (0, 1)
        assert await read_all(node, replica) == [(15 + n, b"k%d" % n, b"%d 3" % n) for n in range(5)]


async def test_objects_of_an_abandoned_copy_are_not_put(tmp_path: Path) -> None:
    """The next leader has abandoned it, and its keys may have been deleted already."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(4)])
        before, upload = set(await node.objects()), node.manager.upload

        async def abandoned_before(body, attempt):
            epoch = replica.leader_epoch
            where = {"topic_id": replica.topic_id, "partition": 0}
            await node.metadata.submit(c.AbandonCopy(**where, leader_epoch=epoch, uuid=attempt.uuid))
            return await upload(body, attempt)

        node.manager.upload = abandoned_before
        await node.merger.merge_all()
        assert set(await node.objects()) == before and node.merger.errors == 0


async def test_segment_that_is_deleted_while_it_is_compacted_is_left(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(4)])
        upload, moved = node.manager.upload, False

        async def deleted_meanwhile(*arguments):
            nonlocal moved
            if not moved:
                moved = True
                await node.move_log_start(replica, 7)
            return await upload(*arguments)

        node.manager.upload = deleted_meanwhile
        await node.merger.merge_all()
        assert node.merger.errors == 1
        await node.finish_tiering()
        for _ in range(3):  # passes that are skipped after the failure
            await node.merger.merge_all()
        assert await read_all(node, replica) == [(15 + n, b"k%d" % n, b"%d 3" % n) for n in range(5)]
        assert not node.remote(replica).started


@pytest.mark.parametrize("fault", FAULTS)
async def test_failure_at_every_call_of_a_compaction(tmp_path: Path, fault: str) -> None:
    cases = range(0, 40, 2 if fault == "fail" else 5)
    fired = await asyncio.gather(*(compact_with_fault(tmp_path / str(at), fault, at) for at in cases))
    assert sum(fired) >= 3


async def compact_with_fault(directory: Path, fault: str, at: int) -> bool:
    """Whether the call number `at` was made, and so had the fault. A call that stalls times out soon."""
    store = FaultyStore(MemoryStore())
    limits = TierLimits(copy_seconds=5, small_seconds=5) if fault == "stall" else TierLimits()
    async with TierNode(directory, store, limits=limits) as node:
        replica = await node.create("t", **COMPACTED)
        await tiered(node, replica, [values(turn) for turn in range(4)])
        store.arm(fault, at, "put", "head", *(() if fault == "stall" else ("get",)))
        await node.merger.merge_all()
        fired = store.fired.is_set()
        store.disarm()
        await node.finish_tiering()
        for _ in range(3):  # passes that are skipped after the failure
            node.clock.pass_time(60_000)
            await node.merger.merge_all()
        assert await read_all(node, replica) == [(15 + n, b"k%d" % n, b"%d 3" % n) for n in range(5)]
        await node.finish_tiering()
        assert not node.remote(replica).started
        return fired


# -- a model


@pytest.mark.parametrize("seed", range(12))
async def test_remote_log_is_a_valid_compacted_log_at_any_time(tmp_path: Path, seed: int) -> None:
    """Random values, tombstones, uploads, merges, compactions, deletions and jumps of the clock."""
    rng = random.Random(seed)
    settings = {
        **COMPACTED,
        "min_cleanable_dirty_ratio": "0.2",
        "segment_bytes": str(rng.choice((300, 4000))),
    }
    async with TierNode(tmp_path, MemoryStore(), grace_ms=0) as node:
        node.merger.configure(replace(node.merger._settings, remote_log_merge_min_segments=3))
        replica = await node.create("t", **settings)
        history: list[tuple[int, bytes, bytes | None]] = []
        horizon = 0  # tombstones below it may be gone
        for _ in range(60):
            match rng.choice(("produce", "produce", "upload", "rewrite", "rewrite", "time", "delete")):
                case "produce":
                    end = replica.log_end_offset
                    batch = [
                        (b"%d" % rng.randrange(12), None if rng.random() < 0.2 else b"%d" % (end + n))
                        for n in range(rng.randrange(1, 8))
                    ]
                    history += [(end + n, *one) for n, one in enumerate(batch)]
                    produce_values(replica, batch)
                case "upload":
                    await node.log_manager.flush("t")
                    await node.finish_tiering()
                case "rewrite":
                    await node.merger.merge_all()
                    await node.finish_tiering()
                    await node.storage_cleaner.clean()
                case "time":
                    node.clock.pass_time(rng.choice((500, 5000)))
                    horizon = node.remote(replica).end_offset or 0
                case "delete" if rng.random() < 0.3 and node.remote(replica).end_offset:
                    start = node.remote(replica).log_start_offset
                    await node.move_log_start(replica, start + rng.randrange(6))
                    await node.finish_tiering()
            found = await read_all(node, replica)
            check_compacted(node, replica, history, found, horizon)
            for offset, _, _ in found[:: max(1, len(found) // 4)]:
                record = await node.fresh_remote_log().offset_for_timestamp(replica.id, START_MS + offset)
                assert record is not None and record[:2] == (offset, START_MS + offset)
        await node.finish_tiering()  # the last records may have rolled a segment, which is being uploaded
        assert not node.remote(replica).started
        assert node.compactor.compactions > 1


def check_compacted(
    node: TierNode,
    replica: Replica,
    history: list[tuple[int, bytes, bytes | None]],
    found: list[tuple[int, bytes, bytes | None]],
    horizon: int,
) -> None:
    """The remote log has records of the history only, in order, and the last one of each key."""
    remote = node.remote(replica)
    start, end = remote.log_start_offset, remote.end_offset or 0
    expected = [one for one in history if start <= one[0] < end]
    kept = [one for one in found if one[0] >= start]
    assert [one for one in expected if one in kept] == kept
    last = {key: (offset, key, value) for offset, key, value in expected}
    missing = {one for one in last.values() if one not in kept}
    assert all(value is None and offset < horizon for offset, _, value in missing), missing
    without_tombstone = {key for _, key, _ in missing}
    assert not [one for one in kept if one[1] in without_tombstone], "a deleted record is back"
