"""Job `compact` in a partition: results equal those of the brokers' own compaction, also after a kill."""

import asyncio
import random
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from tier_node import ABORT, START_MS, TierNode, content, write_transactional

from tierlog.base.types import TopicIdPartition
from tierlog.broker.gateway.replacements import _compaction_view
from tierlog.broker.remote.replacements import Replacements
from tierlog.broker.remote.tier_views import TierConflict
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import HEADER_SIZE, iter_batches, read_header
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch, with_section
from tierlog.spark.history.plan import Source
from tierlog.spark.jobs import compacting
from tierlog.spark.jobs.compacting import Compacted, CompactTask, compact_partition
from tierlog.spark.jobs.replacing import Limits, NotReplaced, _compaction
from tierlog.spark.jobs.rewriting import Announced
from tierlog.spark.options import StoreAddress
from tierlog.tiering.local_store import LocalStore

MIB = 1 << 20
COMMIT = [NewRecord(START_MS, struct.pack(">hh", 0, 1), ABORT[0].value, ())]
TOMBSTONE_MS = 1_000
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(TOMBSTONE_MS),
}
Row = tuple[int, bytes | None, bytes | None]


class Killed(BaseException):
    """The task ends here, without cleaning up."""


class Bench:
    """A leader whose topic becomes compacted once its history is in the bucket, and the job."""

    def __init__(self, node: TierNode, root: Path, replica: Replica) -> None:
        self.node, self.root, self.replica = node, root, replica
        self.where = node.where(replica)
        parts = node.metadata, node.log_manager, node.remote_log, node.store, node.keys, node.clock
        self.replacements = Replacements(*parts, node.tasks)
        self.loop = asyncio.get_running_loop()
        self.after_commit: Callable[[int], Coroutine[Any, Any, None]] | None = None
        self.commits = 0

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run this in the node's event loop, for the thread of the task. Raises NotReplaced."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()
        except TierConflict as why:
            raise NotReplaced(str(why)) from None

    def limits(self) -> Limits:
        found = _compaction(_compaction_view(self.replica))
        return Limits(
            1 << 40, None, 200, self.replica.local_log_start_offset, self.replica.leader_epoch, found
        )

    async def compact(self, map_bytes: int = MIB) -> Compacted:
        """Run the executor's part."""
        task = CompactTask(
            store=StoreAddress(path=str(self.root)),
            cluster=self.node.keys.cluster_id,
            source=Source("t", *self.where),
            entries=self.node.remote(self.replica).entries,
            limits=self.limits(),
            admin="http://none",
            lease_s=60,
            map_bytes=map_bytes,
        )
        return await asyncio.to_thread(compact_partition, task)

    async def upload(self) -> None:
        await self.node.log_manager.flush("t")
        await self.node.finish_tiering()

    async def rows(self) -> list[Row]:
        """Rows that a consumer finds from offset 0 on. A batch that cannot be read is one row."""
        log, offset, found = self.node.fresh_remote_log(), 0, list[Row]()
        while offset < (self.node.remote(self.replica).end_offset or 0):
            part = await log.read(self.replica.id, offset, 1 << 20, min_one=True)
            data, offset = content(part), part.end_offset
            for at, header in iter_batches(data):
                if header.is_control:
                    continue
                try:
                    found += [
                        (one.offset, one.key, one.value) for one in iter_records(data, at, max_bytes=1 << 20)
                    ]
                except RecordsError:
                    found.append((header.base_offset, b"unreadable", bytes(data[at + HEADER_SIZE :])[:40]))
        return found


class JobReplacer:
    """Speaks to the leader without HTTP."""

    bench: Bench

    def __init__(self, admin: str, lease_s: int) -> None:
        assert (admin, lease_s) == ("http://none", 60)

    def begin(self, where: TopicIdPartition, old: Sequence[RemoteSegment], **options: Any) -> Announced:
        ids, ends = [entry.uuid for entry in old], [old[-1].end_offset]
        work = self.bench.replacements.begin(where, old[0].base_offset, ids, ends, **options)
        lease = self.bench.call(work)
        return Announced(lease.attempt.uuid, lease.attempt.leader_epoch, 1 << 62)

    def commit(self, where: TopicIdPartition, old: Sequence[RemoteSegment], new: RemoteSegment) -> None:
        self.bench.call(self.bench.replacements.commit(where, [entry.uuid for entry in old], [new]))
        self.bench.commits += 1
        if self.bench.after_commit is not None:
            self.bench.call(self.bench.after_commit(self.bench.commits))

    def cancel(self, where: TopicIdPartition, new: Announced) -> None:
        self.bench.loop.call_soon_threadsafe(self.bench.replacements.cancel, [new.uuid])

    def renew(self, where: TopicIdPartition, new: Sequence[Announced]) -> None:
        """Leases do not end here: the node's clock stands still."""


class Opened:
    """`async with Opened(tmp_path, monkeypatch) as bench`."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._patch = directory / "objects", monkeypatch
        self._node = TierNode(directory / "node", LocalStore(self._root))

    async def __aenter__(self) -> Bench:
        node = await self._node.__aenter__()
        bench = Bench(node, self._root, await node.create("t", cleanup_policy="delete"))
        self._patch.setattr(compacting, "Replacer", type("Replacer", (JobReplacer,), {"bench": bench}))
        self._patch.setattr(compacting, "SystemClock", lambda: node.clock)
        return bench

    async def __aexit__(self, *failure: object) -> None:
        await self._node.__aexit__(*failure)


def append(replica: Replica, rows: list[tuple[bytes | None, bytes | None]]) -> None:
    offset = replica.log_end_offset
    new = [NewRecord(START_MS + offset + n, key, value, ()) for n, (key, value) in enumerate(rows)]
    assert not replica.as_leader.append(memoryview(encode_batch(new)), START_MS).error


def append_unreadable(replica: Replica) -> None:
    """Only the first records of a batch are checked while the topic is not compacted."""
    good = encode_batch([NewRecord(START_MS, b"key 1", b"v", ()) for _ in range(10)])
    plain = bytearray(good[HEADER_SIZE:])
    plain[8 * len(plain) // 10 + 4] = 0x7E  # the key of the ninth is longer than the record
    batch = with_section(read_header(good), plain, Codec.NONE)
    assert not replica.as_leader.append(memoryview(batch), START_MS).error


async def test_null_keys_go_and_the_newest_record_of_each_key_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path, monkeypatch) as bench:
        for rows in (
            [(None, b"1"), (b"a", b"1"), (None, None)],
            [(b"a", b"2"), (None, b"2")],
            [(b"b", b"3")],
        ):
            append(bench.replica, rows)
            await bench.upload()
        await bench.node.alter("t", COMPACTED)
        done = await bench.compact()
        assert (done.failure, done.records_removed) == ("", 4)
        assert await bench.rows() == [(3, b"a", b"2"), (5, b"b", b"3")]


async def test_tombstones_stay_for_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Opened(tmp_path, monkeypatch) as bench:
        await bench.node.alter("t", COMPACTED)
        for row in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1")):
            append(bench.replica, [row])
            await bench.upload()
        assert (await bench.compact()).failure == ""
        first = [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
        assert await bench.rows() == first
        assert (await bench.compact()).segments == 0, "nothing is dirty"
        for passed_ms, rows in ((TOMBSTONE_MS - 1, first), (2, [first[0], first[2]])):
            bench.node.clock.pass_time(passed_ms)
            append(bench.replica, [(b"new", b"%d" % passed_ms)])
            await bench.upload()
            assert (await bench.compact()).failure == ""
            assert [row for row in await bench.rows() if row[1] != b"new"] == rows


async def test_unreadable_batch_is_kept_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Opened(tmp_path, monkeypatch) as bench:
        append(bench.replica, [(b"key 1", b"old")])
        append_unreadable(bench.replica)
        await bench.upload()
        append(bench.replica, [(b"key 1", b"new")])
        await bench.upload()
        before = await bench.rows()
        await bench.node.alter("t", COMPACTED)
        done = await bench.compact()
        assert (done.failure, done.records_removed) == ("", 1)
        assert await bench.rows() == before[1:]


async def test_run_that_dies_after_any_segment_leaves_a_valid_log_and_the_next_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(1, 5):
        async with Opened(tmp_path / str(at), monkeypatch) as bench:
            await bench.node.alter("t", COMPACTED)
            for turn in range(5):
                append(bench.replica, [(b"k%d" % n, b"%d" % turn) for n in range(4)])
                await bench.upload()
            everything = await bench.rows()

            async def die(commits: int, last: int = at) -> None:
                if commits == last:
                    raise Killed

            bench.after_commit = die
            with pytest.raises(Killed):
                await bench.compact()
            bench.after_commit = None
            newest = everything[-4:]
            left = await bench.rows()
            assert left == [row for row in everything if row in left], "an order that was"
            assert left[-4:] == newest
            assert 4 < len(left) < 20 or at == 4
            bench.node.clock.pass_time(3_600_000)
            bench.replacements.end_expired()
            await bench.node.finish_tiering()
            done = await bench.compact()
            assert done.failure == ""
            assert await bench.rows() == newest
            assert not bench.node.remote(bench.replica).started


async def history(bench: Bench, seed: int) -> None:
    """Null keys, tombstones, unreadable batches and transactions that span segments."""
    rng, is_open = random.Random(seed), False
    for number in range(40):
        key = rng.choice((None, *(b"k%d" % n for n in range(6))))
        value = None if key is not None and rng.random() < 0.2 else b"%d" % number
        match rng.choice(("rows", "rows", "rows", "transaction", "end", "unreadable", "upload")):
            case "rows":
                append(bench.replica, [(key, value), (b"k%d" % rng.randrange(6), b"%d more" % number)])
            case "transaction":
                write_transactional(bench.replica, [NewRecord(START_MS + number, key, value)])
                is_open = True
            case "end" if is_open:
                write_transactional(bench.replica, rng.choice((ABORT, COMMIT)), control=True)
                is_open = False
            case "unreadable" if rng.random() < 0.3:
                append_unreadable(bench.replica)
            case "upload" if not is_open:
                append(bench.replica, [(b"any", b"%d" % number)])  # moves the high watermark
                await bench.upload()
            case "upload":
                bench.replica.log.roll(START_MS)
    if is_open:
        write_transactional(bench.replica, ABORT, control=True)
    append(bench.replica, [(b"last", b"1")])
    await bench.upload()


@pytest.mark.parametrize("seed", range(8))
async def test_job_leaves_what_the_brokers_own_compaction_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    found: list[list[list[Row]]] = []
    for by_job in (True, False):
        async with Opened(tmp_path / str(by_job), monkeypatch) as bench:
            await history(bench, seed)
            await bench.node.alter("t", COMPACTED)
            steps: list[list[Row]] = []
            for _ in range(3):
                if by_job:
                    done = await bench.compact(map_bytes=400 if seed % 3 == 0 else MIB)
                    assert done.failure == ""
                else:
                    await bench.node.merger.merge_all()
                steps.append(await bench.rows())
                bench.node.clock.pass_time(2 * TOMBSTONE_MS)
                append(bench.replica, [(b"last", b"%d" % len(steps))])
                await bench.upload()
            found.append(steps)
    assert found[0] == found[1]
    assert len(found[0][-1]) < 30
