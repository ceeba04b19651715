"""History of client operations and their results, one JSON object per line: the only input of the checker.

`at`: seconds since the start of the run. A record's value is `producer/partition/number`, where
numbers increase. A reader is `group/member`, and a group has read what any of its members has read. FINAL is
the reader that reads everything after all faults.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

FINAL = "final/1"


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag=str.lower):
    at: float


class Sent(Event):
    """Recorded before the record goes to the client library, so that no consumer can read it earlier."""

    producer: str
    partition: int
    number: int


class Acked(Event):
    """`offset` -1: unknown, because librdkafka takes a retried batch for written once a later one is
    acknowledged."""

    producer: str
    partition: int
    number: int
    offset: int


class Failed(Event):
    """`definite`: the error says that the record was not written; otherwise that is unknown."""

    producer: str
    partition: int
    number: int
    error: str
    definite: bool


class Read(Event):
    reader: str
    partition: int
    records: tuple[tuple[int, str], ...]  # offset, value


class Began(Event):
    """The reader was assigned the partition. `offset`: its start; -1: the group's committed offset."""

    reader: str
    partition: int
    offset: int


class Committed(Event):
    """The group coordinator acknowledged the commit."""

    group: str
    partition: int
    offset: int


class Transaction(Event):
    """Recorded before it is ended. `records`: partition and number of each that was sent in it. `reads`:
    partition and offset of each record that its offsets commit, and from which its own were made."""

    producer: str
    number: int
    records: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, int], ...] = ()


Outcome = Literal["committed", "aborted", "unknown"]


class TransactionEnded(Event):
    """The end of a transaction, as its client knows it. `aborted`: it never asked for a commit."""

    producer: str
    number: int
    outcome: Outcome


class Broken(Event):
    """A client got an error that only a broken guarantee can cause: its offset is out of range, or its
    sequence number is unknown.
    """

    client: str
    error: str


class Ended(Event):
    """End of the partition's log for consumers, after all faults."""

    partition: int
    offset: int


class Marked(Event):
    """A fault, or its end, as a note for readers of the file."""

    what: str


AnyEvent = (
    Sent
    | Acked
    | Failed
    | Read
    | Began
    | Committed
    | Transaction
    | TransactionEnded
    | Broken
    | Ended
    | Marked
)
_decoder = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def value_of(producer: str, partition: int, number: int) -> str:
    return f"{producer}/{partition}/{number}"


class Recorder:
    """Appends events to the file. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 16)
        self._lock = threading.Lock()

    def write(self, event: AnyEvent) -> None:
        line = _encoder.encode(event) + b"\n"
        with self._lock:
            self._file.write(line)
            if isinstance(event, Marked):
                self._file.flush()  # so that the file of a killed run has the faults

    def close(self) -> None:
        with self._lock:
            self._file.close()


def load(path: Path) -> Iterator[AnyEvent]:
    with path.open("rb") as lines:
        yield from parse(lines)


def parse(lines: Iterable[bytes | str]) -> Iterator[AnyEvent]:
    return (_decoder.decode(line) for line in lines if line.strip())
