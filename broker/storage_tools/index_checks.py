"""Index checks: compare the files beside a log with its batches, one class per kind of file.

An index may have fewer entries than the log allows, but no lookup may give a wrong result. `batch` and `end`
yield problems as text. Constructors raise RecordsError, MalformedSnapshot or MalformedEpochs. Called by
`verifying`.
"""

from collections.abc import Iterator
from typing import Protocol

from tierlog.base.types import NO_TIMESTAMP
from tierlog.broker.storage.core.producer_state import (
    CompletedTransaction,
    ProducerStateEntry,
    ProducerStateManager,
)
from tierlog.broker.storage_tools.offline import BatchFound, without_trailing_zeros
from tierlog.records.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
)
from tierlog.records.markers import read_marker


class Check(Protocol):
    def batch(self, found: BatchFound, ended: CompletedTransaction | None) -> Iterator[str]:
        """`ended`: the transaction that the batch ends, if the log has all of it."""

    def end(self) -> Iterator[str]: ...


class OffsetIndexCheck:
    """Each entry points to the beginning of a batch, and all earlier batches end below its offset."""

    def __init__(self, index: bytes, base_offset: int) -> None:
        self._entries = list(
            decode_offset_index(without_trailing_zeros(index, OFFSET_ENTRY.size), base_offset)
        )
        self._at = 0
        self._last_offset = base_offset - 1

    def batch(self, found: BatchFound, ended: CompletedTransaction | None) -> Iterator[str]:
        self._last_offset = found.header.last_offset
        while self._at < len(self._entries) and self._entries[self._at].position <= found.position:
            offset, position = self._entries[self._at]
            self._at += 1
            if position < found.position:
                yield f"offset {offset}: no batch begins at position {position}"
            elif offset < found.header.base_offset:
                yield f"offset {offset} is before the batch {found.header.base_offset} at {position}"

    def end(self) -> Iterator[str]:
        for offset, position in self._entries[self._at :]:
            yield f"offset {offset}: position {position} is beyond the log"
        if self._at == len(self._entries) > 0 and self._entries[-1].offset > self._last_offset:
            yield f"offset {self._entries[-1].offset} is beyond the log, which ends with {self._last_offset}"


class TimeIndexCheck:
    """No record before an entry's offset is newer than the entry. The last entry of a rolled segment has its
    largest timestamp.
    """

    def __init__(self, index: bytes, base_offset: int, *, rolled: bool) -> None:
        self._entries = list(decode_time_index(without_trailing_zeros(index, TIME_ENTRY.size), base_offset))
        self._at = 0
        self._largest = NO_TIMESTAMP  # timestamp of a record so far
        self._largest_in_headers = NO_TIMESTAMP  # includes batches that compaction emptied, as in Kafka
        self._rolled = rolled

    def batch(self, found: BatchFound, ended: CompletedTransaction | None) -> Iterator[str]:
        last_offset = found.header.last_offset
        while self._at < len(self._entries) and self._entries[self._at].offset <= last_offset:
            timestamp, offset = self._entries[self._at]
            self._at += 1
            if self._largest > timestamp:
                yield f"a record before offset {offset} has timestamp {self._largest}, above {timestamp}"
        self._largest_in_headers = max(self._largest_in_headers, found.header.max_timestamp)
        if found.header.record_count:
            self._largest = max(self._largest, found.header.max_timestamp)

    def end(self) -> Iterator[str]:
        for _, offset in self._entries[self._at :]:
            yield f"offset {offset} is beyond the log"
        last = self._entries[-1].timestamp if self._entries else NO_TIMESTAMP
        if last > self._largest_in_headers or (self._rolled and last < self._largest):
            yield f"it ends with timestamp {last}, the largest in the log is {self._largest}"


class TxnIndexCheck:
    """There is one entry for each transaction that was aborted here, and no other."""

    def __init__(self, index: bytes) -> None:
        self._entries = {entry.last_offset: entry for entry in decode_txn_index(index)}

    def batch(self, found: BatchFound, ended: CompletedTransaction | None) -> Iterator[str]:
        header = found.header
        if not (header.is_transactional and header.is_control):
            return
        marker = read_marker(found.data)
        if marker is None or marker.committed:
            return
        entry = self._entries.pop(header.last_offset, None)
        if entry is None:
            if ended is not None:
                yield f"the transaction that was aborted at offset {header.last_offset} is missing"
        elif entry.producer_id != header.producer_id or (
            ended is not None and entry.first_offset > ended.first_offset
        ):
            yield f"{entry} is not the transaction that was aborted there"

    def end(self) -> Iterator[str]:
        for entry in self._entries.values():
            yield f"{entry}: no transaction was aborted there"


class ProducersCheck:
    """Builds the state of all producers from the batches, to compare snapshots with.

    It starts with a snapshot, or empty at the start of a log whose beginning may have been deleted: then only
    producers with later batches are compared.
    """

    def __init__(self, snapshot: bytes | None) -> None:
        self._state = ProducerStateManager.decode(snapshot) if snapshot else ProducerStateManager()

    def batch(self, found: BatchFound) -> CompletedTransaction | None:
        """The transaction that the batch ends; None if that transaction has no records."""
        header = found.header
        if header.producer_id < 0:
            return None
        marker = read_marker(found.data) if header.is_control else None
        return self._state.apply(header, header.base_offset, marker)

    def compare(self, snapshot: bytes) -> Iterator[str]:
        """Idle producers may be missing in a snapshot, since they expire. Raises MalformedSnapshot."""
        for expected in ProducerStateManager.decode(snapshot):
            known = self._state.get(expected.producer_id)
            if known is not None and _comparable(known) != _comparable(expected):
                yield (
                    f"producer {expected.producer_id} has (epoch, sequence, offset, transaction) "
                    f"{_comparable(expected)}, the log has {_comparable(known)}"
                )


def _comparable(producer: ProducerStateEntry) -> tuple[int, int, int, int]:
    last = producer.batches[-1] if producer.batches else None
    return (
        producer.epoch,
        last.last_sequence if last else -1,
        last.last_offset if last else -1,
        producer.transaction_first_offset,
    )
