"""Compares the copies of each log with each other and with the history. Pure: needs no cluster.

All copies of a log without compaction have the same bytes, and each must agree with the history. Copies of a
compacted log may lack different records. At the same offset they have the same record, and each has the last
value of each key. Called by history_check.py.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from havoc import checker
from havoc.checker import Anomaly, Kind
from havoc.history import FINAL, Acked, AnyEvent, Ended, Failed, Read, Sent, value_of
from havoc.replicas import REMOTE, Copy, StoredRecord

SHOWN = 5
"""Differences of two copies that are reported; one wrong byte at the beginning may shift all that follows."""

IsTombstone = Callable[[int], bool]
KeyOf = Callable[[str, int], bytes]


def compare(partition: int, copies: Sequence[Copy]) -> Iterator[Anomaly]:
    """Copies of a log without compaction must be complete and have the same bytes, and replicas the same
    end."""
    for copy in copies:
        yield from _whole(partition, copy)
    replicas = [copy for copy in copies if copy.name != REMOTE]
    yield from _same_end(partition, replicas)
    for first, second in pairwise(copies):
        yield from _same_bytes(partition, first, second)


def joined(remote: Copy, replica: Copy) -> Copy:
    """The log as a consumer of a tiered topic reads it: remote segments, then what only the replica has."""
    rest = tuple(batch for batch in replica.batches if batch.base_offset >= remote.end)
    return Copy(f"{remote.name} and {replica.name}", remote.batches + rest, remote.fault or replica.fault)


def against_history(history: Sequence[AnyEvent], logs: Mapping[int, Copy], least: int) -> checker.Verdict:
    """The chaos checker's verdict with these logs as the final reading: one copy of each partition."""
    known = [event for event in history if not (isinstance(event, Read) and event.reader == FINAL)]
    read: list[AnyEvent] = [event for event in known if not isinstance(event, Ended)]
    for partition, copy in logs.items():
        read.append(Ended(0.0, partition, copy.end))
        records = tuple((record.offset, record.value) for record in copy.records())
        read.append(Read(0.0, FINAL, partition, records))
    return checker.check(read, least)


def _whole(partition: int, copy: Copy, *, gaps: bool = False) -> Iterator[Anomaly]:
    if copy.fault:
        yield Anomaly(Kind.DAMAGED, partition, f"{copy.name}: {copy.fault}")
    for before, batch in pairwise(copy.batches):
        if batch.base_offset < before.next_offset or (not gaps and batch.base_offset > before.next_offset):
            what = f"{copy.name}: offset {before.next_offset} is followed by {batch.base_offset}"
            yield Anomaly(Kind.DAMAGED, partition, what)


def _same_end(partition: int, replicas: Sequence[Copy]) -> Iterator[Anomaly]:
    ends = {copy.name: copy.end for copy in replicas}
    if len(set(ends.values())) > 1:
        yield Anomaly(Kind.DIFFERENT, partition, f"the replicas end at {ends}")


def _same_bytes(partition: int, first: Copy, second: Copy) -> Iterator[Anomaly]:
    start, end = max(first.start, second.start), min(first.end, second.end)
    wanted, found = (
        {b.base_offset: b for b in copy.batches if start <= b.base_offset < end} for copy in (first, second)
    )
    different = [at for at in sorted(wanted.keys() | found.keys()) if wanted.get(at) != found.get(at)]
    for at in different[:SHOWN]:
        yield Anomaly(
            Kind.DIFFERENT, partition, f"the batch at {at} of {first.name} is not that of {second.name}"
        )


# --- compacted logs


@dataclass(slots=True)
class _Keys:
    """What producers did to one partition. By value: its number; by key: numbers, ascending."""

    sent: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    acked: dict[bytes, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    tombstones: dict[bytes, int] = field(default_factory=dict)


def compare_compacted(
    history: Iterable[AnyEvent],
    copies: Mapping[int, Sequence[Copy]],
    *,
    key_of: KeyOf,
    is_tombstone: IsTombstone,
) -> Iterator[Anomaly]:
    """`key_of`, `is_tombstone`: what producers send, by their name and the record's number."""
    seen = _seen(history, key_of, is_tombstone)
    for partition in sorted(seen.keys() | copies.keys()):
        mine = copies.get(partition, ())
        yield from _same_end(partition, mine)
        if not mine:
            yield Anomaly(Kind.LOST, partition, "no replica has it")
        for copy in mine:
            yield from _whole(partition, copy, gaps=True)
            yield from _check_copy(partition, copy, seen[partition])
        for first, second in pairwise(mine):
            yield from _same_records(partition, first, second)


def _seen(history: Iterable[AnyEvent], key_of: KeyOf, is_tombstone: IsTombstone) -> dict[int, _Keys]:
    found: dict[int, _Keys] = defaultdict(_Keys)
    for event in history:
        if not isinstance(event, Sent | Acked | Failed):
            continue
        keys, key = found[event.partition], key_of(event.producer, event.number)
        value = value_of(event.producer, event.partition, event.number)
        match event:
            case Sent():
                keys.sent[value] = key, event.number
                if is_tombstone(event.number):
                    keys.tombstones[key] = event.number
            case Acked():
                keys.acked[key] = max(event.number, keys.acked.get(key, -1))
                if event.offset >= 0:
                    keys.offsets[value] = event.offset
            case Failed(definite=True):
                keys.refused.add(value)
    return found


def _check_copy(partition: int, copy: Copy, keys: _Keys) -> Iterator[Anomaly]:
    last: dict[bytes, int] = {}
    lies: dict[str, int] = {}
    for record in copy.records():
        where = f"{copy.name}: {record.value!r} at {record.offset}"
        if record.value not in keys.sent:
            yield Anomaly(Kind.UNSENT, partition, f"{where} was never sent there")
            continue
        key, number = keys.sent[record.value]
        if record.value in lies:
            yield Anomaly(Kind.DOUBLED, partition, f"{where} is at {lies[record.value]} too")
            continue
        lies[record.value] = record.offset
        if record.key != key:
            yield Anomaly(Kind.INCONSISTENT, partition, f"{where} has the key {record.key!r}, not {key!r}")
        if record.value in keys.refused:
            yield Anomaly(Kind.REFUSED, partition, f"{where} got a definite error")
        if number < last.get(key, -1):
            yield Anomaly(Kind.REORDERED, partition, f"{where} is after number {last[key]} of its key")
        if keys.offsets.get(record.value, record.offset) != record.offset:
            yield Anomaly(
                Kind.INCONSISTENT, partition, f"{where} was acknowledged at {keys.offsets[record.value]}"
            )
        last[key] = max(number, last.get(key, -1))
    for key, acknowledged in sorted(keys.acked.items()):
        # A key may be gone once it was deleted by its last record, or by one whose fate is unknown.
        is_gone = key not in last and keys.tombstones.get(key, -1) >= acknowledged
        if last.get(key, -1) < acknowledged and not is_gone:
            what = f"{copy.name}: {key!r} was acknowledged up to {acknowledged}, and ends at {last.get(key)}"
            yield Anomaly(Kind.LOST, partition, what)


def _same_records(partition: int, first: Copy, second: Copy) -> Iterator[Anomaly]:
    """Batches are rewritten as records go, so records are compared."""
    held: dict[int, StoredRecord] = {record.offset: record for record in first.records()}
    different = [record.offset for record in second.records() if held.get(record.offset, record) != record]
    for at in different[:SHOWN]:
        yield Anomaly(
            Kind.DIFFERENT, partition, f"the record at {at} of {first.name} is not that of {second.name}"
        )
