"""Compares the copies of each log with each other and with the history. Pure: needs no cluster.

All copies of a log without compaction have the same bytes, and each must agree with the history. Copies of a
compacted log may be compacted up to different points. At an offset that several copies have they hold the
same record, and each copy has the last value of each key. Called by history_check.py.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from havoc import checker
from havoc.anomalies import Anomaly, Kind
from havoc.history import FINAL, Acked, AnyEvent, Ended, Failed, Read, Sent, value_of
from havoc.replicas import REMOTE, Copy, StoredRecord

REPORTED_MAX = 5
"""Maximum number of differences reported for two copies: one wrong byte may shift everything after it."""

IsTombstone = Callable[[int], bool]
KeyOf = Callable[[str, int], bytes]


def compare(partition: int, copies: Sequence[Copy]) -> Iterator[Anomaly]:
    """Check the copies of a log without compaction.

    Each copy must be complete, all must have the same bytes, and all replicas must have the same log end.
    """
    for copy in copies:
        yield from _check_complete(partition, copy)
    replicas = [copy for copy in copies if copy.name != REMOTE]
    yield from _compare_ends(partition, replicas)
    for first, second in pairwise(copies):
        yield from _compare_bytes(partition, first, second)


def joined(remote: Copy, replica: Copy) -> Copy:
    """The log as a consumer of a tiered topic reads it: the remote segments, then the replica's later
    batches."""
    rest = tuple(batch for batch in replica.batches if batch.base_offset >= remote.end)
    return Copy(f"{remote.name} and {replica.name}", remote.batches + rest, remote.fault or replica.fault)


def against_history(
    history: Sequence[AnyEvent], logs: Mapping[int, Copy], min_acknowledged: int
) -> checker.Verdict:
    """Run the chaos checker with these logs, one copy of each partition, in place of the final read.

    `min_acknowledged`: number of records that must have been acknowledged.
    """
    known = [event for event in history if not (isinstance(event, Read) and event.reader == FINAL)]
    read: list[AnyEvent] = [event for event in known if not isinstance(event, Ended)]
    for partition, copy in logs.items():
        read.append(Ended(0.0, partition, copy.end))
        records = tuple((record.offset, record.value) for record in copy.records())
        read.append(Read(0.0, FINAL, partition, records))
    return checker.check(read, min_acknowledged)


def _check_complete(partition: int, copy: Copy, *, gaps: bool = False) -> Iterator[Anomaly]:
    if copy.fault:
        yield Anomaly(Kind.DAMAGED, partition, f"{copy.name}: {copy.fault}")
    for before, batch in pairwise(copy.batches):
        if batch.base_offset < before.next_offset or (not gaps and batch.base_offset > before.next_offset):
            what = f"{copy.name}: offset {before.next_offset} is followed by {batch.base_offset}"
            yield Anomaly(Kind.DAMAGED, partition, what)


def _compare_ends(partition: int, replicas: Sequence[Copy]) -> Iterator[Anomaly]:
    ends = {copy.name: copy.end for copy in replicas}
    if len(set(ends.values())) > 1:
        yield Anomaly(Kind.DIFFERENT, partition, f"the replicas end at {ends}")


def _compare_bytes(partition: int, first: Copy, second: Copy) -> Iterator[Anomaly]:
    start, end = max(first.start, second.start), min(first.end, second.end)
    wanted, found = (
        {b.base_offset: b for b in copy.batches if start <= b.base_offset < end} for copy in (first, second)
    )
    different = [at for at in sorted(wanted.keys() | found.keys()) if wanted.get(at) != found.get(at)]
    for at in different[:REPORTED_MAX]:
        yield Anomaly(
            Kind.DIFFERENT, partition, f"the batch at {at} differs between {first.name} and {second.name}"
        )


# --- compacted logs


@dataclass(slots=True)
class _Produced:
    """The records that producers sent to one partition. Records of a key are numbered in ascending order."""

    sent: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # value -> key and number
    acked: dict[bytes, int] = field(default_factory=dict)  # key -> highest acknowledged number
    offsets: dict[str, int] = field(default_factory=dict)  # value -> acknowledged offset
    refused: set[str] = field(default_factory=set)  # values that got a definite error
    tombstones: dict[bytes, int] = field(default_factory=dict)  # key -> number of its last tombstone


def compare_compacted(
    history: Iterable[AnyEvent],
    copies: Mapping[int, Sequence[Copy]],
    *,
    key_of: KeyOf,
    is_tombstone: IsTombstone,
) -> Iterator[Anomaly]:
    """Check the copies of compacted logs.

    `key_of` returns the key of a record, given its producer and number; `is_tombstone` takes the number.
    """
    produced = _produced(history, key_of, is_tombstone)
    for partition in sorted(produced.keys() | copies.keys()):
        replicas = copies.get(partition, ())
        yield from _compare_ends(partition, replicas)
        if not replicas:
            yield Anomaly(Kind.LOST, partition, "no replica has the partition")
        for copy in replicas:
            yield from _check_complete(partition, copy, gaps=True)
            yield from _check_copy(partition, copy, produced[partition])
        for first, second in pairwise(replicas):
            yield from _compare_records(partition, first, second)


def _produced(history: Iterable[AnyEvent], key_of: KeyOf, is_tombstone: IsTombstone) -> dict[int, _Produced]:
    partitions: dict[int, _Produced] = defaultdict(_Produced)
    for event in history:
        if not isinstance(event, Sent | Acked | Failed):
            continue
        produced, key = partitions[event.partition], key_of(event.producer, event.number)
        value = value_of(event.producer, event.partition, event.number)
        match event:
            case Sent():
                produced.sent[value] = key, event.number
                if is_tombstone(event.number):
                    produced.tombstones[key] = event.number
            case Acked():
                produced.acked[key] = max(event.number, produced.acked.get(key, -1))
                if event.offset >= 0:
                    produced.offsets[value] = event.offset
            case Failed(definite=True):
                produced.refused.add(value)
    return partitions


def _check_copy(partition: int, copy: Copy, produced: _Produced) -> Iterator[Anomaly]:
    last: dict[bytes, int] = {}
    offsets: dict[str, int] = {}
    for record in copy.records():
        where = f"{copy.name}: {record.value!r} at {record.offset}"
        if record.value not in produced.sent:
            yield Anomaly(Kind.UNSENT, partition, f"{where} was never sent to this partition")
            continue
        key, number = produced.sent[record.value]
        if record.value in offsets:
            yield Anomaly(Kind.DOUBLED, partition, f"{where} is also at {offsets[record.value]}")
            continue
        offsets[record.value] = record.offset
        if record.key != key:
            yield Anomaly(Kind.INCONSISTENT, partition, f"{where} has the key {record.key!r}, not {key!r}")
        if record.value in produced.refused:
            yield Anomaly(Kind.REFUSED, partition, f"{where} was refused with a definite error")
        if number < last.get(key, -1):
            yield Anomaly(Kind.REORDERED, partition, f"{where} is after number {last[key]} of its key")
        if produced.offsets.get(record.value, record.offset) != record.offset:
            yield Anomaly(
                Kind.INCONSISTENT, partition, f"{where} was acknowledged at {produced.offsets[record.value]}"
            )
        last[key] = max(number, last.get(key, -1))
    for key, acknowledged in sorted(produced.acked.items()):
        # A key may be gone if its last acknowledged record, or a later one that may be in the log, deletes
        # it.
        is_gone = key not in last and produced.tombstones.get(key, -1) >= acknowledged
        if last.get(key, -1) < acknowledged and not is_gone:
            found = f"acknowledged up to number {acknowledged}, last number found: {last.get(key)}"
            yield Anomaly(Kind.LOST, partition, f"{copy.name}: {key!r} was {found}")


def _compare_records(partition: int, first: Copy, second: Copy) -> Iterator[Anomaly]:
    """Compares records, not batches: compaction rewrites a batch when it removes records."""
    held: dict[int, StoredRecord] = {record.offset: record for record in first.records()}
    different = [record.offset for record in second.records() if held.get(record.offset, record) != record]
    for at in different[:REPORTED_MAX]:
        yield Anomaly(
            Kind.DIFFERENT, partition, f"the record at {at} differs between {first.name} and {second.name}"
        )
