"""A data directory as it lies on disk: for tools, which have no broker and find damage where it is.

Names and formats are Kafka's, so its own directories are read as well. Nothing here changes a file, and no
size is believed before the bytes are there. Called by `dumping`, `verifying` and `reindexing`, which are the
commands `tierlog log …`; never by a broker.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.checked_batches import LARGEST_BATCH
from tierlog.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    RECOVERY_POINTS,
    MalformedCheckpoint,
    read_offsets,
)
from tierlog.broker.storage.names import (
    LOG,
    SNAPSHOT,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from tierlog.records.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError

READ_BYTES = 1 << 20
LOCK_FILE = ".lock"


class NotALog(Exception):
    """The path holds nothing that a broker would have written."""


class InUse(Exception):
    """A broker runs on the directory."""


class BatchFound(NamedTuple):
    """`fault` says what is wrong with the batch; empty: it is whole, and its CRC right."""

    position: int
    header: BatchHeader
    data: bytes
    fault: str

    @property
    def size(self) -> int:
        return len(self.data)


class Tail(NamedTuple):
    """The rest of a segment from the point on where no batch begins."""

    position: int
    size: int
    fault: str


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """A partition's directory, and the segments of it that were asked for.

    `settled`: no offset below it may be missing or wrong; None if all of them, because the last stop was
    clean or nothing around the directory tells. `compacted`: a cleaner was at it, so offsets are missing.
    """

    directory: Path
    bases: tuple[int, ...]
    chosen: frozenset[int]
    settled: int | None
    compacted: bool

    @property
    def size(self) -> int:
        return sum(self.log(base).stat().st_size for base in self.chosen)

    def log(self, base: int) -> Path:
        return segment_file(self.directory, base, LOG)

    def snapshots(self) -> list[int]:
        names = map(parse_segment_file, os.listdir(self.directory))
        return sorted(found[0] for found in names if found is not None and found[1] == SNAPSHOT)


def find_partitions(path: Path) -> list[PartitionFiles]:
    """Of a data directory, of a partition's, or of one segment's log file. Raises NotALog, OSError."""
    if path.is_file():
        parsed = parse_segment_file(path.name)
        if parsed is None or parsed[1] != LOG:
            raise NotALog(f"{path} is not the log file of a segment")
        return [_partition(path.parent, frozenset({parsed[0]}))]
    if bases := _bases(path):
        return [_partition(path, frozenset(bases))]
    below = sorted(child for child in path.iterdir() if child.is_dir() and _bases(child))
    if not below:
        raise NotALog(f"{path} holds no segment, and no directory with one")
    return [_partition(child, frozenset(_bases(child))) for child in below]


def data_directory_of(path: Path) -> Path | None:
    """The data directory that a path is or lies in, known by its lock file; None if there is none."""
    candidates = (path, *path.absolute().parents[:2])
    return next((candidate for candidate in candidates if (candidate / LOCK_FILE).exists()), None)


@contextmanager
def locked(directory: Path | None) -> Iterator[None]:
    """Keeps brokers away meanwhile; raises InUse. Kafka locks as `fcntl` does, tierlog as `flock`."""
    if directory is None:
        yield
        return
    with (directory / LOCK_FILE).open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(f"a broker runs on {directory}") from None
        yield


def read_batches(path: Path) -> Iterator[BatchFound | Tail]:
    """Every batch of a segment, whatever its CRC; a Tail, and then nothing, where lengths end to make
    sense.
    """
    with path.open("rb", buffering=READ_BYTES) as file:
        position, size = 0, os.fstat(file.fileno()).st_size
        while position < size:
            left = size - position
            head = file.read(HEADER_SIZE)
            fault = _no_batch(head, left)
            if fault:
                yield Tail(position, left, fault)
                return
            header = read_header(head)
            data = head + file.read(header.size - HEADER_SIZE)
            yield BatchFound(position, header, data, _fault(data))
            position += header.size


def without_zeros(index: bytes, entry_size: int) -> bytes:
    """An index without the room that Kafka keeps ready at the end of those it is writing."""
    end = len(index.rstrip(b"\0"))
    return index[: -(-end // entry_size) * entry_size]


def _no_batch(head: bytes, left: int) -> str:
    if not any(head):
        return f"zeros where a batch should begin ({left} bytes to the end)"
    if len(head) < HEADER_SIZE:
        return f"the file ends within a batch header ({left} bytes of it are there)"
    size = read_header(head).size
    if not HEADER_SIZE <= size <= LARGEST_BATCH:
        return f"a batch of {size} bytes cannot be"
    return f"a batch of {size} bytes of which {left} are there" if size > left else ""


def _fault(data: bytes) -> str:
    try:
        check_batch(data)
    except RecordsError as error:
        return str(error)
    return ""


def _bases(directory: Path) -> list[int]:
    names = map(parse_segment_file, os.listdir(directory))
    return sorted(found[0] for found in names if found is not None and found[1] == LOG)


def _partition(directory: Path, chosen: frozenset[int]) -> PartitionFiles:
    name, around = parse_partition_directory(directory.absolute().name), directory.absolute().parent
    settled = None
    if name is not None and not (around / CLEAN_SHUTDOWN).exists() and (around / RECOVERY_POINTS).exists():
        settled = _checkpoint(around / RECOVERY_POINTS).get(name, 0)
    compacted = name in _checkpoint(around / CLEANER_OFFSETS)
    return PartitionFiles(directory, tuple(_bases(directory)), chosen, settled, compacted)


def _checkpoint(path: Path) -> dict[TopicPartition, int]:
    try:
        return read_offsets(OsFiles(), path)
    except MalformedCheckpoint:
        return {}
