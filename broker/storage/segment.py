"""Log segment: a `.log` file of record batches with its sparse offset, time and transaction indexes.

Indexes are kept in memory in Kafka's file format, so lookups are the same for live and loaded segments, and
an append writes only the batch. Index files are written when the segment is rolled or closed, and for restart
points (`restart_point`). A rolled segment releases its indexes when others are read more often (`unload`).
When too many files are open, the descriptor of any segment may be closed from any thread: code that uses
`file` holds a reference to it, and so do slices that are being sent.

Invariants: bytes beyond `size` were never acknowledged and will be overwritten; `end_offset` is one past the
last batch; an empty file may not exist yet. PartitionLog changes its segments on the event loop; `sync` runs
in threads beside it, and so may `persist` and `close` after the log was closed. During recovery, recovery
owns the segments; the cleaner owns those it writes.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tierlog.base.files import Buffer, Files
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.open_files import SharedFile
from tierlog.base.types import NO_TIMESTAMP
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.broker.storage.names import INDEXES, LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, segment_file
from tierlog.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header
from tierlog.records.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTxn,
    decode_txn_index,
    encode_txn_entry,
    find_offset_for_time,
    find_position,
)

RESERVE_FROM = 1 << 20
RESERVE_AHEAD = 32 << 20
"""Disk space is reserved ahead of appends once a segment has RESERVE_FROM bytes: its size again, at most
RESERVE_AHEAD. Writes to reserved blocks cost a quarter to a half less, and the file's blocks are contiguous.
"""

RESERVE_FREE_FACTOR = 2
RESERVE_ABOVE = 10
"""Space is only reserved if RESERVE_FREE_FACTOR times as much is free, and more than 1/RESERVE_ABOVE of the
disk, so that reservations for many idle partitions do not fill the disk.
"""

SCAN_BYTES = 4096
"""Bytes per read of a header scan: the default index interval, so most lookups take one read."""


class CorruptLog(Exception):
    """Bytes below the log end are not valid batches: the disk changed them. The segment must not be
    served."""


class BatchAt(NamedTuple):
    position: int
    header: BatchHeader


class CheckedBatch(NamedTuple):
    """`content` is the checked bytes, in a read buffer that it keeps alive."""

    position: int
    header: BatchHeader
    content: memoryview


class BatchBoundary(NamedTuple):
    """A batch boundary: everything before `position` has offsets below `end_offset`."""

    position: int
    end_offset: int


class Damage(NamedTuple):
    """A damaged range of a segment, up to the next valid batch: file positions, and the offsets lost with
    them.
    """

    position: int
    end_position: int
    start_offset: int
    end_offset: int


class IndexSizes(NamedTuple):
    """Bytes of the three indexes of a segment."""

    offset_index: int
    time_index: int
    txn_index: int


class Segment:
    __slots__ = (
        "__weakref__",
        "_bytes_since_entry",
        "_has_reserved",
        "_maximum_offset",
        "_offset_index",
        "_saved_indexes",
        "_time_index",
        "_txn_index",
        "base_offset",
        "content_version",
        "created_ms",
        "damage",
        "directory",
        "end_offset",
        "file_suffix",
        "files",
        "first_timestamp",
        "has_aborts",
        "has_excess_bytes",
        "has_transactions",
        "last_modified_ms",
        "max_timestamp",
        "open_file",
        "reserved_to",
        "rolled",
        "size",
    )

    def __init__(self, files: Files, directory: Path, base_offset: int, now_ms: int) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self.file_suffix = ""
        """Extra file name suffix while compaction creates or replaces the segment."""
        self.end_offset = base_offset
        self.size = 0
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.created_ms = now_ms
        self.last_modified_ms = now_ms
        self.rolled = False
        self.has_transactions: bool | None = False
        self.has_aborts = False
        self.content_version = 0
        """Changes when the segment is truncated or repaired; work on an earlier version is then void."""
        self.damage: tuple[Damage, ...] = ()
        """Known damage; reads stop before it."""
        self.open_file: SharedFile | None = None
        """The open file, unless it was closed because too many are open: use `file`."""
        self._offset_index: bytearray | None = bytearray()
        self._time_index: bytearray | None = bytearray()
        self._txn_index: bytearray | None = bytearray()
        self._maximum_offset = base_offset  # last offset of the batch that set max_timestamp
        self._bytes_since_entry = 0
        self._saved_indexes: IndexSizes | None = None  # sizes of the index files, if they are a prefix
        self.has_excess_bytes = False
        """Whether a failed write may have left bytes beyond `size`."""
        self._has_reserved = False
        self.reserved_to = RESERVE_FROM
        """An append that ends above it is followed by `reserve_ahead`."""

    # -- files and indexes --

    def path(self, suffix: str = LOG) -> Path:
        return segment_file(self.directory, self.base_offset, suffix + self.file_suffix)

    @property
    def file(self) -> SharedFile:
        """The open file; callers hold it while they use its descriptor. Raises OSError."""
        file = self.open_file
        if file is None:
            create = self.size == 0 and not self.rolled  # a lost file must not come back empty
            return self.files.open_files.open(self, self.files, self.path(), create=create)
        file.used = True
        return file

    @property
    def offset_index(self) -> bytearray:
        if self._offset_index is None:
            self._offset_index = bytearray(self.files.read_whole(self.path(OFFSET_INDEX)))
        return self._offset_index

    @property
    def time_index(self) -> bytearray:
        if self._time_index is None:
            self._time_index = bytearray(self.files.read_whole(self.path(TIME_INDEX)))
        return self._time_index

    @property
    def txn_index(self) -> bytearray:
        if self._txn_index is None:
            path = self.path(TXN_INDEX)
            self._txn_index = bytearray(self.files.read_whole(path) if self.has_aborts else b"")
        return self._txn_index

    @property
    def index_entries(self) -> int:
        return len(self.offset_index) // OFFSET_ENTRY.size

    @property
    def time_entries(self) -> int:
        return len(self.time_index) // TIME_ENTRY.size

    # -- writing --

    def append(
        self, buffer: Buffer, header: BatchHeader, base_offset: int, interval_bytes: int, now_ms: int
    ) -> None:
        """Write one batch at the end. After an OSError the segment is unchanged; bytes beyond `size` are
        void.
        """
        position = self.size
        self._write(buffer, now_ms)
        self.index_batch(position, header, base_offset, interval_bytes)

    def append_run(
        self, buffer: Buffer, batches: Sequence[BatchAt], interval_bytes: int, now_ms: int
    ) -> None:
        """Write contiguous batches that fill the buffer at once, with their offsets unchanged. After an
        OSError the segment is unchanged.
        """
        start, first = self.size, batches[0].position
        self._write(buffer, now_ms)
        for position, header in batches:
            self.index_batch(start + position - first, header, header.base_offset, interval_bytes)

    def _write(self, buffer: Buffer, now_ms: int) -> None:
        if self.has_excess_bytes:
            self.trim()
        position = self.size
        try:
            file = self.open_file or self.file
            self.files.writev_at(file.fd, (buffer,), position)
            file.unsynced = True
        except OSError:
            self.has_excess_bytes = True
            with suppress(OSError):  # frees the space at once; else the next append trims
                self.trim()
            raise
        self.size = position + len(buffer)
        self.last_modified_ms = now_ms
        if position == 0:
            self.created_ms = now_ms

    def index_batch(self, position: int, header: BatchHeader, base_offset: int, interval_bytes: int) -> None:
        """Add the batch at `position` to the indexes and totals. Used by appends and rebuilds."""
        last_offset = base_offset + header.last_offset_delta
        if header.max_timestamp > self.max_timestamp and header.record_count:
            self.max_timestamp = header.max_timestamp
            self._maximum_offset = last_offset
        if position == 0:
            self.first_timestamp = header.first_timestamp
        if header.attributes & 0x10:
            self.has_transactions = True
        if self._bytes_since_entry > interval_bytes:
            self.offset_index.extend(OFFSET_ENTRY.pack(last_offset - self.base_offset, position))
            self.add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + LOG_OVERHEAD
        self.end_offset = last_offset + 1

    def add_aborted(self, transaction: AbortedTxn) -> None:
        self.txn_index.extend(encode_txn_entry(transaction))
        self.has_aborts = True

    def roll(self) -> None:
        """Make the segment immutable: add the last time index entry and write the index files."""
        self.add_time_entry()
        self.persist()
        self.rolled = True

    def persist(self) -> None:
        """Write the index files and trim the log file. Not durable before `sync`."""
        if self.has_excess_bytes or self._has_reserved:
            self.trim()
        self._saved_indexes = None
        self.save_indexes(self.index_sizes)

    @property
    def index_sizes(self) -> IndexSizes:
        return IndexSizes(len(self.offset_index), len(self.time_index), len(self.txn_index))

    def save_indexes(self, sizes: IndexSizes) -> None:
        """Write the index files up to these sizes, from where they end if that is known. Not durable. May run
        in a thread beside appends, but not beside anything else that changes the segment.

        The offset index is last: if it was missing and a crash comes between, it still is.
        """
        indexes, saved = (self.offset_index, self.time_index, self.txn_index), self._saved_indexes
        self._saved_indexes = None  # unless all is written
        files = list(zip(INDEXES, indexes, saved or (0, 0, 0), sizes, strict=True))
        for suffix, content, start, end in (*files[1:], files[0]):
            if saved is not None and start == end:
                continue
            if suffix == TXN_INDEX and not end:
                self.files.unlink(self.path(suffix), missing_ok=True)
                continue
            fd = self.files.open(self.path(suffix), create=True)
            try:
                self.files.writev_at(fd, (content[start:end],), start)
                self.files.truncate(fd, end)
            finally:
                self.files.close(fd)
        self._saved_indexes = sizes

    def sync(self) -> None:
        """fdatasync the log, and the indexes of a rolled segment. May run in a thread, so it does not reopen
        the shared file.
        """
        try:
            file = self.open_file or SharedFile(self.files, self.path())
        except FileNotFoundError:
            if self.size or self.rolled:
                raise
            return  # nothing was ever appended
        file.unsynced = False  # first: a concurrent append sets it again
        self.files.sync(file.fd)
        if self.rolled:
            for suffix in INDEXES if self.has_aborts else INDEXES[:2]:
                fd = self.files.open(self.path(suffix))
                try:
                    self.files.sync(fd)
                finally:
                    self.files.close(fd)

    def create(self) -> None:
        """Create the empty file, whose name says where the log continues.

        An empty file is never truncated: when a file truncated to zero is closed, ext4 writes out all its
        dirty pages (auto_da_alloc), which takes 40 ms for 64 MiB.
        """
        file = self.file
        if self.files.size(file.fd):
            self.trim()

    def trim(self) -> None:
        """Truncate the file to `size`, which also frees reserved space."""
        file = self.file
        self.files.truncate(file.fd, self.size)
        self.has_excess_bytes = self._has_reserved = False
        self.reserved_to = max(RESERVE_FROM, self.size)

    def reserve_ahead(self, most: int) -> None:
        """Reserve as much again as is used, up to a segment size of `most` bytes."""
        self.reserve(min(2 * self.size, self.size + RESERVE_AHEAD, most))

    def reserve(self, end: int) -> None:
        """Reserve disk space up to a file position if plenty is free. `preallocate` reserves a whole segment
        before its first batch. The file size stays as it is, so recovery after a crash has nothing to
        truncate.
        """
        self.reserved_to = max(end, self.size + RESERVE_FROM)  # also after a failure, to delay the next try
        count = end - self.size
        with suppress(OSError):  # a reservation is optional
            file = self.file
            total, usable = self.files.space(self.directory)
            if count > 0 and usable >= max(RESERVE_FREE_FACTOR * count, total // RESERVE_ABOVE):
                self.files.reserve(file.fd, self.size, count)
                self._has_reserved = True

    def release_reserved(self) -> bool:
        """Free reserved space. Returns False if there is none. Raises OSError."""
        if not self._has_reserved:
            return False
        self.trim()
        return True

    def unload(self) -> None:
        """Release the descriptor and indexes; the next use loads them again."""
        if self.rolled:
            self.files.open_files.release(self)
            self._offset_index = self._time_index = self._txn_index = None

    def switch_directory(self, directory: Path, files: Files) -> None:
        """Continue with identical files in another directory. Readers of the old files can continue."""
        self.directory, self.files = directory, files
        files.open_files.release(self)
        self._saved_indexes = None
        self.has_excess_bytes = self._has_reserved = False
        self.reserved_to = max(RESERVE_FROM, self.size)

    def close(self) -> None:
        """Release the descriptor for good; slices that are being sent keep it open."""
        self.files.open_files.release(self)

    def prefix_until(self, boundary: BatchBoundary, interval_bytes: int) -> "Segment":
        """The segment as it would be after truncation at a boundary, over the same file. Raises OSError, and
        CorruptLog if its batches cannot be read.
        """
        prefix = Segment(self.files, self.directory, self.base_offset, self.created_ms)
        for position, header in self.scan(0, boundary.position):
            prefix.index_batch(position, header, header.base_offset, interval_bytes)
        for transaction in decode_txn_index(self.txn_index):
            if transaction.last_offset < boundary.end_offset:
                prefix.add_aborted(transaction)
        prefix.size, prefix.end_offset = boundary.position, boundary.end_offset
        prefix.damage = tuple(one for one in self.damage if one.position < boundary.position)
        return prefix

    def truncate_to(self, prefix: "Segment") -> None:
        """End where `prefix` ends (`prefix_until`), active again. After an OSError the bytes beyond it are
        void.
        """
        self.rolled = False
        self.content_version += 1
        self.size, self.end_offset, self.damage = prefix.size, prefix.end_offset, prefix.damage
        self.set_indexes(prefix.offset_index, prefix.time_index, prefix.txn_index)
        self.max_timestamp, self.first_timestamp = prefix.max_timestamp, prefix.first_timestamp
        self.has_transactions = prefix.has_transactions
        self.resume_index(prefix.size - prefix._bytes_since_entry, prefix._maximum_offset)
        self.has_excess_bytes = True
        self.trim()

    def reset_indexes(self) -> None:
        """Clear indexes and totals before a rebuild."""
        self._offset_index, self._time_index, self._txn_index = bytearray(), bytearray(), bytearray()
        self.max_timestamp = self.first_timestamp = NO_TIMESTAMP
        self._maximum_offset = self.end_offset = self.base_offset
        self._bytes_since_entry = 0
        self._saved_indexes = None
        self.has_transactions, self.has_aborts, self.rolled = False, False, False

    def set_indexes(
        self, offset_index: Buffer, time_index: Buffer, txn_index: Buffer, *, are_saved: bool = False
    ) -> None:
        """Use indexes read from their files. `are_saved`: the files have nothing else."""
        self._offset_index, self._time_index, self._txn_index = map(
            bytearray, (offset_index, time_index, txn_index)
        )
        self.has_aborts = bool(txn_index)
        self.has_transactions = True if txn_index else None
        self._saved_indexes = self.index_sizes if are_saved else None

    def resume_index(self, last_entry_position: int, maximum_offset: int) -> None:
        """Set where the loaded indexes end, so that appends continue as if the segment had never
        been closed.
        """
        self._bytes_since_entry = 0 if self.size == 0 else self.size - last_entry_position
        self._maximum_offset = maximum_offset

    # -- reading --

    def scan(
        self, position: int, end: int | None = None, *, expected: int | None = None
    ) -> Iterator[BatchAt]:
        """Position and header of each batch from a batch boundary on, without known damaged ones.

        Raises CorruptLog at an invalid length or offset. `expected`: all earlier batches end below it.
        """
        end = self.size if end is None else end
        expected = self.base_offset if expected is None else expected
        most = self.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if position >= end:
            return  # an empty segment may have no file
        file, read_at = self.file, self.files.read_at  # held, as the segment may be unloaded
        chunk, chunk_at = b"", position
        while position < end:
            if self.damage and (intact := self._past_damage(position)) != position:
                position = intact
                continue
            if position - chunk_at + HEADER_SIZE > len(chunk):
                chunk, chunk_at = read_at(file.fd, SCAN_BYTES, position), position
                if len(chunk) < HEADER_SIZE:
                    raise CorruptLog(f"{self.path()}: truncated at {position}")
            header = read_header(chunk, position - chunk_at)
            if header.batch_length < HEADER_SIZE - LOG_OVERHEAD or position + header.size > self.size:
                raise CorruptLog(f"{self.path()}: batch length {header.batch_length} at {position}")
            offset = header.base_offset
            following = offset + header.last_offset_delta + 1
            if not expected <= offset < following <= most:
                raise CorruptLog(f"{self.path()}: offset {offset} at {position}, expected {expected}")
            yield BatchAt(position, header)
            expected = following
            position += header.batch_length + LOG_OVERHEAD

    def find(self, offset: int) -> BatchAt | None:
        """The first batch that ends above `offset`, or None."""
        for batch in self.scan(find_position(self.offset_index, self.base_offset, offset)):
            if batch.header.last_offset >= offset:
                return batch
        return None

    def boundary_before(self, offset: int) -> BatchBoundary:
        """The boundary before which all batches are below `offset`: the upper end of a read."""
        if offset >= self.end_offset:
            return BatchBoundary(self.size, self.end_offset)
        for damage in self.damage:
            if damage.start_offset <= offset < damage.end_offset:
                return BatchBoundary(damage.position, damage.start_offset)
        batch = self.find(offset)
        if batch is None:
            return BatchBoundary(self.size, self.end_offset)
        return BatchBoundary(batch.position, min(offset, batch.header.base_offset))  # compaction leaves gaps

    def boundary_within(
        self, start: int, max_bytes: int, upper: BatchBoundary, epochs: LeaderEpochs | None = None
    ) -> BatchBoundary | None:
        """The last batch boundary at most `max_bytes` after `start` and not after `upper`; None if there is
        none. Raises CorruptLog, also if a header on the way contradicts `epochs`.
        """
        if start + max_bytes >= upper.position:
            return upper
        found: BatchBoundary | None = None
        epoch: int | None = None
        for position, header in self.scan(
            max(start, self._indexed_position(start + max_bytes)), upper.position
        ):
            if header.leader_epoch != epoch and epochs is not None:
                epoch = header.leader_epoch
                if not epochs.allows(epoch, header.last_offset):
                    raise CorruptLog(f"{self.path()}: leader epoch {epoch} at {position}")
            if position > start:
                found = BatchBoundary(position, header.base_offset)
            if position + header.size > start + max_bytes:
                break
            found = BatchBoundary(position + header.size, header.next_offset)
        return found

    def find_timestamp(self, timestamp: int, from_offset: int) -> Iterator[BatchAt]:
        """The batches that may hold the first record at or after a timestamp, in order."""
        start = max(find_offset_for_time(self.time_index, self.base_offset, timestamp), from_offset)
        for batch in self.scan(find_position(self.offset_index, self.base_offset, start)):
            if batch.header.max_timestamp >= timestamp and batch.header.last_offset >= from_offset:
                yield batch

    def detect_transactions(self) -> None:
        """Determine whether the segment has transactions, which is unknown after a restart."""
        if self.has_transactions is None:
            self.has_transactions = any(batch.header.is_transactional for batch in self.scan(0))

    def read_batch(self, batch: BatchAt) -> bytes:
        file = self.file
        return self.files.read_at(file.fd, batch.header.size, batch.position)

    def _past_damage(self, position: int) -> int:
        for damage in self.damage:
            if damage.position <= position < damage.end_position:
                return damage.end_position
        return position

    def _indexed_position(self, position: int) -> int:
        """The last indexed batch boundary at or before a position, or 0."""
        index = self.offset_index
        size = OFFSET_ENTRY.size
        at = bisect_right(
            range(0, len(index), size), position, key=lambda at: OFFSET_ENTRY.unpack_from(index, at)[1]
        )
        return int(OFFSET_ENTRY.unpack_from(index, (at - 1) * size)[1]) if at else 0

    def add_time_entry(self) -> None:
        """Add an entry if the maximum timestamp has grown, as Kafka's `maybeAppend`."""
        index = self.time_index
        last = TIME_ENTRY.unpack_from(index, len(index) - TIME_ENTRY.size)[0] if index else NO_TIMESTAMP
        if self.max_timestamp > last:
            index.extend(TIME_ENTRY.pack(self.max_timestamp, self._maximum_offset - self.base_offset))
