"""Reads copies of a partition's log without a broker: from a replica's directory and from the object store.

The nodes have stopped. Nothing is repaired: a damaged batch ends the copy, and `fault` has the reason.
Called by history_check.py; audit.py compares the copies.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tierlog.base.types import TopicIdPartition
from tierlog.broker.storage_tools.offline import UnreadableTail, find_partitions, read_batches
from tierlog.metadata.records import ManifestNode, RemoteSegment
from tierlog.records.batch import HEADER_SIZE, BatchHeader, check_batch, iter_batches
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.spark.history.bucket import Bucket
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestRoot, decode_page, decode_root, decode_topic
from tierlog.tiering.object_store import ObjectNotFound

ID_HEADER = "id"
"""The header that names a record with a key, since one that deletes its key has no value."""
BATCH_MAX_BYTES = 64 << 20
"""Maximum decompressed size of a batch: far above what the clients here send."""


class StoredRecord(NamedTuple):
    """`value`: producer, partition and number, as `history.value_of` writes them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: str
    is_tombstone: bool


class StoredBatch(NamedTuple):
    base_offset: int
    next_offset: int
    data: bytes
    records: tuple[StoredRecord, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a log. `name`: of the node, or REMOTE. `fault`: where it cannot be read, and why."""

    name: str
    batches: tuple[StoredBatch, ...]
    fault: str = ""

    @property
    def start(self) -> int:
        return self.batches[0].base_offset if self.batches else 0

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def records(self) -> Iterator[StoredRecord]:
        return (record for batch in self.batches for record in batch.records)


REMOTE = "remote"


def read_directory(name: str, directory: Path) -> Copy:
    """A replica's log, all of its segments."""
    batches: list[StoredBatch] = []
    (partition,) = find_partitions(directory)
    for base in partition.bases:
        for found in read_batches(partition.log(base)):
            if isinstance(found, UnreadableTail):
                return Copy(name, tuple(batches), f"segment {base}, position {found.position}: {found.fault}")
            if found.fault:
                return Copy(name, tuple(batches), f"segment {base}, position {found.position}: {found.fault}")
            batches.append(_stored(found.header, found.data))
    return Copy(name, tuple(batches))


def read_remote(bucket: Bucket, cluster_id: str, topic: str, partition: int) -> Copy:
    """The segments that the manifest names, down to the log start. Raises ObjectNotFound without one."""
    keys = Keys(cluster_id)
    where, root = _root(bucket, keys, topic, partition)

    def below(nodes: Iterable[ManifestNode]) -> Iterator[RemoteSegment]:
        for node in nodes:
            if isinstance(node, RemoteSegment):
                yield node
            else:
                yield from below(decode_page(bucket.read(keys.page(where, node)), node).nodes)

    return read_segments(
        (bucket.read(keys.log(where, entry)), entry)
        for entry in below(root.nodes)
        if entry.last_offset >= root.log_start_offset
    )


def remote_end(bucket: Bucket, cluster_id: str, topic: str, partition: int) -> int:
    """The end of what the manifest names; 0 without one."""
    try:
        _, root = _root(bucket, Keys(cluster_id), topic, partition)
    except ObjectNotFound:
        return 0
    return root.nodes[-1].last_offset + 1 if root.nodes else 0


def _root(bucket: Bucket, keys: Keys, topic: str, partition: int) -> tuple[TopicIdPartition, ManifestRoot]:
    where = TopicIdPartition(_topic_id(bucket, keys, topic), partition)
    return where, decode_root(bucket.read(keys.root(where)))


def read_segments(segments: Iterable[tuple[bytes, RemoteSegment]]) -> Copy:
    """The copy in the object store. `segments`: bytes and manifest entry of each."""
    batches: list[StoredBatch] = []
    for data, entry in segments:
        place, size = f"remote segment {entry.base_offset}", 0
        if len(data) != entry.log_bytes:
            return Copy(
                REMOTE, tuple(batches), f"{place}: {len(data)} bytes, {entry.log_bytes} in the manifest"
            )
        try:
            for at, _ in iter_batches(data):
                header = check_batch(data, at)
                batches.append(_stored(header, data[at : at + header.size]))
                size = at + header.size
        except RecordsError as error:
            return Copy(REMOTE, tuple(batches), f"{place}: {error}")
        if size != len(data) or not batches or batches[-1].next_offset != entry.last_offset + 1:
            return Copy(REMOTE, tuple(batches), f"{place}: it does not end where the manifest says")
    return Copy(REMOTE, tuple(batches))


def _topic_id(bucket: Bucket, keys: Keys, topic: str) -> uuid.UUID:
    documents = (decode_topic(bucket.read(key)) for key in bucket.keys(keys.topics()))
    return next(document.topic_id for document in documents if document.name == topic)


def _stored(header: BatchHeader, data: bytes) -> StoredBatch:
    records = () if header.is_control else tuple(_records(data))
    return StoredBatch(header.base_offset, header.next_offset, data, records)


def _records(data: bytes) -> Iterator[StoredRecord]:
    if len(data) == HEADER_SIZE:
        return
    for record in iter_records(data, max_bytes=BATCH_MAX_BYTES):
        named = dict(record.headers).get(ID_HEADER)
        text = named if named is not None else (record.value or b"").partition(b" ")[0]
        value = text.decode(errors="replace")
        yield StoredRecord(record.offset, record.timestamp, record.key, value, record.value is None)
