"""Reads manifests on Spark's driver: finds committed offsets, the splits that contain them, and timestamps.

The manifest root of a partition is read once per query, so that a query sees one version of it.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.records.batch import BatchHeader, check_batch, iter_batches
from tierlog.records.indexes import find_end_position, find_offset_for_time, find_position
from tierlog.records.record import iter_records
from tierlog.spark.bucket import Bucket
from tierlog.spark.options import Bound, InvalidOption, ReadOptions
from tierlog.spark.plan import (
    OffsetRange,
    Pruning,
    Source,
    Split,
    choose_sources,
    committed_range,
    nodes_from_time,
    nodes_in,
    resolve_bound,
    split_segment,
)
from tierlog.tiering.format.bundle import IndexBundle, decode_bundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import (
    ManifestRoot,
    decode_cluster,
    decode_page,
    decode_root,
    decode_topic,
)
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound

READS_AT_ONCE = 16
SCAN_BYTES = 1 << 20
MAX_BATCH_BYTES = 512 << 20


def plan_splits(bucket: Bucket, options: ReadOptions, pruning: Pruning) -> list[Split]:
    """All splits of a query, sorted by topic, partition and offset. Raises InvalidOption and
    OffsetsUnavailable."""
    keys = Keys(find_cluster(bucket, options.cluster))
    documents = [decode_topic(bucket.read(key)) for key in bucket.keys(keys.topics())]
    sources = [source for source in choose_sources(documents, options) if pruning.keeps(source)]
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        planned = pool.map(
            lambda source: list(PartitionView(bucket, keys, source).splits(options, pruning)), sources
        )
        return [split for splits in planned for split in splits]


def read_split(bucket: Bucket, options: ReadOptions, split: Split) -> Iterator[bytes]:
    """The batches of a split. If a merge has replaced its object after the query was planned, they are read
    from the one that the newest manifest lists. Raises ObjectNotFound if retention has deleted them, or
    compaction may have changed them."""
    try:
        content = bucket.read(split.key, split.start, split.end)
    except ObjectNotFound:
        view = PartitionView(bucket, Keys(find_cluster(bucket, options.cluster)), split.source)
        yield from view.batches_of(split)
    else:
        yield content


def find_cluster(bucket: Bucket, wanted: str | None) -> str:
    """The id of the wanted cluster, or of the only one in the bucket. Raises InvalidOption."""
    candidates = bucket.folders() if wanted is None else [wanted]
    clusters = [name for name in candidates if _is_cluster(bucket, name)]
    if not clusters:
        raise InvalidOption(
            f"`path` contains no cluster{'' if wanted is None else f' {wanted!r}'}: cluster.json not found"
        )
    if len(clusters) > 1:
        raise InvalidOption(
            f"`path` contains several clusters: set `cluster` to one of {', '.join(clusters)}"
        )
    return clusters[0]


class PartitionView:
    """One partition as of its manifest root. Pages and indexes are read when needed."""

    def __init__(self, bucket: Bucket, keys: Keys, source: Source) -> None:
        self._bucket = bucket
        self._keys = keys
        self._source = source
        self._root = self._read_root()
        self.committed = committed_range(self._root) if self._root else OffsetRange(0, 0)

    def splits(self, options: ReadOptions, pruning: Pruning) -> Iterator[Split]:
        if self._root is None:  # nothing of this partition was uploaded yet
            return
        start = self._resolve(options.starting, options.fail_on_data_loss)
        end = self._resolve(options.ending, options.fail_on_data_loss)
        wanted = OffsetRange(max(start, pruning.offsets.start), min(end, pruning.offsets.end))
        for entry in self._entries(self._root, wanted):
            needed = entry.log_bytes > options.split_bytes or entry.has_aborts
            bundle = self._bundle(entry) if needed else None
            yield from split_segment(self._keys, self._source, entry, bundle, wanted, options.split_bytes)

    def batches_of(self, split: Split) -> Iterator[bytes]:
        """The batches of a split, in the objects that this version of the manifest lists."""
        offsets, wanted = split.offsets, split.last_offsets
        is_complete = self.committed.start <= offsets.start and offsets.end <= self.committed.end
        if self._root is None or not is_complete:
            raise ObjectNotFound(split.key)
        end_offset = max(min(wanted.end, offsets.end), wanted.start + 1)  # a batch may end above `offsets`
        for entry in self._entries(self._root, OffsetRange(wanted.start, end_offset)):
            if entry.compacted_at > split.compacted_at:
                raise ObjectNotFound(split.key)
            index = self._bundle(entry).offset_index
            start = find_position(index, entry.base_offset, wanted.start)
            end = find_end_position(index, entry.base_offset, end_offset) or entry.log_bytes
            content = self._bucket.read(self._keys.log(self._source.id, entry), start, end)
            batches = [
                (position, position + header.size)
                for position, header in iter_batches(content)
                if wanted.start <= header.last_offset < wanted.end
            ]
            if batches:
                yield content[batches[0][0] : batches[-1][1]]

    def offset_at(self, timestamp_ms: int) -> int:
        """The first committed offset with this timestamp or a later one; the end if there is none."""
        if self._root is None:
            return self.committed.end
        for entry in self._entries_from_time(self._root, timestamp_ms):
            found = self._scan(entry, timestamp_ms)
            if found is not None:
                return max(found, self.committed.start)
        return self.committed.end

    def _resolve(self, bound: Bound, fail_on_data_loss: bool) -> int:
        if bound.timestamp_ms is not None:
            return self.offset_at(bound.timestamp_ms)
        return resolve_bound(self._source, bound, self.committed, fail_on_data_loss)

    def _entries(self, root: ManifestRoot, wanted: OffsetRange) -> Iterator[RemoteSegment]:
        return self._below(root.nodes, lambda nodes: nodes_in(nodes, wanted))

    def _entries_from_time(self, root: ManifestRoot, timestamp_ms: int) -> Iterator[RemoteSegment]:
        """In order. A page is read only if the record was not found before it."""
        start = self.committed.start
        return self._below(root.nodes, lambda nodes: nodes_from_time(nodes, timestamp_ms, start))

    def _below(
        self, nodes: Iterable[ManifestNode], choose: Callable[[Iterable[ManifestNode]], list[ManifestNode]]
    ) -> Iterator[RemoteSegment]:
        """The chosen entries among these nodes and in the chosen pages, at any depth."""
        for node in choose(nodes):
            if isinstance(node, RemoteSegment):
                yield node
            else:
                yield from self._below(self._page(node), choose)

    def _scan(self, entry: RemoteSegment, timestamp_ms: int) -> int | None:
        """Read batches, starting at the time index's position, up to the first record at or after the
        timestamp."""
        bundle = self._bundle(entry)
        near = find_offset_for_time(bundle.time_index, entry.base_offset, timestamp_ms)
        at = find_position(bundle.offset_index, entry.base_offset, max(near, self.committed.start))
        for data, position, header in self._batches(
            self._keys.log(self._source.id, entry), at, entry.log_bytes
        ):
            if header.max_timestamp < timestamp_ms or header.next_offset <= self.committed.start:
                continue
            check_batch(data, position)
            for record in iter_records(data, position, max_bytes=MAX_BATCH_BYTES):
                if record.timestamp >= timestamp_ms and record.offset >= self.committed.start:
                    return record.offset
        return None

    def _batches(self, key: str, at: int, end: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
        """The batches of an object from a position on. A read grows if a batch is larger than it."""
        step = SCAN_BYTES
        while at < end:
            data = self._bucket.read(key, at, min(at + step, end))
            consumed = 0
            for position, header in iter_batches(data):
                yield data, position, header
                consumed = position + header.size
            if consumed == 0 and at + step >= end:
                raise CorruptObject(f"{key}: the batch at position {at} is truncated")
            step = SCAN_BYTES if consumed else step * 4
            at += consumed

    def _read_root(self) -> ManifestRoot | None:
        try:
            return decode_root(self._bucket.read(self._keys.root(self._source.id)))
        except ObjectNotFound:
            return None

    def _page(self, page: PageRef) -> tuple[ManifestNode, ...]:
        return decode_page(self._bucket.read(self._keys.page(self._source.id, page)), page).nodes

    def _bundle(self, entry: RemoteSegment) -> IndexBundle:
        return decode_bundle(self._bucket.read(self._keys.index(self._source.id, entry)))


def _is_cluster(bucket: Bucket, name: str) -> bool:
    try:
        return decode_cluster(bucket.read(Keys(name).cluster())).cluster_id == name
    except (ObjectNotFound, ValueError):
        return False
