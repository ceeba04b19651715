"""Executor part of `compact`: compacts the history of one partition, by the rules and code of the log
cleaner.

A pass reads the keys of the dirty segments into an offset map of bounded size. Then it filters every
segment below the end of the map, oldest first, and hands each one over as soon as it is written, so that
readers see a valid compacted log at any time and a task that dies loses nothing. The task speaks to the
partition's leader itself: the next segment is announced before the last one is committed, so the leader's
own compactor leaves the partition alone. The task ends when the leader epoch is no longer that of the plan,
as segments whose keys are in the map may have left the manifest.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tierlog.base.clock import SystemClock
from tierlog.base.leader_epochs import earliest_starts
from tierlog.metadata.records import RemoteSegment, codec_tags, compaction_tags
from tierlog.records.batch import BatchHeader, read_header
from tierlog.records.compaction import BatchFilter, CleanedTransactionMetadata
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn, decode_txn_index
from tierlog.records.markers import read_marker
from tierlog.records.offset_map import OffsetMap
from tierlog.records.record import records_section
from tierlog.records.rewrite import spans
from tierlog.records.unpacking import NO_BOUND
from tierlog.spark.history.bucket import Bucket, open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_reader import SegmentReader
from tierlog.spark.history.segment_writer import FinishedSegment, SegmentEnd, SegmentWriter, put_segment
from tierlog.spark.jobs.arguments import JobFailed
from tierlog.spark.jobs.replacing import CompactionSettings, Leases, Limits, NotReplaced, Replacer
from tierlog.spark.jobs.rewriting import SPOOLED_BYTES, Announced, checked
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStoreError


@dataclass(frozen=True, slots=True)
class CompactTask:
    """`limits`: by the leader, before the manifest was read. `entries`: all segments of the partition, by the
    manifest in the bucket. `map_bytes`: of the offset map."""

    store: StoreAddress
    cluster: str
    source: Source
    entries: tuple[RemoteSegment, ...]
    limits: Limits
    admin: str
    lease_s: int
    map_bytes: int


@dataclass(slots=True)
class Compacted:
    """`failure`: why the task ended before the history was compacted. Earlier replacements stay."""

    segments: int = 0
    passes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Dirty:
    """Offsets [start, end) whose keys have not been applied to all earlier records, and can be."""

    start: int
    end: int
    bytes: int


def dirty_of(
    entries: Sequence[RemoteSegment], settings: CompactionSettings, local_start: int, now_ms: int
) -> Dirty:
    """The dirty range, as the remote compactor finds it."""
    start, end, size = -1, 0, 0
    for entry in entries:
        if start < 0 and entry.compacted_to >= entry.end_offset:
            continue
        is_old = settings.min_compaction_lag_ms <= 0 or (
            entry.max_timestamp <= now_ms - settings.min_compaction_lag_ms
        )
        if entry.end_offset > local_start or not is_old:
            break
        if start < 0:
            start = max(entry.base_offset, entry.compacted_to)
        end, size = entry.end_offset, size + entry.log_bytes
    return Dirty(max(start, 0), end, size) if size else Dirty(0, 0, 0)


def compact_partition(task: CompactTask) -> Compacted:
    """Failures are results: the tasks of other partitions continue."""
    done = Compacted()
    try:
        _Compaction(task, done).run()
    except (NotReplaced, JobFailed, ObjectStoreError, RecordsError, OSError) as failure:
        done.failure = str(failure)
    return done


@dataclass(slots=True)
class _Pass:
    keys: OffsetMap
    filter: BatchFilter


class _Compaction:
    def __init__(self, task: CompactTask, done: Compacted) -> None:
        self._task, self._done = task, done
        self._source = task.source
        self._bucket: Bucket = open_bucket(task.store)
        self._keys = Keys(task.cluster)
        self._entries = list(task.entries)
        self._replacer = Replacer(task.admin, task.lease_s)
        self._limits = task.limits

    def run(self) -> None:
        """Passes, until nothing is dirty."""
        with Leases(self._replacer, self._task.lease_s) as leases:
            while self._dirty().bytes:
                self._pass(leases)
                self._done.passes += 1

    @property
    def _settings(self) -> CompactionSettings:
        if self._limits.compaction is None:
            raise NotReplaced("cleanup.policy is not compact")
        return self._limits.compaction

    def _dirty(self) -> Dirty:
        now_ms = SystemClock().now_ms()
        return dirty_of(self._entries, self._settings, self._limits.local_log_start_offset, now_ms)

    def _pass(self, leases: Leases) -> None:
        dirty = self._dirty()
        work = self._read_keys(dirty)
        cleaned_to = work.keys.end_offset
        chosen = [
            at
            for at, entry in enumerate(self._entries)
            if entry.base_offset < cleaned_to
            and (entry.records or entry.compacted_to < min(entry.end_offset, cleaned_to))
        ]
        following: Announced | None = None
        for number, at in enumerate(chosen):
            entry = self._entries[at]
            new = following or self._begin(entry, leases)
            is_last = number + 1 == len(chosen)
            written = self._filter(entry, new, work)
            following = None if is_last else self._begin(self._entries[chosen[number + 1]], leases)
            if written is None:
                self._replacer.cancel(self._source.id, new)
            else:
                self._replacer.commit(self._source.id, [entry], written)
                self._count(entry, written)
                self._entries[at] = written
            leases.remove(self._source.id, new)

    def _begin(self, entry: RemoteSegment, leases: Leases) -> Announced:
        epoch = self._limits.leader_epoch
        new = self._replacer.begin(self._source.id, [entry], compacts=True, leader_epoch=epoch)
        leases.add(self._source.id, new)
        return new

    def _read_keys(self, dirty: Dirty) -> _Pass:
        aborted = self._aborted()
        keys = OffsetMap(self._task.map_bytes, dirty.start, dirty.end - dirty.start)
        settings, now_ms = self._settings, SystemClock().now_ms()
        rules = BatchFilter(
            keys,
            CleanedTransactionMetadata(aborted),
            settings.producers,
            now_ms,
            settings.delete_retention_ms,
        )
        work = _Pass(keys, rules)
        read = [entry for entry in self._entries if dirty.start < entry.end_offset <= dirty.end]
        # a transaction that ended before the first segment would seem open, and later data aborted
        fates = CleanedTransactionMetadata(one for one in aborted if one.last_offset >= read[0].base_offset)
        for entry in read:
            if not self._add_keys(entry, dirty.start, fates, work):
                break
            keys.end_offset = entry.end_offset  # includes a gap at its end
        return work

    def _add_keys(
        self, entry: RemoteSegment, start: int, fates: CleanedTransactionMetadata, work: _Pass
    ) -> bool:
        """Add a segment's keys. Returns False when the map is full."""
        for batch, header in self._reader(entry).batches():
            if header.is_control:
                fates.can_discard(header, read_marker(batch))
                says_nothing = True
            else:
                says_nothing = fates.is_aborted(header)
            if header.last_offset < start:
                continue
            count = 0 if says_nothing else header.record_count
            try:
                records = spans(_plain(batch, header), header) if count else ()
                has_space = work.keys.add_batch(records, count, header.next_offset)
            except RecordsError:  # kept as it is
                has_space = work.keys.add_batch((), 0, header.next_offset)
            if not has_space:
                return False
        return True

    def _filter(self, entry: RemoteSegment, new: Announced, work: _Pass) -> RemoteSegment | None:
        """The verified entry of a compacted segment; None if it stays as it is."""
        reader, fates = self._reader(entry), work.filter.transactions
        end_offset = min(work.keys.end_offset, entry.end_offset)
        is_changed = False
        fates.kept.clear()
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as file:
            writer = SegmentWriter(file, entry.base_offset, self._limits.index_interval_bytes)
            for batch, header, is_end in with_end(reader.batches()):
                kept = kept_of(work.filter, batch, header, stays=is_end)
                is_changed = is_changed or kept != batch
                if kept:
                    writer.add(kept, header if kept is batch else read_header(kept))
            aborted = list(fates.kept)  # as the remote compactor
            is_compacted = entry.compacted_to >= end_offset and entry.has_aborts == bool(aborted)
            if is_compacted and not is_changed:
                return None
            now_ms = SystemClock().now_ms()
            tags = compaction_tags(end_offset, max(now_ms, entry.compacted_at + 1)) + codec_tags((entry,))
            finished = writer.finish(
                SegmentEnd(
                    uuid=new.uuid,
                    leader_epoch=new.leader_epoch,
                    end_offset=entry.end_offset,
                    leader_epochs=earliest_starts(entry.leader_epochs, reader.bundle.leader_epochs),
                    aborted=aborted,
                    producer_snapshot=reader.bundle.producer_snapshot,
                    max_timestamp=None if writer.has_timestamps else entry.max_timestamp,
                    tags=tags,
                )
            )
            if now_ms > new.put_until_ms:
                raise NotReplaced("the task was too slow: its copy may have been abandoned")
            put_segment(self._bucket, self._keys, self._source.id, file, finished)
        return self._checked(finished)

    def _checked(self, finished: FinishedSegment) -> RemoteSegment:
        found = checked(self._task.store, self._task.cluster, self._source, finished)
        if found.entry is None:
            raise NotReplaced(found.failure)
        return found.entry

    def _aborted(self) -> list[AbortedTxn]:
        found: set[AbortedTxn] = set()
        for entry in self._entries:
            if entry.has_aborts:
                found.update(decode_txn_index(self._reader(entry).bundle.txn_index))
        return sorted(found, key=lambda one: (one.last_offset, one.producer_id))

    def _reader(self, entry: RemoteSegment) -> SegmentReader:
        return SegmentReader(self._bucket, self._keys, self._source, entry)

    def _count(self, old: RemoteSegment, new: RemoteSegment) -> None:
        self._done.segments += 1
        self._done.bytes_before += old.log_bytes
        self._done.bytes_after += new.log_bytes
        self._done.records_removed += old.records - new.records


def kept_of(rules: BatchFilter, batch: bytes, header: BatchHeader, *, stays: bool) -> bytes:
    """The bytes that are kept of a batch, empty if none are. A batch whose records cannot be read is kept as
    it is."""
    if header.is_control:
        return rules.control(batch, header, read_marker(batch), stays=stays)
    try:
        plain = b"" if rules.transactions.is_aborted(header) else _plain(batch, header)
        return rules.data(batch, header, plain, partial(spans, plain, header), stays=stays)
    except RecordsError:
        return batch


def with_end(
    batches: Iterable[tuple[bytes, BatchHeader]],
) -> Iterator[tuple[bytes, BatchHeader, bool]]:
    """Each batch, and whether it is the last one."""
    unread = iter(batches)
    waiting = next(unread, None)
    while waiting is not None:
        following = next(unread, None)
        yield *waiting, following is None
        waiting = following


def _plain(batch: bytes, header: BatchHeader) -> bytes:
    return bytes(records_section(batch, 0, header, NO_BOUND)) if header.record_count else b""
