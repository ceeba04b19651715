"""Streams: history from the bucket, then the tail from brokers, with one offset format over both.

The driver's reader asks brokers for the last stable offsets (or, without brokers, manifests for what was
uploaded) and plans a micro-batch [start, end) for each partition. The part of it that the manifest has is
read from the bucket, in the splits of the batch reader. The rest is read from the brokers by Fetch. Offsets
do not say from where a record comes, so uploads and deletions between two micro-batches do not matter, and a
micro-batch that is planned again after a restart returns the same records.

Spark pickles the reader for the executors, so what it opens is opened at the first use.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tierlog.records.columnar import COLUMNS as DECODED
from tierlog.records.columnar import decode_columns
from tierlog.records.errors import RecordsError
from tierlog.spark import offsets as stream_offsets
from tierlog.spark.batch import TierlogReader
from tierlog.spark.columns import arrow_schema, record_batch
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import (
    OffsetRange,
    OffsetsUnavailable,
    Pruning,
    Source,
    Split,
    check_bounds,
    pack_split,
)
from tierlog.spark.history.positions import BucketPositions
from tierlog.spark.history.snapshot import READS_AT_ONCE, plan_splits
from tierlog.spark.offsets import Offsets
from tierlog.spark.options import EARLIEST, LATEST, Bound
from tierlog.spark.options.stream import StreamOptions
from tierlog.spark.short_errors import short_errors
from tierlog.spark.worker import freeze_heap

try:  # since PySpark 4.2
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow

    ENGINE_LIMITS = True
except ImportError:
    ENGINE_LIMITS = False

    class _AvailableNow:  # type: ignore[no-redef]
        """Earlier engines run one micro-batch for Trigger.AvailableNow."""


MANIFEST_AGE_S = 30.0
"""How long the manifests of a stream with brokers are used. Brokers serve what they do not have yet."""
LOSS_CHECK_PAUSE_S = 0.2
"""Pause between two look-ups of a log that seems to have lost records."""


class BrokenBatch(RuntimeError):
    """A broker returned bytes that are not valid record batches."""


class Positions(Protocol):
    """Partitions and committed offsets: of brokers or of a bucket."""

    def sources(self) -> list[Source]: ...
    def earliest(self, sources: list[Source]) -> Offsets: ...
    def latest(self, sources: list[Source]) -> Offsets: ...
    def at_timestamps(self, timestamps: Mapping[Source, int]) -> Offsets: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Offsets of a partition that one task reads from brokers."""

    source: Source
    offsets: OffsetRange


def stream_reader(options: StreamOptions, schema: StructType) -> DataSourceStreamReader:
    """The reader for this version of PySpark."""
    return (TierlogStreamReader if ENGINE_LIMITS else UnlimitedStreamReader)(options, schema)


class TierlogStreamReader(DataSourceStreamReader, _AvailableNow):
    """The driver calls all methods but `read`, in one thread of one process per query. In each of them,
    `begin` and `finish` are the decoded documents `start` and `end`."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: Positions | None = None
        self._newest: Offsets | None = None
        self._target: Offsets | None = None
        self._last_trigger_s = float("-inf")
        self._committed: dict[Source, OffsetRange] = {}
        self._committed_at_s = float("-inf")

    # ---- offsets ----

    @short_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (PySpark's name)
        sources, bound = self._positions.sources(), self._options.read.starting
        check_bounds([bound], sources)
        earliest, latest = self._positions.earliest(sources), self._positions.latest(sources)
        timestamps = {}
        for source in sources:
            timestamp_ms = bound.timestamp_of(source.topic, source.partition)
            if timestamp_ms is not None:
                timestamps[source] = timestamp_ms
        at_timestamps = self._positions.at_timestamps(timestamps)
        for source, offset in at_timestamps.items():
            if bound.must_match and offset >= latest[source] > earliest[source]:
                raise OffsetsUnavailable(
                    f"{source}: there is no record at or after timestamp {timestamps[source]}; "
                    "set startingOffsetsByTimestampStrategy=latest to start at its end"
                )
        others = [source for source in sources if source not in timestamps]
        at_offsets = {
            source: self._resolve(bound, source, earliest[source], latest[source]) for source in others
        }
        return stream_offsets.encode({**at_timestamps, **at_offsets})

    @short_errors
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch, or `start` if there is nothing to read."""
        is_limited = not (ENGINE_LIMITS and isinstance(limit, ReadAllAvailable))
        begin = stream_offsets.decode(start)
        newest = self._newest = self._latest_without_losses(begin)
        if self._options.live is not None and (lost := stream_offsets.behind(begin, newest)):
            # the user accepts the loss: an empty micro-batch takes the checkpoint back to the end of the log
            return stream_offsets.encode({**begin, **lost})
        begin = self._with_new_partitions(begin, newest)
        end = stream_offsets.at_least(begin, newest)
        if self._target is not None:
            end = {
                source: max(begin[source], min(offset, self._target[source]))
                for source, offset in end.items()
                if source in self._target
            }
        rows = stream_offsets.count(begin, end)
        if rows == 0 or (is_limited and self._is_delayed(rows)):
            return start
        self._last_trigger_s = time.monotonic()
        if is_limited and self._options.max_offsets is not None:
            end = stream_offsets.limit(begin, end, self._options.max_offsets)
        return stream_offsets.encode(end)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Later records and partitions are left for the next run."""
        self._target = self._ends()

    @short_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: its lag is the difference to `endOffset`."""
        return None if self._newest is None else stream_offsets.encode(self._newest)

    # ---- micro-batches ----

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, finish = stream_offsets.decode(start), stream_offsets.decode(end)
        stream_offsets.check_topics(begin, finish)
        begin = self._with_new_partitions(begin, finish)
        ranges = {
            source: OffsetRange(begin[source], offset)
            for source, offset in finish.items()
            if begin[source] < offset
        }
        history, live = self._divide(ranges)
        tasks: list[bytes | LiveRange] = [pack_split(split) for split in self._splits(history)]
        tasks += [LiveRange(source, offsets) for source, offsets in live.items()]
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        task: bytes | LiveRange = partition.value
        if isinstance(task, LiveRange):
            yield from self._read_live(task)
            freeze_heap()
        else:
            yield from TierlogReader(self._options.read, self._schema).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Offsets are in the checkpoint alone."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # ---- parts of these ----

    @property
    def _positions(self) -> Positions:
        if self._opened is None:
            if self._options.live is not None:
                from tierlog.spark.live.positions import BrokerPositions

                self._opened = BrokerPositions(self._options.live, self._options)
            else:
                self._opened = BucketPositions(self._options)
        return self._opened

    def _resolve(self, bound: Bound, source: Source, earliest: int, latest: int) -> int:
        offset = bound.offset_of(source.topic, source.partition)
        if offset in (EARLIEST, LATEST):
            return earliest if offset == EARLIEST else latest
        if not earliest <= offset <= latest and self._options.read.fail_on_data_loss:
            raise OffsetsUnavailable(
                f"{source}: offset {offset} is not available, but [{earliest}, {latest}) is; "
                "set failOnDataLoss=false to read the available offsets"
            )
        return min(max(offset, earliest), latest)

    def _latest(self, start: Mapping[Source, int]) -> Offsets:
        """Raises TopicChanged if a topic is not the one of `start`."""
        sources = self._positions.sources()
        stream_offsets.check_topics(start, dict.fromkeys(sources, 0))
        return self._positions.latest(sources)

    def _ends(self) -> Offsets:
        """End offsets of a run that reads the records which exist when it begins."""
        return self._latest({})

    def _latest_without_losses(self, start: Offsets) -> Offsets:
        """The newest offsets, once no log ends before `start` or before the target. A new leader may report a
        lower end for a moment (KIP-207). One that is still lower after `kafka.request.timeout.ms` has lost
        records: raises OffsetsUnavailable, or warns and lowers the target."""
        newest, live = self._latest(start), self._options.live
        if live is None:  # a bucket may get later what brokers had
            return newest
        needed = {**start, **stream_offsets.at_least(start, self._target or {})}
        deadline_s = time.monotonic() + live.timeout_s
        while stream_offsets.behind(needed, newest) and time.monotonic() < deadline_s:
            time.sleep(LOSS_CHECK_PAUSE_S)
            newest = self._latest(start)
        lost = stream_offsets.behind(needed, newest)
        for source, end in lost.items():
            was_read = end < start.get(source, 0)
            stream_offsets.report_loss(
                source,
                end,
                start[source] if was_read else needed[source],
                was_read=was_read,
                fail_on_data_loss=self._options.read.fail_on_data_loss,
            )
        if self._target is not None:
            self._target = {**self._target, **lost}
        return newest

    def _with_new_partitions(self, start: Offsets, end: Mapping[Source, int]) -> Offsets:
        """Add partitions that did not exist before. A new topic begins at its earliest offset, a new
        partition at 0, so that deleted records are noticed."""
        topics = {source.topic for source in start}
        added = {source: 0 for source in end if source not in start}
        unknown = [source for source in added if source.topic not in topics]
        return {**start, **added, **(self._positions.earliest(unknown) if unknown else {})}

    def _is_delayed(self, rows: int) -> bool:
        """Whether to wait for more rows: `minOffsetsPerTrigger`, at most for `maxTriggerDelay`. A query that
        reads up to a target does not wait."""
        least = self._options.min_offsets
        if least is None or rows >= least or self._target is not None:
            return False
        return (time.monotonic() - self._last_trigger_s) * 1000 < self._options.max_trigger_delay_ms

    def _divide(
        self, ranges: Mapping[Source, OffsetRange]
    ) -> tuple[dict[Source, OffsetRange], dict[Source, OffsetRange]]:
        """The ranges that are read from the bucket, and those from brokers."""
        if not self._options.has_history:
            return {}, dict(ranges)
        committed = self._committed_ranges(ranges)
        if self._options.live is None:
            fails = self._options.read.fail_on_data_loss
            return {
                source: stream_offsets.available(source, offsets, committed[source].start, fails)
                for source, offsets in ranges.items()
            }, {}
        parts = {
            source: stream_offsets.seam(offsets, committed[source]) for source, offsets in ranges.items()
        }
        return (
            {source: history for source, (history, _) in parts.items() if history},
            {source: live for source, (_, live) in parts.items() if live},
        )

    def _committed_ranges(self, sources: Mapping[Source, OffsetRange]) -> dict[Source, OffsetRange]:
        """Offsets in the manifests, which are read again after MANIFEST_AGE_S."""
        now_s = time.monotonic()
        if self._options.live is None or now_s - self._committed_at_s > MANIFEST_AGE_S:
            self._committed.clear()
            self._committed_at_s = now_s
        missing = [source for source in sources if source not in self._committed]
        if missing:
            bucket = BucketPositions(self._options)
            with ThreadPoolExecutor(READS_AT_ONCE) as pool:
                self._committed.update(zip(missing, pool.map(bucket.committed, missing), strict=True))
        return self._committed

    def _splits(self, ranges: Mapping[Source, OffsetRange]) -> list[Split]:
        """The splits of the batch reader."""
        if not ranges:
            return []
        starts = {(source.topic, source.partition): offsets.start for source, offsets in ranges.items()}
        ends = {(source.topic, source.partition): offsets.end for source, offsets in ranges.items()}
        read = self._options.read
        assigned: dict[str, set[int]] = {}
        for source in ranges:
            assigned.setdefault(source.topic, set()).add(source.partition)
        options = replace(
            read,
            topics=tuple(assigned),
            pattern=None,
            assigned={topic: frozenset(partitions) for topic, partitions in assigned.items()},
            starting=Bound(LATEST, starts),
            ending=Bound(EARLIEST, ends),
        )
        return plan_splits(open_bucket(read.store), options, Pruning(), list(ranges))

    def _read_live(self, task: LiveRange) -> Iterator[pa.RecordBatch]:
        from tierlog.spark.live.fetch import fetch_range

        live, read = self._options.live, self._options.read
        if live is None:
            return
        schema = arrow_schema(self._schema)
        wanted = [name for name in schema.names if name in DECODED]
        fetches = fetch_range(live, task.source, task.offsets, fail_on_data_loss=read.fail_on_data_loss)
        for fetched in fetches:
            try:
                for columns in decode_columns(
                    fetched.batches,
                    wanted,
                    first_offset=fetched.first_offset,
                    end_offset=task.offsets.end,
                    aborted=fetched.aborted,
                ):
                    if columns.rows:
                        yield record_batch(columns, task.source, schema, read.value)
            except RecordsError as error:
                raise BrokenBatch(f"{task.source}: from the brokers: {error}") from error


class UnlimitedStreamReader(TierlogStreamReader):
    """For PySpark 4.0 and 4.1, whose engine does not say from where a micro-batch starts: the reader
    remembers it.

    After a restart, the engine asks for the end of the first micro-batch before the reader knows its start,
    and stores that end. It may be before the start, which then shows when the micro-batch is planned."""

    _begin: dict[str, Any] | None = None
    _already_read: Offsets | None = None
    """Start of such a micro-batch. Later ones are planned from there: for the engine they start at its lower
    end, and would read some records again. After an accepted loss it is no more than the end of the log,
    since other records get those offsets."""

    @short_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._begin = super().initialOffset()
        return self._begin

    @short_errors
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        if self._begin is None:
            return stream_offsets.encode(self._ends())
        end = super().latestOffset(self._begin, None)
        if self._already_read is not None:  # it ends below them only after a loss that the user accepts
            ends = stream_offsets.decode(end)
            self._already_read = {
                source: min(offset, ends.get(source, offset)) for source, offset in self._already_read.items()
            }
        return end

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, finish = stream_offsets.decode(start), stream_offsets.decode(end)
        if self._begin is None and stream_offsets.behind(begin, finish):
            self._already_read = self._not_lost(begin)
        read = self._already_read
        if read is None:
            self._begin = end
            return super().partitions(start, end)
        self._begin = stream_offsets.encode(stream_offsets.at_least(read, finish))
        return super().partitions(stream_offsets.encode(stream_offsets.at_least(read, begin)), end)

    def _not_lost(self, begin: Offsets) -> Offsets:
        """The offsets in `begin` that the log or the bucket still has, or has by now. Raises
        OffsetsUnavailable for others, unless the user accepts that brokers have lost them."""
        newest = self._latest_without_losses(begin)
        missing = stream_offsets.behind(begin, newest)
        if missing and self._options.live is None:
            source = next(iter(missing))
            raise OffsetsUnavailable(
                f"{source}: the stream has read up to offset {begin[source]}, and the bucket ends at "
                f"{missing[source]}: start the query again once brokers have uploaded more, or set "
                "`kafka.bootstrap.servers`"
            )
        return {source: offset for source, offset in begin.items() if source not in missing}
