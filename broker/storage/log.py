"""The log of one partition: segments in offset order, the last one active, with leader epochs and producer
state.

Invariants: segments are contiguous; log_start_offset <= log_end_offset, and both grow except by truncation;
recovery_point <= log_end_offset, and everything below it is on disk. The log start of a tiered partition
may lie below the first local segment. Called by the replica, on the event loop; `flush` may run in a thread
beside appends.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from tierlog.base.files import Files
from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.segments import SegmentInfo
from tierlog.base.slices import LogSlice, empty_slice
from tierlog.base.types import require
from tierlog.broker.storage import recovery
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.core.retention import (
    count_for_segment,
    draw_age_limit_ms,
    must_roll,
    must_roll_idle,
)
from tierlog.broker.storage.damage import check_log, damage_of, readable_end
from tierlog.broker.storage.delayed_deletion import DelayedDeletion
from tierlog.broker.storage.log_flusher import LogFlusher
from tierlog.broker.storage.log_reader import LogReader
from tierlog.broker.storage.lookups import (
    SegmentExport,
    TimestampSearch,
    export,
    find_largest,
    first_at,
    info_of,
    retry_if_replaced,
)
from tierlog.broker.storage.names import DELETED, SNAPSHOT, segment_file
from tierlog.broker.storage.segment import BatchAt, CorruptLog, Damage, Segment
from tierlog.broker.storage.segment_swap import Swaps
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader
from tierlog.records.indexes import AbortedTxn, find_aborted

__all__ = ["PartitionLog", "SegmentExport", "SegmentInfo", "TimestampSearch"]

ROLLED_KEPT_LOADED = 4
"""Rolled segments whose indexes stay in memory, per partition: readers of history come in runs."""


class PartitionLog:
    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        files: Files,
        loaded: recovery.Loaded,
        log_start_offset: int,
        recovery_point: int,
        rng: random.Random,
        cleaned_to: int | None = None,
        *,
        clean: bool = False,
    ) -> None:
        self.directory = directory
        self.config = config
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.recovered_truncated_bytes, self.recovered_dropped_segments = (
            loaded.truncated_bytes,
            loaded.dropped,
        )
        self.was_damaged, self.missing_end = loaded.damaged, loaded.missing_end
        self.damage: tuple[Damage, ...] = ()
        """What is known of it, in all segments; it is not read."""
        self._files = files
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._active = loaded.segments[-1]
        self._rng = rng
        self._age_limit_ms = draw_age_limit_ms(self.config, self._rng)
        self._delayed_deletion = DelayedDeletion(files, directory)
        self.swaps = Swaps(files, directory, self._delayed_deletion)
        self._reader = LogReader(loaded.epochs, self._mark_used)
        self._loaded: dict[int, Segment] = {}  # rolled ones, those read most recently last
        self.log_end_offset = self._active.end_offset
        is_new = self.is_empty and not loaded.rebuilt  # else a crash left it, and a cut of it is to be synced
        self._clean_end = self.log_end_offset if clean or is_new else None
        self.log_start_offset = log_start_offset
        if cleaned_to is not None and cleaned_to > self.log_end_offset:
            cleaned_to = log_start_offset  # the log lost its end: what has been compacted is not known
        self.cleaned_to = cleaned_to
        """Compaction has seen everything below it; None: it has never been here."""
        self.flusher = LogFlusher(
            files,
            directory,
            loaded.epochs,
            unsynced=loaded.unsynced(recovery_point),
            epochs_dirty=bool(loaded.rebuilt),
            recovery_point=min(recovery_point, self.log_end_offset),
            checkpointed_recovery_point=max(
                recovery_point if recovery_point > self.log_end_offset else 0, loaded.missing_end
            ),
            now_ms=self._active.created_ms,
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        config: TopicConfig,
        files: Files,
        now_ms: int,
        *,
        log_start_offset: int = 0,
        recovery_point: int | None = 0,
        high_watermark: int = 0,
        clean: bool,
        may_have_lost: bool = False,
        rng: random.Random,
        cleaned_to: int | None = None,
    ) -> "PartitionLog":
        """Opens or creates the log; raises OSError. May run in a thread, as all of `files` may, and of `rng`
        each single draw. `may_have_lost`: what was not synced may be gone in parts, which is no damage.
        """
        loaded = recovery.load(
            files,
            directory,
            now_ms,
            config.index_interval_bytes,
            start_offset=log_start_offset,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            clean=clean,
            may_have_lost=may_have_lost,
            gaps="compact" in config.cleanup_policy or cleaned_to is not None,
        )
        first, end = loaded.segments[0].base_offset, loaded.segments[-1].end_offset
        start = min(end, log_start_offset if config.remote_storage_enable else max(first, log_start_offset))
        recovery_point = max(recovery_point or 0, end if clean else 0)
        clean = clean and not loaded.rebuilt and loaded.snapshot_offset == end
        return cls(directory, config, files, loaded, start, recovery_point, rng, cleaned_to, clean=clean)

    # -- what there is --

    @property
    def local_log_start_offset(self) -> int:
        """The first offset served from local files."""
        return max(self._bases[0], self.log_start_offset)

    @property
    def recovery_point(self) -> int:
        """Everything below it is on disk."""
        return self.flusher.recovery_point

    @property
    def active(self) -> Segment:
        return self._active

    def has(self, segment: Segment) -> bool:
        """Not so after retention or truncation dropped it."""
        return segment in self._segments

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction may have taken batches out, under whatever policy."""
        return self.cleaned_to is not None or "compact" in self.config.cleanup_policy

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def is_empty(self) -> bool:
        """No records in local files."""
        return self._active.size == 0 and len(self._segments) == 1

    @property
    def active_base_offset(self) -> int:
        """Grows when a segment is rolled; cheap, for those who look at every append."""
        return self._bases[-1]

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        return tuple(map(self._info, self._segments))

    # -- writing --

    def append(
        self, buffer: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int
    ) -> None:
        """Appends one batch whose offset and epoch are already in the buffer (`header` holds the client's).

        Rolls first where a rule says so. Raises OSError, and then nothing was appended.
        """
        last_offset = base_offset + header.last_offset_delta
        active = self._active
        if base_offset == self.flusher.recovery_point:
            self.flusher.unflushed_since_ms = now_ms
        newest, limit = header.max_timestamp, self._age_limit_ms
        if must_roll(active, self.config, len(buffer), last_offset, newest, now_ms, limit):
            self.roll(now_ms)
            active = self._active
        if base_offset == active.base_offset:
            self.flusher.on_file_created()
            if self.config.preallocate:
                active.reserve(self.config.segment_bytes)
        active.append(buffer, header, base_offset, self.config.index_interval_bytes, now_ms)
        if active.size > active.reserved_to:
            active.reserve_ahead(self.config.segment_bytes)
        self.log_end_offset = last_offset + 1
        latest = self.epochs.latest
        if leader_epoch >= 0 and (latest is None or latest.epoch != leader_epoch):
            self.epochs.assign(leader_epoch, base_offset)
            self.flusher.epochs_changed()
        if header.producer_id >= 0:
            self._apply_producer(active, buffer, header, base_offset, now_ms)

    def append_run(self, buffer: memoryview, batches: Sequence[BatchAt], now_ms: int) -> None:
        """Appends batches as another log has them (positions are within the buffer), those for one segment in
        one write. Raises OSError, and then a part of them may be there."""
        while batches:
            first, active = batches[0].header, self._active
            if first.base_offset == self.flusher.recovery_point:
                self.flusher.unflushed_since_ms = now_ms
            last, newest, limit = first.last_offset, first.max_timestamp, self._age_limit_ms
            if must_roll(active, self.config, first.size, last, newest, now_ms, limit) and self.roll(now_ms):
                active = self._active
            if active.size == 0:
                self.flusher.on_file_created()
                if self.config.preallocate:
                    active.reserve(self.config.segment_bytes)
            run = batches[: count_for_segment(active, self.config, batches, limit)]
            batches = batches[len(run) :]
            end = run[-1].position + run[-1].header.size
            active.append_run(buffer[run[0].position : end], run, self.config.index_interval_bytes, now_ms)
            if active.size > active.reserved_to:
                active.reserve_ahead(self.config.segment_bytes)
            self.log_end_offset = run[-1].header.next_offset
            latest = self.epochs.latest
            for at, header in run:
                if latest is None or header.leader_epoch != latest.epoch:
                    self.assign_epoch(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0:
                    self._apply_producer(active, buffer[at:], header, header.base_offset, now_ms)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Begins a leader epoch; after a crash before the next flush, which writes its file, batches tell."""
        if leader_epoch >= 0 and self.epochs.assign(leader_epoch, start_offset):
            self.flusher.epochs_changed()

    def roll(self, now_ms: int) -> bool:
        """Begins a new segment at the log end; False if the active one is empty. Raises OSError, and changes
        nothing then: above all, no file may stay whose name says that the active segment ends here.
        """
        active = self._active
        if active.size == 0:
            return False
        recovery.write_plain(self._files, self._snapshot_path(self.log_end_offset), self.producers.encode())
        following = Segment(self._files, self.directory, self.log_end_offset, now_ms)
        try:
            active.roll()
            following.create()
        except OSError:
            active.rolled = False
            following.close()
            self._files.unlink(following.path(), missing_ok=True)
            raise
        self._segments.append(following)
        self._bases.append(following.base_offset)
        self.flusher.on_rolled(active)
        self._active = following
        self._age_limit_ms = draw_age_limit_ms(self.config, self._rng)
        self._mark_used(active)
        if active.end_offset <= self.flusher.checkpointed_recovery_point:
            self.flusher.flush(self)  # whoever owns checkpoints sees to it that this is rare
        return True

    def maybe_roll(self, now_ms: int) -> bool:
        """Rolls an active segment that nobody appends to and that is older than segment.ms."""
        return must_roll_idle(self._active, now_ms, self._age_limit_ms) and self.roll(now_ms)

    def flush(self) -> int:
        """Makes everything appended so far durable; returns the recovery point. Raises OSError, above all
        SyncFailed. Safe in threads beside appends, not beside truncation.
        """
        return self.flusher.flush(self)

    def must_flush(self, now_ms: int) -> bool:
        """Whether flush.ms has passed since records were appended that are not yet durable."""
        if self.log_end_offset == self.recovery_point:
            return False
        return now_ms - self.flusher.unflushed_since_ms >= self.config.flush_ms

    def close(self, *, clean: bool) -> None:
        """After a clean close the log opens again without a scan. Raises OSError if it cannot be made clean.
        Its files are not touched if they are those of a clean stop still, or none.
        """
        as_found = self._clean_end == self.log_end_offset and not self.flusher.files_changed
        if clean and (not as_found or self._active.has_excess_bytes):
            self._active.add_time_entry()  # for the largest timestamp, as Kafka does when it closes a segment
            self._active.persist()
            path = self._snapshot_path(self.log_end_offset)
            recovery.write_plain(self._files, path, self.producers.encode())
            self.flusher.flush_clean(self)
        self.flusher.close()
        self._reader.forget_hints()
        self._loaded.clear()
        for segment in self._segments:
            segment.close()
        self.swaps.close()

    # -- reading --

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool, checked: bool = False
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, below `end_offset`, at most `max_bytes` long.

        The first batch comes whole even if it is larger and `min_one`. The offset must be at or above the
        local start. `checked`: all headers of it are read, and it ends before one that cannot be right.
        Raises OSError; and CorruptLog for what is damaged, be it known or met.
        """
        end_offset = min(end_offset, self.log_end_offset)
        if self.damage:
            end_offset = readable_end(self.damage, offset, end_offset)
        if offset >= end_offset or (max_bytes <= 0 and not min_one):
            return empty_slice(offset)
        segments = self._segments[self._index_of(offset) :]
        return self._reader.read(
            segments,
            offset,
            max_bytes,
            end_offset,
            min_one=min_one,
            gaps=self.may_have_gaps,
            checked=checked,
        )

    def offset_for_timestamp(self, timestamp: int, end_offset: int | None = None) -> TimestampSearch:
        """Finds the first local record at or after a timestamp, below `end_offset`."""
        limit = self.log_end_offset if end_offset is None else end_offset
        return retry_if_replaced(
            lambda: self._segments,
            lambda segments: first_at(
                segments, timestamp, self.local_log_start_offset, limit, self._mark_used
            ),
        )

    def max_timestamp(self) -> TimestampSearch:
        """Finds the first local record that carries the largest timestamp (ListOffsets -3, KIP-734)."""
        limit = self.log_end_offset
        return retry_if_replaced(
            lambda: self._segments,
            lambda segments: find_largest(segments, self.local_log_start_offset, limit, self._mark_used),
        )

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that touch [start_offset, end_offset)."""
        found: list[AbortedTxn] = []
        for segment in self._segments[self._index_of(start_offset) :]:
            if segment.has_aborts:
                found += find_aborted(segment.txn_index, start_offset, end_offset)
        return found

    # -- cutting and dropping --

    def add_damage(self, segment: Segment, damage: Damage) -> None:
        """From here on it is not read: `read` raises CorruptLog for it, and stops before it."""
        segment.damage = tuple(sorted({*segment.damage, damage}))
        self.damage = damage_of(self._segments)

    def raise_log_start(self, offset: int) -> bool:
        """Hides everything below an offset; files go by retention. True if it moved."""
        require(offset <= self.log_end_offset, f"log start {offset} above log end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        return True

    def delete_local_before(self, offset: int, now_ms: int) -> int:
        """Drops the rolled segments that end at or below an offset, oldest first; returns how many.

        They leave the list, and with that the local start rises, before their files are renamed.
        """
        count = 0
        while count + 1 < len(self._segments) and self._segments[count].end_offset <= offset:
            count += 1
        if not count:
            return 0
        if self.swaps.complete(self, now_ms):
            return self.delete_local_before(offset, now_ms)
        dropped, self._segments = self._segments[:count], self._segments[count:]
        self._bases = self._bases[count:]
        if not self.config.remote_storage_enable:
            self.log_start_offset = max(self.log_start_offset, self._bases[0])
            if self.epochs.truncate_from_start(self.log_start_offset):
                self.flusher.epochs_changed()
        for segment in dropped:
            self._on_removed(segment)
            self._delete_later(segment, now_ms)
        return count

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Cuts the log so that no record at or above `offset` remains (a batch that holds it goes whole).
        Raises OSError; and CorruptLog where damage hides what would remain. Whatever has to be read is read
        before anything is done: a log whose producers know batches that it has lost would acknowledge their
        retries. If it is the disk that refuses the cut, the log ends wherever that has got to.
        """
        if offset >= self.log_end_offset:  # an epoch that began here, and got no record, is not the leader's
            if self.epochs.truncate_from_end(self.log_end_offset):
                self.flusher.epochs_changed()
            return False
        self.swaps.complete(self, now_ms)
        if offset < self._bases[0] or offset == self._bases[0] <= self.log_start_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        at = max(0, bisect_left(self._bases, offset) - 1)
        target, kept = self._segments[at], self._segments[:at]
        rest = target.prefix_until(target.boundary_before(offset), self.config.index_interval_bytes)
        try:
            producers = recovery.producers_of([*kept, rest], now_ms)
        finally:
            rest.close()
        try:
            self._delete_after(target, now_ms)
            target.truncate_to(rest)
        except OSError:
            self._segments[-1].rolled = False
            if self._segments[-1].end_offset > rest.end_offset:
                producers = recovery.producers_of(self._segments, now_ms)
            raise
        finally:
            self.producers = producers
            self._set_active(self._segments[-1])
        return True

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int, epochs: Sequence[EpochEntry] = (), producers: bytes = b""
    ) -> None:
        """Forgets everything: the log is empty at an offset (a new replica, or a leader far ahead), also
        where it raises OSError, unless it does so for a swap or `producers`: then nothing was done.

        `epochs`, and a snapshot of `producers`: as of there, if others hold what came before. No crash may
        leave a log that begins there and knows nothing, so after the next flush alone has it a file.
        """
        self.swaps.complete(self, now_ms)
        if producers:
            recovery.write_plain(self._files, self._snapshot_path(offset), producers)
        may_come_back = self.log_end_offset > offset and not self.is_empty
        segment = Segment(self._files, self.directory, offset, now_ms)
        dropped, self._segments, self._bases = self._segments, [segment], [offset]
        if not self.config.remote_storage_enable:
            self.log_start_offset = offset
        self.epochs.restart(epochs)
        self.producers = ProducerStateManager.decode(producers) if producers else ProducerStateManager()
        self.producers.has_all_batches = (
            True  # as far as it ever will be: there is no log before `offset` to search
        )
        kept = offset if producers else None
        self.flusher.on_restarted(kept)
        try:
            for one in reversed(dropped):
                self._on_removed(one)
                self._delete_later(one, now_ms, keep_snapshot=one.base_offset == kept)
            recovery.drop_snapshots(self._files, self.directory, kept)
            if may_come_back:  # behind what is written next; what ends before it is found to be cut off
                self._files.sync_directory(self.directory)
            if not epochs:
                segment.create()
        finally:
            self._set_active(segment)

    def drop_empty_epochs(self) -> None:
        """Forgets epochs in which nothing was appended: who led in them and leads no more."""
        if self.epochs.truncate_from_end(self.log_end_offset):
            self.flusher.epochs_changed()

    # -- compaction, and another directory --

    def switch_directory(self, directory: Path, files: Files) -> None:
        """From here on the log lies in a directory that has all of it, byte for byte. While flushes are held,
        and no swap is pending; what is deleted already stays where it is.
        """
        require(self.swaps.pending is None, "a swap is pending")
        self.directory, self._files = directory, files
        self._delayed_deletion = DelayedDeletion(files, directory)
        self.swaps = Swaps(files, directory, self._delayed_deletion)
        self.flusher.switch_directory(directory, files)
        for segment in self._segments:
            segment.switch_directory(directory, files)

    def rolled_below(self, offset: int) -> tuple[Segment, ...]:
        """The rolled segments that end at or below an offset."""
        return tuple(s for s in self._segments if s.rolled and s.end_offset <= offset)

    def replace(self, sources: Sequence[Segment], cleaned: Segment) -> None:
        """Readers get the cleaned segment from here on; called by `swaps` alone."""
        at = self._segments.index(sources[0])
        self._segments[at : at + len(sources)] = [cleaned]
        self._bases[at : at + len(sources)] = [cleaned.base_offset]
        for source in sources:
            self._on_removed(source)
            source.close()
            source.file_suffix = DELETED  # whoever still walks over it finds the file for a while
        self._mark_used(cleaned)

    def take_due(self, now_ms: int) -> list[Path]:
        """Files of deleted segments whose file.delete.delay.ms has passed, to be unlinked off the loop."""
        return self._delayed_deletion.take_due(now_ms)

    def export_segment(self, base_offset: int) -> SegmentExport | None:
        """A rolled segment and all that goes with it; None if none has that base. Raises OSError."""
        segment = self._segments[self._index_of(base_offset)]
        if segment.base_offset != base_offset or not segment.rolled:
            return None
        segment.detect_transactions()
        aborted = self.aborted(base_offset, segment.end_offset)
        found = export(segment, self._info(segment), aborted, self.epochs.covering(0, segment.end_offset))
        self._mark_used(segment)
        return found

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._age_limit_ms = draw_age_limit_ms(self.config, self._rng)

    def batches(self, offset: int) -> Iterator[tuple[BatchAt, bytes]]:
        """Every local batch from the one that holds an offset on, with its bytes: a coordinator's replay."""
        for segment in self._segments[self._index_of(offset) :]:
            if segment.damage:
                raise CorruptLog(f"{segment.path()} is damaged")
            first = segment.find(offset)
            for batch in segment.scan(first.position) if first else ():
                if not self.epochs.allows(batch.header.leader_epoch, batch.header.last_offset):
                    raise CorruptLog(f"{segment.path()}: leader epoch {batch.header.leader_epoch}")
                yield batch, segment.read_batch(batch)

    def check(self) -> None:
        """Raises InvariantViolation; called by tests after every step."""
        check_log(self, self._segments, self._bases)

    # -- the rest --

    def _apply_producer(
        self, segment: Segment, buffer: memoryview, header: BatchHeader, base_offset: int, now_ms: int
    ) -> None:
        marker = recovery.read_marker(buffer) if header.is_control else None
        completed = self.producers.apply(header, base_offset, marker, now_ms=now_ms)
        if completed is not None and completed.aborted:
            stable = self.producers.last_stable_offset_after(completed)
            segment.add_aborted(
                AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )

    def _set_active(self, segment: Segment) -> None:
        self._active = segment
        self.damage = damage_of(self._segments)
        self.log_end_offset = segment.end_offset
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.cleaned_to = self.cleaned_to and min(self.cleaned_to, self.log_end_offset)
        self.flusher.on_truncated(self)
        self.epochs.truncate_from_end(self.log_end_offset)

    def _delete_after(self, last: Segment, now_ms: int) -> None:
        self._reader.forget_hints()
        if last is self._segments[-1]:
            return
        while (segment := self._segments[-1]) is not last:
            try:
                self._delete_later(segment, now_ms)
            finally:
                if not self._files.exists(segment.path()):  # it is gone, even if its indexes are still there
                    self._segments.pop()
                    self._bases.pop()
                    self._on_removed(segment)
        self._files.sync_directory(self.directory)  # else they may come back behind what is written next

    def _delete_later(self, segment: Segment, now_ms: int, *, keep_snapshot: bool = False) -> None:
        segment.close()
        due_ms = now_ms + self.config.file_delete_delay_ms
        self._delayed_deletion.rename(segment.base_offset, due_ms, keep_snapshot=keep_snapshot)

    def _on_removed(self, segment: Segment) -> None:
        self._reader.forget_hints()
        self.damage = damage_of(self._segments)
        self._loaded.pop(segment.base_offset, None)
        self.flusher.on_dropped(segment)

    def _mark_used(self, segment: Segment) -> None:
        """Keeps the most recently read rolled segments loaded, and unloads the one read longest ago."""
        if not segment.rolled:
            return
        self._loaded.pop(segment.base_offset, None)
        self._loaded[segment.base_offset] = segment
        if len(self._loaded) > ROLLED_KEPT_LOADED:
            self._loaded.pop(next(iter(self._loaded))).unload()

    def _index_of(self, offset: int) -> int:
        """Index of the segment that holds an offset, or of the first one."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def _info(self, segment: Segment) -> SegmentInfo:
        return info_of(segment, self.epochs.covering(segment.base_offset, segment.end_offset))

    def _snapshot_path(self, offset: int) -> Path:
        return segment_file(self.directory, offset, SNAPSHOT)
