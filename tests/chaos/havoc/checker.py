"""History checker, with the rules of Jepsen's workload for Kafka. Pure: needs no cluster.

The final reading counts as the content of the log. Each acknowledged record must be in it once, at its
acknowledged offset and in its producer's order. Records that consumers read must still be there, and each
group must have read all of them.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from havoc.anomalies import Anomaly, Kind
from havoc.history import (
    FINAL,
    Acked,
    AnyEvent,
    Began,
    Broken,
    Committed,
    Ended,
    Failed,
    Read,
    Sent,
    Transaction,
    TransactionEnded,
    value_of,
)
from havoc.transaction_checker import Log, Transactions

MIN_ACKNOWLEDGED = 1000
"""A run with fewer operations proves nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`committed`: transactions whose commit was acknowledged. `invalid`: why the history proves nothing."""

    acknowledged: int
    read: int
    committed: int
    anomalies: tuple[Anomaly, ...]
    invalid: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.anomalies and not self.invalid

    def counts(self) -> dict[str, int]:
        """Number of anomalies of each kind, zeros included."""
        found = Counter(anomaly.kind for anomaly in self.anomalies)
        return {kind.value: found[kind] for kind in Kind}


@dataclass(slots=True)
class _Seen:
    """The history by subject; by partition first."""

    sent: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    acked: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    log: dict[int, Log] = field(default_factory=lambda: defaultdict(dict))
    reads: dict[int, dict[int, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    offsets_of: dict[str, dict[int, set[int]]] = field(default_factory=lambda: defaultdict(dict))  # by group
    ends: dict[int, int] = field(default_factory=dict)


def check(history: Iterable[AnyEvent], min_acknowledged: int = MIN_ACKNOWLEDGED) -> Verdict:
    seen, readers, transactions = _Seen(), _Readers(), Transactions()
    anomalies: list[Anomaly] = []
    for event in history:
        match event:
            case Sent():
                seen.sent[event.partition].add(_value(event))
            case Acked():
                seen.acked[event.partition].append((event.offset, _value(event)))
            case Failed(definite=True):
                seen.refused[event.partition].add(_value(event))
            case Read():
                _note_read(seen, event)
                anomalies += readers.read(event)
            case Began():
                readers.began(event)
            case Committed():
                readers.committed(event)
                transactions.committed(event)
            case Transaction():
                transactions.began(event)
            case TransactionEnded():
                transactions.ended(event)
            case Broken():
                anomalies.append(Anomaly(Kind.BROKEN, -1, f"{event.client}: {event.error}"))
            case Ended():
                seen.ends[event.partition] = event.offset
    for partition in sorted(seen.sent.keys() | seen.log.keys() | seen.reads.keys()):
        anomalies += _check_log(seen, partition)
        anomalies += _check_reads(seen, transactions, partition)
    anomalies += readers.skips(seen.log)
    anomalies += transactions.check(seen.log)
    acknowledged = sum(map(len, seen.acked.values()))
    read = sum(len(at) for at in seen.reads.values())
    missing = _missing(seen, transactions.partitions, acknowledged, read, min_acknowledged)
    return Verdict(acknowledged, read, transactions.acknowledged, tuple(anomalies), tuple(missing))


def _value(event: Sent | Acked | Failed) -> str:
    return value_of(event.producer, event.partition, event.number)


def _note_read(seen: _Seen, event: Read) -> None:
    if event.reader == FINAL:
        for offset, value in event.records:
            if seen.log[event.partition].setdefault(offset, value) != value:
                seen.reads[event.partition][offset].add(value)
        return
    group = event.reader.partition("/")[0]
    had = seen.offsets_of[group].setdefault(event.partition, set())
    for offset, value in event.records:
        seen.reads[event.partition][offset].add(value)
        had.add(offset)


def _check_log(seen: _Seen, partition: int) -> Iterable[Anomaly]:
    """Anomalies of the final log."""
    log = seen.log[partition]
    first_at: dict[str, int] = {}
    newest: dict[str, int] = {}
    for offset, value in sorted(log.items()):
        if value not in seen.sent[partition]:
            yield Anomaly(Kind.UNSENT, partition, f"{value!r} is at {offset}, and was never sent there")
            continue
        if value in first_at:
            yield Anomaly(Kind.DOUBLED, partition, f"{value} is at {first_at[value]} and at {offset}")
            continue
        first_at[value] = offset
        if value in seen.refused[partition]:
            yield Anomaly(
                Kind.REFUSED, partition, f"{value} is at {offset}, although it got a definite error"
            )
        producer, _, number = value.partition("/")
        at = int(number.rpartition("/")[2])
        if at < newest.get(producer, -1):
            yield Anomaly(
                Kind.REORDERED, partition, f"{value} is at {offset}, after number {newest[producer]}"
            )
        newest[producer] = max(at, newest.get(producer, -1))
    for offset, value in seen.acked[partition]:
        if value not in first_at:
            yield Anomaly(Kind.LOST, partition, f"{value} was acknowledged at {offset}")
        elif offset >= 0 and log.get(offset) != value:
            where = first_at[value]
            yield Anomaly(
                Kind.INCONSISTENT, partition, f"{value} was acknowledged at {offset}, and is at {where}"
            )


def _check_reads(seen: _Seen, transactions: Transactions, partition: int) -> Iterable[Anomaly]:
    """Anomalies of what consumers read during the run."""
    log, lies = seen.log[partition], set(seen.log[partition].values())
    for offset, values in sorted(seen.reads[partition].items()):
        for value in sorted(values):
            if value not in seen.sent[partition]:
                yield Anomaly(Kind.UNSENT, partition, f"{value!r} was read at {offset}, and never sent there")
            elif offset in log and log[offset] != value:
                yield Anomaly(Kind.INCONSISTENT, partition, f"{offset} held {value}, and holds {log[offset]}")
            elif offset not in log and value in lies:
                yield Anomaly(Kind.INCONSISTENT, partition, f"{value} was read at {offset}, and is elsewhere")
            elif offset not in log and transactions.may_be_aborted(value):
                yield Anomaly(Kind.ABORTED, partition, f"{value} was read at {offset}, and was aborted")
            elif offset not in log:
                yield Anomaly(Kind.VANISHED, partition, f"{value} was read at {offset}, and is gone")
        if offset not in log and len(values) > 1:
            yield Anomaly(Kind.INCONSISTENT, partition, f"{offset} held each of {sorted(values)}")
    for group, by_partition in sorted(seen.offsets_of.items()):
        missed = log.keys() - by_partition.get(partition, set())
        if missed:
            what = f"group {group} never got {len(missed)} of {len(log)}, the first at {min(missed)}"
            yield Anomaly(Kind.SKIPPED, partition, what)


def _missing(
    seen: _Seen, transactional: set[int], acknowledged: int, read: int, min_acknowledged: int
) -> Iterable[str]:
    """A log with transactions has gaps, so its last record must be no marker."""
    if acknowledged < min_acknowledged:
        yield f"{acknowledged} records were acknowledged, fewer than {min_acknowledged}"
    if read < acknowledged // 2:
        yield f"consumers read {read} of {acknowledged} records: too few to have seen anything"
    for partition in sorted(seen.sent.keys() | seen.ends.keys()):
        end, held = seen.ends.get(partition), seen.log[partition].keys()
        if end is None:
            yield f"partition {partition} was not read in the end"
        elif partition in transactional and end - 1 not in held:
            yield f"partition {partition} was not read to its end {end}"
        elif partition not in transactional and held != set(range(end)):
            yield f"only {len(held)} of {end} offsets of partition {partition} were read in the end"


class _Readers:
    """Positions of readers: each must continue record by record from its start."""

    def __init__(self) -> None:
        self._jumps: list[tuple[str, int, int, int]] = []  # reader, partition, wanted offset, its offset
        self._next: dict[tuple[str, int], int | None] = {}
        self._least: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = defaultdict(int)

    def began(self, event: Began) -> None:
        key = (event.reader, event.partition)
        self._next[key] = None if event.offset < 0 else event.offset
        self._least.pop(key, None)
        if event.offset < 0:
            self._least[key] = self._committed[event.reader.partition("/")[0], event.partition]

    def committed(self, event: Committed) -> None:
        self._committed[event.group, event.partition] = event.offset

    def read(self, event: Read) -> Iterable[Anomaly]:
        key = (event.reader, event.partition)
        place = f"{event.reader} of partition {event.partition}"
        for offset, _ in event.records:
            wanted, least = self._next.get(key), self._least.pop(key, None)
            self._next[key] = offset + 1
            if least is not None and offset < least:
                yield Anomaly(
                    Kind.UNCOMMITTED, event.partition, f"{place} began at {offset}, {least} was committed"
                )
            if wanted is not None and offset > wanted:
                self._jumps.append((event.reader, event.partition, wanted, offset))
            if wanted is not None and offset < wanted:
                yield Anomaly(Kind.BACKWARD, event.partition, f"{place} got {offset} after {wanted - 1}")

    def skips(self, logs: dict[int, Log]) -> Iterable[Anomaly]:
        """Jumps over records. Markers of transactions and aborted records leave gaps in a log."""
        offsets = {partition: sorted(log) for partition, log in logs.items()}
        for reader, partition, wanted, offset in self._jumps:
            known = offsets.get(partition, [])
            at = bisect_left(known, wanted)
            if at < len(known) and known[at] < offset:
                what = f"{reader} of partition {partition} got {offset} after {wanted - 1}"
                yield Anomaly(Kind.SKIPPED, partition, what)
