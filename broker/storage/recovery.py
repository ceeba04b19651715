"""Opening the log of a partition: what a clean stop left is loaded, what a crash left is checked and
rebuilt.

After a crash every segment that reaches past the recovery point is read batch by batch (length, CRC,
growing offsets) and cut at the first bad byte; later segments go, since an offset may not be missing in
between. Leader epochs and producer state are taken from their files as of the recovery point and brought
forward from the batches. After a clean stop only the tail of the active segment is looked at. Called by
`PartitionLog.open`, possibly in a thread.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from tierlog.base.files import Files
from tierlog.base.leader_epochs import LeaderEpochs, MalformedEpochs
from tierlog.base.open_files import SharedFile
from tierlog.base.types import NO_EPOCH
from tierlog.broker.storage.checked_batches import intact_batches, is_torn, verified_batches
from tierlog.broker.storage.core.continuity import MAX_OFFSET, HeaderRules, consistent_prefix
from tierlog.broker.storage.core.producer_state import (
    BATCHES_KEPT,
    EndMarker,
    MalformedSnapshot,
    ProducerStateEntry,
    ProducerStateManager,
)
from tierlog.broker.storage.names import (
    DAMAGED,
    EPOCH_CHECKPOINT,
    INDEXES,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    is_temporary,
    parse_segment_file,
    segment_file,
)
from tierlog.broker.storage.segment import CorruptLog, Segment
from tierlog.broker.storage.segment_swap import complete_swaps
from tierlog.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    read_header,
)
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TXN_ENTRY,
    AbortedTxn,
)
from tierlog.records.record import iter_records

_REFILL_WINDOWS = tuple(size * 1024 * 1024 for size in (1, 4, 16, 64))
_REFILL_BATCHES = 512  # so many headers are a look back long enough; large batches need the larger windows
_CONTROL_RECORD_BYTES = 64 * 1024
_COMMIT = 1


@dataclass(slots=True)
class Loaded:
    """`truncated_bytes` and `dropped` say what recovery removed; the log reports them. `damaged`: it was more
    than the batch that a killed process was writing. `rebuilt`: base offsets of the segments whose indexes
    were rebuilt. `snapshot_offset`: offset of the producer snapshot that was used, -1 if there was none.
    `missing_end`: the log end offset that the checkpoints prove, if the log ends below it; else 0.
    """

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStateManager
    truncated_bytes: int = 0
    dropped: int = 0
    damaged: bool = False
    rebuilt: list[int] = field(default_factory=list)
    snapshot_offset: int = -1
    missing_end: int = 0

    def unsynced(self, recovery_point: int) -> list[Segment]:
        """Rolled segments of which some file may not be on the disk; a rebuilt one's indexes are not."""
        return [
            s for s in self.segments[:-1] if s.end_offset > recovery_point or s.base_offset in self.rebuilt
        ]


class _EpochsRefuted(Exception):
    """The file of leader epochs is not that of the batches, which agree with each other."""


def load(
    files: Files,
    directory: Path,
    now_ms: int,
    interval_bytes: int,
    *,
    start_offset: int,
    recovery_point: int | None,
    high_watermark: int = 0,
    clean: bool,
    may_have_lost: bool = False,
    gaps: bool,
) -> Loaded:
    """`_load`; where the file of leader epochs is found to be wrong, the batches tell them. A log that ends
    below what its checkpoints prove is damaged, and marked so before anybody lowers them.
    """
    for use_epochs in (True, False):
        try:
            loaded = _load(
                files,
                directory,
                now_ms,
                interval_bytes,
                start_offset=start_offset,
                recovery_point=recovery_point,
                clean=clean,
                may_have_lost=may_have_lost,
                gaps=gaps,
                use_epochs=use_epochs,
            )
        except _EpochsRefuted:
            continue
        is_exact = clean or (loaded.truncated_bytes > 0 and not may_have_lost)
        loaded.missing_end = _missing_end(loaded, recovery_point or 0 if is_exact else 0, high_watermark)
        if loaded.missing_end and not loaded.damaged:
            loaded.damaged = True
            _mark_damaged(files, directory)
        return loaded
    raise CorruptLog(f"{directory}: the leader epochs of its batches contradict each other")


def _load(
    files: Files,
    directory: Path,
    now_ms: int,
    interval_bytes: int,
    *,
    start_offset: int,
    recovery_point: int | None,
    clean: bool,
    may_have_lost: bool = False,
    gaps: bool,
    use_epochs: bool,
) -> Loaded:
    """Opens or creates the segments of a directory; the last one is active.

    `may_have_lost`: what was not synced may be gone in parts, as after a loss of power. What is cut off then
    is no damage; below the recovery point it is, and so is one that an earlier start has found.

    `gaps`: compaction may have removed records, in Kafka's logs the last ones of a segment too, so that it
    ends before the next one begins. Above the recovery point a segment that does was not written whole: our
    cleaner leaves the last batch in its place. If nobody knows the recovery point (None) all is checked, but
    what is behind such a segment stays: it may be all that was ever promised.
    """
    names = _remove_temporary(files, directory, now_ms)
    bases = sorted(found[0] for name in names if (found := parse_segment_file(name)) and found[1] == LOG)
    epochs = _load_epochs(files, directory) if EPOCH_CHECKPOINT in names and use_epochs else None
    loaded = Loaded([], epochs or LeaderEpochs(), ProducerStateManager(), damaged=DAMAGED in names)
    rules = HeaderRules(  # above the recovery point the file may be older than a cut: there the batches tell
        gaps=gaps,
        epochs=LeaderEpochs(loaded.epochs.entries),
        epochs_end=MAX_OFFSET if clean else recovery_point or 0,
    )
    for at, base in enumerate(bases):
        end = bases[at + 1] if at + 1 < len(bases) else None
        rules = replace(rules, end_offset=MAX_OFFSET if end is None else end)
        segment = Segment(files, directory, base, now_ms)
        segment.size = files.size_of(segment.path())
        synced = end is not None and recovery_point is not None and end <= recovery_point
        excused = may_have_lost and not synced
        # One that ends there may have been rolled after that flush: then its indexes never were on the disk.
        intact = (clean or (synced and end != recovery_point)) and _load_segment(segment, end, rules)
        if intact:
            if epochs is None or loaded.rebuilt:  # which forgot the epochs from there on
                next_header = None if end is None else _first_header(files, directory, end)
                _note_epochs(segment, loaded.epochs, gaps, next_header)
            loaded.segments.append(segment)
            continue
        loaded.rebuilt.append(base)
        loaded.epochs.truncate_from_end(base)  # the file may be older than a cut: the batches tell
        next_header = None if end is None else _first_header(files, directory, end)
        cut, damaged = _rebuild(segment, interval_bytes, loaded.epochs, rules, next_header, excused=excused)
        loaded.damaged = loaded.damaged or damaged
        loaded.segments.append(segment)
        may_end_early = gaps and (synced or recovery_point is None)
        if end is not None and (
            cut or segment.end_offset > end or (segment.end_offset < end and not may_end_early)
        ):
            loaded.truncated_bytes += cut
            _drop_later(loaded, files, directory, bases[at + 1 :], excused=excused)
            break
        loaded.truncated_bytes += cut
        if end is not None:
            segment.end_offset = end
            segment.roll()
            segment.unload()
    if not loaded.segments:
        loaded.segments.append(_first_segment(files, directory, start_offset, now_ms))
    loaded.epochs.truncate_from_end(loaded.segments[-1].end_offset)
    rebuild_producers(loaded, files, directory, now_ms, None if loaded.rebuilt else names)
    return loaded


def _missing_end(loaded: Loaded, recovery_point: int, high_watermark: int) -> int:
    """The log end offset that the checkpoints prove, if the log ends below it; else 0.

    The high watermark is written down only as far as it is on disk, and no in-sync replica is truncated below
    it. The recovery point proves as much after a clean stop, which writes it last. After a crash it does not:
    a follower truncates first and lowers it afterwards. But that leaves whole batches, so a batch that a
    killed process left torn below the recovery point was cut by something else.
    """
    proven = max(recovery_point, high_watermark)
    return proven if proven > loaded.segments[-1].end_offset else 0


def _first_segment(files: Files, directory: Path, start_offset: int, now_ms: int) -> Segment:
    first = Segment(files, directory, start_offset, now_ms)
    if start_offset:  # which its name says; else the first append makes it
        first.create()
    return first


def _drop_later(
    loaded: Loaded, files: Files, directory: Path, bases: Sequence[int], *, excused: bool
) -> None:
    """The segments behind one that was cut."""
    loaded.dropped = len(bases)
    if not excused:
        loaded.damaged = True
        _mark_damaged(files, directory)
    for base in reversed(bases):
        _remove(files, directory, base)


def rebuild_producers(
    loaded: Loaded, files: Files, directory: Path, now_ms: int, names: Sequence[str] | None = None
) -> None:
    """Newest usable snapshot, then the batches after it; writes the snapshots that rolled segments lack.

    Rebuilt segments have lost their transaction index, so the replay begins no later than at the first; the
    snapshots behind it may never have been synced, and are made anew. `names`: of the directory, if they are
    known.
    """
    segments = loaded.segments
    end = segments[-1].end_offset
    latest = loaded.rebuilt[0] if loaded.rebuilt else end
    names = files.list_directory(directory) if names is None else names
    at, loaded.producers = _latest_snapshot(files, directory, names, latest, end)
    loaded.snapshot_offset = at
    start = max(at, segments[0].base_offset)
    if not loaded.producers.has_all_batches:
        refill(loaded.producers, segments, at)
    for segment in segments:
        if segment.end_offset < start or (segment.end_offset == start and segment.rolled):
            continue
        snapshot = segment_file(directory, segment.base_offset, SNAPSHOT)
        is_first = at < 0 and segment is segments[0]  # nobody wrote before it, and no file need say so
        is_there = segment.base_offset <= latest and files.exists(snapshot)
        if segment.base_offset >= start and not (is_first or is_there):
            write_plain(files, snapshot, loaded.producers.encode())
        replay(loaded.producers, segment, start, now_ms, index_aborts=segment.base_offset in loaded.rebuilt)


def producers_of(segments: list[Segment], now_ms: int) -> ProducerStateManager:
    """As of the end of the last one; removes snapshots from behind it, which a start does not need. Raises
    OSError or CorruptLog.
    """
    loaded = Loaded(segments, LeaderEpochs(), ProducerStateManager())
    rebuild_producers(loaded, segments[-1].files, segments[-1].directory, now_ms)
    return loaded.producers


def drop_snapshots(files: Files, directory: Path, kept: int | None) -> None:
    """Those of a log that begins anew, but one."""
    for name in files.list_directory(directory):
        found = parse_segment_file(name)
        if found is not None and found[1] == SNAPSHOT and found[0] != kept:
            files.unlink(directory / name, missing_ok=True)


def replay(
    state: ProducerStateManager, segment: Segment, from_offset: int, now_ms: int, *, index_aborts: bool
) -> None:
    """Applies the batches of a segment from an offset on."""
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


def read_marker(batch: bytes | memoryview) -> EndMarker | None:
    """What a control batch says: key is version and type, value version and coordinator epoch (KIP-98).

    None if it ends no transaction, or cannot be read although its CRC is right: nobody who writes logs makes
    such a batch.
    """
    try:
        record = next(iter(iter_records(batch, max_bytes=_CONTROL_RECORD_BYTES)), None)
    except RecordsError:
        return None
    if (
        record is None
        or record.key is None
        or record.value is None
        or len(record.key) < 4
        or len(record.value) < 6
    ):
        return None
    kind = int.from_bytes(record.key[2:4], "big")
    if kind > _COMMIT:
        return None
    return EndMarker(kind == _COMMIT, int.from_bytes(record.value[2:6], "big", signed=True))


def refill(state: ProducerStateManager, segments: Sequence[Segment], at: int) -> None:
    """Gives producers back the four batches that Kafka's snapshot, or an older tierlog's, leaves out, from
    the log's tail before `at`.

    Without them a retry that was in flight over a restart would look like a sequence gap (guarantee 10). How
    far to look back depends on how large the batches are, so the window grows until all is found. What lies
    further back stays unknown, so a start after an upgrade does not read whole logs.
    """
    seen, state.has_all_batches = ProducerStateManager(), True  # as far as it ever will be
    for window in _REFILL_WINDOWS if len(state) else ():
        try:
            seen, whole = _seen_before(segments, at, window)
        except (CorruptLog, RecordsError):
            return  # whoever reads there is told; a start does not depend on it
        if whole:
            break
    for producer in state:
        found = seen.get(producer.producer_id)
        if (
            found
            and producer.batches
            and found.epoch == producer.epoch
            and found.batches[-1].last_offset == producer.batches[-1].last_offset
        ):
            producer.batches.extendleft(list(found.batches)[-2 : -BATCHES_KEPT - 1 : -1])


def _seen_before(segments: Sequence[Segment], at: int, window: int) -> tuple[ProducerStateManager, bool]:
    """What the last `window` bytes before an offset say of producers, and whether to look back no further."""
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
    seen, batches = ProducerStateManager(), 0
    for segment, position in reversed(starts):
        for _, header in segment.scan(position):
            batches += 1
            if header.base_offset >= at:
                break
            if header.producer_id >= 0 and not header.is_control:
                seen.apply(header, header.base_offset)
        segment.unload()
    from_start = window > 0 or not starts
    return seen, from_start or batches >= _REFILL_BATCHES or all(map(_has_all_batches, seen))


def _has_all_batches(producer: ProducerStateEntry) -> bool:
    """Whether no batch before those known could be sent again."""
    first = producer.batches[0]
    return len(producer.batches) == BATCHES_KEPT or first.last_sequence <= first.offset_delta


def write_plain(files: Files, path: Path, content: bytes) -> None:
    """Replaces a file whose content proves itself (a CRC inside, or rebuilt from the log): no fsync."""
    fd = files.open(path, create=True)
    try:
        files.writev_at(fd, (content,), 0)
        files.truncate(fd, len(content))
    finally:
        files.close(fd)


def _remove_temporary(files: Files, directory: Path, now_ms: int) -> list[str]:
    """Completes or removes what a crash left half done; returns the names that remain."""
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        files.make_directory(directory)
        return []
    if any(name.endswith(LOG + SWAP) for name in names):
        complete_swaps(files, directory, now_ms)
        names = files.list_directory(directory)
    found = {name: parsed for name in names if (parsed := parse_segment_file(name)) is not None}
    bases = sorted(base for base, suffix in found.values() if suffix == LOG)
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
    """None if a crash tore the file: then the batches tell, the synced ones too."""
    try:
        return LeaderEpochs.decode(files.read_whole(directory / EPOCH_CHECKPOINT))
    except MalformedEpochs:
        return None


def _first_header(files: Files, directory: Path, base: int) -> BatchHeader | None:
    """Of the segment that begins at an offset, if it says that it does."""
    log = SharedFile(files, segment_file(directory, base, LOG))
    content = files.read_at(log.fd, HEADER_SIZE, 0)
    header = read_header(content) if len(content) == HEADER_SIZE else None
    return header if header is not None and header.base_offset == base else None


def _note_epochs(segment: Segment, epochs: LeaderEpochs, gaps: bool, next_header: BatchHeader | None) -> None:
    rules, last = HeaderRules(gaps=gaps, epochs=LeaderEpochs()), epochs.latest
    with suppress(CorruptLog, RecordsError):  # whoever reads there is told; a start does not depend on it
        start, last_epoch = segment.base_offset, NO_EPOCH if last is None else last.epoch
        for batch in consistent_prefix(segment.scan(0), start, rules, last_epoch, next_header):
            epochs.note(batch.header.leader_epoch, batch.header.base_offset)
    segment.unload()


def _load_segment(segment: Segment, end: int | None, rules: HeaderRules) -> bool:
    """Takes the index files as they are; False if they cannot be right and must be rebuilt, or a batch that
    was looked at is not one of this log."""
    files = segment.files
    if segment.size == 0:
        return end is None
    if not (files.exists(segment.path(OFFSET_INDEX)) and files.exists(segment.path(TIME_INDEX))):
        return False
    txn_index = files.read_whole(segment.path(TXN_INDEX)) if files.exists(segment.path(TXN_INDEX)) else b""
    segment.set_indexes(
        files.read_whole(segment.path(OFFSET_INDEX)), files.read_whole(segment.path(TIME_INDEX)), txn_index
    )
    try:
        _resume(segment, end, rules)
    except (CorruptLog, RecordsError):
        return False
    return True


def _resume(segment: Segment, end: int | None, rules: HeaderRules) -> None:
    """First and last things about a segment from its first batch, the ends of its indexes, and its tail.

    Only what a torn or lost file would break is checked: a start must not read every entry of every index.
    Raises CorruptLog.
    """
    first = next(segment.scan(0)).header
    if fault := rules.fault(first, segment.base_offset):
        raise CorruptLog(f"{segment.path()}: {fault}")
    segment.first_timestamp = first.first_timestamp
    relative_offset, position = _last_entry(OFFSET_ENTRY, segment.offset_index) or (0, 0)
    time_entry = _last_entry(TIME_ENTRY, segment.time_index)
    _last_entry(TXN_ENTRY, segment.txn_index)
    if not 0 <= position < segment.size or relative_offset < 0:
        raise CorruptLog(f"{segment.path(OFFSET_INDEX)} points outside the log")
    maximum_offset = segment.base_offset
    if time_entry is not None:
        segment.max_timestamp, maximum_offset = time_entry[0], segment.base_offset + time_entry[1]
        if segment.max_timestamp < segment.first_timestamp:
            raise CorruptLog(f"{segment.path(TIME_INDEX)} ends before its first record")
    elif segment.first_timestamp >= 0 and (end is not None or segment.offset_index):
        raise CorruptLog(f"{segment.path(TIME_INDEX)} is empty")
    expected = None if position else segment.base_offset
    for batch in segment.scan(position):
        indexed = segment.base_offset + relative_offset
        if batch.position == position and segment.offset_index and batch.header.last_offset != indexed:
            raise CorruptLog(f"{segment.path(OFFSET_INDEX)} says {indexed} for {batch.header.last_offset}")
        before = batch.header.base_offset if expected is None else expected
        if fault := rules.fault(batch.header, before):
            raise CorruptLog(f"{segment.path()}: {fault}")
        expected = batch.header.next_offset
        segment.end_offset = batch.header.next_offset
        if batch.header.max_timestamp > segment.max_timestamp and batch.header.record_count:
            segment.max_timestamp, maximum_offset = batch.header.max_timestamp, batch.header.last_offset
    segment.resume_index(position, maximum_offset)
    if end is not None:
        if segment.end_offset < end and not rules.gaps:
            raise CorruptLog(f"{segment.path()} ends before the next segment")
        segment.end_offset = end
        segment.rolled = True
        segment.unload()


def _last_entry(entry: struct.Struct, index: bytearray) -> tuple[int, ...] | None:
    """None if the index is empty; raises CorruptLog if it is cut."""
    if len(index) % entry.size:
        raise CorruptLog("an index is cut")
    return entry.unpack_from(index, len(index) - entry.size) if index else None


def _rebuild(
    segment: Segment,
    interval_bytes: int,
    epochs: LeaderEpochs,
    rules: HeaderRules,
    next_header: BatchHeader | None,
    *,
    excused: bool,
) -> tuple[int, bool]:
    """Indexes, totals and epochs from the batches; returns the bytes cut off the end, and whether they are
    more than a write that was not finished, or one that was `excused`."""
    segment.reset_indexes()
    good, before = 0, epochs.latest
    last_epoch = NO_EPOCH if before is None else before.epoch
    for position, header, _ in verified_batches(
        segment, rules, last_epoch=last_epoch, next_header=next_header
    ):
        segment.index_batch(position, header, header.base_offset, interval_bytes)
        epochs.note(header.leader_epoch, header.base_offset)
        good = position + header.size
    cut = segment.size - good
    if cut:
        _check_epochs(segment, good, rules)
    damaged = cut > 0 and not excused and not is_torn(segment, good)
    if damaged:
        _mark_damaged(segment.files, segment.directory)
    segment.size = good
    segment.trim()  # also where nothing is cut: room may be reserved beyond
    return cut, damaged


def _check_epochs(segment: Segment, good: int, rules: HeaderRules) -> None:
    """Raises _EpochsRefuted if the first batch that was not taken is of an epoch that the file does not have
    there, and the one behind it as well: a bit does not flip twice in the same way.
    """
    pair = [batch.header for batch in islice(intact_batches(segment, segment.file, good), 2)]
    if len({header.leader_epoch for header in pair}) == 1 < len(pair) and all(map(rules.epoch_fault, pair)):
        raise _EpochsRefuted


def _mark_damaged(files: Files, directory: Path) -> None:
    """Before the cut: else a start that ends before it could tell leaves nothing of it to the next one."""
    files.close(files.open(directory / DAMAGED, create=True))
    files.sync_directory(directory)


def _latest_snapshot(
    files: Files, directory: Path, names: Sequence[str], at_most: int, log_end: int
) -> tuple[int, ProducerStateManager]:
    """Offset and state of the newest usable snapshot; -1 and nothing if there is none. Removes unusable
    ones.
    """
    snapshots = sorted(
        parsed[0]
        for name in names
        if (parsed := parse_segment_file(name)) is not None and parsed[1] == SNAPSHOT
    )
    for offset in reversed(snapshots):
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
    """The log file goes last: a crash in between must not leave indexes that look like another segment's."""
    for suffix in (SNAPSHOT, *INDEXES, LOG):
        files.unlink(segment_file(directory, base, suffix), missing_ok=True)
