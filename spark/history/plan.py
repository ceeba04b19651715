"""Query plan: computes splits from manifests and options. Pure.

A split is what one task reads: parts, in order. A part is a byte range of one segment between two batch
boundaries, as its index divides it (`segment_index`), so every batch belongs to exactly one part. Only
segments in the manifest are read; other objects in the bucket are not committed. `snapshot` calls these
functions and does the I/O in between.
"""

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TypeAlias

import msgspec
import zstandard

from tierlog.base.types import NO_TIMESTAMP, TopicIdPartition
from tierlog.metadata.records import ManifestNode, RemoteSegment
from tierlog.records.indexes import AbortedTxn, find_aborted
from tierlog.spark.history.segment_index import SegmentIndex
from tierlog.spark.options import EARLIEST, LATEST, Bound, InvalidOption, ReadOptions, Table
from tierlog.spark.options.table import similar
from tierlog.tiering.format.keys import Keys, log_name
from tierlog.tiering.format.manifest import ManifestRoot, TopicDocument

MAX_OFFSET = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PART_BYTES = 8 << 20
"""Size of a part, unless one chunk is larger. Bounds what a task has in memory."""
EXAMPLES = 5
"""Names of topics that an error shows."""
SPLITS_OF_A_SMALL_QUERY = 16
"""A query that is too small for splits of `splitBytes` has this many, so that as many cores share it."""


class OffsetsUnavailable(ValueError):
    """The requested offsets are not in the bucket: deleted by retention, or not uploaded yet."""


class Source(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


class OffsetRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets [start, end)."""

    start: int
    end: int

    def __bool__(self) -> bool:
        return self.start < self.end

    def overlaps(self, entry: ManifestNode) -> bool:
        return bool(self) and entry.base_offset < self.end and entry.last_offset >= self.start


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
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

    @property
    def rows(self) -> range:
        """The offsets that its rows may have."""
        start = max(self.offsets.start, self.last_offsets.start)
        return range(start, max(start, min(self.offsets.end, self.last_offsets.end)))


Split: TypeAlias = tuple[Part, ...]
_SPLIT = msgspec.msgpack.Decoder(Split)


def pack_split(split: Split) -> bytes:
    """As Spark's driver keeps it and sends it to an executor: about 60 bytes a part, a tenth of a pickle."""
    return zstandard.compress(msgspec.msgpack.encode(split), level=1)


def unpack_split(packed: bytes) -> Split:
    return _SPLIT.decode(zstandard.decompress(packed))


@dataclass(frozen=True, slots=True)
class Pruning:
    """Topics, partitions, offsets and timestamps to which the query's filters limit the scan. They may be too
    many, because Spark evaluates all filters again. `since_ms`: least wanted timestamp; `until_ms`: the first
    one that is not wanted; None: no limit."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offsets: OffsetRange = field(default_factory=lambda: OffsetRange(0, MAX_OFFSET))
    since_ms: int = 0
    until_ms: int | None = None

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
        if column == "timestamp" and isinstance(value, datetime):
            return self._clipped_in_time(comparison, value)
        return self

    def _clipped_in_time(self, comparison: str, value: datetime) -> "Pruning":
        ms = (value.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)
        if comparison in (">", ">="):
            return replace(self, since_ms=max(self.since_ms, ms))
        return replace(self, until_ms=ms + 1 if self.until_ms is None else min(self.until_ms, ms + 1))

    def _restricted_to(self, column: str, values: frozenset[object]) -> "Pruning":
        if column == "topic" and all(type(value) is str for value in values):
            topics = frozenset(value for value in values if type(value) is str)
            return replace(self, topics=topics if self.topics is None else self.topics & topics)
        stamps = [value for value in values if isinstance(value, datetime)]
        if column == "timestamp" and len(stamps) == len(values):
            return self.narrow("timestamp", ">=", min(stamps)).narrow("timestamp", "<=", max(stamps))
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
    topics = options.topics
    if options.pattern is not None:
        topics = tuple(sorted(name for name in by_name if re.fullmatch(options.pattern, name)))
        if not topics and options.table is Table.RECORDS:
            raise InvalidOption(
                f"no topic in the bucket matches {options.pattern!r}: `subscribePattern` must match the "
                f"whole name of one of {len(by_name)} topics{_examples(by_name)}"
            )
    for topic in topics:
        if topic not in by_name:
            raise InvalidOption(
                f"topic {topic!r} is not in the bucket.{similar(topic, by_name)} A topic is uploaded if it "
                "has remote.storage.enable=true"
            )
    return [source for topic in topics for source in _sources_of(topic, by_name[topic], options)]


def selects_topic(topic: str, options: ReadOptions) -> bool:
    """Whether the options select a topic of this name."""
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    return topic in options.topics


def _sources_of(topic: str, found: Sequence[TopicDocument], options: ReadOptions) -> list[Source]:
    if len(found) != 1:
        ids = ", ".join(str(document.topic_id) for document in found)
        raise InvalidOption(
            f"topic {topic!r} is in the bucket more than once, with the ids {ids}: brokers are still "
            "deleting an earlier one. Run the query again in a minute"
        )
    (document,) = found
    named = options.partitions_of(topic)
    wanted = range(document.partitions) if named is None else sorted(named)
    if wanted and wanted[-1] >= document.partitions:
        option = "partitions" if options.assigned is None else "assign"
        raise InvalidOption(
            f"`{option}`: topic {topic!r} has no partition {wanted[-1]}, but {document.partitions} of them, "
            "numbered from 0"
        )
    return [Source(topic, document.topic_id, partition) for partition in wanted]


def _examples(names: Iterable[str]) -> str:
    """The first names, in brackets."""
    first = sorted(names)[:EXAMPLES]
    return f" ({', '.join(first)}{', …' if len(first) == EXAMPLES else ''})" if first else ""


def check_bounds(bounds: Iterable[Bound], sources: Iterable[Source]) -> None:
    """Raises InvalidOption for an offset or a timestamp of a partition that is not read: its name is wrong,
    and another one would be read from its default."""
    selected = {(source.topic, source.partition) for source in sources}
    for bound in bounds:
        for topic, partition in (*bound.offsets, *bound.timestamps):
            if (topic, partition) not in selected:
                raise InvalidOption(
                    f"an offset or a timestamp is set for {topic}-{partition}, which the query does not "
                    "read: leave it out of the JSON, or choose the topic and the partition"
                )


def committed_range(root: ManifestRoot) -> OffsetRange:
    """The offsets in the bucket that retention has not deleted."""
    remote = root.nodes
    if not remote:
        return OffsetRange(root.log_start_offset, root.log_start_offset)
    return OffsetRange(max(root.log_start_offset, remote[0].base_offset), remote[-1].last_offset + 1)


def may_reach(max_timestamp: int, since_ms: int) -> bool:
    """Whether records of this largest timestamp, -1 if unknown, may be at or after a time."""
    return max_timestamp >= since_ms or max_timestamp == NO_TIMESTAMP


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


def nodes_in(
    nodes: Iterable[ManifestNode], wanted: OffsetRange, since_ms: int = NO_TIMESTAMP
) -> list[ManifestNode]:
    """The entries and pages that have one of the wanted offsets, and that may have a record at or after
    `since_ms`. Their minimum of timestamps prunes nothing: it is that of the batches' first records, and
    others may be older."""
    return [node for node in nodes if wanted.overlaps(node) and may_reach(node.max_timestamp, since_ms)]


def nodes_from_time(nodes: Iterable[ManifestNode], timestamp_ms: int, log_start: int) -> list[ManifestNode]:
    """The entries and pages that have a record at or after the timestamp and that end above the log start
    offset."""
    return [node for node in nodes if node.max_timestamp >= timestamp_ms and node.end_offset > log_start]


def needs_an_index(entry: RemoteSegment, part_bytes: int) -> bool:
    """Whether the manifest's entry is not enough to read a segment."""
    return entry.has_aborts or entry.log_bytes > part_bytes


def whole_segment(folder: str, source: Source, entry: RemoteSegment, wanted: OffsetRange) -> list[Part]:
    """One part, if the segment has any of the wanted offsets: what `parts_of_segment` returns for a segment
    that needs no index, but fast, as a plan may have a million. `folder`: of the partition's segments."""
    start = max(wanted.start, entry.base_offset)
    offsets = OffsetRange(start, min(wanted.end, entry.end_offset))
    if not offsets:
        return []
    key, ends = folder + log_name(entry), OffsetRange(start, MAX_OFFSET)
    compacted_at = entry.compacted_at if entry.tags else -1
    return [Part(source, key, 0, entry.log_bytes, offsets, ends, entry.log_crc32c, (), compacted_at)]


def parts_of_segment(
    keys: Keys,
    source: Source,
    entry: RemoteSegment,
    index: SegmentIndex,
    wanted: OffsetRange,
    part_bytes: int,
    txn_index: bytes = b"",
    since_ms: int = NO_TIMESTAMP,
) -> list[Part]:
    """The parts of one segment. `txn_index`: its transaction index, if it has aborted transactions. Chunks
    whose records are all older than `since_ms` are left out."""
    offsets = OffsetRange(max(wanted.start, entry.base_offset), min(wanted.end, entry.end_offset))
    if not offsets:
        return []
    pieces = index.pieces(offsets.start, offsets.end, part_bytes, since_ms)
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


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Limits of splits. `max_records` counts offsets. Parts are not divided to reach `min_splits`."""

    split_bytes: int
    min_splits: int | None = None
    max_splits: int | None = None
    max_records: int | None = None

    def bytes_of_a_split(self, total: int) -> int:
        """For a query of `total` bytes. Splits of a small query are smaller."""
        most = min(self.split_bytes, max(PART_BYTES, -(-total // SPLITS_OF_A_SMALL_QUERY)))
        if self.min_splits is not None:
            most = min(most, total // self.min_splits)
        return max(1, most)


def group_into_splits(parts: Sequence[Part], limits: SplitLimits) -> list[Split]:
    """All parts, in order, in splits within the limits, or of one part that is larger. `max_splits` precedes
    the other limits."""
    if limits.max_records is not None:
        parts = [one for part in parts for one in _cut(part, limits.max_records)]
    total = sum(part.end - part.start for part in parts)
    most, most_records = limits.bytes_of_a_split(total), limits.max_records or MAX_OFFSET
    splits: list[list[Part]] = []
    room = records = 0
    for part in parts:
        size = part.end - part.start
        count = 0 if limits.max_records is None else len(part.rows)
        if size > room or count > records:
            splits.append([])
            room, records = most, most_records
        splits[-1].append(part)
        room, records = room - size, records - count
    if limits.max_splits is not None and len(splits) > limits.max_splits:
        return _shares(parts, total, limits.max_splits)
    return [tuple(split) for split in splits]


def _cut(part: Part, max_records: int) -> list[Part]:
    """Parts of the same bytes, each with at most so many of the offsets."""
    rows, offsets = part.rows, part.offsets
    cuts = [offsets.start, *rows[max_records::max_records], offsets.end]
    return [msgspec.structs.replace(part, offsets=OffsetRange(*pair)) for pair in pairwise(cuts)]


def _shares(parts: Sequence[Part], total: int, count: int) -> list[Split]:
    """The parts in at most `count` splits of about equal size."""
    shares: dict[int, list[Part]] = {}
    at = 0
    for part in parts:
        shares.setdefault(at * count // total, []).append(part)
        at += part.end - part.start
    return [tuple(share) for share in shares.values()]


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
