"""The log of one partition: segments in offset order, of which the last is active, with leader epochs and
producer state.

Invariants: segments are contiguous; log_start_offset <= log_end_offset, and both only grow, except by
truncation; recovery_point <= log_end_offset, and everything below it is on disk. The log start offset of a
tiered partition may lie below the first local segment.

Called by the replica on the event loop; `flush` may run in a thread beside appends.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tierlog.base.files import Files
from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.segments import SegmentDescriptor, SegmentExport
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
from tierlog.broker.storage.damage import damage_of, readable_end
from tierlog.broker.storage.delayed_deletion import DelayedDeletion
from tierlog.broker.storage.loaded_log import LoadedLog, LogToOpen
from tierlog.broker.storage.log_flusher import LogFlusher
from tierlog.broker.storage.log_reader import LogReader
from tierlog.broker.storage.lookups import (
    TimestampSearch,
    describe,
    export,
    find_aborted,
    find_first,
    find_largest,
    retry_if_replaced,
)
from tierlog.broker.storage.names import DELETED, SNAPSHOT, segment_file
from tierlog.broker.storage.segment import BatchAt, CorruptLog, Damage, Segment
from tierlog.broker.storage.segment_swap import Swaps
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader
from tierlog.records.indexes import AbortedTxn
from tierlog.records.markers import read_marker


class PartitionLog:
    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        files: Files,
        loaded: LoadedLog,
        log_start_offset: int,
        recovery_point: int,
        rng: random.Random,
        cleaned_to: int | None = None,
        *,
        clean: bool = False,
    ) -> None:
        self.directory = directory
        self.config = config
        self.has_been_tiered = config.remote_storage_enable
        """Whether the quorum has the log start offset: also after tiering was switched off."""
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.recovered_truncated_bytes, self.was_damaged = loaded.truncated_bytes, loaded.damaged
        self.recovered_dropped_segments, self.missing_end = loaded.dropped, loaded.missing_end
        self.damage: tuple[Damage, ...] = ()
        """Known damage in all segments; it is not served."""
        self._files = files
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self.active = loaded.segments[-1]
        self._rng = rng
        self._age_limit_ms = draw_age_limit_ms(self.config, self._rng)
        self._delayed_deletion = DelayedDeletion(files, directory)
        self.swaps = Swaps(files, directory, self._delayed_deletion)
        self._reader = LogReader(loaded.epochs)
        self.log_end_offset = self.active.end_offset
        is_new = self.is_empty and not loaded.rebuilt  # else the truncation after a crash must be synced
        self._clean_end = self.log_end_offset if clean or is_new else None
        self.log_start_offset = log_start_offset
        if cleaned_to is not None and cleaned_to > self.log_end_offset:
            cleaned_to = log_start_offset  # the log lost its end: compaction starts again
        self.cleaned_to = cleaned_to
        """Everything below it has been compacted. None: the log has never been compacted."""
        self.flusher = LogFlusher(files, directory, loaded, recovery_point)

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
        same_boot: bool = False,
        rng: random.Random,
        cleaned_to: int | None = None,
        has_been_tiered: bool = False,
    ) -> "PartitionLog":
        """Open or create the log. Raises OSError. May run in a thread, as `files` and each draw from `rng`
        are thread-safe. `may_have_lost`: unsynced data may be gone in part, which is no damage.
        `same_boot`: no unsynced data is gone."""
        known = LogToOpen(
            files=files,
            directory=directory,
            now_ms=now_ms,
            interval_bytes=config.index_interval_bytes,
            start_offset=log_start_offset,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            clean=clean,
            may_have_lost=may_have_lost,
            same_boot=same_boot,
            gaps="compact" in config.cleanup_policy or cleaned_to is not None,
        )
        loaded = recovery.load(known)
        first, end = loaded.segments[0].base_offset, loaded.segments[-1].end_offset
        has_been_tiered = has_been_tiered or config.remote_storage_enable
        start = min(end, log_start_offset if has_been_tiered else max(first, log_start_offset))
        recovery_point = max(recovery_point or 0, end if clean else 0)
        clean = clean and not loaded.rebuilt and loaded.snapshot_offset == end
        log = cls(directory, config, files, loaded, start, recovery_point, rng, cleaned_to, clean=clean)
        log.has_been_tiered = has_been_tiered
        return log

    # -- state --

    @property
    def local_log_start_offset(self) -> int:
        """The first offset served from local files."""
        return max(self._bases[0], self.log_start_offset)

    @property
    def recovery_point(self) -> int:
        """Everything below it is on disk."""
        return self.flusher.recovery_point

    def has(self, segment: Segment) -> bool:
        """Whether the segment is in the log: retention or truncation may have dropped it."""
        return segment in self._segments

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction may have removed batches, now or under an earlier policy."""
        return self.cleaned_to is not None or "compact" in self.config.cleanup_policy

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def is_empty(self) -> bool:
        """Whether there are no records in local files."""
        return self.active.size == 0 and len(self._segments) == 1

    @property
    def active_base_offset(self) -> int:
        """Grows when a segment is rolled; cheap enough to read at every append."""
        return self._bases[-1]

    @property
    def segments(self) -> tuple[SegmentDescriptor, ...]:
        return tuple(map(self._describe, self._segments))

    @property
    def segment_files(self) -> tuple[Segment, ...]:
        """The segments themselves, in offset order; `segments` describes them."""
        return tuple(self._segments)

    @property
    def damage_in_reach(self) -> tuple[Damage, ...]:
        """Damage above the log start: below it no client reads, and no replica has what a repair needs."""
        return tuple(damage for damage in self.damage if damage.end_offset > self.log_start_offset)

    # -- writing --

    def append(
        self, buffer: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int
    ) -> None:
        """Append one batch whose offset and epoch are set in the buffer; `header` has the client's. Rolls
        first if required. After an OSError nothing has been appended."""
        last_offset = base_offset + header.last_offset_delta
        active = self.active
        if base_offset == self.flusher.recovery_point:
            self.flusher.unflushed_since_ms = now_ms
        newest, limit = header.max_timestamp, self._age_limit_ms
        if must_roll(active, self.config, len(buffer), last_offset, newest, now_ms, limit):
            self.roll(now_ms)
            active = self.active
        if base_offset == active.base_offset:
            self._on_first_append(active)
        active.append(buffer, header, base_offset, self.config.index_interval_bytes, now_ms)
        if active.size > active.reserved_to:
            active.reserve_ahead(self.config.segment_bytes)
        self.log_end_offset = last_offset + 1
        latest = self.epochs.latest
        if latest is None or latest.epoch != leader_epoch:
            self.assign_epoch(leader_epoch, base_offset)
        if header.producer_id >= 0:
            self._apply_producer(active, buffer, header, base_offset, now_ms)

    def append_run(self, buffer: memoryview, batches: Sequence[BatchAt], now_ms: int) -> None:
        """Append batches of another log, those for one segment at once; positions are within the buffer.
        After an OSError some may have been appended."""
        while batches:
            first, active = batches[0].header, self.active
            if first.base_offset == self.flusher.recovery_point:
                self.flusher.unflushed_since_ms = now_ms
            last, newest, limit = first.last_offset, first.max_timestamp, self._age_limit_ms
            if must_roll(active, self.config, first.size, last, newest, now_ms, limit) and self.roll(now_ms):
                active = self.active
            if active.size == 0:
                self._on_first_append(active)
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
        """Start a leader epoch. After a crash before the next flush, batches restore it."""
        if leader_epoch >= 0 and self.epochs.assign(leader_epoch, start_offset):
            self.flusher.epochs_changed()

    def roll(self, now_ms: int) -> bool:
        """Start a new segment at the log end; False if the active one is empty. After an OSError nothing has
        changed: in particular there is no file whose name says that the active segment ends here.
        """
        active = self.active
        if active.size == 0:
            return False
        following = Segment(self._files, self.directory, self.log_end_offset, now_ms)
        with self.flusher.restart_points.replaced():
            try:
                active.roll()
                path = self._snapshot_path(self.log_end_offset)
                recovery.overwrite(self._files, path, self.producers.encode())
                following.create()
            except OSError:
                active.rolled = False
                following.close()
                self._files.unlink(following.path(), missing_ok=True)
                raise
        self._segments.append(following)
        self._bases.append(following.base_offset)
        self.flusher.on_rolled(active)
        self.active = following
        self._age_limit_ms = draw_age_limit_ms(self.config, self._rng)
        self._reader.mark_used(active)
        if active.end_offset <= self.flusher.checkpointed_recovery_point:
            self.flusher.flush(self)  # rare: the checkpoint is lowered soon after a truncation
        return True

    def maybe_roll(self, now_ms: int) -> bool:
        """Roll an idle active segment that is older than segment.ms."""
        return must_roll_idle(self.active, now_ms, self._age_limit_ms) and self.roll(now_ms)

    def flush(self) -> int:
        """Make all appended records durable; returns the recovery point. Raises OSError, in particular
        SyncFailed. Safe in threads beside appends, but not beside truncation."""
        return self.flusher.flush(self)

    def must_flush(self, now_ms: int) -> bool:
        """Whether the oldest unflushed record is older than flush.ms."""
        if self.log_end_offset == self.recovery_point:
            return False
        return now_ms - self.flusher.unflushed_since_ms >= self.config.flush_ms

    def close(self, *, clean: bool) -> None:
        """After a clean close the log opens again without recovery. Raises OSError if the close cannot be
        clean. If nothing changed since the last clean close, no file is written."""
        as_found = self._clean_end == self.log_end_offset and not self.flusher.files_changed
        if clean and (not as_found or self.active.has_excess_bytes):
            with self.flusher.restart_points.replaced():
                self.active.add_time_entry()  # for the largest timestamp, as Kafka does
                self.active.persist()
                path = self._snapshot_path(self.log_end_offset)
                recovery.overwrite(self._files, path, self.producers.encode())
            self.flusher.flush_clean(self)
        self.flusher.close()
        self._reader.close()
        for segment in self._segments:
            segment.close()
        self.swaps.close()

    # -- reading --

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool, checked: bool = False
    ) -> LogSlice:
        """Read batches from the one that holds `offset` up to `end_offset`, at most `max_bytes`. With
        `min_one` the first batch is returned even if it is larger. The offset must not be below the local log
        start offset. `checked`: all headers are validated, and the result ends before an invalid one. Raises
        OSError, and CorruptLog if there is known or new damage at the offset.
        """
        end_offset = min(end_offset, self.log_end_offset)
        if self.damage:
            end_offset = readable_end(self.damage, offset, end_offset)
        if offset >= end_offset or (max_bytes <= 0 and not min_one):
            return empty_slice(offset)
        segments, gaps = self._segments[self._index_of(offset) :], self.may_have_gaps
        return self._reader.read(
            segments, offset, max_bytes, end_offset, min_one=min_one, gaps=gaps, checked=checked
        )

    def offset_for_timestamp(self, timestamp: int, end_offset: int | None = None) -> TimestampSearch:
        """Find the first local record at or after a timestamp, below `end_offset`."""
        limit = self.log_end_offset if end_offset is None else end_offset
        start = self.local_log_start_offset
        return retry_if_replaced(
            lambda: self._segments,
            lambda segments: find_first(segments, timestamp, start, limit, self._reader.mark_used),
        )

    def max_timestamp(self) -> TimestampSearch:
        """Find the first local record with the largest timestamp (ListOffsets MAX_TIMESTAMP, KIP-734)."""
        limit, used = self.log_end_offset, self._reader.mark_used
        return retry_if_replaced(
            lambda: self._segments,
            lambda segments: find_largest(segments, self.local_log_start_offset, limit, used),
        )

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that overlap [start_offset, end_offset)."""
        return find_aborted(self._segments[self._index_of(start_offset) :], start_offset, end_offset)

    # -- truncation and deletion --

    def add_damage(self, segment: Segment, damage: Damage) -> None:
        """Mark a range as damaged: `read` stops before it, and raises CorruptLog inside it."""
        segment.damage = tuple(sorted({*segment.damage, damage}))
        self.damage = damage_of(self._segments)

    def mark_repaired(self, segment: Segment, damage: Damage) -> None:
        """A range is intact again, in place. Earlier copies and checks of the segment are void."""
        segment.damage = tuple(one for one in segment.damage if one != damage)
        segment.content_version += 1
        self.damage = damage_of(self._segments)

    def raise_log_start(self, offset: int) -> bool:
        """Hide everything below an offset, until retention deletes it. Returns whether the start moved."""
        require(offset <= self.log_end_offset, f"log start {offset} above log end {self.log_end_offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        return True

    def delete_local_before(self, offset: int, now_ms: int) -> int:
        """Delete the rolled segments that end at or below an offset, as far as `save_epochs_below` allows it.
        Returns their number. The local log start rises before their files are renamed. Raises OSError."""
        if not (count := len(self.rolled_below(offset))):
            return 0
        if self.swaps.complete(self, now_ms):
            return self.delete_local_before(offset, now_ms)
        count = self.flusher.save_epochs_below(self.log_start_offset, self._bases[1 : count + 1])
        dropped, self._segments = self._segments[:count], self._segments[count:]
        self._bases = self._bases[count:]
        if not self.has_been_tiered:
            self.log_start_offset = max(self.log_start_offset, self._bases[0])
            if self.epochs.truncate_from_start(self.log_start_offset):
                self.flusher.epochs_changed()
        for segment in dropped:
            self._on_removed(segment)
            self._delete_later(segment, now_ms)
        return count

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Remove all records at or above `offset`; a batch that contains it is removed whole. Raises OSError,
        and CorruptLog if damage hides the new end. Everything needed is read first: a log whose producer
        state has batches that the log lost would acknowledge their retries. If a disk error interrupts it,
        the log ends where the truncation got to.
        """
        if offset >= self.log_end_offset:
            self.drop_empty_epochs()  # an epoch without records is not in the leader's log
            return False
        self.swaps.complete(self, now_ms)
        if offset < self._bases[0] or offset == self._bases[0] <= self.log_start_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        at = max(0, bisect_left(self._bases, offset) - 1)
        target, kept = self._segments[at], self._segments[:at]
        rest = target.prefix_until(target.boundary_before(offset), self.config.index_interval_bytes)
        try:
            producers = recovery.producer_state_of([*kept, rest], now_ms)
        finally:
            rest.close()
        try:
            self._delete_after(target, now_ms)
            target.truncate_to(rest)
        except OSError:
            self._segments[-1].rolled = False
            if self._segments[-1].end_offset > rest.end_offset:
                producers = recovery.producer_state_of(self._segments, now_ms)
            raise
        finally:
            self.producers = producers
            self._set_active(self._segments[-1])
        return True

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int, epochs: Sequence[EpochEntry] = (), producers: bytes = b""
    ) -> None:
        """Delete everything; the log is then empty at `offset`, even after an OSError, except one from a
        pending swap, from removing a restart point or from writing `producers`: then nothing has changed.

        `epochs` and the snapshot `producers` are the state at `offset`. The new file is only created at the
        next flush, so that no crash leaves a log that starts there without that state.
        """
        self.swaps.complete(self, now_ms)
        self.flusher.restart_points.remove()
        if producers:
            recovery.overwrite(self._files, self._snapshot_path(offset), producers)
        may_come_back = self.log_end_offset > offset and not self.is_empty
        segment = Segment(self._files, self.directory, offset, now_ms)
        dropped, self._segments, self._bases = self._segments, [segment], [offset]
        if not self.has_been_tiered:
            self.log_start_offset = offset
        self.epochs.restart(epochs)
        self.producers = ProducerStateManager.decode(producers) if producers else ProducerStateManager()
        self.producers.has_all_batches = True  # there is no earlier log to search for more
        kept = offset if producers else None
        self.flusher.on_restarted(kept)
        try:
            for one in reversed(dropped):
                self._on_removed(one)
                self._delete_later(one, now_ms, keep_snapshot=one.base_offset == kept)
            recovery.drop_snapshots(self._files, self.directory, kept)
            if may_come_back:  # old segments after the new end; recovery drops those before it
                self._files.sync_directory(self.directory)
            if not epochs:
                segment.create()
        finally:
            self._set_active(segment)

    def drop_empty_epochs(self) -> None:
        """Remove leader epochs without records, of leaders that no longer lead."""
        if self.epochs.truncate_from_end(self.log_end_offset):
            self.flusher.epochs_changed()

    # -- compaction, tiering and directory moves --

    def switch_directory(self, directory: Path, files: Files) -> None:
        """Continue in a directory with a complete copy, while flushes are held and no swap is pending. Files
        waiting for deletion stay in the old one."""
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
        """Replace segments by a cleaned one, for readers. Called by `swaps` only."""
        at = self._segments.index(sources[0])
        self._segments[at : at + len(sources)] = [cleaned]
        self._bases[at : at + len(sources)] = [cleaned.base_offset]
        for source in sources:
            self._on_removed(source)
            source.close()
            source.file_suffix = DELETED  # running scans can still open the file for a while
        self._reader.mark_used(cleaned)

    def take_due(self, now_ms: int) -> list[Path]:
        """Files of deleted segments whose file.delete.delay.ms has passed, to be unlinked in a thread."""
        return self._delayed_deletion.take_due(now_ms)

    def export_segment(self, base_offset: int) -> SegmentExport | None:
        """A rolled segment with all that tiering uploads; None if none has that base. Raises OSError."""
        segment = self._segments[self._index_of(base_offset)]
        if segment.base_offset != base_offset or not segment.rolled:
            return None
        segment.detect_transactions()
        aborted = self.aborted(base_offset, segment.end_offset)
        found = export(segment, self._describe(segment), aborted, self.epochs.covering(0, segment.end_offset))
        self._reader.mark_used(segment)
        return found

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.has_been_tiered = self.has_been_tiered or config.remote_storage_enable
        self._age_limit_ms = draw_age_limit_ms(self.config, self._rng)

    def batches(self, offset: int) -> Iterator[tuple[BatchAt, bytes]]:
        """All local batches from the one that holds an offset: used to load a coordinator's state."""
        for segment in self._segments[self._index_of(offset) :]:
            if segment.damage:
                raise CorruptLog(f"{segment.path()} is damaged")
            first = segment.find(offset)
            for batch in segment.scan(first.position) if first else ():
                if not self.epochs.allows(batch.header.leader_epoch, batch.header.last_offset):
                    raise CorruptLog(f"{segment.path()}: leader epoch {batch.header.leader_epoch}")
                yield batch, segment.read_batch(batch)

    def check(self) -> None:
        """Raise InvariantViolation if an invariant is broken. Tests call it after every step."""
        require(self._bases == [segment.base_offset for segment in self._segments], "bases")
        for before, after in pairwise(self._segments):
            is_contiguous = before.end_offset == after.base_offset and before.rolled
            require(is_contiguous, f"{before.base_offset} is not contiguous")
        require(self.active is self._segments[-1], "active segment")
        require(self.log_end_offset == self.active.end_offset, "log end")
        require(self.log_start_offset <= self.log_end_offset, "log start above log end")
        require(self.recovery_point <= self.log_end_offset, "recovery point above log end")
        require(self.damage == damage_of(self._segments), "damage")
        self.epochs.check()
        self.producers.check()

    # -- helpers --

    def _on_first_append(self, segment: Segment) -> None:
        if len(self._segments) == 1 and self.epochs.covering(0, segment.base_offset):
            self.flusher.save_epochs(0, segment.base_offset)
        self.flusher.on_file_created()
        if self.config.preallocate:
            segment.reserve(self.config.segment_bytes)

    def _apply_producer(
        self, segment: Segment, buffer: memoryview, header: BatchHeader, base_offset: int, now_ms: int
    ) -> None:
        marker = read_marker(buffer) if header.is_control else None
        completed = self.producers.apply(header, base_offset, marker, now_ms=now_ms)
        if completed is not None and completed.aborted:
            stable = self.producers.last_stable_offset_after(completed)
            segment.add_aborted(
                AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )

    def _set_active(self, segment: Segment) -> None:
        self.active = segment
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
                if not self._files.exists(segment.path()):  # removed, even if its indexes still exist
                    self._segments.pop()
                    self._bases.pop()
                    self._on_removed(segment)
        self._files.sync_directory(self.directory)  # else a crash may restore them after the new end

    def _delete_later(self, segment: Segment, now_ms: int, *, keep_snapshot: bool = False) -> None:
        segment.close()
        due_ms = now_ms + self.config.file_delete_delay_ms
        self._delayed_deletion.rename(segment.base_offset, due_ms, keep_snapshot=keep_snapshot)

    def _on_removed(self, segment: Segment) -> None:
        self._reader.forget(segment)
        self.damage = damage_of(self._segments)
        self.flusher.on_dropped(segment)

    def _index_of(self, offset: int) -> int:
        """Index of the segment that holds an offset, or of the first segment."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def _describe(self, segment: Segment) -> SegmentDescriptor:
        return describe(segment, self.epochs.covering(segment.base_offset, segment.end_offset))

    def _snapshot_path(self, offset: int) -> Path:
        return segment_file(self.directory, offset, SNAPSHOT)
