"""One segment: a `.log` file of record batches and its three sparse indexes.

Indexes are kept in memory as the very bytes of Kafka's files, so look-ups are the same for a live and a
loaded one, and nothing but the batch itself is written on the hot path. They reach their files when the
segment is rolled or closed, and are rebuilt from the batches after a crash. A rolled segment lets go of its
indexes when others are read more often (`unload`). The descriptor of any segment may be closed, from any
thread, when too many are open: whoever uses `file` holds it meanwhile, and slices handed out do too.

Invariants: bytes beyond `size` were never acknowledged and are overwritten; `end_offset` is one past the
last batch; a file of no bytes may not exist yet. A log's segments are PartitionLog's to change, on the event
loop; `sync` runs in threads beside it, and once the loop has let go of the log, `persist` and `close` may.
Recovery owns them before, the cleaner those that it writes.
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
"""A segment that has grown to the first doubles its room on the disk ahead of the appends, by the second at
the most: writes into reserved blocks cost a quarter to a half less, and the file's blocks lie together.
"""

RESERVE_WHERE_FREE = 2
RESERVE_ABOVE = 10
"""A segment's room is reserved where so many times as much is free, and more than one part in so many of the
disk: what fills it is not to be room for records that may never come, of however many partitions.
"""

SCAN_BYTES = 4096
"""One read of a header scan: the default index interval, so that it seldom takes two."""


class CorruptLog(Exception):
    """Bytes below the log end are not batches: the disk changed them. The segment may not be served."""


class BatchAt(NamedTuple):
    position: int
    header: BatchHeader


class BatchBoundary(NamedTuple):
    """A batch boundary: everything before `position` lies below `end_offset`."""

    position: int
    end_offset: int


class Damage(NamedTuple):
    """What the disk has changed in a segment, from the batch where it begins to the next one that is whole:
    positions in the file, and the offsets that are lost with it.
    """

    position: int
    end_position: int
    start_offset: int
    end_offset: int


class Segment:
    __slots__ = (
        "__weakref__",
        "_bytes_since_entry",
        "_has_excess",
        "_maximum_offset",
        "_offset_index",
        "_reserved",
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
        """What its files' names have at the end while compaction makes or replaces it."""
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
        """How often bytes were taken from its end, or put back where they were damaged: what was copied of it
        before holds only if this is as it was.
        """
        self.damage: tuple[Damage, ...] = ()
        """As far as it is known: reads go around it."""
        self.open_file: SharedFile | None = None
        """As long as there are not too many: take it by `file`."""
        self._offset_index: bytearray | None = bytearray()
        self._time_index: bytearray | None = bytearray()
        self._txn_index: bytearray | None = bytearray()
        self._maximum_offset = base_offset  # of the batch that set max_timestamp
        self._bytes_since_entry = 0
        self._has_excess = False  # a failed write may have left bytes beyond `size`
        self._reserved = False
        self.reserved_to = RESERVE_FROM
        """An append that ends beyond it is followed by `reserve_ahead`."""

    # -- what it is made of --

    def path(self, suffix: str = LOG) -> Path:
        return segment_file(self.directory, self.base_offset, suffix + self.file_suffix)

    @property
    def file(self) -> SharedFile:
        """Open; to be held by whoever uses its descriptor. Raises OSError."""
        file = self.open_file
        if file is None:
            create = self.size == 0 and not self.rolled  # what has bytes and is gone must not come back empty
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
    def has_excess_bytes(self) -> bool:
        """Whether a failed write may have left bytes beyond `size`."""
        return self._has_excess

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
        """Writes one batch at the end. An OSError leaves the segment as it was (the bytes beyond `size` are
        void).
        """
        position = self.size
        self._write(buffer, now_ms)
        self.index_batch(position, header, base_offset, interval_bytes)

    def append_run(
        self, buffer: Buffer, batches: Sequence[BatchAt], interval_bytes: int, now_ms: int
    ) -> None:
        """Writes batches that lie one after the other in the buffer, from its start to its end, at once; as
        `append` where it fails. They keep their offsets.
        """
        start, first = self.size, batches[0].position
        self._write(buffer, now_ms)
        for position, header in batches:
            self.index_batch(start + position - first, header, header.base_offset, interval_bytes)

    def _write(self, buffer: Buffer, now_ms: int) -> None:
        if self._has_excess:
            self.trim()
        position = self.size
        try:
            file = self.open_file or self.file
            self.files.writev_at(file.fd, (buffer,), position)
            file.unsynced = True
        except OSError:
            self._has_excess = True
            with suppress(OSError):  # gives back the room at once; if that fails too, the next use cuts
                self.trim()
            raise
        self.size = position + len(buffer)
        self.last_modified_ms = now_ms
        if position == 0:
            self.created_ms = now_ms

    def index_batch(self, position: int, header: BatchHeader, base_offset: int, interval_bytes: int) -> None:
        """Takes a batch that stands at `position` into the indexes and totals (append and rebuild share
        it).
        """
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
        """Makes the segment immutable: the last time entry is its maximum, and the indexes go to their
        files.
        """
        self.add_time_entry()
        self.persist()
        self.rolled = True

    def persist(self) -> None:
        """Writes the index files, cuts what a failed write left in the log and gives back room that is
        reserved. Not durable before `sync`.
        """
        if self._has_excess or self._reserved:
            self.trim()
        for suffix, content in (
            (OFFSET_INDEX, self.offset_index),
            (TIME_INDEX, self.time_index),
            (TXN_INDEX, self.txn_index),
        ):
            if suffix == TXN_INDEX and not content:
                self.files.unlink(self.path(suffix), missing_ok=True)
                continue
            fd = self.files.open(self.path(suffix), create=True)
            try:
                self.files.writev_at(fd, (content,), 0)
                self.files.truncate(fd, len(content))
            finally:
                self.files.close(fd)

    def sync(self) -> None:
        """fdatasync of the log, and of the indexes if the segment is rolled. May run in a thread, so it keeps
        nothing open that the loop has let go of.
        """
        try:
            file = self.open_file or SharedFile(self.files, self.path())
        except FileNotFoundError:
            if self.size or self.rolled:
                raise
            return  # nothing was ever appended
        file.unsynced = False  # first: an append beside it sets it again
        self.files.sync(file.fd)
        if self.rolled:
            for suffix in INDEXES if self.has_aborts else INDEXES[:2]:
                fd = self.files.open(self.path(suffix))
                try:
                    self.files.sync(fd)
                finally:
                    self.files.close(fd)

    def create(self) -> None:
        """Its file, empty, so that its name says where the log goes on.

        Never is an empty file truncated: of one that was cut to nothing, ext4 writes out all dirty pages when
        it is closed (auto_da_alloc, which is for those who replace files so), some 40 ms for 64 MiB.
        """
        file = self.file
        if self.files.size(file.fd):
            self.trim()

    def trim(self) -> None:
        """Cuts the file to `size`, and with it room that is reserved beyond."""
        file = self.file
        self.files.truncate(file.fd, self.size)
        self._has_excess = self._reserved = False
        self.reserved_to = max(RESERVE_FROM, self.size)

    def reserve_ahead(self, most: int) -> None:
        """Takes room for as much again, within a segment of `most` bytes."""
        self.reserve(min(2 * self.size, self.size + RESERVE_AHEAD, most))

    def reserve(self, end: int) -> None:
        """Takes the room up to a position of the file, if there is plenty (`preallocate`: of a whole segment,
        ahead of its first batch). The size of the file stays as it is, so a crash leaves nothing to be cut.
        """
        self.reserved_to = max(end, self.size + RESERVE_FROM)  # also in vain: the next try is not at once
        count = end - self.size
        with suppress(OSError):  # a disk that cannot do it does without; what was appended stays so
            file = self.file
            total, usable = self.files.space(self.directory)
            if count > 0 and usable >= max(RESERVE_WHERE_FREE * count, total // RESERVE_ABOVE):
                self.files.reserve(file.fd, self.size, count)
                self._reserved = True

    def release_reserved(self) -> bool:
        """Room that is reserved and not used; False if there is none. Raises OSError."""
        if not self._reserved:
            return False
        self.trim()
        return True

    def unload(self) -> None:
        """Lets go of descriptor and indexes; the next use brings them back."""
        if self.rolled:
            self.files.open_files.let_go(self)
            self._offset_index = self._time_index = self._txn_index = None

    def switch_directory(self, directory: Path, files: Files) -> None:
        """Its files have moved, byte for byte; who reads the old ones still may."""
        self.directory, self.files = directory, files
        files.open_files.let_go(self)
        self._has_excess = self._reserved = False
        self.reserved_to = max(RESERVE_FROM, self.size)

    def close(self) -> None:
        """Lets go of the descriptor for good; slices handed out keep it until they are sent."""
        self.files.open_files.let_go(self)

    def prefix_until(self, cut: BatchBoundary, interval_bytes: int) -> "Segment":
        """What is left of it before a boundary, as a description of the same file. Raises OSError, and
        CorruptLog if the batches cannot be walked over.
        """
        rest = Segment(self.files, self.directory, self.base_offset, self.created_ms)
        for position, header in self.scan(0, cut.position):
            rest.index_batch(position, header, header.base_offset, interval_bytes)
        for transaction in decode_txn_index(self.txn_index):
            if transaction.last_offset < cut.end_offset:
                rest.add_aborted(transaction)
        rest.size, rest.end_offset = cut.position, cut.end_offset
        rest.damage = tuple(one for one in self.damage if one.position < cut.position)
        return rest

    def truncate_to(self, rest: "Segment") -> None:
        """End where `rest` ends (`prefix_until`), active again. After an OSError the bytes beyond
        are void.
        """
        self.rolled = False
        self.content_version += 1
        self.size, self.end_offset, self.damage = rest.size, rest.end_offset, rest.damage
        self.set_indexes(rest.offset_index, rest.time_index, rest.txn_index)
        self.max_timestamp, self.first_timestamp = rest.max_timestamp, rest.first_timestamp
        self.has_transactions = rest.has_transactions
        self.resume_index(rest.size - rest._bytes_since_entry, rest._maximum_offset)
        self._has_excess = True
        self.trim()

    def reset_indexes(self) -> None:
        """Before a rebuild: as if no batch had been seen."""
        self._offset_index, self._time_index, self._txn_index = bytearray(), bytearray(), bytearray()
        self.max_timestamp = self.first_timestamp = NO_TIMESTAMP
        self._maximum_offset = self.end_offset = self.base_offset
        self._bytes_since_entry = 0
        self.has_transactions, self.has_aborts, self.rolled = False, False, False

    def set_indexes(self, offset_index: Buffer, time_index: Buffer, txn_index: Buffer) -> None:
        """Indexes read from their files."""
        self._offset_index, self._time_index, self._txn_index = map(
            bytearray, (offset_index, time_index, txn_index)
        )
        self.has_aborts = bool(txn_index)
        self.has_transactions = True if txn_index else None

    def resume_index(self, last_entry_position: int, maximum_offset: int) -> None:
        """After a clean start: where the loaded indexes end, so that appending goes on as if it had never
        stopped.
        """
        self._bytes_since_entry = 0 if self.size == 0 else self.size - last_entry_position
        self._maximum_offset = maximum_offset

    # -- reading --

    def scan(
        self, position: int, end: int | None = None, *, expected: int | None = None
    ) -> Iterator[BatchAt]:
        """Position and header of each batch from a batch boundary on, save those known to be damaged; raises
        CorruptLog where lengths or offsets cannot be. `expected`: all batches before end below it.
        """
        end = self.size if end is None else end
        expected = self.base_offset if expected is None else expected
        most = self.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if position >= end:
            return  # where nothing was ever appended a look makes no file
        file, read_at = self.file, self.files.read_at  # held: the segment may be unloaded meanwhile
        chunk, chunk_at = b"", position
        while position < end:
            if self.damage and (sound := self._past_damage(position)) != position:
                position = sound
                continue
            if position - chunk_at + HEADER_SIZE > len(chunk):
                chunk, chunk_at = read_at(file.fd, SCAN_BYTES, position), position
                if len(chunk) < HEADER_SIZE:
                    raise CorruptLog(f"{self.path()}: cut at {position}")
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
        """The first batch that ends above `offset`; None if the segment has none."""
        for batch in self.scan(find_position(self.offset_index, self.base_offset, offset)):
            if batch.header.last_offset >= offset:
                return batch
        return None

    def boundary_before(self, offset: int) -> BatchBoundary:
        """The boundary before which every batch lies wholly below `offset`: a reader's upper end."""
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
        """The last batch boundary at most `max_bytes` after `start` and not after `upper`; None if none
        fits. Raises CorruptLog, also where a header on the way is of another leader epoch than `epochs` say.
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
        """The batches that may hold the first record at or after a timestamp, nearest first."""
        start = max(find_offset_for_time(self.time_index, self.base_offset, timestamp), from_offset)
        for batch in self.scan(find_position(self.offset_index, self.base_offset, start)):
            if batch.header.max_timestamp >= timestamp and batch.header.last_offset >= from_offset:
                yield batch

    def detect_transactions(self) -> None:
        """After a start it is not known whether a segment has any."""
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
        """The last indexed batch boundary at or before a position; 0 if there is none."""
        index = self.offset_index
        size = OFFSET_ENTRY.size
        at = bisect_right(
            range(0, len(index), size), position, key=lambda at: OFFSET_ENTRY.unpack_from(index, at)[1]
        )
        return int(OFFSET_ENTRY.unpack_from(index, (at - 1) * size)[1]) if at else 0

    def add_time_entry(self) -> None:
        """Only if it says something new, as Kafka's `maybeAppend`."""
        index = self.time_index
        last = TIME_ENTRY.unpack_from(index, len(index) - TIME_ENTRY.size)[0] if index else NO_TIMESTAMP
        if self.max_timestamp > last:
            index.extend(TIME_ENTRY.pack(self.max_timestamp, self._maximum_offset - self.base_offset))
