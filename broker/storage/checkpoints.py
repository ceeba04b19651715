"""Checkpoint and metadata files of a log directory, in Kafka's formats. Each is replaced atomically.

Per log directory: `recovery-point-offset-checkpoint`; `log-start-offset-checkpoint` and
`replication-offset-checkpoint`, each with a copy; `cleaner-offset-checkpoint`; `meta.properties`; and the
clean shutdown file. Per partition: `partition.metadata`. Called by the replica manager and the log
directories.
"""

import base64
import binascii
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from tierlog.base.files import Files, write_atomically
from tierlog.base.types import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
RECOVERY_POINTS_COPY = "recovery-point-offset-checkpoint.copy"
"""The recovery points at the last clean shutdown."""
LOG_STARTS = "log-start-offset-checkpoint"
LOG_STARTS_COPY = "log-start-offset-checkpoint.copy"
"""Copy of the log start offsets. No other file tells which records of the first segment were deleted."""
HIGH_WATERMARKS = "replication-offset-checkpoint"
HIGH_WATERMARKS_COPY = "replication-offset-checkpoint.copy"
"""Copy of the high watermarks. Records below are committed, whichever replica of the partition leads next."""
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = 0
_BEFORE_TOPIC_ID = f"version: {_VERSION}\ntopic_id: "
_BROKER_EPOCH = re.compile(rb'"brokerEpoch":\s*(-?\d{1,19})\s*[,}]')
_PART_OF_ID = re.compile(rb"[A-Za-z0-9_-]{0,21}")


class MalformedCheckpoint(ValueError):
    """The file is not valid. A lost recovery point costs time, a wrong one would cost data."""


class NeverSynced(MalformedCheckpoint):
    """The power failed before the file was on disk, so nothing next to it was acknowledged."""


def write_offsets(files: Files, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write version, count, and one line `topic partition offset` per partition."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    write_atomically(files, path, "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode())


def read_offsets(files: Files, path: Path) -> dict[TopicPartition, int]:
    """Read offsets; empty if there is no file. Raises MalformedCheckpoint."""
    if not files.exists(path):
        return {}
    try:
        version, count, *lines = files.read_whole(path).decode().splitlines()
        rows = [line.split(" ") for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError as error:
        raise MalformedCheckpoint(f"{path.name}: {error}") from None
    if len(offsets) != len(rows):
        raise MalformedCheckpoint(f"{path.name}: a partition is listed twice")
    if version != str(_VERSION) or count != str(len(rows)):
        raise MalformedCheckpoint(f"{path.name}: version {version}, {len(rows)} lines instead of {count}")
    return offsets


def write_meta_properties(
    files: Files, directory: Path, cluster_id: str, node_id: int, directory_id: uuid.UUID
) -> None:
    """Write Kafka's version 1: the directory belongs to one node of one cluster and has its own
    id (KIP-858).
    """
    lines = [
        f"cluster.id={cluster_id}",
        f"directory.id={encode_uuid(directory_id)}",
        f"node.id={node_id}",
        "version=1",
    ]
    write_atomically(files, directory / META_PROPERTIES, "\n".join(["#", *lines, ""]).encode())


def read_meta_properties(files: Files, directory: Path) -> dict[str, str]:
    """Read the properties; empty if the directory is new. Raises MalformedCheckpoint."""
    path = directory / META_PROPERTIES
    if not files.exists(path):
        return {}
    try:
        lines = files.read_whole(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(f"{path.name}: {error}") from None
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_partition_metadata(files: Files, directory: Path, topic_id: uuid.UUID) -> None:
    """Write the topic id: a topic created again under the same name must not adopt the old log (KIP-516). The
    first flush of the log makes it durable, before anything else of the log.
    """
    text = f"{_BEFORE_TOPIC_ID}{encode_uuid(topic_id)}"
    fd = files.open(directory / PARTITION_METADATA, exclusive=True)
    try:
        files.writev_at(fd, (text.encode(),), 0)
    finally:
        files.close(fd)


def read_partition_metadata(files: Files, directory: Path) -> uuid.UUID | None:
    """Read the topic id; None if there is no file. Raises MalformedCheckpoint, in particular NeverSynced."""
    path = directory / PARTITION_METADATA
    try:
        content = files.read_whole(path)
    except FileNotFoundError:
        return None
    if _is_torn(content):
        raise NeverSynced(f"{path.name}: torn, so it was never synced")
    try:
        pairs = dict(line.split(": ", 1) for line in content.decode().splitlines())
        if pairs["version"] != str(_VERSION):
            raise MalformedCheckpoint(f"{path.name}: version {pairs['version']}")
        topic_id = decode_uuid(pairs["topic_id"])
    except (KeyError, ValueError) as error:
        raise MalformedCheckpoint(f"{path.name}: {error}") from None
    if encode_uuid(topic_id) != pairs["topic_id"]:
        raise MalformedCheckpoint(f"{path.name}: {pairs['topic_id']} is not a topic id")
    return topic_id


def require_no_flip(found: uuid.UUID, expected: uuid.UUID) -> None:
    """Raises MalformedCheckpoint if the texts of two topic ids differ by one bit: ids are random, so the one
    that was found is damaged.
    """
    text, whole = encode_uuid(found), encode_uuid(expected)
    if sum((one ^ other).bit_count() for one, other in zip(text.encode(), whole.encode(), strict=True)) == 1:
        raise MalformedCheckpoint(
            f"{PARTITION_METADATA} has topic id {text}, which is that of the topic ({whole}) but for one "
            "flipped bit: stop the node, write the latter there, and start the node again"
        )


def _is_torn(content: bytes) -> bool:
    """Whether the content is the result of a write that was never synced: truncated, or zeros."""
    before = _BEFORE_TOPIC_ID.encode()
    begun = content[: len(before)] == before[: len(content)]
    return content.endswith(b"\0") or (begun and _PART_OF_ID.fullmatch(content[len(before) :]) is not None)


def mark_clean_shutdown(files: Files, directory: Path, broker_epoch: int = -1) -> None:
    """Write the clean shutdown file, after every log of the directory was closed clean. `broker_epoch`: the
    epoch the broker had (KIP-966), -1 if unknown.
    """
    text = f'{{"version":{_VERSION},"brokerEpoch":{broker_epoch}}}'
    write_atomically(files, directory / CLEAN_SHUTDOWN, text.encode())


def read_clean_epoch(files: Files, directory: Path) -> int | None:
    """The broker epoch in the clean shutdown file, -1 if it has none; None without the file."""
    try:
        content = files.read_whole(directory / CLEAN_SHUTDOWN)
    except FileNotFoundError:
        return None
    found = _BROKER_EPOCH.search(content)
    return int(found[1]) if found else -1


def take_clean_shutdown(files: Files, directory: Path) -> bool:
    """Whether the last shutdown was clean. Durably removes the file, before any log is written."""
    path = directory / CLEAN_SHUTDOWN
    if not files.exists(path):
        return False
    files.unlink(path)
    files.sync_directory(directory)
    return True


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's text form of an id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id: {error}") from None
