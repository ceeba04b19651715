"""Executor part of `rewrite`: reads successive segments, and writes one with their batches.

Each batch stays a batch, with its offsets, timestamps, leader epoch, producer and sequence; only its codec
may change. The new segment has the aborted transactions, leader epochs and producer state of the old ones,
as one that the brokers merge. It is read back and checked as `audit` does before the driver hands it over.
"""

import tempfile
from dataclasses import dataclass
from uuid import UUID

from tierlog.base.clock import SystemClock
from tierlog.base.leader_epochs import EpochEntry, earliest_starts
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import read_header
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import AbortedTxn, decode_txn_index
from tierlog.records.rewrite import recompressed
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_reader import SegmentReader
from tierlog.spark.history.segment_writer import FinishedSegment, SegmentEnd, SegmentWriter, put_segment
from tierlog.spark.jobs.segment_check import AuditTask, SegmentToCheck, check_segments
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import ObjectStoreError

SPOOLED_BYTES = 64 << 20
"""A new segment up to this size stays in memory; a larger one goes to a temporary file."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The identity of a new segment, as announced to the quorum. `put_until_ms`: no object is put after this
    time. If its copy was abandoned since, its objects have been deleted soon after."""

    uuid: UUID
    leader_epoch: int
    put_until_ms: int


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """`codec`: None keeps that of each batch."""

    store: StoreAddress
    cluster: str
    source: Source
    old: tuple[RemoteSegment, ...]
    new: Announced
    codec: Codec | None
    index_interval_bytes: int
    tags: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`entry`: of the new segment, whose objects are verified; None if nothing was written, because nothing
    would change or for `failure`."""

    entry: RemoteSegment | None = None
    failure: str = ""


def rewrite_segments(task: RewriteTask) -> Rewritten:
    """Rewrite segments. Failures of reads and writes are results, since the other tasks continue."""
    try:
        return _rewrite(task)
    except (ObjectStoreError, RecordsError, OSError) as failure:
        return Rewritten(failure=str(failure))


def _rewrite(task: RewriteTask) -> Rewritten:
    bucket, keys = open_bucket(task.store), Keys(task.cluster)
    with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as file:
        writer = SegmentWriter(file, task.old[0].base_offset, task.index_interval_bytes)
        aborted, epochs, producers = set[AbortedTxn](), tuple[EpochEntry, ...](), b""
        is_changed = len(task.old) > 1
        for entry in task.old:
            reader = SegmentReader(bucket, keys, task.source, entry)
            for batch, header in reader.batches():
                new = batch if task.codec is None else recompressed(batch, header, task.codec)
                if new is not batch:
                    is_changed, header = True, read_header(new)
                writer.add(new, header)
            aborted.update(decode_txn_index(reader.bundle.txn_index))
            # a bundle lacks early offsets if the log start had moved before it was written
            epochs = earliest_starts(epochs, entry.leader_epochs, reader.bundle.leader_epochs)
            producers = reader.bundle.producer_snapshot
        if not is_changed:
            return Rewritten()
        finished = writer.finish(
            SegmentEnd(
                uuid=task.new.uuid,
                leader_epoch=task.new.leader_epoch,
                end_offset=task.old[-1].end_offset,
                leader_epochs=epochs,
                aborted=aborted,
                producer_snapshot=producers,
                max_timestamp=max(entry.max_timestamp for entry in task.old),
                tags=task.tags,
            )
        )
        if SystemClock().now_ms() > task.new.put_until_ms:
            return Rewritten(failure="the task began too late: its copy may have been abandoned")
        put_segment(bucket, keys, task.source.id, file, finished)
    return checked(task.store, task.cluster, task.source, finished)


def checked(store: StoreAddress, cluster: str, source: Source, finished: FinishedSegment) -> Rewritten:
    """Read a new segment back, as `audit` does."""
    found = check_segments(AuditTask(store, cluster, (SegmentToCheck(source, finished.entry),)))
    if found.damages:
        damage = found.damages[0]
        return Rewritten(failure=f"{damage.object} was not stored as it was written: {damage.problem}")
    return Rewritten(finished.entry)
