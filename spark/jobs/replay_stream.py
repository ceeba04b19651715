"""Source of the replay job: a stream that ends at given offsets, with one task per partition.

In a micro-batch, one task reads a partition from its first offset to its last, from the bucket and then from
brokers, so that the rows reach the writer in their order. The splits of other streams run side by side.

Runs on the driver and on executors. Only the job uses it, under the name NAME.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tierlog.spark import offsets as stream_offsets
from tierlog.spark.columns import COLUMNS, HEADERS
from tierlog.spark.history.plan import (
    OffsetsUnavailable,
    Part,
    Source,
    check_bounds,
    pack_split,
    unpack_split,
)
from tierlog.spark.offsets import Offsets
from tierlog.spark.options import EARLIEST, LATEST, Bound, parse_options
from tierlog.spark.options.stream import parse_stream_options
from tierlog.spark.stream import ENGINE_LIMITS, LiveRange, TierlogStreamReader, UnlimitedStreamReader

NAME = "tierlog_replay"
ARGUMENTS = "arguments"
"""Option: JSON of the arguments that must not change between two runs."""

ENDS = ("endingOffsets", "endingTimestamp")
_FIELD = "replay"
"""Field of the offsets in the checkpoint, for ARGUMENTS."""

Function: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


class ReplayChanged(RuntimeError):
    """The checkpoint is that of a replay with other arguments."""


class FunctionFailed(RuntimeError):
    """The user's function returned something else than rows of the source's columns."""


class ReplaySource(DataSource):
    """The stream's options, and those of ENDS and ARGUMENTS."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ", ".join(f"{name} {type}" for name, type in {**COLUMNS, "headers": HEADERS}.items())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (PySpark's name)
        return replay_reader(self.options, schema)


def replay_reader(given: Mapping[str, str], schema: StructType) -> "InOrder":
    """The reader for this version of PySpark."""
    own = {name.lower() for name in (*ENDS, ARGUMENTS)}
    options = parse_stream_options({name: value for name, value in given.items() if name.lower() not in own})
    lowered = {name.lower(): value for name, value in given.items()}
    ends = {name: lowered[name.lower()] for name in ENDS if name.lower() in lowered}
    ending = parse_options({"path": ".", "topic": "any", **ends}).ending
    options = replace(options, read=replace(options.read, ending=ending))
    reader = (ReplayReader if ENGINE_LIMITS else UnlimitedReplayReader)(options, schema)
    reader.arguments = json.loads(lowered.get(ARGUMENTS, "{}"))
    return reader


class InOrder(TierlogStreamReader):
    """Ends at the offsets of `options.read.ending`, and reads each partition in one task."""

    arguments: dict[str, Any]

    def bounds(self) -> tuple[Offsets, Offsets]:
        """The first offsets of a new replay, and the ends as of now. Raises InvalidOption for the end of a
        partition that is not read, as its records would be written to the newest one."""
        end = self._ends()
        check_bounds([self._options.read.ending], end)
        try:
            return stream_offsets.decode(self.initialOffset()), end
        except OffsetsUnavailable:  # retention has passed them: only the first run needs them, and then fails
            return self._positions.earliest(list(end)), end

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (PySpark's name)
        return self._marked(super().initialOffset())

    def latestOffset(self, *begin: Any) -> dict[str, Any]:  # noqa: N802
        if self._target is None:  # PySpark 4.0 and 4.1 set none
            self._target = self._ends()
        return self._marked(super().latestOffset(*begin))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises ReplayChanged."""
        for document in (start, end):
            if document.get(_FIELD) != self.arguments:
                raise ReplayChanged(
                    f"the checkpoint belongs to a replay with {json.dumps(document.get(_FIELD))}, not "
                    f"{json.dumps(self.arguments)}: give the same arguments, or another --checkpoint"
                )
        begin, finish = stream_offsets.decode(start), stream_offsets.decode(end)
        if behind := stream_offsets.behind(begin, finish):
            newest = self._latest_without_losses(begin)
            for source in behind.keys() - stream_offsets.behind(begin, newest).keys():
                raise ReplayChanged(
                    f"the checkpoint has offset {begin[source]} of {source}, which is beyond the end of the "
                    f"range, {finish[source]}: give a later end, or another --checkpoint"
                )
        history: dict[Source, list[Part]] = {}
        live: dict[Source, LiveRange] = {}
        for planned in super().partitions(start, end):
            if isinstance(planned.value, LiveRange):
                live[planned.value.source] = planned.value
                continue
            for part in unpack_split(planned.value):
                history.setdefault(part.source, []).append(part)
        packed = {source: pack_split(tuple(parts)) for source, parts in history.items()}
        sources = dict.fromkeys((*history, *live))
        return [InputPartition((packed.get(source), live.get(source))) for source in sources]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        history, live = partition.value
        if history is not None:
            yield from super().read(InputPartition(history))
        if live is not None:
            yield from super().read(InputPartition(live))

    def _ends(self) -> Offsets:
        """The newest offsets, but not beyond the end of the replay."""
        newest, ending = super()._ends(), self._options.read.ending
        stamps = {source: ending.timestamp_of(source.topic, source.partition) for source in newest}
        by_time = self._positions.at_timestamps(
            {source: stamp for source, stamp in stamps.items() if stamp is not None}
        )
        return {
            source: _end(ending, source, offset, by_time.get(source)) for source, offset in newest.items()
        }

    def _marked(self, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, _FIELD: self.arguments}


class ReplayReader(InOrder):
    """For engines that say where a micro-batch starts."""


class UnlimitedReplayReader(InOrder, UnlimitedStreamReader):
    """For PySpark 4.0 and 4.1."""


def _end(ending: Bound, source: Source, newest: int, by_time: int | None) -> int:
    if by_time is not None:
        return min(by_time, newest)
    offset = ending.offset_of(source.topic, source.partition)
    if offset in (LATEST, EARLIEST):
        return newest if offset == LATEST else 0
    return min(offset, newest)


def on_batches(function: Function, names: list[str]) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For mapInArrow: calls the function for each batch. Raises FunctionFailed."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            changed = function(batch)
            if not isinstance(changed, pa.RecordBatch):
                raise FunctionFailed(f"the function returned {type(changed).__name__}, not a RecordBatch")
            if missing := [name for name in names if name not in changed.schema.names]:
                raise FunctionFailed(f"the function's rows have no column {', '.join(missing)}")
            yield changed.select(names)

    return run
