"""File and directory names, which are Kafka's, so that people and tools find their way."""

import re
from pathlib import Path
from uuid import UUID

from tierlog.base.types import TopicPartition

LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
"""Being written by compaction: nothing yet."""
SWAP = ".swap"
"""Complete, and in the place of what it replaces from the moment its `.log` is called so."""
INDEXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
DAMAGED = "damaged"
"""Lies beside a log that was damaged and cut, until that was told."""

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
DELETED_DIRECTORY = "-delete"
FUTURE_DIRECTORY = "-future"
"""A copy of the log that is to take its place (KIP-113)."""
LEFT = ".moved-away"
"""An empty file beside a partition's directory: if it has another one in the directory that the file is named
after, that is its log.
"""

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_LEFTOVER = re.compile(r"\d{20}\..*(\.deleted|\.cleaned|\.swap|\.tmp)|.*\.tmp")
_FUTURE = re.compile(r"(.*)\.[0-9a-f]{32}" + FUTURE_DIRECTORY)
_LEFT = re.compile(r"(.*?)(?:\.([0-9a-f]{32}))?" + re.escape(LEFT))
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d+)")


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset and suffix, None if the name is another file's."""
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def is_temporary(name: str) -> bool:
    """What a crash between two steps leaves behind; deleted when the log is opened."""
    return _LEFTOVER.fullmatch(name) is not None


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition whose log a directory holds; None for other directories and for deleted partitions."""
    if name.endswith(DELETED_DIRECTORY):
        return None
    found = _PARTITION.fullmatch(name)
    return TopicPartition(found[1], int(found[2])) if found else None


def parse_future_directory(name: str) -> TopicPartition | None:
    found = _FUTURE.fullmatch(name)
    return parse_partition_directory(found[1]) if found else None


def moved_away_marker(partition: TopicPartition, target: UUID) -> str:
    return f"{partition}.{target.hex}{LEFT}"


def parse_moved_away(name: str) -> tuple[TopicPartition, UUID | None] | None:
    """The partition that a name with `LEFT` is about, and the directory id of where it went; older notes do
    not say that.
    """
    found = _LEFT.fullmatch(name)
    partition = parse_partition_directory(found[1]) if found else None
    if found is None or partition is None:
        return None
    return partition, UUID(hex=found[2]) if found[2] else None


def renamed_directory(name: str, unique: str, kind: str) -> str:
    """What a partition's directory is renamed to before it is removed or set aside; cut so that it stays a
    valid file name.
    """
    suffix = f".{unique}{kind}"
    return name[: 255 - len(suffix)] + suffix
