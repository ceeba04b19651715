"""Log suffix: copies the part of a rolled segment from an offset on into a segment of its own, for tiering to
upload.

Each replica rolls at its own offsets, so the last remote segment may end within a segment of a new leader,
and remote segments must not overlap. The copy is next to the segment under a name that the next start
removes. It is read batch by batch, so damage is found before the upload. Runs in a thread; called by the
remote log manager.
"""

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec

from tierlog.base.files import Files
from tierlog.base.leader_epochs import EpochEntry, LeaderEpochs
from tierlog.base.segments import SegmentExport
from tierlog.broker.storage.checked_batches import verified_batches
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.segment import BatchAt, CorruptLog, Segment
from tierlog.records.chunks import ChunkBuilder
from tierlog.records.indexes import encode_txn_index, find_aborted

UNFINISHED = ".tmp"
_COPY_BYTES = 4 << 20
FREE_BYTES_KEPT = 64 << 20
"""Free space that a copy leaves for appends."""


def copy_suffix(
    files: Files, exported: SegmentExport, offset: int, interval_bytes: int
) -> tuple[SegmentExport, ChunkBuilder]:
    """The part of an exported segment from `offset` on, and the chunks of its file. The caller removes
    `descriptor.path_log`.

    Raises CorruptLog if the offset is within a batch or no batch follows, and OSError: ENOSPC if there is too
    little space, before anything is written.
    """
    whole = exported.descriptor
    directory = whole.directory
    source = Segment(files, directory, whole.base_offset, 0)
    source.size, source.rolled = whole.size_bytes, True
    source.set_indexes(exported.offset_index, exported.time_index, b"")
    suffix = Segment(files, directory, offset, 0)
    suffix.file_suffix = UNFINISHED
    try:
        first = source.find(offset)
        if first is None or first.header.base_offset < offset:  # after a gap of compaction it is higher
            raise CorruptLog(f"{source.path()}: no batch begins at offset {offset} or after it")
        require_space(files, source.size - first.position, suffix)
        _copy(files, source, first, suffix)
        chunks = index_file(suffix, interval_bytes, exported.leader_epochs)
    except BaseException:
        with suppress(OSError):
            files.unlink(suffix.path(), missing_ok=True)
        raise
    finally:
        source.close()
        suffix.close()
    export = replace(
        exported,
        descriptor=msgspec.structs.replace(
            whole,
            base_offset=offset,
            size_bytes=suffix.size,
            first_timestamp=suffix.first_timestamp,
            max_timestamp=suffix.max_timestamp,
            has_transactions=bool(suffix.has_transactions),
            file_name=suffix.path().name,
        ),
        offset_index=bytes(suffix.offset_index),
        time_index=bytes(suffix.time_index),
        txn_index=encode_txn_index(find_aborted(exported.txn_index, offset, whole.end_offset)),
    )
    return export, chunks


def require_space(files: Files, count: int, segment: Segment) -> None:
    """Raises OSError (ENOSPC) if a copy of so many bytes would leave too little space for appends."""
    usable = files.space(segment.directory).usable
    if usable < count + FREE_BYTES_KEPT:
        what = f"not enough space to copy {count} bytes for an upload: {usable} bytes are free, and "
        what += f"{FREE_BYTES_KEPT} are kept for appends"
        raise OSError(errno.ENOSPC, what)


def _copy(files: Files, source: Segment, first: BatchAt, suffix: Segment) -> None:
    fd = files.open(suffix.path(), create=True)
    try:
        files.truncate(fd, 0)  # an earlier attempt may have left one
        position, file = first.position, source.file
        while position < source.size:
            part = files.read_at(file.fd, min(_COPY_BYTES, source.size - position), position)
            if not part:
                raise CorruptLog(f"{source.path()}: truncated at {position}")
            files.writev_at(fd, (part,), position - first.position)
            position += len(part)
    finally:
        files.close(fd)
    suffix.size = source.size - first.position


def index_file(
    segment: Segment,
    interval_bytes: int,
    epochs: Iterable[EpochEntry],
    rest: Callable[[], None] = lambda: None,
) -> ChunkBuilder:
    """Verify a segment's batches, add them to its empty indexes, and return its chunks. `rest` is called
    between two batches. Raises OSError and CorruptLog."""
    good, chunks = 0, ChunkBuilder()
    rules = HeaderRules(gaps=True, epochs=LeaderEpochs(epochs))  # it may have been compacted earlier
    for position, header, content in verified_batches(segment, rules):
        segment.index_batch(position, header, header.base_offset, interval_bytes)
        chunks.add(header, content)
        good = position + header.size
        rest()
    if good != segment.size:
        raise CorruptLog(f"{segment.path()}: damaged at or after offset {segment.end_offset}")
    segment.add_time_entry()
    return chunks
