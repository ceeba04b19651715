"""Segment check: what an executor does for `audit`. Reads every byte of a segment and of its index bundle.

It compares the CRC-32C of both objects, of every chunk and of every batch; offsets and leader epochs of the
batches; the counts, timestamps and epochs of the manifest entry; and every entry of the indexes with the
batches to which it points. After damage it continues with the next chunk, so that one run finds all of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from crc32c import crc32c

from tierlog.base.checksums import crc32c_combine
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import BatchHeader, check_batch
from tierlog.records.chunks import CHUNK_BYTES, ChunkEntry
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import (
    OffsetEntry,
    TimeEntry,
    decode_offset_index,
    decode_time_index,
)
from tierlog.spark.history.bucket import Bucket, open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_index import OffsetIndex, Piece
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.bundle import BundleError, IndexBundle, chunks_of, decode_bundle, read_places
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound

T = TypeVar("T")

DAMAGES_MAX = 20
"""Damages that are reported for one segment."""

RESTORE = (
    "put back an intact version of the object under the same key, or let the leader restore it from a "
    "replica: `tierlog tier verify`, then docs/runbooks/damaged-object.md"
)


@dataclass(frozen=True, slots=True)
class Damage:
    """`offset`: the first one that may be affected. `position`: in the object, -1 if all of it is
    affected."""

    topic: str
    partition: int
    offset: int
    object: str
    position: int
    problem: str
    missing: bool = False
    remedy: str = RESTORE


@dataclass(frozen=True, slots=True)
class SegmentToCheck:
    source: Source
    entry: RemoteSegment


@dataclass(slots=True)
class Checked:
    """Counts of what was read, which can be added up over segments, and the damage that was found."""

    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    damages: list[Damage] = field(default_factory=list)

    def add(self, other: "Checked") -> None:
        self.segments += other.segments
        self.bytes += other.bytes
        self.batches += other.batches
        self.records += other.records
        self.damages += other.damages


@dataclass(frozen=True, slots=True)
class AuditTask:
    store: StoreAddress
    cluster: str
    segments: tuple[SegmentToCheck, ...]


def check_segments(task: AuditTask) -> Checked:
    """Check the segments of a task."""
    total = Checked()
    for segment in task.segments:
        check = _SegmentCheck(open_bucket(task.store), Keys(task.cluster), segment)
        total.add(check.run())
    return total


class _SegmentCheck:
    def __init__(self, bucket: Bucket, keys: Keys, segment: SegmentToCheck) -> None:
        self._bucket = bucket
        self._source, self._entry = segment.source, segment.entry
        self._log_key = keys.log(self._source.id, self._entry)
        self._index_key = keys.index(self._source.id, self._entry)
        self._found = Checked(segments=1)

    def run(self) -> Checked:
        bundle, chunks = self._check_bundle()
        walk = _Walk(self._entry, bundle)
        checksum, is_complete = 0, True
        for piece in self._pieces(bundle, chunks):
            content = self._read(piece)
            if content is None:
                is_complete = False
                walk.skip()
                continue
            checksum = crc32c_combine(checksum, crc32c(content), len(content))
            is_complete &= self._check_batches(content, piece, walk)
        if is_complete:
            if checksum != self._entry.log_crc32c:
                self._damage(self._log_key, "the CRC-32C of the object differs from the manifest")
            for problem in walk.totals():
                self._damage(self._log_key, problem)
            for problem in walk.index_problems():
                self._damage(self._index_key, problem)
        self._found.batches, self._found.records = walk.batches, walk.records
        return self._found

    def _check_bundle(self) -> tuple[IndexBundle | None, tuple[ChunkEntry, ...] | None]:
        entry, key = self._entry, self._index_key
        try:
            data = self._bucket.read(key, 0, entry.index_bytes)
            self._found.bytes += len(data)
            if crc32c(data) != entry.index_crc32c:
                raise CorruptObject("the CRC-32C of the index bundle differs from the manifest")
            bundle = decode_bundle(data)
            chunks = chunks_of(entry, data, read_places(data))
        except ObjectNotFound:
            self._damage(key, "the object is missing", missing=True)
            return None, None
        except (CorruptObject, BundleError) as failure:
            self._damage(key, str(failure))
            return None, None
        if bool(bundle.txn_index) != entry.has_aborts:
            self._damage(key, "the transaction index contradicts `has_aborts` of the manifest")
        if bundle.leader_epochs and not set(entry.leader_epochs) <= set(bundle.leader_epochs):
            self._damage(key, "the leader epochs differ from the manifest")
        return bundle, chunks

    def _pieces(self, bundle: IndexBundle | None, chunks: tuple[ChunkEntry, ...] | None) -> list[Piece]:
        entry = self._entry
        if chunks is not None:
            ends = [*(chunk.position for chunk in chunks[1:]), entry.log_bytes]
            return [
                Piece(chunk.position, end, chunk.first_offset, chunk.crc32c)
                for chunk, end in zip(chunks, ends, strict=True)
            ]
        if bundle is not None:
            index = OffsetIndex(entry, bundle.offset_index, bundle.time_index)
            return index.pieces(entry.base_offset, entry.end_offset, CHUNK_BYTES)
        return [Piece(0, entry.log_bytes, entry.base_offset, entry.log_crc32c)]

    def _read(self, piece: Piece) -> bytes | None:
        """The bytes of a piece; None if they are damaged, which is reported."""
        try:
            content = self._bucket.read(self._log_key, piece.start, piece.end)
        except ObjectNotFound:
            if piece.start == 0:
                self._damage(self._log_key, "the object is missing", missing=True)
            return None
        except CorruptObject as failure:
            self._damage(self._log_key, str(failure), piece.start, piece.least_last_offset)
            return None
        self._found.bytes += len(content)
        if piece.crc32c is not None and crc32c(content) != piece.crc32c:
            problem = f"the CRC-32C of bytes {piece.start} to {piece.end} differs from that at their upload"
            self._damage(self._log_key, problem, piece.start, piece.least_last_offset)
            return None
        return content

    def _check_batches(self, content: bytes, piece: Piece, walk: "_Walk") -> bool:
        """Whether all batches of a piece are intact. Damage is reported."""
        at = 0
        try:
            while at < len(content):
                header = check_batch(content, at)
                problem = walk.add(piece.start + at, header)
                if problem:
                    self._damage(self._log_key, problem, piece.start + at, header.base_offset)
                at += header.size
        except RecordsError as failure:
            offset = max(walk.next_offset, piece.least_last_offset)
            self._damage(self._log_key, str(failure), piece.start + at, offset)
            walk.skip()
            return False
        return True

    def _damage(
        self, key: str, problem: str, position: int = -1, offset: int | None = None, missing: bool = False
    ) -> None:
        if len(self._found.damages) < DAMAGES_MAX:
            first = self._entry.base_offset if offset is None else offset
            self._found.damages.append(
                Damage(self._source.topic, self._source.partition, first, key, position, problem, missing)
            )


class _Walk:
    """Compares the batches of a segment, in order, with the manifest entry and with the indexes."""

    def __init__(self, entry: RemoteSegment, bundle: IndexBundle | None) -> None:
        self._entry = entry
        self._bundle = bundle
        self._epochs = iter(pairwise([*entry.leader_epochs, (-1, 1 << 63)]))
        self._epoch = next(self._epochs, ((-1, 0), (-1, 1 << 63)))
        self._problems: list[str] = []
        self._offset_entries = self._decoded_offsets()
        self._time_entries = self._decoded_times()
        self._due_offset = next(self._offset_entries, None)
        self._due_time = next(self._time_entries, None)
        self._is_complete = True
        self._control_records = 0
        self._max_timestamp = -1
        self.batches = self.records = 0
        self.next_offset = entry.base_offset

    def add(self, position: int, header: BatchHeader) -> str:
        """A problem of the batch, or an empty string."""
        problem = self._problem(header)
        self.next_offset = max(self.next_offset, header.next_offset)
        self.batches += 1
        self.records += header.record_count
        if header.is_control:
            self._control_records += header.record_count
        if header.record_count:  # compaction may have removed the records that had the batch's timestamp
            self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._compare_indexes(position, header)
        return problem

    def skip(self) -> None:
        """Batches are unreadable: totals and index entries can no longer be compared."""
        self._is_complete = False
        self._due_offset = self._due_time = None

    def totals(self) -> Iterator[str]:
        """Differences between the batches and the manifest entry."""
        entry = self._entry
        compared = [("records", self.records, entry.records)]
        if self._max_timestamp > 0:  # else the entry has the time of the last write
            compared.append(("max_timestamp", self._max_timestamp, entry.max_timestamp))
        if entry.control_records != -1:
            compared.append(("control_records", self._control_records, entry.control_records))
        for name, found, expected in compared:
            if found != expected:
                yield f"`{name}` is {expected} in the manifest, and {found} in the object"

    def index_problems(self) -> list[str]:
        if self._is_complete and self._due_offset is not None:
            self._problems.append(f"offset index: no batch starts at position {self._due_offset.position}")
        if self._is_complete and self._due_time is not None:
            self._problems.append(f"time index: no batch contains offset {self._due_time.offset}")
        return self._problems

    def _problem(self, header: BatchHeader) -> str:
        if header.base_offset < self.next_offset:
            return f"offset {header.base_offset} follows {self.next_offset - 1}"
        if header.last_offset > self._entry.last_offset:
            return f"offset {header.last_offset} is above the segment's last offset {self._entry.last_offset}"
        while header.base_offset >= self._epoch[1][1]:
            self._epoch = next(self._epochs)
        if header.leader_epoch != self._epoch[0][0]:
            return f"leader epoch {header.leader_epoch} at an offset of epoch {self._epoch[0][0]}"
        return ""

    def _compare_indexes(self, position: int, header: BatchHeader) -> None:
        due = self._due_offset
        if due is not None and position >= due.position:
            if (position, header.last_offset) != (due.position, due.offset):
                self._problems.append(
                    f"offset index: {due} does not name the batch at {position} "
                    f"with offset {header.last_offset}"
                )
            self._due_offset = next(self._offset_entries, None)
        while (time := self._due_time) is not None and header.last_offset >= time.offset:
            if header.base_offset > time.offset or header.max_timestamp != time.timestamp:
                self._problems.append(
                    f"time index: {time} does not name the batch at {position} "
                    f"with timestamp {header.max_timestamp}"
                )
            self._due_time = next(self._time_entries, None)

    def _decoded_offsets(self) -> Iterator[OffsetEntry]:
        index = self._bundle.offset_index if self._bundle else b""
        return self._valid(decode_offset_index(index, self._entry.base_offset))

    def _decoded_times(self) -> Iterator[TimeEntry]:
        index = self._bundle.time_index if self._bundle else b""
        return self._valid(decode_time_index(index, self._entry.base_offset))

    def _valid(self, entries: Iterator[T]) -> Iterator[T]:
        """The entries up to the first damaged one."""
        try:
            yield from entries
        except RecordsError as failure:
            self._problems.append(str(failure))
