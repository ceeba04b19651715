"""Progress of `stats` in a file: statistics of what was read, and the offsets at which the next run begins.

A file is of one selection of records. Its counts are added to those of the next run, so the width of periods
stays, too. The format is MessagePack, because keys are bytes.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tierlog.base.types import TopicIdPartition
from tierlog.spark.jobs.arguments import InvalidArgument, JobFailed, Values
from tierlog.spark.jobs.record_stats import REGISTERS, SIZES, RecordStats
from tierlog.spark.jobs.tables import decode_ends, encode_ends

SELECTION = (
    "path",
    "cluster",
    "topic",
    "pattern",
    "starting_offsets",
    "ending_offsets",
    "starting_timestamp",
    "ending_timestamp",
)
"""Arguments that choose the records."""

COUNTS = ("records", "key_bytes", "value_bytes", "null_keys", "null_values", "late_records")


class _Partition(msgspec.Struct, array_like=True):
    """RecordStats of one partition. `counts`: in the order of COUNTS."""

    topic: str
    partition: int
    counts: list[int]
    first_ms: int | None
    last_ms: int | None
    by_period: dict[int, tuple[int, int]]
    sizes: list[int]
    keys: list[tuple[bytes, int]]
    registers: bytes


class _File(msgspec.Struct):
    stats_of: dict[str, Any]
    period_ms: int
    ends: str
    partitions: list[_Partition]


@dataclass(slots=True)
class StatsProgress:
    """`ends`: of what `found` counts. `file`: None keeps nothing."""

    file: str | None
    selection: dict[str, Any]
    period_ms: int
    ends: dict[TopicIdPartition, int] = field(default_factory=dict)
    found: dict[tuple[str, int], RecordStats] = field(default_factory=dict)

    @classmethod
    def load(cls, values: Values, period_ms: int) -> "StatsProgress":
        """That of the file, if it exists. Raises JobFailed or InvalidArgument."""
        file, selection = values["resume"], {name: values[name] for name in SELECTION}
        if file is None or not Path(file).exists():
            return cls(file, selection, period_ms)
        try:
            known = msgspec.msgpack.decode(Path(file).read_bytes(), type=_File)
            ends = decode_ends(known.ends)
            found = {(one.topic, one.partition): _stats(one) for one in known.partitions}
        except (msgspec.MsgspecError, ValueError, KeyError) as failure:
            raise JobFailed(f"{file} has no progress of stats: {failure}. Give another file") from None
        for name, value in selection.items():
            if known.stats_of.get(name) != value:
                raise InvalidArgument(
                    f"{file} has the progress of a run with another --{name.replace('_', '-')}: "
                    f"{known.stats_of.get(name)!r}. Give another file, or delete it"
                )
        return cls(file, selection, known.period_ms, ends, found)

    def reach(self, ends: Mapping[TopicIdPartition, int]) -> None:
        """Records up to these offsets are counted. Keep that in the file."""
        self.ends.update(ends)
        if self.file is None:
            return
        partitions = [_of_file(topic, partition, one) for (topic, partition), one in self.found.items()]
        document = _File(self.selection, self.period_ms, encode_ends(self.ends), partitions)
        new = f"{self.file}.new"
        Path(new).write_bytes(msgspec.msgpack.encode(document))
        os.replace(new, self.file)

    def end(self) -> None:
        """The run is complete."""
        if self.file is not None:
            Path(self.file).unlink(missing_ok=True)


def _of_file(topic: str, partition: int, stats: RecordStats) -> _Partition:
    return _Partition(
        topic,
        partition,
        [getattr(stats, name) for name in COUNTS],
        stats.first_ms,
        stats.last_ms,
        stats.by_period,
        stats.sizes.tolist(),
        list(stats.keys.items()),
        stats.registers.tobytes(),
    )


def _stats(one: _Partition) -> RecordStats:
    """Raises ValueError."""
    registers = np.frombuffer(one.registers, np.uint8).copy()
    if len(registers) != REGISTERS or len(one.sizes) != SIZES:
        raise ValueError("a sketch has another size")
    return RecordStats(
        **dict(zip(COUNTS, one.counts, strict=True)),
        first_ms=one.first_ms,
        last_ms=one.last_ms,
        by_period=one.by_period,
        sizes=np.array(one.sizes, np.int64),
        keys=Counter(dict(one.keys)),
        registers=registers,
    )
