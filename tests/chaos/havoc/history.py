"""History of client operations and their results, one JSON object per line: the only input of the checker.

`at`: seconds since the start of the run. A value is `producer/partition/number` with growing numbers. A
reader is `group/member`, and a group has read what any of its members read. FINAL is the reader after all
faults.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

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
    """`offset` -1: not told. librdkafka takes what it had to repeat for written once a later batch is."""

    producer: str
    partition: int
    number: int
    offset: int


class Failed(Event):
    """`definite`: the error says that it was not written; else its fate is unknown."""

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
    """From now on the reader has the partition. `offset`: where it begins; -1: where its group had got to."""

    reader: str
    partition: int
    offset: int


class Committed(Event):
    """The group coordinator acknowledged the commit."""

    group: str
    partition: int
    offset: int


class Broken(Event):
    """A client was told what can only be if a promise was broken: its offset or its sequence is unknown."""

    client: str
    error: str


class Ended(Event):
    """After all faults: where the partition's log ends for consumers."""

    partition: int
    offset: int


class Marked(Event):
    """What was done to the cluster, for who reads the file."""

    what: str


AnyEvent = Sent | Acked | Failed | Read | Began | Committed | Broken | Ended | Marked
_decoder = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def value_of(producer: str, partition: int, number: int) -> str:
    return f"{producer}/{partition}/{number}"


class Recorder:
    """Appends to the file; from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 16)
        self._lock = threading.Lock()

    def write(self, event: AnyEvent) -> None:
        line = _encoder.encode(event) + b"\n"
        with self._lock:
            self._file.write(line)
            if isinstance(event, Marked):
                self._file.flush()  # a run that is killed leaves what happened

    def close(self) -> None:
        with self._lock:
            self._file.close()


def load(path: Path) -> Iterator[AnyEvent]:
    with path.open("rb") as lines:
        yield from parse(lines)


def parse(lines: Iterable[bytes | str]) -> Iterator[AnyEvent]:
    return (_decoder.decode(line) for line in lines if line.strip())
