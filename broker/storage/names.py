"""File and directory names, the same as Kafka's, so that people and tools recognise them."""

import re
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from tierlog.base.types import TopicPartition

LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
"""A segment that compaction is writing; not valid yet."""
SWAP = ".swap"
"""A complete compacted segment. Once its `.log` has this suffix, it replaces the segments it was made
from."""
INDEXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
DAMAGED = "damaged"
"""Marks a log that was damaged and truncated, until that has been reported."""

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
DELETED_DIRECTORY = "-delete"
FUTURE_DIRECTORY = "-future"
"""A copy of the log that will replace it (KIP-113)."""
MOVED_AWAY = ".moved-away"
"""Suffix of an empty file next to a partition's directory, which marks a move of the partition. Its name
contains the id of the target directory: if that has the partition too, the log there is the valid one.
"""

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_TEMPORARY = re.compile(r"\d{20}\..*(\.deleted|\.cleaned|\.swap|\.tmp)|.*\.tmp")
_FUTURE = re.compile(r"(.*)\.[0-9a-f]{32}" + FUTURE_DIRECTORY)
_MOVED_AWAY = re.compile(r"(.*?)(?:\.([0-9a-f]{32}))?" + re.escape(MOVED_AWAY))
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d+)")


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / segment_file_name(base_offset, suffix)


def segment_file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset and suffix, or None for other files."""
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """The base offsets of the files with a suffix, ascending."""
    found = map(parse_segment_file, names)
    return sorted(file[0] for file in found if file is not None and file[1] == suffix)


def is_temporary(name: str) -> bool:
    """Whether a crash between two steps left the file; it is deleted when the log is opened."""
    return _TEMPORARY.fullmatch(name) is not None


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition whose log a directory holds; None for other directories and deleted partitions."""
    if name.endswith(DELETED_DIRECTORY):
        return None
    found = _PARTITION.fullmatch(name)
    return TopicPartition(found[1], int(found[2])) if found else None


def parse_future_directory(name: str) -> TopicPartition | None:
    found = _FUTURE.fullmatch(name)
    return parse_partition_directory(found[1]) if found else None


def moved_away_marker(partition: TopicPartition, target: UUID) -> str:
    return f"{partition}.{target.hex}{MOVED_AWAY}"


def parse_moved_away(name: str) -> tuple[TopicPartition, UUID | None] | None:
    """The partition and the directory id it was being moved to, from a `.moved-away` file name. Files of
    earlier versions have no directory id.
    """
    found = _MOVED_AWAY.fullmatch(name)
    partition = parse_partition_directory(found[1]) if found else None
    if found is None or partition is None:
        return None
    return partition, UUID(hex=found[2]) if found[2] else None


def renamed_directory(name: str, unique: str, kind: str) -> str:
    """The new name of a partition's directory that is being deleted or set aside, no longer than a file name
    may be."""
    suffix = f".{unique}{kind}"
    return name[: 255 - len(suffix)] + suffix
