"""History of transactions: what producers know, what readers saw, and whether both agree (guarantee 11).

Every record's value begins with the number of its transaction. A transaction whose commit was acknowledged
must be visible completely, one that was aborted or never ended not at all. If the response to a commit was
lost, either is right, but not a part of it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from simulator.witness import Violation

NO_OFFSET = -1

Place = tuple[int, int]
"""Partition of the output topic, and offset."""


class Outcome(StrEnum):
    OPEN = "open"
    UNKNOWN = "of unknown outcome"  # a commit was sent, and its response has not arrived
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class SimTransaction:
    """`written`: acknowledged records. `first_input`, `next_input`: the offsets of the loop's input which it
    processes, if it belongs to a loop."""

    number: int
    transactional_id: str
    outcome: Outcome = Outcome.OPEN
    written: dict[Place, bytes] = field(default_factory=dict)
    first_input: int = NO_OFFSET
    next_input: int = NO_OFFSET
    records: int = 0
    """Records sent, acknowledged or not."""

    def next_value(self, text: str = "") -> bytes:
        """The value of the next record."""
        self.records += 1
        return f"{self.number}:{self.records}:{text}".encode()

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}, {self.outcome}"


@dataclass(slots=True)
class _Pass:
    """The records of a partition that a reader saw, from offset 0 to `end_offset`."""

    end_offset: int = 0
    offsets: set[int] = field(default_factory=set)


class TransactionHistory:
    def __init__(self, done: Counter[str]) -> None:
        self.transactions: list[SimTransaction] = []
        self.committed = 0
        self.seen: dict[Place, bytes] = {}
        self._passes: dict[int, list[_Pass]] = {}
        self._done = done

    # ---- producers ----

    def begin(self, transactional_id: str) -> SimTransaction:
        self.transactions.append(SimTransaction(len(self.transactions), transactional_id))
        return self.transactions[-1]

    def committed_by(self, transaction: SimTransaction) -> None:
        """The commit was acknowledged."""
        if transaction.outcome is Outcome.ABORTED:
            raise Violation(f"a commit of {transaction} was acknowledged")
        if transaction.outcome is not Outcome.COMMITTED:
            self.committed += 1
            self._done["transactions committed"] += 1
        transaction.outcome = Outcome.COMMITTED

    def aborted_by(self, transaction: SimTransaction) -> None:
        """It is certain that the transaction is not committed."""
        if transaction.outcome is not Outcome.ABORTED:
            self._done["transactions aborted"] += 1
        transaction.outcome = Outcome.ABORTED
        for place, value in self.seen.items():
            if self.of_value(value) is transaction:
                raise Violation(f"{value!r} at {place} was read, and belongs to {transaction}")

    def of_value(self, value: bytes) -> SimTransaction:
        return self.transactions[int(value.partition(b":")[0])]

    # ---- readers ----

    def begin_pass(self, partition: int) -> None:
        """A reader starts from offset 0."""
        self._passes.setdefault(partition, []).append(_Pass())

    def read(self, partition: int, records: list[tuple[int, bytes]], next_offset: int) -> None:
        """A read_committed reader got these records, and continues at `next_offset`."""
        reading = self._passes[partition][-1]
        for offset, value in records:
            transaction = self.of_value(value)
            if transaction.outcome in (Outcome.OPEN, Outcome.ABORTED):
                raise Violation(f"read_committed shows {value!r} at {partition}, {offset} of {transaction}")
            if self.seen.setdefault((partition, offset), value) != value:
                raise Violation(f"offset {offset} of partition {partition} holds two records")
            reading.offsets.add(offset)
        reading.end_offset = max(reading.end_offset, next_offset)

    def committed_offset(self, offset: int, known: int) -> None:
        """A group's committed offset was read: it is that of a transaction whose commit was sent.

        `known`: the highest acknowledged one when the request was sent."""
        if offset < known:
            raise Violation(f"the offset of the loop is {offset}, {known} was committed")
        ends = {
            each.next_input: each
            for each in self.transactions
            if each.next_input >= 0 and each.outcome in (Outcome.COMMITTED, Outcome.UNKNOWN)
        }
        if offset >= 0 and offset not in ends:
            raise Violation(f"the offset of the loop is {offset}, and no transaction committed that")

    @property
    def acknowledged_offset(self) -> int:
        """The highest offset of the loop whose transaction was acknowledged."""
        ends = [each.next_input for each in self.transactions if each.outcome is Outcome.COMMITTED]
        return max(ends, default=NO_OFFSET)

    # ---- the end ----

    def check(self, found: Mapping[int, list[tuple[int, bytes]]], loop_offset: int) -> None:
        """`found`: all that a read_committed reader finds in the end, by partition. `loop_offset`: the
        committed offset of the loop."""
        visible = {
            (partition, offset): value for partition, records in found.items() for offset, value in records
        }
        for place, value in self.seen.items():
            if visible.get(place) != value:
                raise Violation(f"{value!r} at {place} was read, and is lost")
        for partition, passes in self._passes.items():
            for one in passes:
                for offset, value in found[partition]:
                    if offset < one.end_offset and offset not in one.offsets:
                        raise Violation(
                            f"a reader of partition {partition} passed {value!r} at {offset} without it"
                        )
        by_transaction: dict[int, dict[Place, bytes]] = {}
        for place, value in visible.items():
            by_transaction.setdefault(self.of_value(value).number, {})[place] = value
        for transaction in self.transactions:
            self._check_whole(transaction, by_transaction.get(transaction.number, {}))
        self._check_loop(list(visible.values()), loop_offset)

    def _check_whole(self, transaction: SimTransaction, shown: dict[Place, bytes]) -> None:
        if shown and transaction.outcome in (Outcome.OPEN, Outcome.ABORTED):
            raise Violation(f"{transaction} is visible: {shown}")
        if shown != transaction.written and (shown or transaction.outcome is Outcome.COMMITTED):
            raise Violation(f"{transaction} is visible in part: {shown} of {transaction.written}")
        self._done["unknown commits that counted"] += bool(shown) and transaction.outcome is Outcome.UNKNOWN

    def _check_loop(self, values: list[bytes], loop_offset: int) -> None:
        inputs = Counter(int(text) for value in values if (text := value.rpartition(b":")[2]))
        expected = Counter(range(max(loop_offset, 0)))
        if inputs != expected:
            raise Violation(
                f"the loop is at {loop_offset}, but its output lacks {sorted((expected - inputs).elements())}"
                f" and has {sorted((inputs - expected).elements())} too often"
            )
