"""Reads manifests on Spark's driver: finds committed offsets, the splits that contain them, and timestamps.
Reads the bytes of splits on executors.

The manifest root of a partition is read once per query, so that a query sees one version of it. Only the head
of an index bundle is read, unless an earlier version wrote it. Bytes of segments are compared with the
checksum that the plan has for them; without one, each batch is checked by its own.
"""

import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import TypeAlias, TypeVar

from crc32c import crc32c

from tierlog.base.types import NO_TIMESTAMP
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.records.batch import BatchHeader, check_batch
from tierlog.records.chunks import CHUNK_BYTES
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.spark.history.bucket import Bucket
from tierlog.spark.history.held import HeldSnapshot, find, needs_renewal, renew, take
from tierlog.spark.history.plan import (
    PART_BYTES,
    OffsetRange,
    OffsetsUnavailable,
    Part,
    Pruning,
    Source,
    Split,
    SplitLimits,
    check_bounds,
    choose_sources,
    committed_range,
    group_into_splits,
    needs_an_index,
    nodes_from_time,
    nodes_in,
    parts_of_segment,
    resolve_bound,
    whole_segment,
)
from tierlog.spark.history.segment_index import ChunkIndex, OffsetIndex, Piece, SegmentIndex, undivided
from tierlog.spark.options import Bound, InvalidOption, ReadOptions
from tierlog.tiering.format.bundle import (
    HEAD_BYTES,
    BundleError,
    Places,
    Section,
    chunks_of,
    decode_bundle,
    read_places,
    section,
    txn_place,
)
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import (
    ManifestError,
    ManifestRoot,
    TopicDocument,
    decode_cluster,
    decode_page,
    decode_root,
    decode_topic,
)
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStoreError

NOW = "now"
"""As the option `snapshot`: one that is taken when the data source is loaded."""

READS_AT_ONCE = 16
PARTS_AHEAD = 2
"""Parts that a task reads while it decodes another. With PART_BYTES, bounds the memory of a task."""
SEGMENTS_AHEAD = 64  # segments whose indexes are read while the parts of another are taken
SCAN_BYTES = 1 << 20
MAX_BATCH_BYTES = 512 << 20

_WantedSegment: TypeAlias = "tuple[PartitionView, RemoteSegment, OffsetRange]"
Given = TypeVar("Given")
Made = TypeVar("Made")


def plan_splits(
    bucket: Bucket, options: ReadOptions, pruning: Pruning, sources: Sequence[Source] | None = None
) -> list[Split]:
    """All splits of a query, sorted by topic, partition and offset. `sources`: the partitions, if the caller
    has chosen them. Raises InvalidOption and OffsetsUnavailable."""
    limits = SplitLimits(options.split_bytes, options.min_splits, options.max_splits, options.max_records)
    with _without_garbage_collection():
        return group_into_splits(plan_parts(bucket, options, pruning, sources), limits)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A plan may make millions of objects, none of them in cycles, and would visit all of them repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def plan_parts(
    bucket: Bucket, options: ReadOptions, pruning: Pruning, sources: Sequence[Source] | None = None
) -> list[Part]:
    """The parts of all splits. Partitions, pages and indexes are read in parallel."""
    with ThreadPoolExecutor(READS_AT_ONCE) as pool, ThreadPoolExecutor(READS_AT_ONCE) as page_pool:
        views = open_partitions(bucket, options, pool, page_pool, pruning, sources)

        def wanted(view: PartitionView) -> list[_WantedSegment]:
            return [(view, *found) for found in view.segments(options, pruning)]

        segments: Iterable[_WantedSegment] = chain.from_iterable(
            _map_ahead(pool, wanted, views, READS_AT_ONCE)
        )
        part_bytes = min(options.split_bytes, PART_BYTES)
        if options.min_splits is not None:
            known = list(segments)
            total = sum(entry.log_bytes for _, entry, _ in known)
            part_bytes = max(1, min(part_bytes, total // options.min_splits))
            segments = known
        return list(chain.from_iterable(_divided(segments, part_bytes, pruning.since_ms, pool)))


def _divided(
    segments: Iterable[_WantedSegment], part_bytes: int, since_ms: int, pool: Executor
) -> Iterator[list[Part]]:
    """The parts of each segment, in order. The indexes that this needs are read in parallel."""

    def divide(segment: _WantedSegment) -> list[Part]:
        view, entry, offsets = segment
        return view.parts(entry, offsets, part_bytes, since_ms)

    for needs_index, some in groupby(segments, lambda found: needs_an_index(found[1], part_bytes)):
        if needs_index:
            yield from _map_ahead(pool, divide, some, SEGMENTS_AHEAD)
        else:
            yield from (view.whole(entry, offsets) for view, entry, offsets in some)


def _map_ahead(
    pool: Executor, call: Callable[[Given], Made], items: Iterable[Given], count: int
) -> Iterator[Made]:
    """Results in the order of the items. Only `count` items are in work or wait to be taken, which bounds the
    memory of a long list, unlike `Executor.map`."""
    ahead: deque[Future[Made]] = deque()
    for item in items:
        ahead.append(pool.submit(call, item))
        if len(ahead) >= count:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def open_partitions(
    bucket: Bucket,
    options: ReadOptions,
    pool: Executor,
    page_pool: Executor,
    pruning: Pruning | None = None,
    sources: Sequence[Source] | None = None,
) -> "list[PartitionView]":
    """`sources`, or what the options select, as of their manifest roots. `page_pool` reads their pages.
    Raises InvalidOption."""
    keys = Keys(find_cluster(bucket, options.cluster))
    held = None if options.snapshot is None else HeldSnapshot(bucket, keys, options.snapshot)
    if sources is None:
        documents = documents_for(bucket, keys, options, pool) if held is None else held.documents()
        chosen = choose_sources(documents, options)
        check_bounds((options.starting, options.ending), chosen)
        sources = [source for source in chosen if pruning is None or pruning.keeps(source)]
    return list(pool.map(lambda source: PartitionView(bucket, keys, source, page_pool, held), sources))


def choose_snapshot(bucket: Bucket, options: ReadOptions) -> ReadOptions:
    """The options with the id of their snapshot: taken now, or found. Raises InvalidOption."""
    if options.snapshot is None:
        return options
    if options.snapshot.strip().lower() == NOW:
        return replace(options, snapshot=take_snapshot(bucket, options))
    keys = Keys(find_cluster(bucket, options.cluster))
    return replace(options, snapshot=find(bucket, keys, options.snapshot.strip(), options.topics))


def take_snapshot(bucket: Bucket, options: ReadOptions, name: str | None = None) -> str:
    """Hold what the topics of these options have now. Returns the id. Raises InvalidOption."""
    keys = Keys(find_cluster(bucket, options.cluster))
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        documents = list(documents_for(bucket, keys, options, pool))
    wanted = {source.topic_id for source in choose_sources(documents, options)}
    topics = [document for document in documents if document.topic_id in wanted]
    return take(bucket, keys, topics, options.snapshot_lease_ms, name)


def documents_for(
    bucket: Bucket, keys: Keys, options: ReadOptions, pool: Executor
) -> Iterable[TopicDocument]:
    """The documents of at least the topics that these options select. Raises CorruptObject."""
    if options.pattern is not None:
        return topic_documents(bucket, keys, pool)
    return documents_named(bucket, keys, options.topics, pool)


def documents_named(
    bucket: Bucket, keys: Keys, names: Iterable[str], pool: Executor
) -> Iterable[TopicDocument]:
    """The documents of the topics with these names, in two requests for each of them. All documents if a
    name has none: brokers below `tierlog.format` 4 write no names. Raises CorruptObject."""

    def find(name: str) -> list[TopicDocument]:
        named = filter(None, map(keys.named, bucket.keys(keys.topics_named(name))))
        found = (_topic_document(bucket, keys.topic(topic_id)) for topic_id, _ in named)
        return [document for document in found if document is not None and document.name == name]

    found = list(pool.map(find, names))
    return chain.from_iterable(found) if all(found) else topic_documents(bucket, keys, pool)


def topic_documents(bucket: Bucket, keys: Keys, pool: Executor) -> Iterator[TopicDocument]:
    """The documents of all topics, but for those that are deleted before they are read. Raises
    CorruptObject."""
    found = pool.map(lambda key: _topic_document(bucket, key), bucket.keys(keys.topics()))
    return (document for document in found if document is not None)


def _topic_document(bucket: Bucket, key: str) -> TopicDocument | None:
    """None: the topic was deleted."""
    try:
        return _decoded(key, bucket.read(key), decode_topic)
    except ObjectNotFound:
        return None


def read_split(bucket: Bucket, options: ReadOptions, split: Split) -> Iterator[tuple[Part, bytes]]:
    """The batches of each part, in order. The next parts are read while the caller decodes one. Raises
    CorruptObject, ObjectStoreError if the batches are no longer there, and SnapshotEnded."""
    if options.snapshot is not None and needs_renewal(options.snapshot):
        renew(bucket, Keys(find_cluster(bucket, options.cluster)), options.snapshot)
    parts, reads = iter(split), deque[tuple[Part, Future[list[bytes]]]]()

    def start(part: Part) -> None:
        reads.append((part, pool.submit(lambda: list(read_part(bucket, options, part)))))

    pool = ThreadPoolExecutor(PARTS_AHEAD)
    try:
        for part in islice(parts, PARTS_AHEAD):
            start(part)
        while reads:
            part, read = reads.popleft()
            try:
                contents = read.result()
            except ObjectNotFound as missing:
                if options.snapshot is not None:  # says so if the snapshot has ended
                    renew(bucket, Keys(find_cluster(bucket, options.cluster)), options.snapshot)
                if isinstance(missing, BelowLogStart) and not options.fail_on_data_loss:
                    warnings.warn(f"{part.place}: lost, as retention deleted it", stacklevel=2)
                    for following in islice(parts, 1):
                        start(following)
                    continue
                raise ObjectStoreError(
                    f"{part.place}: retention or compaction deleted the object after the query was planned; "
                    "run the query again"
                ) from None
            for following in islice(parts, 1):
                start(following)
            for content in contents:
                yield part, content
    finally:
        pool.shutdown(cancel_futures=True)


def read_part(bucket: Bucket, options: ReadOptions, part: Part) -> Iterator[bytes]:
    """The batches of a part. If a merge has replaced its object after the query was planned, they are read
    from the one that the newest manifest lists. A part without a checksum (`crc32c`) is not checked here:
    the decoder checks each batch. Raises CorruptObject; ObjectNotFound if retention has deleted the batches,
    or compaction may have changed them."""
    try:
        content = read_range(bucket, part.source, part.key, part.start, part.end, part.crc32c)
    except ObjectNotFound:
        view = PartitionView(bucket, Keys(find_cluster(bucket, options.cluster)), part.source)
        yield from view.batches_of(part)
    else:
        yield content


def read_range(bucket: Bucket, source: Source, key: str, start: int, end: int, checksum: int | None) -> bytes:
    """Bytes [start, end) of a segment, with this checksum if there is one. Raises CorruptObject."""
    content = bucket.read(key, start, end)
    if checksum is not None and crc32c(content) != checksum:
        raise CorruptObject(
            f"{source.place(key, start, end)}: the object is damaged: CRC-32C is {crc32c(content):08x}, "
            f"not {checksum:08x} as at its upload"
        )
    return content


def find_cluster(bucket: Bucket, wanted: str | None) -> str:
    """The id of the wanted cluster, or of the only one in the bucket. Raises InvalidOption."""
    candidates = bucket.folders() if wanted is None else [wanted]
    clusters = [name for name in candidates if _is_cluster(bucket, name)]
    if (
        not clusters
        and wanted is not None
        and (others := [n for n in bucket.folders() if _is_cluster(bucket, n)])
    ):
        raise InvalidOption(f"`cluster`: `path` contains no cluster {wanted!r}, but {', '.join(others)}")
    if not clusters:
        raise InvalidOption(
            f"`path` contains no cluster{'' if wanted is None else f' {wanted!r}'}: give the brokers' "
            "object.store.url, to which they have uploaded a topic"
        )
    if len(clusters) > 1:
        raise InvalidOption(
            f"`path` contains several clusters: set `cluster` to one of {', '.join(clusters)}"
        )
    return clusters[0]


class BelowLogStart(ObjectNotFound):
    """Retention has deleted all batches of a part. Any other part that is not found may still be readable in
    another object, after the query has been planned again."""


class PartitionView:
    """One partition as of its manifest root. Pages and indexes are read when needed."""

    def __init__(
        self,
        bucket: Bucket,
        keys: Keys,
        source: Source,
        pool: Executor | None = None,
        held: HeldSnapshot | None = None,
    ) -> None:
        """`pool`: reads pages, if there are several; it must not be the one that the caller runs in. `held`:
        has the root, instead of the newest one."""
        self._pool = pool
        self._bucket = bucket
        self._keys = keys
        self._source = source
        self._folder = keys.data(source.id)
        self._root = self._read_root() if held is None else held.root(source.id)
        self.committed = committed_range(self._root) if self._root else OffsetRange(0, 0)

    @property
    def root(self) -> ManifestRoot | None:
        """None: nothing of the partition was uploaded yet."""
        return self._root

    @property
    def source(self) -> Source:
        return self._source

    def log_key(self, entry: RemoteSegment) -> str:
        return self._keys.log(self._source.id, entry)

    def entries(self, wanted: OffsetRange) -> Iterator[RemoteSegment]:
        """The segments that have one of these offsets, in order."""
        return iter(()) if self._root is None else self._entries(self._root, wanted)

    def segments(self, options: ReadOptions, pruning: Pruning) -> Iterator[tuple[RemoteSegment, OffsetRange]]:
        """The segments of a query, in order, and the offsets that it wants of this partition."""
        start = self._resolve(options.starting, options.fail_on_data_loss)
        end = self._resolve(options.ending, options.fail_on_data_loss)
        if self._root is None:  # nothing of this partition was uploaded yet
            return
        if pruning.until_ms is not None and options.max_lateness_ms is not None:
            end = min(end, self.offset_at(pruning.until_ms + options.max_lateness_ms))
        wanted = OffsetRange(max(start, pruning.offsets.start), min(end, pruning.offsets.end))
        for entry in self._below(self._root.nodes, lambda nodes: nodes_in(nodes, wanted, pruning.since_ms)):
            yield entry, wanted

    def parts(
        self, entry: RemoteSegment, wanted: OffsetRange, part_bytes: int, since_ms: int = NO_TIMESTAMP
    ) -> list[Part]:
        """The parts of a segment. If it has aborted transactions, these are read too."""
        if not needs_an_index(entry, part_bytes):
            return self.whole(entry, wanted)
        index, txn_index = self._load_index(entry, with_aborts=entry.has_aborts)
        return parts_of_segment(
            self._keys, self._source, entry, index, wanted, part_bytes, txn_index, since_ms
        )

    def whole(self, entry: RemoteSegment, wanted: OffsetRange) -> list[Part]:
        """`parts` of a segment that needs no index."""
        return whole_segment(self._folder, self._source, entry, wanted)

    def batches_of(self, part: Part) -> Iterator[bytes]:
        """The batches of a part, in the objects that this version of the manifest lists."""
        offsets, wanted = part.offsets, part.last_offsets
        first = max(offsets.start, wanted.start)
        if self._root is None or min(wanted.end, offsets.end) <= self.committed.start:
            raise BelowLogStart(part.key)
        if first < self.committed.start or offsets.end > self.committed.end:
            raise ObjectNotFound(part.key)
        end_offset = max(min(wanted.end, offsets.end), wanted.start + 1)  # a batch may end above `offsets`
        for entry in self._entries(self._root, OffsetRange(wanted.start, end_offset)):
            if entry.compacted_at > part.compacted_at:
                raise ObjectNotFound(part.key)
            size = part.end - part.start
            for piece in self._index(entry, size).pieces(wanted.start, end_offset, size):
                content, batches = self._read(entry, piece)
                places = [
                    (position, position + header.size)
                    for position, header in batches
                    if wanted.start <= header.last_offset < wanted.end
                ]
                if places:
                    yield content[places[0][0] : places[-1][1]]

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
        timestamp_ms = bound.timestamp_of(self._source.topic, self._source.partition)
        if timestamp_ms is None:
            return resolve_bound(self._source, bound, self.committed, fail_on_data_loss)
        offset = self.offset_at(timestamp_ms)
        if offset == self.committed.end and bound.must_match and self.committed:
            raise OffsetsUnavailable(
                f"{self._source}: the bucket has no record at or after timestamp {timestamp_ms}; "
                "set startingOffsetsByTimestampStrategy=latest to read nothing of such partitions"
            )
        return offset

    def _entries(self, root: ManifestRoot, wanted: OffsetRange) -> Iterator[RemoteSegment]:
        return self._below(root.nodes, lambda nodes: nodes_in(nodes, wanted))

    def _entries_from_time(self, root: ManifestRoot, timestamp_ms: int) -> Iterator[RemoteSegment]:
        """In order. A page is read only if the record was not found before it."""
        start = self.committed.start
        return self._below(root.nodes, lambda nodes: nodes_from_time(nodes, timestamp_ms, start))

    def _below(
        self, nodes: Iterable[ManifestNode], choose: Callable[[Iterable[ManifestNode]], list[ManifestNode]]
    ) -> Iterator[RemoteSegment]:
        """The chosen entries among these nodes and in the chosen pages, at any depth, in order. With a pool,
        some pages are read ahead."""
        chosen, ahead = choose(nodes), deque[Future[tuple[ManifestNode, ...]]]()
        pages = (node for node in chosen if isinstance(node, PageRef))
        for node in chosen:
            if isinstance(node, RemoteSegment):
                yield node
            elif self._pool is None:
                yield from self._below(self._page(node), choose)
            else:
                for page in islice(pages, READS_AT_ONCE - len(ahead)):
                    ahead.append(self._pool.submit(self._page, page))
                yield from self._below(ahead.popleft().result(), choose)

    def _scan(self, entry: RemoteSegment, timestamp_ms: int) -> int | None:
        """Read batches, starting where the index has the timestamp, up to the first record at or after it."""
        index = self._index(entry, CHUNK_BYTES)
        start = max(index.offset_for_time(timestamp_ms), self.committed.start)
        for piece in index.pieces(start, entry.end_offset, SCAN_BYTES):
            content, batches = self._read(entry, piece)
            for position, header in batches:
                if header.max_timestamp < timestamp_ms or header.next_offset <= self.committed.start:
                    continue
                for record in iter_records(content, position, max_bytes=MAX_BATCH_BYTES):
                    if record.timestamp >= timestamp_ms and record.offset >= self.committed.start:
                        return record.offset
        return None

    def _read(self, entry: RemoteSegment, piece: Piece) -> tuple[bytes, list[tuple[int, BatchHeader]]]:
        """The bytes of a piece, and the position and header of each batch in it. Raises CorruptObject."""
        key = self._keys.log(self._source.id, entry)
        content = read_range(self._bucket, self._source, key, piece.start, piece.end, piece.crc32c)
        batches, at = [], 0
        try:
            while at < len(content):
                header = check_batch(content, at)
                batches.append((at, header))
                at += header.size
        except RecordsError as error:
            place = self._source.place(key, piece.start, piece.end)
            raise CorruptObject(f"{place}: {error}") from error
        return content, batches

    def _index(self, entry: RemoteSegment, undivided_bytes: int) -> SegmentIndex:
        """The index of a segment. One of at most `undivided_bytes` is not divided, so none is read."""
        return undivided(entry) if entry.log_bytes <= undivided_bytes else self._load_index(entry)[0]

    def _load_index(self, entry: RemoteSegment, with_aborts: bool = False) -> tuple[SegmentIndex, bytes]:
        """The index of a segment and, if wanted, its transaction index. Raises CorruptObject."""
        key = self._keys.index(self._source.id, entry)
        try:
            head = self._bucket.read(key, 0, min(HEAD_BYTES, entry.index_bytes))
            places = read_places(head)
            chunks = chunks_of(entry, head, places)
            if chunks is not None:
                txn_index = self._txn_index(key, head, places) if with_aborts else b""
                return ChunkIndex(chunks, entry.log_bytes), txn_index
            bundle = decode_bundle(self._bucket.read(key, 0, entry.index_bytes))
        except BundleError as error:
            raise CorruptObject(f"{self._source}: {key}: {error}") from error
        return OffsetIndex(entry, bundle.offset_index, bundle.time_index), bundle.txn_index

    def _txn_index(self, key: str, head: bytes, places: Places) -> bytes:
        place = txn_place(places)
        end = place.position + place.length
        if end <= len(head):
            return section(head, Section.TXN_INDEX, place)
        data = self._bucket.read(key, place.position, end)
        return section(data, Section.TXN_INDEX, place, begin=place.position)

    def _read_root(self) -> ManifestRoot | None:
        key = self._keys.root(self._source.id)
        try:
            return _decoded(f"{self._source}: {key}", self._bucket.read(key), decode_root)
        except ObjectNotFound:
            return None

    def _page(self, page: PageRef) -> tuple[ManifestNode, ...]:
        key = self._keys.page(self._source.id, page)
        place = f"{self._source}: {key}"
        return _decoded(place, self._bucket.read(key), lambda data: decode_page(data, page)).nodes


def _decoded(place: str, data: bytes, decode: Callable[[bytes], Made]) -> Made:
    """A document of the bucket. Raises CorruptObject, which names its place."""
    try:
        return decode(data)
    except ManifestError as error:
        raise CorruptObject(f"{place}: {error}") from error


def _is_cluster(bucket: Bucket, name: str) -> bool:
    try:
        return decode_cluster(bucket.read(Keys(name).cluster())).cluster_id == name
    except (ObjectNotFound, ValueError):
        return False
