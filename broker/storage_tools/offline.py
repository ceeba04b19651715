"""Offline access to a log directory, for tools that run without a broker and report damage.

Names and formats are Kafka's, so Kafka's directories can be read too. Nothing here changes a file, and no
size in a file is trusted before the bytes have been read. Called by `dumping`, `verifying` and `reindexing`,
which implement the `tierlog log …` commands; never by a broker.
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
    offsets_of,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from tierlog.records.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError

READ_BYTES = 1 << 20
LOCK_FILE = ".lock"


class NotALog(Exception):
    """The path has no files that a broker writes."""


class InUse(Exception):
    """A broker is using the directory."""


class BatchFound(NamedTuple):
    """`fault` says what is wrong with the batch; empty if its CRC is valid."""

    position: int
    header: BatchHeader
    data: bytes
    fault: str

    @property
    def size(self) -> int:
        return len(self.data)


class UnreadableTail(NamedTuple):
    """The rest of a segment, from where no batch begins."""

    position: int
    size: int
    fault: str


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """A partition's directory, and the segments in it that were requested.

    `recovery_point`: no offset below it may be missing or wrong. None if that applies to all offsets, since
    the last shutdown was clean or there is no checkpoint. `compacted`: the log was compacted, so offsets may
    be missing.
    """

    directory: Path
    bases: tuple[int, ...]
    chosen: frozenset[int]
    recovery_point: int | None
    compacted: bool

    @property
    def size(self) -> int:
        return sum(self.log(base).stat().st_size for base in self.chosen)

    def log(self, base: int) -> Path:
        return segment_file(self.directory, base, LOG)

    def snapshots(self) -> list[int]:
        return offsets_of(os.listdir(self.directory), SNAPSHOT)


def find_partitions(path: Path) -> list[PartitionFiles]:
    """The partitions of a log directory, a partition's directory or a segment's log file. Raises NotALog,
    OSError.
    """
    if path.is_file():
        parsed = parse_segment_file(path.name)
        if parsed is None or parsed[1] != LOG:
            raise NotALog(f"{path} is not the log file of a segment")
        return [_partition(path.parent, frozenset({parsed[0]}))]
    if bases := offsets_of(os.listdir(path), LOG):
        return [_partition(path, frozenset(bases))]
    below = {child: offsets_of(os.listdir(child), LOG) for child in sorted(path.iterdir()) if child.is_dir()}
    if not any(below.values()):
        raise NotALog(f"{path} has no segment and no directory with one")
    return [_partition(child, frozenset(bases)) for child, bases in below.items() if bases]


def log_directory_of(path: Path) -> Path | None:
    """The log directory that a path is or is in, recognised by its lock file; None if there is none."""
    candidates = (path, *path.absolute().parents[:2])
    return next((candidate for candidate in candidates if (candidate / LOCK_FILE).exists()), None)


@contextmanager
def locked(directory: Path | None) -> Iterator[None]:
    """Lock the directory against brokers. Raises InUse. Kafka locks with `fcntl`, tierlog with `flock`."""
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


def read_batches(path: Path) -> Iterator[BatchFound | UnreadableTail]:
    """Every batch of a segment, whatever its CRC. Ends with an UnreadableTail if a length is invalid."""
    with path.open("rb", buffering=READ_BYTES) as file:
        position, size = 0, os.fstat(file.fileno()).st_size
        while position < size:
            left = size - position
            head = file.read(HEADER_SIZE)
            fault = _no_batch(head, left)
            if fault:
                yield UnreadableTail(position, left, fault)
                return
            header = read_header(head)
            data = head + file.read(header.size - HEADER_SIZE)
            yield BatchFound(position, header, data, _fault(data))
            position += header.size


def without_trailing_zeros(index: bytes, entry_size: int) -> bytes:
    """An index without the zeros that Kafka preallocates in the active segment's index files."""
    end = len(index.rstrip(b"\0"))
    return index[: -(-end // entry_size) * entry_size]


def _no_batch(head: bytes, left: int) -> str:
    if not any(head):
        return f"zeros where a batch should begin ({left} bytes to the end)"
    if len(head) < HEADER_SIZE:
        return f"the file ends within a batch header ({left} bytes are left)"
    size = read_header(head).size
    if not HEADER_SIZE <= size <= LARGEST_BATCH:
        return f"invalid batch size {size}"
    return f"a batch of {size} bytes, of which only {left} are in the file" if size > left else ""


def _fault(data: bytes) -> str:
    try:
        check_batch(data)
    except RecordsError as error:
        return str(error)
    return ""


def _partition(directory: Path, chosen: frozenset[int]) -> PartitionFiles:
    name, around = parse_partition_directory(directory.absolute().name), directory.absolute().parent
    recovery_point = None
    if name is not None and not (around / CLEAN_SHUTDOWN).exists() and (around / RECOVERY_POINTS).exists():
        recovery_point = _checkpoint(around / RECOVERY_POINTS).get(name, 0)
    compacted = name in _checkpoint(around / CLEANER_OFFSETS)
    bases = tuple(offsets_of(os.listdir(directory), LOG))
    return PartitionFiles(directory, bases, chosen, recovery_point, compacted)


def _checkpoint(path: Path) -> dict[TopicPartition, int]:
    try:
        return read_offsets(OsFiles(), path)
    except MalformedCheckpoint:
        return {}
