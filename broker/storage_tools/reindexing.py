"""Index rebuild: writes the index files of segments again from their batches, for `tierlog log
rebuild-index`.

The result is what a broker that appended the same batches would write. Each file is replaced atomically, so
the directory can be opened after a crash at any point. The log itself is only read. No broker may use the
directory at the same time: the caller holds its lock.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tierlog.base.files import OsFiles, write_atomically
from tierlog.broker.storage.core.producer_state import MalformedSnapshot, ProducerStateManager
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.broker.storage.names import OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, segment_file
from tierlog.broker.storage.segment import CorruptLog, Segment
from tierlog.broker.storage_tools.offline import PartitionFiles, UnreadableTail, read_batches
from tierlog.records.indexes import AbortedTxn
from tierlog.records.markers import read_marker


class Rebuilt(NamedTuple):
    """One index file; `changed`: its content was different before."""

    path: Path
    changed: bool


def rebuild_indexes(
    partition: PartitionFiles, interval_bytes: int, advance: Callable[[int], None] = lambda size: None
) -> Iterator[Rebuilt]:
    """Rebuild the indexes of the chosen segments. Raises OSError, and CorruptLog at damage, before anything
    of that segment is written.
    """
    files = OsFiles()
    first = min(partition.chosen)
    start, producers = _producers_before(partition, first)
    for base in partition.bases:
        if not start <= base <= max(partition.chosen):
            continue
        segment = Segment(files, partition.directory, base, 0)
        segment.reset_indexes()
        _read(segment, producers, interval_bytes)
        if base not in partition.chosen:
            continue
        segment.add_time_entry()  # as a roll does, and a clean shutdown for the active segment
        advance(segment.path().stat().st_size)
        yield from _replace(files, segment)


def _read(segment: Segment, producers: ProducerStateManager, interval_bytes: int) -> None:
    most = segment.base_offset + LARGEST_RELATIVE_OFFSET
    for found in read_batches(segment.path()):
        if isinstance(found, UnreadableTail) or found.fault:
            raise CorruptLog(f"{segment.path()}, position {found.position}: {found.fault}")
        header = found.header
        if not segment.end_offset <= header.base_offset <= header.last_offset <= most:
            raise CorruptLog(f"{segment.path()}, position {found.position}: offset {header.base_offset}")
        segment.index_batch(found.position, header, header.base_offset, interval_bytes)
        if header.producer_id < 0:
            continue
        marker = read_marker(found.data) if header.is_control else None
        completed = producers.apply(header, header.base_offset, marker)
        if completed is not None and completed.aborted:
            stable = producers.last_stable_offset_after(completed)
            segment.add_aborted(
                AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )


def _replace(files: OsFiles, segment: Segment) -> Iterator[Rebuilt]:
    for suffix, content in (
        (OFFSET_INDEX, segment.offset_index),
        (TIME_INDEX, segment.time_index),
        (TXN_INDEX, segment.txn_index),
    ):
        path = segment.path(suffix)
        before = _read_whole(path)
        wanted = None if suffix == TXN_INDEX and not content else bytes(content)
        if wanted is None and before:
            files.unlink(path)
            files.sync_directory(path.parent)
        elif wanted is not None and before != wanted:
            write_atomically(files, path, wanted)
        yield Rebuilt(path, before != wanted and bool(before or wanted))


def _read_whole(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _producers_before(partition: PartitionFiles, base: int) -> tuple[int, ProducerStateManager]:
    """The newest readable snapshot at or before a segment; without one, start from the first segment."""
    for offset in reversed(partition.snapshots()):
        if offset in partition.bases and offset <= base:
            try:
                content = segment_file(partition.directory, offset, SNAPSHOT).read_bytes()
                return offset, ProducerStateManager.decode(content)
            except MalformedSnapshot:
                continue
    return partition.bases[0], ProducerStateManager()
