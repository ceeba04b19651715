"""Dump of a log's files as a stream of documents, for `tierlog log dump`.

A document is a dictionary with a `kind`. Damage is a document too, and reading continues after it where
possible.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierlog.base.files import OsFiles
from tierlog.base.leader_epochs import LeaderEpochs, MalformedEpochs
from tierlog.broker.storage.checked_batches import LARGEST_BATCH
from tierlog.broker.storage.checkpoints import MalformedCheckpoint, read_offsets
from tierlog.broker.storage.core.producer_state import MalformedSnapshot, ProducerStateManager
from tierlog.broker.storage.names import (
    EPOCH_CHECKPOINT,
    INDEXES,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from tierlog.broker.storage_tools.offline import (
    BatchFound,
    NotALog,
    find_partitions,
    read_batches,
    without_trailing_zeros,
)
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    decode_offset_index,
    decode_time_index,
    decode_txn_index,
)
from tierlog.records.markers import read_marker
from tierlog.records.record import iter_records

Document = dict[str, Any]

PROPERTIES = ("meta.properties", "partition.metadata")
OFFSET_CHECKPOINT = "-offset-checkpoint"
_TEMPORARY_SUFFIXES = (".deleted", ".swap", ".cleaned")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Offsets in [start, end). `keys` selects records without their values."""

    start: int = 0
    end: int | None = None
    records: bool = False
    keys: bool = False

    def touches(self, first_offset: int, last_offset: int) -> bool:
        return last_offset >= self.start and (self.end is None or first_offset < self.end)


def dump(path: Path, wanted: Wanted) -> Iterator[Document]:
    """Dump one file, all files of a partition, or a whole log directory. Raises NotALog, OSError."""
    if path.is_file():
        yield from _dump_file(path, wanted)
        return
    for partition in (partitions := find_partitions(path)):
        for at, base in enumerate(partition.bases):
            after = partition.bases[at + 1] - 1 if at + 1 < len(partition.bases) else base + (1 << 32)
            for suffix in (LOG, *INDEXES) if wanted.touches(base, after) else ():
                file = segment_file(partition.directory, base, suffix)
                if file.exists():
                    yield from _dump_file(file, wanted)
        for offset in partition.snapshots():
            yield from _dump_file(segment_file(partition.directory, offset, SNAPSHOT), wanted)
        yield from _dump_known(partition.directory, wanted)
    if partitions[0].directory != path:
        yield from _dump_known(path, wanted)


def _dump_known(directory: Path, wanted: Wanted) -> Iterator[Document]:
    for file in sorted(directory.iterdir()):
        if file.name in PROPERTIES or file.name.endswith((OFFSET_CHECKPOINT, EPOCH_CHECKPOINT)):
            yield from _dump_file(file, wanted)


def _dump_file(path: Path, wanted: Wanted) -> Iterator[Document]:
    reader = _reader(path)
    yield {"kind": "file", "path": str(path), "bytes": path.stat().st_size}
    try:
        yield from reader(path, wanted)
    except (RecordsError, MalformedEpochs, MalformedSnapshot, MalformedCheckpoint) as error:
        yield {"kind": "damage", "message": str(error)}


def _reader(path: Path) -> Callable[[Path, Wanted], Iterator[Document]]:
    name = path.name
    for file_suffix in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(file_suffix)
    segment = parse_segment_file(name)
    if segment is not None:
        return _READERS[segment[1]]
    if name.endswith(EPOCH_CHECKPOINT):
        return _dump_epochs
    if name.endswith(OFFSET_CHECKPOINT):
        return _dump_offsets
    if name in PROPERTIES:
        return _dump_properties
    raise NotALog(f"{path} is not a file of a log")


def _dump_log(path: Path, wanted: Wanted) -> Iterator[Document]:
    for found in read_batches(path):
        if not isinstance(found, BatchFound):
            yield {"kind": "damage", "position": found.position, "message": found.fault}
            return
        header = found.header
        if not wanted.touches(header.base_offset, header.last_offset):
            continue
        yield _batch(found)
        if found.fault:
            yield {"kind": "damage", "position": found.position, "message": found.fault}
        elif wanted.records or wanted.keys:
            yield from _records(found, wanted)


def _batch(found: BatchFound) -> Document:
    header = found.header
    try:
        codec = header.codec.name.lower()
    except RecordsError as error:
        codec = str(error)
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": found.position,
        "bytes": header.size,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "codec": codec,
        "timestamp_type": "LogAppendTime" if header.log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "crc_ok": not found.fault,
    }


def _records(found: BatchFound, wanted: Wanted) -> Iterator[Document]:
    marker = read_marker(found.data) if found.header.is_control else None
    try:
        for record in iter_records(found.data, max_bytes=LARGEST_BATCH):
            if not wanted.touches(record.offset, record.offset):
                continue
            document = {"kind": "record", "offset": record.offset, "timestamp": record.timestamp}
            if marker is not None:
                document["marker"] = "commit" if marker.committed else "abort"
                document["coordinator_epoch"] = marker.coordinator_epoch
            else:
                document["key"] = record.key
                if wanted.records:
                    document["value"], document["headers"] = record.value, list(record.headers)
            yield document
    except RecordsError as error:
        yield {"kind": "damage", "position": found.position, "message": str(error)}


def _dump_offset_index(path: Path, wanted: Wanted) -> Iterator[Document]:
    index = without_trailing_zeros(path.read_bytes(), OFFSET_ENTRY.size)
    return _entries("offset-index", decode_offset_index(index, int(path.name[:20])), wanted)


def _dump_time_index(path: Path, wanted: Wanted) -> Iterator[Document]:
    index = without_trailing_zeros(path.read_bytes(), TIME_ENTRY.size)
    return _entries("time-index", decode_time_index(index, int(path.name[:20])), wanted)


def _entries(kind: str, entries: Iterable[Any], wanted: Wanted) -> Iterator[Document]:
    for entry in entries:
        if wanted.touches(entry.offset, entry.offset):
            yield {"kind": kind, **entry._asdict()}


def _dump_txn_index(path: Path, wanted: Wanted) -> Iterator[Document]:
    for entry in decode_txn_index(path.read_bytes()):
        if wanted.touches(entry.first_offset, entry.last_offset):
            yield {"kind": "aborted-transaction", **entry._asdict()}


def _dump_snapshot(path: Path, wanted: Wanted) -> Iterator[Document]:
    for producer in ProducerStateManager.decode(path.read_bytes()):
        last = producer.batches[-1] if producer.batches else None
        yield {
            "kind": "producer",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": last.last_sequence if last else -1,
            "last_offset": last.last_offset if last else -1,
            "timestamp": producer.timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_first_offset": producer.transaction_first_offset,
        }


def _dump_epochs(path: Path, wanted: Wanted) -> Iterator[Document]:
    for entry in LeaderEpochs.decode(path.read_bytes()).entries:
        yield {"kind": "leader-epoch", **entry._asdict()}


def _dump_offsets(path: Path, wanted: Wanted) -> Iterator[Document]:
    if not path.stat().st_size:
        return  # Kafka creates it empty
    for name, offset in read_offsets(OsFiles(), path).items():
        yield {"kind": "checkpoint", "topic": name.topic, "partition": name.partition, "offset": offset}


def _dump_properties(path: Path, wanted: Wanted) -> Iterator[Document]:
    separator = "=" if path.name == "meta.properties" else ":"
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, found, value = line.partition(separator)
        if found and not line.startswith("#"):
            yield {"kind": "property", "name": name.strip(), "value": value.strip()}


_READERS = {
    LOG: _dump_log,
    OFFSET_INDEX: _dump_offset_index,
    TIME_INDEX: _dump_time_index,
    TXN_INDEX: _dump_txn_index,
    SNAPSHOT: _dump_snapshot,
}
