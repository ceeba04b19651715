"""Statistics of records, collected on executors and merged on the driver.

Everything is a sum, a maximum or a sketch, so that the results of tasks merge in any order. The number of
different keys is estimated by HyperLogLog over the hash of Kafka's partitioner. Each task keeps its most
frequent keys, and so does the driver: their counts are lower bounds, and exact for keys that neither drops.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tierlog.records.columnar_encode import column_bytes, partitions_of_keys
from tierlog.records.kernels import Array
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.decoding import decode_part
from tierlog.spark.history.plan import Part
from tierlog.spark.history.snapshot import read_split
from tierlog.spark.options import ReadOptions

HASH_BITS, INDEX_BITS = 31, 14
REGISTERS = 1 << INDEX_BITS
REST_BITS = HASH_BITS - INDEX_BITS
KEYS_KEPT = 10_000
"""Most frequent keys of a partition that a task and the driver keep."""

KEY_BYTES_KEPT = 1 << 20
"""Their size at most."""

SIZES = 32
"""Classes of sizes: class n has the sizes below 2^n that are in no lower class."""

US = 1_000


@dataclass(frozen=True, slots=True)
class StatsTask:
    """Adjacent parts, and the width of the periods of time in milliseconds."""

    parts: tuple[Part, ...]
    options: ReadOptions
    period_ms: int


@dataclass(slots=True)
class RecordStats:
    """Statistics of the records of a partition or of a topic. `by_period`: records and bytes of keys and
    values, by number of the period. `sizes`: records by class of the value's size."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    null_keys: int = 0
    null_values: int = 0
    late_records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    by_period: dict[int, tuple[int, int]] = field(default_factory=dict)
    sizes: Array = field(default_factory=lambda: np.zeros(SIZES, np.int64))
    keys: Counter[bytes] = field(default_factory=Counter)
    registers: Array = field(default_factory=lambda: np.zeros(REGISTERS, np.uint8))

    def merge(self, other: "RecordStats") -> None:
        self.records += other.records
        self.key_bytes += other.key_bytes
        self.value_bytes += other.value_bytes
        self.null_keys += other.null_keys
        self.null_values += other.null_values
        self.late_records += other.late_records
        self.first_ms = min((one for one in (self.first_ms, other.first_ms) if one is not None), default=None)
        self.last_ms = max((one for one in (self.last_ms, other.last_ms) if one is not None), default=None)
        for period, (records, size) in other.by_period.items():
            before = self.by_period.get(period, (0, 0))
            self.by_period[period] = before[0] + records, before[1] + size
        self.sizes = self.sizes + other.sizes
        self.keys.update(other.keys)
        self.registers = np.maximum(self.registers, other.registers)

    def add(self, columns: dict[str, Any], period_ms: int, newest_ms: int) -> int:
        """Count a batch of decoded records. `newest_ms`: the largest timestamp before it. Returns the largest
        one so far."""
        keys, values = column_bytes(columns["key"]), column_bytes(columns["value"])
        times = np.asarray(columns["timestamp"].cast(pa.int64())) // US
        sizes = np.maximum(keys.sizes, 0) + np.maximum(values.sizes, 0)
        newest = np.maximum.accumulate(np.concatenate([[newest_ms], times]))
        self.records += len(times)
        self.key_bytes += int(np.maximum(keys.sizes, 0).sum())
        self.value_bytes += int(np.maximum(values.sizes, 0).sum())
        self.null_keys += int((keys.sizes < 0).sum())
        self.null_values += int((values.sizes < 0).sum())
        self.late_records += int((times < newest[:-1]).sum())
        first, last = int(times.min()), int(times.max())
        self.first_ms = first if self.first_ms is None else min(self.first_ms, first)
        self.last_ms = last if self.last_ms is None else max(self.last_ms, last)
        periods, places = np.unique(times // period_ms, return_inverse=True)
        counts, totals = np.bincount(places), np.bincount(places, weights=sizes)
        for period, count, total in zip(periods.tolist(), counts.tolist(), totals.tolist(), strict=True):
            before = self.by_period.get(period, (0, 0))
            self.by_period[period] = before[0] + count, before[1] + int(total)
        classes = np.minimum(_bits(np.maximum(values.sizes, 0)), SIZES - 1)
        self.sizes = self.sizes + np.bincount(classes, minlength=SIZES)
        self._add_keys(columns["key"])
        return int(newest[-1])

    def trim(self) -> None:
        """Drop all but the most frequent keys."""
        if len(self.keys) > KEYS_KEPT or sum(map(len, self.keys)) > KEY_BYTES_KEPT:
            kept = self.keys.most_common(KEYS_KEPT)
            sizes = np.cumsum([len(key) for key, _ in kept])
            count = int(np.searchsorted(sizes, KEY_BYTES_KEPT, side="right"))
            self.keys = Counter(dict(kept[: max(count, 1)]))

    @property
    def distinct_keys(self) -> int:
        """Estimate, good to about 1 %."""
        ranks = self.registers.astype(np.float64)
        estimate = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / np.sum(2.0**-ranks)
        empty = int((self.registers == 0).sum())
        if estimate <= 2.5 * REGISTERS and empty:
            estimate = REGISTERS * np.log(REGISTERS / empty)
        return round(keys_of_hashes(float(estimate)))

    def _add_keys(self, column: Any) -> None:
        counted = pc.value_counts(pc.drop_null(column))
        unique, counts = counted.field("values"), counted.field("counts")
        if not len(unique):
            return
        hashes = partitions_of_keys(column_bytes(unique), 1 << HASH_BITS, np.zeros(len(unique), np.int64))
        ranks = (REST_BITS + 1 - _bits(hashes & ((1 << REST_BITS) - 1))).astype(np.uint8)
        np.maximum.at(self.registers, hashes >> REST_BITS, ranks)
        self.keys.update(dict(zip(unique.to_pylist(), counts.to_pylist(), strict=True)))
        if len(self.keys) > 4 * KEYS_KEPT:
            self.trim()


def collect(task: StatsTask) -> dict[tuple[str, int], RecordStats]:
    """Statistics of each partition in the task. Raises ObjectStoreError if it cannot be read."""
    found: dict[tuple[str, int], RecordStats] = {}
    newest: dict[tuple[str, int], int] = {}
    for part, content in read_split(open_bucket(task.options.store), task.options, task.parts):
        where = part.source.topic, part.source.partition
        stats = found.setdefault(where, RecordStats())
        for columns in decode_part(part, content, ("key", "value", "timestamp")):
            newest[where] = stats.add(columns.arrays, task.period_ms, newest.get(where, -(2**62)))
    for stats in found.values():
        stats.trim()
    return found


def merged(some: Iterable[RecordStats]) -> RecordStats:
    total = RecordStats()
    for one in some:
        total.merge(one)
    return total


def keys_of_hashes(hashes: float) -> float:
    """How many keys have so many different hashes: some keys share one."""
    every = 1 << HASH_BITS
    return float(-every * np.log1p(-min(hashes, every - 1) / every))


def _bits(numbers: Array) -> Array:
    """Bits of each number, as int.bit_length. They are below 2^53."""
    return np.asarray(np.frexp(numbers.astype(np.float64))[1]).astype(np.int64)
