"""Metadata tables and counts, from manifests: rows for `spark.tables`, without Spark.

Roots and pages of manifests are read, and segments only to count records that manifests do not count.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from tierlog.metadata.records import RemoteSegment
from tierlog.spark.history.bucket import Bucket
from tierlog.spark.history.held import BucketStore, run
from tierlog.spark.history.plan import PART_BYTES, OffsetRange, Part, Pruning, selects_topic
from tierlog.spark.history.snapshot import (
    READS_AT_ONCE,
    PartitionView,
    choose_snapshot,
    find_cluster,
    open_partitions,
    read_split,
)
from tierlog.spark.options import ReadOptions, Table
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.snapshots import HeldPartition, HeldTopic, Lease
from tierlog.tiering.snapshots import Snapshots

PARTITIONS = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "start_offset": "bigint",
    "end_offset": "bigint",
    "segments": "bigint",
    "bytes": "bigint",
    "max_timestamp": "timestamp",
    "manifest_version": "bigint",
    "metadata_index": "bigint",
    "leader_epoch": "int",
}
SEGMENTS = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "base_offset": "bigint",
    "end_offset": "bigint",
    "records": "bigint",
    "control_records": "bigint",
    "bytes": "bigint",
    "index_bytes": "bigint",
    "min_timestamp": "timestamp",
    "max_timestamp": "timestamp",
    "has_transactions": "boolean",
    "has_aborts": "boolean",
    "compacted_at": "timestamp",
    "leader_epoch": "int",
    "object": "string",
}
SNAPSHOTS = {
    "snapshot_id": "string",
    "name": "string",
    "created_at": "timestamp",
    "lease_ms": "bigint",
    "watched_ms": "bigint",
    "is_complete": "boolean",
    "metadata_index": "bigint",
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "start_offset": "bigint",
    "end_offset": "bigint",
}
SCHEMAS = {Table.PARTITIONS: PARTITIONS, Table.SEGMENTS: SEGMENTS, Table.SNAPSHOTS: SNAPSHOTS}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999. Later timestamps (microseconds, sent as milliseconds) are shown as null."""


def table_rows(bucket: Bucket, options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Rows of a metadata table, sorted by topic, partition and offset. Offsets of options have no effect."""
    if options.table is Table.SNAPSHOTS:
        yield from _snapshot_rows(bucket, options)
        return
    with ThreadPoolExecutor(READS_AT_ONCE) as pool, ThreadPoolExecutor(READS_AT_ONCE) as page_pool:
        for view in open_partitions(bucket, options, pool, page_pool):
            if options.table is Table.PARTITIONS:
                yield _partition_row(view)
            else:
                yield from (_segment_row(view, entry) for entry in view.entries(view.committed))


def count_records(bucket: Bucket, options: ReadOptions) -> int:
    """The number of rows that a query with these options has. A segment is read if the manifest does not
    count its rows: some are outside of the wanted offsets, or aborted, or it does not say how many are
    transaction markers."""
    options = choose_snapshot(bucket, options)
    with ThreadPoolExecutor(READS_AT_ONCE) as pool, ThreadPoolExecutor(READS_AT_ONCE) as page_pool:
        views = open_partitions(bucket, options, pool, page_pool)
        return sum(pool.map(lambda view: _count(bucket, options, view), views))


def _count(bucket: Bucket, options: ReadOptions, view: PartitionView) -> int:
    total = 0
    for entry, wanted in view.segments(options, Pruning()):
        known = rows_of(entry, wanted)
        if known is None:
            parts = tuple(view.parts(entry, wanted, PART_BYTES))
            total += sum(_rows(part, data) for part, data in read_split(bucket, options, parts))
        else:
            total += known
    return total


def rows_of(entry: RemoteSegment, wanted: OffsetRange) -> int | None:
    """Number of data records of a segment within the wanted offsets; None if the manifest does not say it."""
    is_whole = wanted.start <= entry.base_offset and entry.end_offset <= wanted.end
    if not is_whole or entry.has_aborts:
        return None
    if entry.control_records >= 0:
        return entry.records - entry.control_records
    return None if entry.has_transactions else entry.records


def _rows(part: Part, data: bytes) -> int:
    # here, because the driver imports no decoder for its other tables
    from tierlog.spark.history.decoding import decode_part

    return sum(columns.rows for columns in decode_part(part, data, ["offset"]))


def _partition_row(view: PartitionView) -> dict[str, Any]:
    root, nodes = view.root, view.root.nodes if view.root else ()
    newest = max((node.max_timestamp for node in nodes), default=-1)
    return {
        "topic": view.source.topic,
        "topic_id": str(view.source.topic_id),
        "partition": view.source.partition,
        "start_offset": view.committed.start,
        "end_offset": view.committed.end,
        "segments": sum(1 if isinstance(node, RemoteSegment) else node.entries for node in nodes),
        "bytes": sum(node.log_bytes for node in nodes),
        "max_timestamp": _time(newest),
        "manifest_version": root.version if root else None,
        "metadata_index": root.metadata_index if root else None,
        "leader_epoch": root.leader_epoch if root else None,
    }


def _snapshot_rows(bucket: Bucket, options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Held offsets of live snapshots, one row for each of their partitions, oldest snapshot first."""
    snapshots = Snapshots(BucketStore(bucket), Keys(find_cluster(bucket, options.cluster)))
    leases = [lease for lease, _ in run(snapshots.leases()) if not lease.is_ended]
    for lease in sorted(leases, key=lambda one: (one.created_ms, one.id)):
        for topic in lease.topics:
            if not selects_topic(topic.name, options):
                continue
            wanted = options.partitions_of(topic.name)
            for held in topic.held:
                if wanted is None or held.partition in wanted:
                    yield _snapshot_row(lease, topic, held)


def _snapshot_row(lease: Lease, topic: HeldTopic, held: HeldPartition) -> dict[str, Any]:
    return {
        "snapshot_id": str(lease.id),
        "name": lease.name,
        "created_at": _time(lease.created_ms),
        "lease_ms": lease.lease_ms,
        "watched_ms": lease.watched_ms,
        "is_complete": lease.is_ready,
        "metadata_index": lease.metadata_index,
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "partition": held.partition,
        "start_offset": held.start_offset,
        "end_offset": held.end_offset,
    }


def _segment_row(view: PartitionView, entry: RemoteSegment) -> dict[str, Any]:
    return {
        "topic": view.source.topic,
        "topic_id": str(view.source.topic_id),
        "partition": view.source.partition,
        "base_offset": entry.base_offset,
        "end_offset": entry.end_offset,
        "records": entry.records,
        "control_records": entry.control_records if entry.control_records >= 0 else None,
        "bytes": entry.log_bytes,
        "index_bytes": entry.index_bytes,
        "min_timestamp": _time(entry.min_timestamp),
        "max_timestamp": _time(entry.max_timestamp),
        "has_transactions": entry.has_transactions,
        "has_aborts": entry.has_aborts,
        "compacted_at": _time(entry.compacted_at),
        "leader_epoch": entry.leader_epoch,
        "object": view.log_key(entry),
    }


def _time(timestamp_ms: int) -> datetime | None:
    return None if not 0 <= timestamp_ms <= LATEST_MS else _EPOCH + timedelta(milliseconds=timestamp_ms)
