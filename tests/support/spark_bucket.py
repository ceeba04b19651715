"""Writes a bucket as tiering does, segment by segment, and keeps each record as Spark should return it."""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c
from record_files import encode_offset_index, encode_time_index

from tierlog.base.types import TopicIdPartition, random_uuid
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import BatchHeader, iter_batches
from tierlog.records.chunks import CHUNK_BYTES, ChunkEntry
from tierlog.records.indexes import AbortedTxn, OffsetEntry, TimeEntry, encode_txn_index
from tierlog.records.record import iter_records
from tierlog.tiering.format.bundle import ChunkTable, IndexBundle, encode_bundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import (
    ClusterDocument,
    ManifestPage,
    ManifestRoot,
    TopicDocument,
    encode_cluster,
    encode_page,
    encode_root,
    encode_topic,
    page_reference,
)

CLUSTER = "spark-test"


@dataclass
class BucketWriter:
    """A directory store with one cluster. `chunk_bytes`: size of chunks; None: no chunk tables, as in bundles
    of earlier versions. `keeps_rows`: whether the rows of all records stay in memory, in `rows`."""

    root: Path
    chunk_bytes: int | None = CHUNK_BYTES
    keeps_rows: bool = True
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    entries: dict[TopicIdPartition, list[RemoteSegment]] = field(default_factory=dict)
    rows: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    topics: dict[str, uuid.UUID] = field(default_factory=dict)
    keys: Keys = field(default_factory=lambda: Keys(CLUSTER))

    def __post_init__(self) -> None:
        self.put(self.keys.cluster(), encode_cluster(ClusterDocument(cluster_id=CLUSTER)))

    def put(self, key: str, content: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def topic(self, name: str, partitions: int) -> uuid.UUID:
        self.topics[name] = topic_id = random_uuid(self.rng)
        document = TopicDocument(topic_id=topic_id, name=name, partitions=partitions, configs={})
        self.put(self.keys.topic_name(name, topic_id), b"")
        self.put(self.keys.topic(topic_id), encode_topic(document))
        return topic_id

    def segment(
        self,
        topic: str,
        partition: int,
        batches: Sequence[bytes],
        index_bytes: int = 4096,
        aborted: Sequence[AbortedTxn] = (),
    ) -> RemoteSegment:
        """Upload one segment. It becomes visible when `commit` names it in the manifest's root."""
        log, uuid = b"".join(batches), random_uuid(self.rng)
        headers = list(iter_batches(log))
        base, last = headers[0][1].base_offset, headers[-1][1].last_offset
        offsets, times = index_of(log, index_bytes)
        chunks = chunks_of(log, self.chunk_bytes) if self.chunk_bytes else None
        bundle = encode_bundle(
            IndexBundle(
                offset_index=encode_offset_index(base, offsets),
                time_index=encode_time_index(base, times),
                txn_index=encode_txn_index(aborted),
                producer_snapshot=b"",
                leader_epochs=((0, 0),),
                chunk_table=chunks and ChunkTable(uuid, len(log), crc32c.crc32c(log), chunks),
            )
        )
        entry = RemoteSegment(
            uuid=uuid,
            base_offset=base,
            last_offset=last,
            leader_epochs=((0, 0),),
            log_bytes=len(log),
            index_bytes=len(bundle),
            records=sum(header.record_count for _, header in headers),
            first_timestamp=headers[0][1].base_timestamp,
            max_timestamp=max(header.max_timestamp for _, header in headers),
            has_transactions=bool(aborted) or any(header.is_control for _, header in headers),
            has_aborts=bool(aborted),
            log_crc32c=crc32c.crc32c(log),
            index_crc32c=crc32c.crc32c(bundle),
            leader_epoch=0,
        )
        where = TopicIdPartition(self.topics[topic], partition)
        self.put(self.keys.log(where, entry), log)
        self.put(self.keys.index(where, entry), bundle)
        self.entries.setdefault(where, []).append(entry)
        if self.keeps_rows:
            self.rows.setdefault((topic, partition), []).extend(rows_of(topic, partition, log))
        return entry

    def commit(
        self,
        topic: str,
        partition: int,
        *,
        log_start: int = 0,
        paged: int = 0,
        page_entries: int = 1 << 20,
        uncommitted: int = 0,
    ) -> None:
        """Write the manifest root. The first `paged` entries go to pages of `page_entries`, and the last
        `uncommitted` ones are left out."""
        where = TopicIdPartition(self.topics[topic], partition)
        entries = tuple(self.entries[where][: len(self.entries[where]) - uncommitted])
        pages = []
        for at in range(0, paged, page_entries):
            some = entries[at : min(at + page_entries, paged)]
            page = ManifestPage(topic_id=where.topic_id, partition=partition, entries=some)
            encoded = encode_page(page)
            pages.append(page_reference(random_uuid(self.rng), page, encoded))
            self.put(self.keys.page(where, pages[-1]), encoded)
        root = ManifestRoot(
            topic_id=where.topic_id,
            partition=partition,
            version=1,
            metadata_index=1,
            leader_epoch=0,
            log_start_offset=log_start,
            pages=tuple(pages),
            entries=entries[paged:],
        )
        self.put(self.keys.root(where), encode_root(root))

    def log_key(self, topic: str, partition: int, number: int) -> Path:
        where = TopicIdPartition(self.topics[topic], partition)
        return self.root / self.keys.log(where, self.entries[where][number])

    def flip(self, path: Path, position: int) -> None:
        """Flip a bit of the byte at a position of an object."""
        content = bytearray(path.read_bytes())
        content[position] ^= 0x10
        path.write_bytes(content)


def chunks_of(log: bytes, chunk_bytes: int) -> tuple[ChunkEntry, ...]:
    """Chunks of at most this size, unless one batch is larger."""
    chunks: list[list[tuple[int, BatchHeader]]] = []
    for at, header in iter_batches(log):
        if not chunks or at + header.size - chunks[-1][0][0] > chunk_bytes:
            chunks.append([])
        chunks[-1].append((at, header))
    ends = [*(chunk[0][0] for chunk in chunks[1:]), len(log)]
    return tuple(
        ChunkEntry(
            chunk[0][0],
            chunk[0][1].base_offset,
            max(header.max_timestamp for _, header in chunk),
            crc32c.crc32c(log[chunk[0][0] : end]),
        )
        for chunk, end in zip(chunks, ends, strict=True)
    )


def index_of(log: bytes, index_bytes: int) -> tuple[list[OffsetEntry], list[TimeEntry]]:
    """Sparse indexes as in Kafka: one entry per index_bytes of batches."""
    offsets, times, bytes_since_entry = [], [], 0
    newest = TimeEntry(-1, -1)
    for at, header in iter_batches(log):
        if header.max_timestamp > newest.timestamp:
            newest = TimeEntry(header.max_timestamp, header.last_offset)
        if bytes_since_entry > index_bytes:
            offsets.append(OffsetEntry(header.last_offset, at))
            if not times or newest.timestamp > times[-1].timestamp:
                times.append(newest)
            bytes_since_entry = 0
        bytes_since_entry += header.size
    return offsets, times


def rows_of(topic: str, partition: int, log: bytes) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp,
            "timestampType": int(header.log_append_time),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for at, header in iter_batches(log)
        if not header.is_control
        for record in iter_records(log, at, max_bytes=1 << 24)
    ]
