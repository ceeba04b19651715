"""Analysis of a topic's load: rates, batch sizes, skew between partitions, and what to do about them.

Pure: `topic_samples` reads the batches, and `tierlog topic analyze` prints the result. A partition is sampled
in slices of its offsets. Each slice stands for the offsets between its bounds, so that a sample of a day is
as good in the night as at noon.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, TypeVar

from tierlog.base.text import size
from tierlog.records.batch import BatchHeader
from tierlog.records.codecs import Codec

K = TypeVar("K", bound=Hashable)

KEYS_TRACKED = 10_000
"""Keys whose weight is known at a time. A key with more than a ten-thousandth of the bytes is never lost."""

ADVISED_FROM_RECORDS = 1_000  # fewer records show chance instead of skew
SKEW = 2.0  # times the average of the partitions, or of the leaders
SMALL_BATCH_BYTES = 4 << 10  # a quarter of Kafka's default of batch.size
BATCHES_PER_S = 100  # fewer small batches cost nothing
UNCOMPRESSED_SHARE = 0.5
COMPRESSIBLE_BATCH_BYTES = 1 << 10
HOT_KEY_SHARE = 0.05
"""Least share of a topic's bytes from which a key is called hot."""


@dataclass(slots=True, kw_only=True)
class Slice:
    """Sample of the offsets [start, end) of a partition. `position`: next offset to read. A batch belongs to
    the slice with its base offset; the first slice of a range also takes the batch that begins before it.
    `read_from`: where the first batch of the slice begins."""

    partition: int
    start: int
    end: int
    budget_bytes: int
    is_first: bool
    position: int = -1
    read_from: int = -1
    batches: int = 0
    records: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.position = self.start

    @property
    def is_done(self) -> bool:
        return self.position >= self.end or self.bytes >= self.budget_bytes

    @property
    def read(self) -> int:
        """Offsets of the slice whose batches are known."""
        if self.position >= self.end:
            return self.end - self.start
        return self.position - max(self.read_from, self.start) if self.batches else 0

    @property
    def weight(self) -> float:
        """How often the sample fits into the slice."""
        return (self.end - self.start) / self.read if self.read > 0 else 0.0

    def add(self, header: BatchHeader) -> bool:
        """Count a batch, in offset order. Returns whether it belongs to this slice."""
        belongs = header.base_offset < self.end and (self.is_first or header.base_offset >= self.start)
        if belongs:
            self.read_from = header.base_offset if self.read_from < 0 else self.read_from
            self.batches += 1
            self.records += header.record_count
            self.bytes += header.size
        self.position = max(self.position, self.end if header.base_offset >= self.end else header.next_offset)
        return belongs


@dataclass(slots=True, kw_only=True)
class PartitionLoad:
    """Load of a partition in the range. `offsets`: its first offset and the one after its last."""

    partition: int
    leader: int
    offsets: tuple[int, int]
    slices: list[Slice] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)
    codec_bytes: Counter[Codec] = field(default_factory=Counter)

    @property
    def bytes(self) -> float:
        return sum(one.bytes * one.weight for one in self.slices)

    @property
    def records(self) -> float:
        return sum(one.records * one.weight for one in self.slices)

    @property
    def batches(self) -> float:
        return sum(one.batches * one.weight for one in self.slices)

    @property
    def sampled(self) -> float:
        """Share of the offsets that were read, 0 to 1."""
        first, end = self.offsets
        return sum(one.read for one in self.slices) / (end - first) if end > first else 1.0


class HeavyItems(Generic[K]):
    """Weights of the heaviest items of a stream, in bounded memory (Misra and Gries, 1982).

    Twice `capacity` items are kept at most. When there are more, the weight of the item at place `capacity`
    is taken from all, and items without weight are dropped. A weight is too low by `error` at most.
    """

    def __init__(self, capacity: int = KEYS_TRACKED) -> None:
        self.weights: dict[K, int] = {}
        self.error = self.total = 0
        self._capacity = capacity

    def add(self, item: K, weight: int) -> None:
        self.total += weight
        self.weights[item] = self.weights.get(item, 0) + weight
        if len(self.weights) > 2 * self._capacity:
            least = sorted(self.weights.values(), reverse=True)[self._capacity]
            self.weights = {one: kept - least for one, kept in self.weights.items() if kept > least}
            self.error += least

    def top(self, count: int) -> list[tuple[K, int]]:
        """The heaviest items with their least weight."""
        ordered = sorted(self.weights.items(), key=lambda one: one[1], reverse=True)
        return ordered[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key of a partition. Shares are of the bytes of the sample, 0 to 1. `bytes`: its keys and values, not
    compressed; at least so many."""

    key: bytes
    partition: int
    bytes: int
    of_topic: float
    of_partition: float


@dataclass(slots=True)
class KeySample:
    """Keys of the sampled records, with the bytes of keys and values. `undecoded`: batches whose records
    could not be read."""

    items: HeavyItems[tuple[int, bytes]] = field(default_factory=HeavyItems)
    by_partition: Counter[int] = field(default_factory=Counter)
    records: int = 0
    without_key: int = 0
    undecoded: int = 0

    def add(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        weight = len(key or b"") + len(value or b"")
        self.records += 1
        self.by_partition[partition] += weight
        if key is None:
            self.without_key += 1
        else:
            self.items.add((partition, key), weight)

    def top(self, count: int) -> list[HotKey]:
        total = self.by_partition.total()
        return [
            HotKey(
                key=key,
                partition=partition,
                bytes=weight,
                of_topic=weight / total if total else 0.0,
                of_partition=weight / self.by_partition[partition] if weight else 0.0,
            )
            for (partition, key), weight in self.items.top(count)
        ]


def slices_of(partition: int, first: int, end: int, *, count: int, budget_bytes: int) -> list[Slice]:
    """Divide the offsets [first, end) into at most `count` slices, which share the budget."""
    used = min(count, end - first)
    bounds = [first + (end - first) * at // used for at in range(used + 1)] if used > 0 else []
    return [
        Slice(
            partition=partition,
            start=start,
            end=stop,
            budget_bytes=max(budget_bytes // used, 1),
            is_first=start == first,
        )
        for start, stop in pairwise(bounds)
    ]


def partition_rows(loads: Sequence[PartitionLoad], seconds: float) -> list[dict[str, Any]]:
    """One row for each partition, the one with the most bytes first."""
    total = sum(load.bytes for load in loads)
    ordered = sorted(loads, key=lambda one: (-one.bytes, one.partition))
    return [
        {
            "partition": load.partition,
            "leader": load.leader,
            "first_offset": load.offsets[0],
            "end_offset": load.offsets[1],
            **_rates((load,), seconds),
            "share": round(load.bytes / total, 4) if total else 0.0,
            "sampled": round(load.sampled, 4),
        }
        for load in ordered
    ]


def summary(loads: Sequence[PartitionLoad], seconds: float) -> dict[str, Any]:
    """The whole topic. `skew`: bytes of the busiest partition as a multiple of the average."""
    total = sum(load.bytes for load in loads)
    codecs: Counter[str] = Counter()
    for load in loads:
        codecs.update({codec.name.lower(): count for codec, count in load.codec_bytes.items()})
    sampled = codecs.total()
    return {
        "partitions": len(loads),
        "idle_partitions": sum(load.bytes == 0 for load in loads),
        **_rates(loads, seconds),
        "skew": round(max(load.bytes for load in loads) * len(loads) / total, 2) if total else 0.0,
        "codecs": {name: round(count / sampled, 4) for name, count in sorted(codecs.items())},
        "bytes_read": sampled,
    }


def _rates(loads: Sequence[PartitionLoad], seconds: float) -> dict[str, float]:
    byte_count, batches = sum(one.bytes for one in loads), sum(one.batches for one in loads)
    records = sum(one.records for one in loads)
    sizes = sorted(size for one in loads for size in one.batch_bytes)
    return {
        "bytes_per_s": round(byte_count / seconds, 1),
        "batches_per_s": round(batches / seconds, 3),
        "records_per_s": round(records / seconds, 3),
        "records": round(records),
        "bytes": round(byte_count),
        "batch_bytes_mean": round(byte_count / batches) if batches else 0,
        "batch_bytes_p50": _percentile(sizes, 0.5),
        "batch_bytes_p99": _percentile(sizes, 0.99),
        "records_per_batch": round(records / batches, 1) if batches else 0.0,
    }


def _percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0


def advice(topic: str, loads: Sequence[PartitionLoad], seconds: float, keys: KeySample | None) -> list[str]:
    """Sentences, each with what was seen and what to do. Empty if there is too little to see."""
    total = summary(loads, seconds)
    if total["records"] < ADVISED_FROM_RECORDS:
        return []
    found = [*_of_batches(total), *_of_leaders(loads)]
    hot = _hot_keys(loads, keys)
    if hot:
        found += [_of_key(one, len(loads)) for one in hot]
    if len(loads) > 1 and total["skew"] >= SKEW:
        busiest = max(loads, key=lambda one: one.bytes)
        then = (
            "The keys above heat it." if hot else "Its keys weigh little each, or it was sent to by number."
        )
        if keys is None:
            then = f"Name the keys with `tierlog topic analyze {topic} --keys`."
        found.append(f"Partition {busiest.partition} gets {total['skew']:.1f} times the average. {then}")
    return found


def _of_batches(total: Mapping[str, Any]) -> Iterable[str]:
    if total["batch_bytes_mean"] < SMALL_BATCH_BYTES and total["batches_per_s"] >= BATCHES_PER_S:
        yield (
            f"Batches are small: {size(total['batch_bytes_mean'])} on average, "
            f"{total['batches_per_s']:,.0f} a second. Raise linger.ms (to 10 or more) and batch.size of the "
            "producers: brokers pay for each batch."
        )
    plain = total["codecs"].get(Codec.NONE.name.lower(), 0.0)
    if plain > UNCOMPRESSED_SHARE and total["batch_bytes_mean"] >= COMPRESSIBLE_BATCH_BYTES:
        yield (
            f"{plain:.0%} of the bytes are not compressed. Set compression.type=zstd or lz4 of the "
            "producers: it saves network, disks and object storage."
        )


def _of_leaders(loads: Sequence[PartitionLoad]) -> Iterable[str]:
    by_leader: Counter[int] = Counter()
    for load in loads:
        by_leader[load.leader] += round(load.bytes)
    leader, most = max(by_leader.items(), key=lambda one: one[1])
    average = by_leader.total() / len(by_leader)
    if len(by_leader) > 1 and most >= SKEW * average:
        yield (
            f"Broker {leader} leads {most / by_leader.total():.0%} of the bytes. `tierlog partition balance` "
            "spreads leaders and replicas."
        )


def _hot_keys(loads: Sequence[PartitionLoad], keys: KeySample | None) -> list[HotKey]:
    """Keys that alone are heavier than an average partition: more partitions do not divide them."""
    if keys is None or len(loads) < 2:
        return []
    least = max(HOT_KEY_SHARE, 1 / len(loads))
    return [one for one in keys.top(len(loads)) if one.of_topic >= least]


def _of_key(one: HotKey, partitions: int) -> str:
    name = one.key.decode(errors="backslashreplace")
    return (
        f"Key {name!r} has {one.of_topic:.0%} of the topic's bytes, {one.of_partition:.0%} of partition "
        f"{one.partition}: more than one of {partitions} partitions should carry. Divide it in the producer, "
        "for example by a suffix, or give it a topic of its own."
    )
