"""Whether what stands beside a log agrees with it: one check per kind of file, fed with every batch.

An index may say less than the log, but no look-up may go wrong by it. `batch` and `end` yield what is wrong,
in words. Building a check raises RecordsError, MalformedSnapshot or MalformedEpochs. Called by `verifying`.
"""

from collections.abc import Iterator
from typing import Protocol

from tierlog.base.types import NO_TIMESTAMP
from tierlog.broker.storage.core.producer_state import (
    CompletedTransaction,
    ProducerStateEntry,
    ProducerStateManager,
)
from tierlog.broker.storage.recovery import read_marker
from tierlog.broker.storage_tools.offline import BatchFound, without_zeros
from tierlog.records.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
)


class Check(Protocol):
    def batch(self, found: BatchFound, ended: CompletedTransaction | None) -> Iterator[str]:
        """`ended`: the transaction that the batch ends, as far as the log tells."""

    def end(self) -> Iterator[str]: ...


class OffsetIndexCheck:
    """Each entry names a position where a batch begins, and all batches before it end below its offset."""

    def __init__(self, index: bytes, base_offset: int) -> None:
        self._entries = list(decode_offset_index(without_zeros(index, OFFSET_ENTRY.size), base_offset))
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
    """No record before an entry's offset is younger than the entry; a rolled segment's last entry is its
    largest timestamp.
    """

    def __init__(self, index: bytes, base_offset: int, *, rolled: bool) -> None:
        self._entries = list(decode_time_index(without_zeros(index, TIME_ENTRY.size), base_offset))
        self._at = 0
        self._largest = NO_TIMESTAMP  # of records
        self._largest_said = NO_TIMESTAMP  # also by batches that compaction emptied, which Kafka counts too
        self._rolled = rolled

    def batch(self, found: BatchFound, ended: CompletedTransaction | None) -> Iterator[str]:
        last_offset = found.header.last_offset
        while self._at < len(self._entries) and self._entries[self._at].offset <= last_offset:
            timestamp, offset = self._entries[self._at]
            self._at += 1
            if self._largest > timestamp:
                yield f"a record before offset {offset} has timestamp {self._largest}, above {timestamp}"
        self._largest_said = max(self._largest_said, found.header.max_timestamp)
        if found.header.record_count:
            self._largest = max(self._largest, found.header.max_timestamp)

    def end(self) -> Iterator[str]:
        for _, offset in self._entries[self._at :]:
            yield f"offset {offset} is beyond the log"
        last = self._entries[-1].timestamp if self._entries else NO_TIMESTAMP
        if last > self._largest_said or (self._rolled and last < self._largest):
            yield f"it ends with timestamp {last}, the largest in the log is {self._largest}"


class TxnIndexCheck:
    """An entry for each transaction that was aborted here, and no other."""

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
    """The state of all producers as the batches make it, to compare snapshots with.

    It begins with a snapshot, or with nothing at the start of a log whose beginning may have been deleted:
    then only producers that wrote since are compared.
    """

    def __init__(self, snapshot: bytes | None) -> None:
        self._state = ProducerStateManager.decode(snapshot) if snapshot else ProducerStateManager()

    def batch(self, found: BatchFound) -> CompletedTransaction | None:
        """The transaction that the batch ends; one without records does not count."""
        header = found.header
        if header.producer_id < 0:
            return None
        marker = read_marker(found.data) if header.is_control else None
        return self._state.apply(header, header.base_offset, marker)

    def compare(self, snapshot: bytes) -> Iterator[str]:
        """A producer may be missing in it, since idle ones are forgotten. Raises MalformedSnapshot."""
        for said in ProducerStateManager.decode(snapshot):
            known = self._state.get(said.producer_id)
            if known is not None and _essence(known) != _essence(said):
                yield (
                    f"producer {said.producer_id} stands at (epoch, sequence, offset, transaction) "
                    f"{_essence(said)}, by the log at {_essence(known)}"
                )


def _essence(producer: ProducerStateEntry) -> tuple[int, int, int, int]:
    last = producer.batches[-1] if producer.batches else None
    return (
        producer.epoch,
        last.last_sequence if last else -1,
        last.last_offset if last else -1,
        producer.transaction_first_offset,
    )
