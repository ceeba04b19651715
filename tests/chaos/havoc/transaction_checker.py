"""Transactions of a history: each is in the logs as a whole, or not at all. Pure.

Logs are those that the final reader of committed records found. A transaction of a loop commits offsets
together with its records: each input below the loop's last committed offset must have been processed once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from havoc.anomalies import Anomaly, Kind
from havoc.history import Committed, Outcome, Transaction, TransactionEnded, value_of

Log = dict[int, str]  # offset -> value
Logs = Mapping[int, Log]  # by partition
Name = tuple[str, int]  # producer, number of its transaction

LOOP = "loop"
"""The group whose members commit their offsets in transactions."""


class Transactions:
    def __init__(self) -> None:
        self._begun: dict[Name, Transaction] = {}
        self._outcomes: dict[Name, Outcome] = {}
        self._name_of: dict[str, Name] = {}  # value -> its transaction
        self._offsets: dict[int, int] = {}  # partition -> the last committed offset of the loop

    def began(self, event: Transaction) -> None:
        name = event.producer, event.number
        self._begun[name] = event
        self._name_of.update((value, name) for _, value in _values(event))

    def ended(self, event: TransactionEnded) -> None:
        self._outcomes[event.producer, event.number] = event.outcome

    def committed(self, event: Committed) -> None:
        if event.group == LOOP:
            self._offsets[event.partition] = event.offset

    @property
    def partitions(self) -> set[int]:
        """Those with transactions."""
        return {partition for event in self._begun.values() for partition, _ in event.records}

    @property
    def acknowledged(self) -> int:
        return sum(outcome == "committed" for outcome in self._outcomes.values())

    def may_be_aborted(self, value: str) -> bool:
        name = self._name_of.get(value)
        return name is not None and self._outcomes.get(name) != "committed"

    def check(self, logs: Logs) -> Iterable[Anomaly]:
        values = {partition: set(log.values()) for partition, log in logs.items()}
        found = {
            name: [value for partition, value in _values(event) if value in values.get(partition, ())]
            for name, event in self._begun.items()
        }
        for name, event in self._begun.items():
            yield from _check_whole(event, self._outcomes.get(name, "unknown"), found[name])
        yield from self._check_loop(logs, [event for name, event in self._begun.items() if found[name]])
        yield from self._check_cycles(logs)

    def _check_loop(self, logs: Logs, visible: list[Transaction]) -> Iterable[Anomaly]:
        processed: dict[int, Counter[int]] = defaultdict(Counter)
        for event in visible:
            for partition, offset in event.reads:
                processed[partition][offset] += 1
        for partition in sorted(processed.keys() | self._offsets.keys()):
            counts, end = processed[partition], self._offsets.get(partition, 0)
            for offset in sorted(offset for offset, times in counts.items() if times > 1):
                yield Anomaly(Kind.REPROCESSED, partition, f"{offset} was processed {counts[offset]} times")
            beyond = [offset for offset in counts if offset >= end]
            if beyond:
                what = f"{len(beyond)} from {min(beyond)} on were processed, the committed offset is {end}"
                yield Anomaly(Kind.TORN, partition, what)
            missed = [offset for offset in logs.get(partition, {}) if offset < end and offset not in counts]
            if missed:
                what = f"{len(missed)} below the committed offset {end} were not processed: {min(missed)}, …"
                yield Anomaly(Kind.SKIPPED, partition, what)

    def _check_cycles(self, logs: Logs) -> Iterable[Anomaly]:
        """Adya's G1c, for reads alone: records of transactions may alternate in a partition."""
        read_from = {
            name: {
                writer
                for partition, offset in event.reads
                if (writer := self._name_of.get(logs.get(partition, {}).get(offset, ""))) is not None
            }
            for name, event in self._begun.items()
            if event.reads
        }
        try:
            TopologicalSorter(read_from).prepare()
        except CycleError as error:
            cycle = " was read by ".join(f"{producer}#{number}" for producer, number in error.args[1])
            yield Anomaly(Kind.CYCLIC, -1, cycle)


def _values(event: Transaction) -> list[tuple[int, str]]:
    return [(partition, value_of(event.producer, partition, number)) for partition, number in event.records]


def _check_whole(event: Transaction, outcome: Outcome, found: list[str]) -> Iterable[Anomaly]:
    name = f"transaction {event.number} of {event.producer}"
    partition = event.records[0][0] if event.records else -1
    if outcome == "aborted" and found:
        yield Anomaly(Kind.ABORTED, partition, f"{name} was aborted, and {found[0]} is in the log")
    elif outcome == "committed" and event.records and not found:
        yield Anomaly(Kind.LOST, partition, f"{name} was committed, and nothing of it is in the log")
    elif 0 < len(found) < len(event.records):
        yield Anomaly(
            Kind.TORN, partition, f"{len(found)} of {len(event.records)} records of {name} are there"
        )
