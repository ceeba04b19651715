"""Log recovery: opens the log of a partition, and repairs it after a crash.

After a crash every segment above the recovery point is read batch by batch (length, CRC, growing offsets) and
truncated at the first invalid byte. Later segments are deleted, since offsets must be contiguous. Leader
epochs and producer state are loaded from their files as of the recovery point and brought up to date from the
batches. If no power failure can have come between, rolled segments are only read from the recovery point on,
and the active one from its restart point on (`restart_point`). After a clean shutdown only the end of the
active segment is read. Called by `PartitionLog.open`, possibly in a thread.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs, MalformedEpochs
from tierlog.base.open_files import SharedFile
from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH
from tierlog.broker.storage.checked_batches import intact_batches, is_torn, verified_batches
from tierlog.broker.storage.core.continuity import MAX_OFFSET, HeaderRules, consistent_prefix
from tierlog.broker.storage.core.producer_state import (
    BATCHES_KEPT,
    MalformedSnapshot,
    ProducerStateEntry,
    ProducerStateManager,
)
from tierlog.broker.storage.loaded_log import LoadedLog, LogToOpen
from tierlog.broker.storage.names import (
    DAMAGED,
    EPOCH_CHECKPOINT,
    INDEXES,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    is_temporary,
    offsets_of,
    parse_segment_file,
    segment_file,
)
from tierlog.broker.storage.segment import BatchAt, BatchBoundary, CorruptLog, Segment
from tierlog.broker.storage.segment_loading import load_prefix, load_segment
from tierlog.broker.storage.segment_swap import complete_swaps
from tierlog.records.batch import HEADER_SIZE, BatchHeader, read_header
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn
from tierlog.records.markers import read_marker

_RESTORE_WINDOWS = tuple(size * 1024 * 1024 for size in (1, 4, 16, 64))
_RESTORE_BATCHES = 512  # this many headers are enough; large batches need the larger windows


class _WrongEpochFile(Exception):
    """The leader epoch checkpoint contradicts batches that agree with each other."""


def load(known: LogToOpen) -> LoadedLog:
    """Load a log. If the leader epoch checkpoint is wrong, the epochs are rebuilt from the batches.

    A log that ends below the end that its checkpoints prove is damaged. It is marked as damaged before the
    checkpoints are lowered.
    """
    for use_epochs in (True, False):
        try:
            loaded = _load(known, use_epochs=use_epochs)
        except _WrongEpochFile:
            continue
        is_exact = known.clean or (loaded.truncated_bytes > 0 and not known.may_have_lost)
        recovery_point = known.recovery_point or 0 if is_exact else 0
        loaded.missing_end = _missing_end(loaded, recovery_point, known.high_watermark)
        if loaded.missing_end and not loaded.damaged:
            loaded.damaged = True
            _mark_damaged(known.files, known.directory)
        return loaded
    raise CorruptLog(f"{known.directory}: the leader epochs of its batches contradict each other")


def _load(known: LogToOpen, *, use_epochs: bool) -> LoadedLog:
    """Open or create the segments of a directory; the last one is active."""
    files, directory, now_ms = known.files, known.directory, known.now_ms
    recovery_point, gaps = known.recovery_point, known.gaps
    names = _remove_temporary(files, directory, now_ms)
    bases, snapshots = offsets_of(names, LOG), frozenset(offsets_of(names, SNAPSHOT))
    epochs = _load_epochs(files, directory) if EPOCH_CHECKPOINT in names and use_epochs else None
    loaded = LoadedLog([], epochs or LeaderEpochs(), ProducerStateManager(), damaged=DAMAGED in names)
    loaded.saved_epochs = LeaderEpochs(loaded.epochs.entries)
    rules = HeaderRules(  # above the recovery point the epoch checkpoint may be older than a truncation
        gaps=gaps,
        epochs=LeaderEpochs(loaded.epochs.entries),
        epochs_end=MAX_OFFSET if known.clean else recovery_point or 0,
    )
    for at, base in enumerate(bases):
        end = bases[at + 1] if at + 1 < len(bases) else None
        rules = replace(rules, end_offset=MAX_OFFSET if end is None else end)
        segment = Segment(files, directory, base, now_ms)
        segment.size = files.size_of(segment.path())
        synced = end is not None and recovery_point is not None and end <= recovery_point
        allow_torn = known.may_have_lost and not synced
        if _is_complete(end, snapshots, known) and _load_trusted(segment, end, rules, known, loaded):
            if epochs is None or loaded.rebuilt:  # a rebuild drops the epochs of later segments
                next_header = None if end is None else _first_header(files, directory, end)
                _add_epochs(segment, loaded, gaps, next_header)
            loaded.segments.append(segment)
            continue
        if end is None and (cut := _resume_active(segment, names, rules, known, loaded)):
            loaded.damaged = loaded.damaged or cut.is_damage
            loaded.segments.append(segment)
            loaded.truncated_bytes += cut.bytes
            continue
        loaded.rebuilt.append(base)
        next_header = None if end is None else _first_header(files, directory, end)
        cut = _rebuild(segment, known.interval_bytes, loaded, rules, next_header, allow_torn=allow_torn)
        loaded.damaged = loaded.damaged or cut.is_damage
        loaded.segments.append(segment)
        loaded.truncated_bytes += cut.bytes
        may_end_early = gaps and (synced or recovery_point is None)
        if end is not None and (
            cut.bytes or segment.end_offset > end or (segment.end_offset < end and not may_end_early)
        ):
            _drop_segments_after(loaded, files, directory, bases[at + 1 :], allow_torn=allow_torn)
            break
        if end is not None:
            segment.end_offset = end
            if loaded.rebuilt == [base]:
                _remove_snapshots_after(base, snapshots, known)
            files.unlink(segment.path(OFFSET_INDEX), missing_ok=True)  # else half of a new time index may
            segment.roll()  # seem to belong to an old, complete offset index
            segment.unload()
    if not loaded.segments:
        loaded.segments.append(_first_segment(files, directory, known.start_offset, now_ms))
    loaded.epochs.truncate_from_end(loaded.segments[-1].end_offset)
    rebuild_producer_state(loaded, files, directory, now_ms, None if loaded.rebuilt else names)
    _keep_one_snapshot_inside(loaded, files, directory, names)
    return loaded


def _keep_one_snapshot_inside(loaded: LoadedLog, files: Files, directory: Path, names: Sequence[str]) -> None:
    """Remove the producer snapshots inside the active segment that were not used: if it was read whole, they
    may be of a history that was truncated, or have no index files."""
    active, used = loaded.segments[-1], loaded.snapshot_offset
    for offset in offsets_of(names, SNAPSHOT):
        if active.base_offset < offset and offset != used:
            files.unlink(segment_file(directory, offset, SNAPSHOT), missing_ok=True)
    if used > active.base_offset and loaded.restart_point[0] is None:  # after a clean shutdown
        loaded.restart_point = used, active.size


def _is_complete(end: int | None, snapshots: Set[int], known: LogToOpen) -> bool:
    """Whether the transaction index of a rolled segment has all entries, if it is intact: the producer
    snapshot at its end is written after that."""
    return known.clean or end is None or end in snapshots


def _remove_snapshots_after(base: int, snapshots: Set[int], known: LogToOpen) -> None:
    """Call this before the index files of a rebuilt segment are written, without a transaction index. If the
    start is interrupted before `replay` adds that, the next one rebuilds the segment again."""
    if later := [offset for offset in snapshots if offset > base]:
        for offset in later:
            known.files.unlink(segment_file(known.directory, offset, SNAPSHOT), missing_ok=True)
        known.files.sync_directory(known.directory)


def _load_trusted(
    segment: Segment, end: int | None, rules: HeaderRules, known: LogToOpen, loaded: LoadedLog
) -> bool:
    """Load a segment from its index files; False if it must be rebuilt.

    A segment that ends at the recovery point may have been rolled after the flush, so that its indexes may be
    missing after a power failure. If there was none, they were complete before the next segment's file was
    created.
    """
    if known.clean:
        return load_segment(segment, end, rules)
    if end is None or known.recovery_point is None:
        return False
    if end < known.recovery_point:
        return load_segment(segment, end, rules)
    if not _trusts_unsynced(known, loaded) or not load_segment(segment, end, rules):
        return False
    return end == known.recovery_point or _verify(segment, known.recovery_point, end, rules, loaded)


def _trusts_unsynced(known: LogToOpen, loaded: LoadedLog) -> bool:
    """Whether index files and snapshots can be used that may never have been synced."""
    return known.same_boot and not (known.may_have_lost or loaded.damaged or loaded.rebuilt)


def _verify(segment: Segment, trusted: int, end: int, rules: HeaderRules, loaded: LoadedLog) -> bool:
    """Check the batches of a loaded segment from an offset on, and rebuild their epochs. False if one is not
    intact.

    The epoch checkpoint has the epochs below the offset, unless the log was truncated since and the recovery
    point was not lowered yet: then the batch before it has another epoch (KIP-101).
    """
    start, first = BatchBoundary(0, segment.base_offset), _first_header(segment.files, segment.directory, end)
    try:
        if trusted > segment.base_offset:
            start = segment.boundary_before(trusted - 1)
            header = next(segment.scan(start.position)).header
            if loaded.saved_epochs.epoch_of(header.last_offset) != header.leader_epoch:
                return False
    except (CorruptLog, RecordsError):
        return False
    good, verified_end = start
    for position, header in _verified(segment, rules, loaded, start, first):
        good, verified_end = position + header.size, header.next_offset
    segment.unload()
    return good == segment.size and verified_end == end


def _verified(
    segment: Segment,
    rules: HeaderRules,
    loaded: LoadedLog,
    start: BatchBoundary,
    last: BatchHeader | None,
) -> Iterator[BatchAt]:
    """The intact batches from a boundary on; rebuilds the leader epochs there from these and the checkpoint.
    `last`: the header after the last batch."""
    epochs, end = loaded.epochs, start.end_offset
    epochs.truncate_from_end(end)  # the epoch checkpoint may be older than a truncation
    last_epoch = NO_EPOCH if epochs.latest is None else epochs.latest.epoch
    for position, header, _ in verified_batches(
        segment, rules, start=start, last_epoch=last_epoch, next_header=last
    ):
        epochs.rebuild(header.leader_epoch, header.base_offset, loaded.saved_epochs, end)
        end = header.next_offset
        yield BatchAt(position, header)


def _resume_active(
    segment: Segment, names: Sequence[str], rules: HeaderRules, known: LogToOpen, loaded: LoadedLog
) -> "_CutOff | None":
    """Load the active segment up to its restart point, and read the batches after that. None if it has none,
    or if the log is not intact up to there: then it must be rebuilt."""
    files, directory = known.files, known.directory
    inside = [offset for offset in offsets_of(names, SNAPSHOT) if offset > segment.base_offset]
    if not inside or known.recovery_point is None or not _trusts_unsynced(known, loaded):
        return None
    try:
        ProducerStateManager.decode(files.read_whole(segment_file(directory, inside[-1], SNAPSHOT)))
    except MalformedSnapshot:
        return None
    batch = load_prefix(segment, inside[-1], rules, loaded.saved_epochs)
    if batch is None:
        return None
    good, start = batch.position, BatchBoundary(batch.position, batch.header.base_offset)
    for epoch, first in loaded.saved_epochs.covering(segment.base_offset, start.end_offset):
        if first >= segment.base_offset:  # `_verify` of an earlier segment has removed it
            loaded.epochs.assign(epoch, first)
    for position, header in _verified(segment, rules, loaded, start, None):
        segment.index_batch(position, header, header.base_offset, known.interval_bytes)
        good = position + header.size
    if segment.end_offset < inside[-1]:
        return None
    loaded.restart_point = inside[-1], start.position
    return _cut_off(segment, good, rules, allow_torn=False)


@safeguard("a log that ends below its checkpoints is reported as damaged")
def _missing_end(loaded: LoadedLog, recovery_point: int, high_watermark: int) -> int:
    """The log end offset that the checkpoints prove, if the log ends below it; else 0.

    The high watermark checkpoint never exceeds what is on disk, and no in-sync replica is truncated below it.
    After a clean shutdown the recovery point proves as much, since it is written last. After a crash it does
    not: a follower truncates its log before it lowers the recovery point. But a follower's truncation leaves
    complete batches, so if the log ended in a torn batch, the recovery point counts after all.
    """
    proven = max(recovery_point, high_watermark)
    return proven if proven > loaded.segments[-1].end_offset else 0


def _first_segment(files: Files, directory: Path, start_offset: int, now_ms: int) -> Segment:
    first = Segment(files, directory, start_offset, now_ms)
    if start_offset:  # the file's name records the offset; a log from 0 gets its file at the first append
        first.create()
    return first


def _drop_segments_after(
    loaded: LoadedLog, files: Files, directory: Path, bases: Sequence[int], *, allow_torn: bool
) -> None:
    """Delete the segments after one that was truncated."""
    loaded.dropped = len(bases)
    if not allow_torn:
        loaded.damaged = True
        _mark_damaged(files, directory)
    for base in reversed(bases):
        _remove(files, directory, base)


def rebuild_producer_state(
    loaded: LoadedLog, files: Files, directory: Path, now_ms: int, names: Sequence[str] | None = None
) -> None:
    """Load the newest usable snapshot, replay later batches, and write missing snapshots of rolled segments.

    Rebuilt segments have no transaction index, so the replay begins at the first of them or earlier. Later
    snapshots may never have been synced and are written again. `names`: files of the directory, if known.
    """
    segments = loaded.segments
    end = segments[-1].end_offset
    has_new_aborts = {
        *loaded.rebuilt,
        *(() if loaded.restart_point[0] is None else (segments[-1].base_offset,)),
    }
    latest = loaded.rebuilt[0] if loaded.rebuilt else end
    names = files.list_directory(directory) if names is None else names
    at, loaded.producers = _latest_snapshot(files, directory, names, latest, end)
    loaded.snapshot_offset = at
    start = max(at, segments[0].base_offset)
    if not loaded.producers.has_all_batches:
        restore_earlier_batches(loaded.producers, segments, at)
    for segment in segments:
        if segment.end_offset < start or (segment.end_offset == start and segment.rolled):
            continue
        snapshot = segment_file(directory, segment.base_offset, SNAPSHOT)
        is_first = at < 0 and segment is segments[0]  # there are no producers before it
        is_there = segment.base_offset <= latest and files.exists(snapshot)
        if segment.base_offset >= start and not (is_first or is_there):
            overwrite(files, snapshot, loaded.producers.encode())
        replay(loaded.producers, segment, start, now_ms, index_aborts=segment.base_offset in has_new_aborts)


def producer_state_of(segments: list[Segment], now_ms: int) -> ProducerStateManager:
    """Producer state at the end of the last segment; removes later snapshots. Raises OSError or
    CorruptLog.
    """
    loaded = LoadedLog(segments, LeaderEpochs(), ProducerStateManager())
    rebuild_producer_state(loaded, segments[-1].files, segments[-1].directory, now_ms)
    return loaded.producers


def drop_snapshots(files: Files, directory: Path, kept: int | None) -> None:
    """Delete all snapshots but one, of a log that restarts empty."""
    for offset in offsets_of(files.list_directory(directory), SNAPSHOT):
        if offset != kept:
            files.unlink(segment_file(directory, offset, SNAPSHOT), missing_ok=True)


@safeguard("recovery rebuilds the transaction index")
def replay(
    state: ProducerStateManager, segment: Segment, from_offset: int, now_ms: int, *, index_aborts: bool
) -> None:
    """Apply the batches of a segment from an offset on."""
    if segment.end_offset <= from_offset:
        return
    first = segment.find(from_offset)
    for batch in segment.scan(first.position) if first else ():
        header = batch.header
        if header.producer_id < 0:
            continue
        marker = read_marker(segment.read_batch(batch)) if header.is_control else None
        completed = state.apply(header, header.base_offset, marker, now_ms=now_ms)
        if completed is not None and completed.aborted and index_aborts:
            first_offset, last_offset = completed.first_offset, completed.last_offset
            stable = state.last_stable_offset_after(completed)
            segment.add_aborted(AbortedTxn(completed.producer_id, first_offset, last_offset, stable))
    if segment.rolled:
        if index_aborts:
            segment.persist()
        segment.unload()


def restore_earlier_batches(state: ProducerStateManager, segments: Sequence[Segment], at: int) -> None:
    """Restore the earlier batches of each producer from the log before offset `at`.

    Snapshots of Kafka and of older tierlog versions contain only the last batch.

    Without the earlier batches, a retry that was in flight during a restart would look like a sequence gap
    (guarantee 10). How far to read back depends on the batch sizes, so the window grows until all are found.
    The largest window bounds the time of the first start after an upgrade.
    """
    earlier, state.has_all_batches = ProducerStateManager(), True  # even if not all of them are found
    for window in _RESTORE_WINDOWS if len(state) else ():
        try:
            earlier, is_enough = _read_before(segments, at, window)
        except (CorruptLog, RecordsError):
            return  # a read reports the damage; the start does not need these batches
        if is_enough:
            break
    for producer in state:
        found = earlier.get(producer.producer_id)
        if (
            found
            and producer.batches
            and found.epoch == producer.epoch
            and found.batches[-1].last_offset == producer.batches[-1].last_offset
        ):
            producer.batches.extendleft(list(found.batches)[-2 : -BATCHES_KEPT - 1 : -1])


def _read_before(segments: Sequence[Segment], at: int, window: int) -> tuple[ProducerStateManager, bool]:
    """Producer state from the last `window` bytes before an offset, and whether that is enough."""
    starts: list[tuple[Segment, int]] = []
    for segment in reversed([segment for segment in segments if segment.base_offset < at]):
        upper = segment.boundary_before(at)
        first = (
            segment.boundary_within(0, upper.position - window, upper) if upper.position > window else None
        )
        starts.append((segment, first.position if first else 0))
        window -= upper.position
        if window <= 0:
            break
    earlier, batches = ProducerStateManager(), 0
    for segment, position in reversed(starts):
        for _, header in segment.scan(position):
            batches += 1
            if header.base_offset >= at:
                break
            if header.producer_id >= 0 and not header.is_control:
                earlier.apply(header, header.base_offset)
        segment.unload()
    from_start = window > 0 or not starts
    return earlier, from_start or batches >= _RESTORE_BATCHES or all(map(_has_all_batches, earlier))


def _has_all_batches(producer: ProducerStateEntry) -> bool:
    """Whether the known batches are all that the producer may retry."""
    first = producer.batches[0]
    return len(producer.batches) == BATCHES_KEPT or first.last_sequence <= first.offset_delta


def overwrite(files: Files, path: Path, content: bytes) -> None:
    """Replace a file without fsync. Its content is verifiable by a CRC, or can be rebuilt from the log."""
    fd = files.open(path, create=True)
    try:
        files.writev_at(fd, (content,), 0)
        files.truncate(fd, len(content))
    finally:
        files.close(fd)


def _remove_temporary(files: Files, directory: Path, now_ms: int) -> list[str]:
    """Complete or remove what a crash left unfinished; returns the remaining names."""
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        files.make_directory(directory)
        return []
    if any(name.endswith(LOG + SWAP) for name in names):
        complete_swaps(files, directory, now_ms)
        names = files.list_directory(directory)
    found = {name: parsed for name in names if (parsed := parse_segment_file(name)) is not None}
    bases = offsets_of(names, LOG)
    kept = []
    for name in names:
        orphan = name in found and found[name][1] in INDEXES and found[name][0] not in bases
        stray = (
            name in found
            and found[name][1] == SNAPSHOT
            and bases
            and found[name][0] < bases[-1]
            and found[name][0] not in bases
        )
        if is_temporary(name) or orphan or stray:
            files.unlink(directory / name, missing_ok=True)
        else:
            kept.append(name)
    return kept


def _load_epochs(files: Files, directory: Path) -> LeaderEpochs | None:
    """None if a crash tore the file: then the epochs are rebuilt from all batches."""
    try:
        return LeaderEpochs.decode(files.read_whole(directory / EPOCH_CHECKPOINT))
    except MalformedEpochs:
        return None


def _first_header(files: Files, directory: Path, base: int) -> BatchHeader | None:
    """The first header of the segment with a base offset, if it has that offset."""
    log = SharedFile(files, segment_file(directory, base, LOG))
    content = files.read_at(log.fd, HEADER_SIZE, 0)
    header = read_header(content) if len(content) == HEADER_SIZE else None
    return header if header is not None and header.base_offset == base else None


def _add_epochs(segment: Segment, loaded: LoadedLog, gaps: bool, next_header: BatchHeader | None) -> None:
    rules, last = HeaderRules(gaps=gaps, epochs=LeaderEpochs()), loaded.epochs.latest
    with suppress(CorruptLog, RecordsError):  # reads report it; a start does not depend on it
        end, last_epoch = segment.base_offset, NO_EPOCH if last is None else last.epoch
        for batch in consistent_prefix(segment.scan(0), end, rules, last_epoch, next_header):
            header = batch.header
            loaded.epochs.rebuild(header.leader_epoch, header.base_offset, loaded.saved_epochs, end)
            end = header.next_offset
    segment.unload()


def _rebuild(
    segment: Segment,
    interval_bytes: int,
    loaded: LoadedLog,
    rules: HeaderRules,
    next_header: BatchHeader | None,
    *,
    allow_torn: bool,
) -> "_CutOff":
    """Rebuild indexes and totals from the batches, and the epochs from these and the checkpoint."""
    segment.reset_indexes()
    good = 0
    start = BatchBoundary(0, segment.base_offset)
    for position, header in _verified(segment, rules, loaded, start, next_header):
        segment.index_batch(position, header, header.base_offset, interval_bytes)
        good = position + header.size
    return _cut_off(segment, good, rules, allow_torn=allow_torn)


class _CutOff(NamedTuple):
    """Bytes truncated from the end of a segment, and whether they are damage rather than an incomplete
    write."""

    bytes: int
    is_damage: bool


def _cut_off(segment: Segment, good: int, rules: HeaderRules, *, allow_torn: bool) -> _CutOff:
    """Truncate a segment after its last intact batch. With `allow_torn` any truncation counts as an
    incomplete write."""
    truncated = segment.size - good
    if truncated:
        _check_epoch_file(segment, good, rules)
    damaged = truncated > 0 and not allow_torn and not is_torn(segment, good)
    if damaged:
        _mark_damaged(segment.files, segment.directory)
    segment.size = good
    segment.trim()  # always, as space may be reserved beyond
    return _CutOff(truncated, damaged)


def _check_epoch_file(segment: Segment, good: int, rules: HeaderRules) -> None:
    """Raise _WrongEpochFile if the checkpoint, and not the first rejected batch, has the wrong leader epoch.

    The checkpoint is wrong if the next intact batch has the same leader epoch as the rejected one, since the
    same bits do not flip twice.
    """
    pair = [batch.header for batch in islice(intact_batches(segment, segment.file, good), 2)]
    is_same = len({header.leader_epoch for header in pair}) == 1 < len(pair)
    whole_file = replace(rules, epochs_end=MAX_OFFSET)  # the second may be above the recovery point
    if is_same and rules.epoch_fault(pair[0]) and whole_file.epoch_fault(pair[1]):
        raise _WrongEpochFile


def _mark_damaged(files: Files, directory: Path) -> None:
    """Mark the log as damaged. Called before a truncation, after which the damage can no longer be seen."""
    files.close(files.open(directory / DAMAGED, create=True))
    files.sync_directory(directory)


def _latest_snapshot(
    files: Files, directory: Path, names: Sequence[str], at_most: int, log_end: int
) -> tuple[int, ProducerStateManager]:
    """Offset and state of the newest usable snapshot, -1 and empty without one. Deletes unusable ones."""
    for offset in reversed(offsets_of(names, SNAPSHOT)):
        path = segment_file(directory, offset, SNAPSHOT)
        if offset > log_end:
            files.unlink(path, missing_ok=True)
        elif offset <= at_most:
            try:
                return offset, ProducerStateManager.decode(files.read_whole(path))
            except MalformedSnapshot:
                files.unlink(path, missing_ok=True)
    return -1, ProducerStateManager()


def _remove(files: Files, directory: Path, base: int) -> None:
    """Delete a segment's files, the log file last: a crash in between must not leave indexes that a
    later segment would take for its own."""
    for suffix in (SNAPSHOT, *INDEXES, LOG):
        files.unlink(segment_file(directory, base, suffix), missing_ok=True)
