"""Query plan: computes splits from manifests and options. Pure.

A split is what one task reads: parts, in order. A part is a byte range of one segment between two batch
boundaries, as its index divides it (`segment_index`), so every batch belongs to exactly one part. Only
segments in the manifest are read; other objects in the bucket are not committed. `snapshot` calls these
functions and does the I/O in between.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import ManifestNode, RemoteSegment
from tierlog.records.indexes import AbortedTxn, find_aborted
from tierlog.spark.history.segment_index import SegmentIndex
from tierlog.spark.options import EARLIEST, LATEST, Bound, InvalidOption, ReadOptions
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestRoot, TopicDocument

MAX_OFFSET = 2**63 - 1
PART_BYTES = 8 << 20
"""Size of a part, unless one chunk is larger. Bounds what a task has in memory."""
SPLITS_OF_A_SMALL_QUERY = 16
"""A query that is too small for splits of `splitBytes` has this many, so that as many cores share it."""


class OffsetsUnavailable(ValueError):
    """The requested offsets are not in the bucket: deleted by retention, or not uploaded yet."""


@dataclass(frozen=True, slots=True)
class Source:
    """One partition to read."""

    topic: str
    topic_id: uuid.UUID
    partition: int

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def place(self, key: str, start: int, end: int) -> str:
        """Names bytes of an object in error messages."""
        return f"{self}: {key}, bytes {start} to {end}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end)."""

    start: int
    end: int

    def __bool__(self) -> bool:
        return self.start < self.end

    def overlaps(self, entry: ManifestNode) -> bool:
        return bool(self) and entry.base_offset < self.end and entry.last_offset >= self.start


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [start, end) of an object: complete batches. The reader drops records outside
    `offsets` and records of `aborted` transactions. `last_offsets`: range of the batches' last offsets, by
    which they are found in an object that has replaced this one. `crc32c`: checksum of the bytes; None if
    only the batches have checksums. `compacted_at`: when compaction had last changed them, in milliseconds
    since 1970; -1: never."""

    source: Source
    key: str
    start: int
    end: int
    offsets: OffsetRange
    last_offsets: OffsetRange
    crc32c: int | None
    aborted: tuple[AbortedTxn, ...] = ()
    compacted_at: int = -1

    @property
    def place(self) -> str:
        return self.source.place(self.key, self.start, self.end)


Split: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Pruning:
    """Topics, partitions and offsets to which the query's filters limit the scan. They may be too many,
    because Spark evaluates all filters again."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offsets: OffsetRange = field(default_factory=lambda: OffsetRange(0, MAX_OFFSET))

    def keeps(self, source: Source) -> bool:
        return (self.topics is None or source.topic in self.topics) and (
            self.partitions is None or source.partition in self.partitions
        )

    def narrow(self, column: str, comparison: str, value: object) -> "Pruning":
        """The pruning with one more condition. Unsupported columns and comparisons do not change it."""
        if comparison == "in" and isinstance(value, tuple) and value:
            return self._restricted_to(column, frozenset(value))
        if comparison == "=":
            return self._restricted_to(column, frozenset((value,)))
        if column == "offset" and type(value) is int:
            return replace(self, offsets=_clipped(self.offsets, comparison, value))
        return self

    def _restricted_to(self, column: str, values: frozenset[object]) -> "Pruning":
        if column == "topic" and all(type(value) is str for value in values):
            topics = frozenset(value for value in values if type(value) is str)
            return replace(self, topics=topics if self.topics is None else self.topics & topics)
        numbers = frozenset(value for value in values if type(value) is int)
        if len(numbers) != len(values):
            return self
        if column == "partition":
            return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)
        if column == "offset":
            return self.narrow("offset", ">=", min(numbers)).narrow("offset", "<=", max(numbers))
        return self


def choose_sources(documents: Iterable[TopicDocument], options: ReadOptions) -> list[Source]:
    """The partitions that the options select. Raises InvalidOption if one does not exist."""
    by_name: dict[str, list[TopicDocument]] = {}
    for document in documents:
        by_name.setdefault(document.name, []).append(document)
    sources = []
    for topic in options.topics:
        found = by_name.get(topic, [])
        if len(found) != 1:
            ids = ", ".join(str(document.topic_id) for document in found)
            raise InvalidOption(
                f"topic {topic!r} " + (f"is ambiguous: {ids}" if found else "is not in the bucket")
            )
        (document,) = found
        wanted = range(document.partitions) if options.partitions is None else sorted(options.partitions)
        if wanted and wanted[-1] >= document.partitions:
            raise InvalidOption(
                f"topic {topic!r} has no partition {wanted[-1]}: it has {document.partitions} partitions"
            )
        sources += [Source(topic, document.topic_id, partition) for partition in wanted]
    return sources


def committed_range(root: ManifestRoot) -> OffsetRange:
    """The offsets in the bucket that retention has not deleted."""
    remote = root.nodes
    if not remote:
        return OffsetRange(root.log_start_offset, root.log_start_offset)
    return OffsetRange(max(root.log_start_offset, remote[0].base_offset), remote[-1].last_offset + 1)


def resolve_bound(source: Source, bound: Bound, committed: OffsetRange, fail_on_data_loss: bool) -> int:
    """The offset of a bound. If it is not in the bucket, raises OffsetsUnavailable, or with
    `fail_on_data_loss` False returns the nearest offset that is."""
    offset = bound.offset_of(source.topic, source.partition)
    if offset == EARLIEST:
        return committed.start
    if offset == LATEST:
        return committed.end
    if not committed.start <= offset <= committed.end and fail_on_data_loss:
        raise OffsetsUnavailable(
            f"{source}: offset {offset} is not in the bucket, which has [{committed.start}, {committed.end});"
            " set failOnDataLoss=false to read the available offsets"
        )
    return min(max(offset, committed.start), committed.end)


def nodes_in(nodes: Iterable[ManifestNode], wanted: OffsetRange) -> list[ManifestNode]:
    """The entries and pages that have one of the wanted offsets."""
    return [node for node in nodes if wanted.overlaps(node)]


def nodes_from_time(nodes: Iterable[ManifestNode], timestamp_ms: int, log_start: int) -> list[ManifestNode]:
    """The entries and pages that have a record at or after the timestamp and that end above the log start
    offset."""
    return [node for node in nodes if node.max_timestamp >= timestamp_ms and node.end_offset > log_start]


def parts_of_segment(
    keys: Keys,
    source: Source,
    entry: RemoteSegment,
    index: SegmentIndex,
    wanted: OffsetRange,
    part_bytes: int,
    txn_index: bytes = b"",
) -> list[Part]:
    """The parts of one segment. `txn_index`: its transaction index, if it has aborted transactions."""
    offsets = OffsetRange(max(wanted.start, entry.base_offset), min(wanted.end, entry.end_offset))
    if not offsets:
        return []
    pieces = index.pieces(offsets.start, offsets.end, part_bytes)
    key = keys.log(source.id, entry)
    starts = [max(offsets.start, piece.least_last_offset) for piece in pieces]
    last_offsets = [OffsetRange(*ends) for ends in pairwise([*starts, MAX_OFFSET])]
    before = [offsets.start, *starts]  # the first batch of a piece may begin below its own start
    return [
        Part(
            source,
            key,
            piece.start,
            piece.end,
            offsets,
            ends,
            piece.crc32c,
            tuple(find_aborted(txn_index, at_least, min(ends.end, offsets.end))),
            entry.compacted_at,
        )
        for piece, ends, at_least in zip(pieces, last_offsets, before, strict=False)
    ]


def group_into_splits(parts: Sequence[Part], split_bytes: int) -> list[Split]:
    """All parts, in order, in splits of at most `split_bytes`, or of one part that is larger. Splits of a
    small query are smaller."""
    total = sum(part.end - part.start for part in parts)
    share = -(-total // SPLITS_OF_A_SMALL_QUERY)
    most = min(split_bytes, max(PART_BYTES, share))
    splits: list[list[Part]] = []
    room = 0
    for part in parts:
        size = part.end - part.start
        if size > room:
            splits.append([])
            room = most
        splits[-1].append(part)
        room -= size
    return [tuple(split) for split in splits]


def _clipped(offsets: OffsetRange, comparison: str, value: int) -> OffsetRange:
    start, end = offsets.start, offsets.end
    match comparison:
        case ">":
            start = max(start, value + 1)
        case ">=":
            start = max(start, value)
        case "<":
            end = min(end, value)
        case "<=":
            end = min(end, value + 1)
    return OffsetRange(start, end)
