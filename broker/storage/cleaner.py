"""Compaction of one log: reads segments and writes cleaned ones next to them, in a worker thread.

The thread uses no state of the event loop: it opens files by name, and a `CleaningJob` holds what it needs to
know about the log. Cleaned files have names of their own until the event loop swaps them in
(`segment_swap.py`). The rules are in `records/compaction.py`. The log cleaner calls `build_offset_map`,
then `clean` for each group.
"""

import errno
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.open_files import SharedFile
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.checked_batches import verified_batches
from tierlog.broker.storage.core.compaction import (
    LogToClean,
    SegmentSize,
    group_segments,
    last_records_of_producers,
)
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import CLEANED, INDEXES, OFFSET_INDEX, TIME_INDEX
from tierlog.broker.storage.segment import CorruptLog, Segment
from tierlog.broker.storage.segment_swap import Swap, discard
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader, read_header
from tierlog.records.compaction import BatchFilter, CleanedTransactionMetadata, LastRecord
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn
from tierlog.records.markers import read_marker
from tierlog.records.offset_map import LOAD_FACTOR, OffsetMap
from tierlog.records.record import records_section
from tierlog.records.rewrite import Span, spans

_log = structlog.get_logger("tierlog")

WORK_S = 0.0005
REST_S = 0.00005
"""After WORK_S of work the thread sleeps for the shortest time that lets the event loop take the interpreter
lock. Otherwise the loop would wait for the switch interval (5 ms) at each turn.
"""

SLICE_RECORDS = 64
"""Records processed between two checks of the time, within large batches."""

FREE_SPACE_FACTOR = 2
"""A group is cleaned only if the disk has this many times its size free: the cleaner must not fill it."""

LARGEST_PLAIN_BYTES = 1 << 30
"""Maximum decompressed size of a batch. It was checked at the append, so this only guards against damage with
a valid CRC.
"""


class CleaningStopped(Exception):
    """The node stops, or the log is gone; nothing was swapped in."""


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """Arguments of one cleaning. [first_dirty_offset, end_offset) is the dirty range. `sources`: rolled
    segments up to its end, all of them on disk; empty if the caller passes segments one by one (`add_keys`,
    `clean`).
    """

    files: Files
    directory: Path
    config: TopicConfig
    sources: tuple[Segment, ...]
    first_dirty_offset: int
    end_offset: int
    aborted: Sequence[AbortedTxn]
    producers: Mapping[int, LastRecord]
    epochs: LeaderEpochs
    now_ms: int


def take_job(log: PartitionLog, dirty: LogToClean, now_ms: int) -> CleaningJob:
    """Build the job on the event loop. The cleanable range must be on disk."""
    sources = log.rolled_below(dirty.end_offset)
    return CleaningJob(
        log.active.files,
        log.directory,
        log.config,
        sources,
        dirty.first_offset,
        sources[-1].end_offset,
        log.aborted(sources[0].base_offset, dirty.end_offset),
        last_records_of_producers(log.producers),
        LeaderEpochs(log.epochs.entries),
        now_ms,
    )


class CleanerThrottler:
    """Keeps reads and writes together below a rate, and gives the event loop time in between."""

    def __init__(self, clock: Clock, stop: threading.Event, bytes_per_second: Callable[[], float]) -> None:
        """`bytes_per_second` is called at each step, as the rate may change."""
        self._clock = clock
        self._stop = stop
        self._rate_now = bytes_per_second
        self._rate = bytes_per_second()
        self._since_ms = clock.monotonic_ms()
        self._bytes = 0
        self._rested_at = perf_counter()

    def spend(self, count: int) -> None:
        """Raises CleaningStopped."""
        rate = self._rate_now()
        if rate != self._rate:  # start again with the new rate
            self._rate, self._since_ms, self._bytes = rate, self._clock.monotonic_ms(), 0
        self._bytes += count
        ahead_s = self._bytes / self._rate - (self._clock.monotonic_ms() - self._since_ms) / 1000
        if ahead_s > 0:
            self._stop.wait(ahead_s)
        self.rest()

    def rest(self) -> None:
        """Let the event loop run, between any two steps of the work. Raises CleaningStopped."""
        if perf_counter() - self._rested_at < WORK_S:
            return
        if self._stop.is_set():
            raise CleaningStopped
        sleep(REST_S)
        self._rested_at = perf_counter()


class Cleaner:
    """Cleans one log. `cleaned_to` and the counts are valid after all groups are done."""

    def __init__(
        self,
        job: CleaningJob,
        throttler: CleanerThrottler,
        key_budget_bytes: int,
        load_factor: float = LOAD_FACTOR,
    ) -> None:
        self._files = job.files
        self._job = job
        self._throttler = throttler
        most_keys = job.end_offset - job.first_dirty_offset
        self._keys = OffsetMap(key_budget_bytes, job.first_dirty_offset, most_keys, load_factor)
        self._filter = BatchFilter(
            self._keys,
            CleanedTransactionMetadata(job.aborted),
            job.producers,
            job.now_ms,
            job.config.delete_retention_ms,
        )
        self._fates: CleanedTransactionMetadata | None = None  # transactions of the dirty range
        self.bytes_read = self.bytes_written = 0
        self.malformed: dict[int, str] = {}
        """Batches whose records cannot be read although the CRC is valid, by base offset, with the reason.
        They are kept unchanged.
        """

    def log_malformed(self, partition: TopicPartition, logged: set[int]) -> None:
        """Log each malformed batch once, as every cleaning of the log finds it again. `logged`: base offsets
        of those that are logged already."""
        for offset, why in sorted(self.malformed.items()):
            if offset not in logged:
                logged.add(offset)
                _log.error(
                    "compaction.batch.kept",
                    partition=str(partition),
                    offset=offset,
                    why=why,
                )

    @property
    def cleaned_to(self) -> int:
        """Offset at which the next cleaning begins: below the end of the sources if the map was full."""
        return self._keys.end_offset

    @property
    def keys(self) -> int:
        return len(self._keys)

    @property
    def aborted(self) -> Sequence[AbortedTxn]:
        """The transaction index that the last group needs: the transactions whose markers were kept in it."""
        return self._filter.transactions.kept

    def build_offset_map(self) -> list[tuple[Segment, ...]]:
        """Read the dirty part; returns the groups of segments to clean. Raises OSError, CorruptLog,
        RecordsError and CleaningStopped, as `clean` does.
        """
        job, keys = self._job, self._keys
        for segment in job.sources:
            if segment.end_offset > job.first_dirty_offset and not self.add_keys(segment):
                break
        touched = [segment for segment in job.sources if segment.base_offset < keys.end_offset]
        by_base = {segment.base_offset: segment for segment in touched}
        groups = group_segments(map(self._size_of, touched), job.config)
        return [tuple(by_base[size.base_offset] for size in group) for group in groups]

    def add_keys(self, segment: Segment) -> bool:
        """Read the next dirty segment, in the order of offsets. Returns False when the map is full."""
        if self._fates is None:
            # a transaction that ended before the first segment would seem open, and later data aborted
            begin = segment.base_offset
            self._fates = CleanedTransactionMetadata(
                entry for entry in self._job.aborted if entry.last_offset >= begin
            )
        if not self._map_segment(segment, self._fates):
            return False
        self._keys.end_offset = segment.end_offset  # includes a gap at its end
        return True

    def _map_segment(self, segment: Segment, fates: CleanedTransactionMetadata) -> bool:
        """Add a segment's keys. Returns False when the map is full."""
        for batch, header in self._batches(segment):
            if header.is_control:
                fates.can_discard(header, read_marker(batch))
                says_nothing = True
            else:
                says_nothing = fates.is_aborted(header)
            if header.last_offset < self._job.first_dirty_offset:
                continue
            count = 0 if says_nothing else header.record_count
            try:
                records = self._records(_plain(batch, header), header) if count else ()
                has_space = self._keys.add_batch(records, count, header.next_offset)
            except RecordsError as error:
                self.malformed[header.base_offset] = str(error)
                has_space = self._keys.add_batch((), 0, header.next_offset)
            if not has_space:
                return False
        return True

    def clean(self, group: Sequence[Segment]) -> Swap | None:
        """Write the cleaned segment of a group and make it durable; None if nothing changes in a single
        segment.
        """
        job, fates = self._job, self._filter.transactions
        fates.kept.clear()
        if self._files.space(job.directory).usable < FREE_SPACE_FACTOR * sum(
            segment.size for segment in group
        ):
            raise OSError(errno.ENOSPC, "not enough space to compact", str(job.directory))
        cleaned = Segment(self._files, job.directory, group[0].base_offset, job.now_ms)
        cleaned.file_suffix = CLEANED
        discard(cleaned)  # left over from an interrupted cleaning
        try:
            changed = self._write(group, cleaned)
            for entry in fates.kept:
                cleaned.add_aborted(entry)
            if not changed and len(group) == 1:
                discard(cleaned)
                return None
            cleaned.end_offset = group[-1].end_offset
            cleaned.last_modified_ms = group[-1].last_modified_ms
            cleaned.created_ms = group[-1].created_ms
            cleaned.roll()
            cleaned.sync()
            self._files.sync_directory(job.directory)
        except BaseException:
            with suppress(OSError):
                discard(cleaned)
            raise
        return Swap(cleaned, tuple(group))

    def _write(self, group: Sequence[Segment], cleaned: Segment) -> bool:
        """Write what is kept. Returns whether any batch was removed or rewritten. The last batch of the group
        is always kept, empty if necessary: it says where the range of the new segment ends.
        """
        changed = False
        interval = self._job.config.index_interval_bytes
        for segment in group:
            last = segment is group[-1]
            for batch, header, ends in _with_end(self._batches(segment)):
                stays = last and ends
                if header.is_control:
                    kept = self._filter.control(batch, header, read_marker(batch), stays=stays)
                else:
                    kept = self._filtered(batch, header, stays=stays)
                changed = changed or kept != batch
                if kept:
                    new = header if kept is batch else read_header(kept)
                    cleaned.append(kept, new, new.base_offset, interval, self._job.now_ms)
                    self.bytes_written += len(kept)
                    self._throttler.spend(len(kept))
        return changed

    def _filtered(self, batch: bytes, header: BatchHeader, *, stays: bool) -> bytes:
        """Filter a data batch. In batches written before the topic was compacted only the first records were
        validated.
        """
        try:
            # aborted records say nothing, also if they are malformed
            plain = b"" if self._filter.transactions.is_aborted(header) else _plain(batch, header)
            records = partial(self._records, plain, header)
            return self._filter.data(batch, header, plain, records, stays=stays)
        except RecordsError as error:
            self.malformed[header.base_offset] = str(error)
            return batch

    def _records(self, plain: bytes, header: BatchHeader) -> Iterator[Span]:
        """The records of a batch. As there may be many, the thread rests in between."""
        records = spans(plain, header)
        while part := list(islice(records, SLICE_RECORDS)):
            yield from part
            self._throttler.rest()

    def _batches(self, segment: Segment) -> Iterator[tuple[bytes, BatchHeader]]:
        """Each batch of a segment with its CRC and header checked, since rewritten batches get a new, valid
        CRC. Raises CorruptLog.
        """
        rules = HeaderRules(gaps=True, epochs=self._job.epochs, end_offset=segment.end_offset)
        size = 0
        for _, header, content in verified_batches(
            segment, rules, file=SharedFile(self._files, segment.path())
        ):
            size += header.size
            self.bytes_read += header.size
            self._throttler.spend(header.size)
            yield bytes(content), header
        if size != segment.size:
            raise CorruptLog(f"{segment.path()}: damaged at {size}")

    def _size_of(self, segment: Segment) -> SegmentSize:
        sizes = {}
        for suffix in INDEXES[:2]:
            fd = self._files.open(segment.path(suffix))
            try:
                sizes[suffix] = self._files.size(fd)
            finally:
                self._files.close(fd)
        return SegmentSize(
            segment.base_offset, segment.end_offset, segment.size, sizes[OFFSET_INDEX], sizes[TIME_INDEX]
        )


def _plain(batch: bytes, header: BatchHeader) -> bytes:
    return bytes(records_section(batch, 0, header, LARGEST_PLAIN_BYTES)) if header.record_count else b""


def _with_end(
    batches: Iterator[tuple[bytes, BatchHeader]],
) -> Iterator[tuple[bytes, BatchHeader, bool]]:
    """Each batch, and whether it is the last one."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield *waiting, following is None
        waiting = following
