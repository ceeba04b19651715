"""The small text files beside the logs, in Kafka's formats. Each is replaced atomically, so a crash leaves
old or new.

Per data directory: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint` and
`replication-offset-checkpoint` with a copy of each, `cleaner-offset-checkpoint`, `meta.properties` and the
marker of a clean stop. Per partition:
`partition.metadata`. Called by the replica manager.
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
"""As of the last clean stop."""
LOG_STARTS = "log-start-offset-checkpoint"
LOG_STARTS_COPY = "log-start-offset-checkpoint.copy"
"""The same again, since nothing else knows which records of a first segment were deleted."""
HIGH_WATERMARKS = "replication-offset-checkpoint"
HIGH_WATERMARKS_COPY = "replication-offset-checkpoint.copy"
"""Of partitions with other replicas: what is known to be committed, whoever leads next."""
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = 0
_BEFORE_TOPIC_ID = f"version: {_VERSION}\ntopic_id: "
_BROKER_EPOCH = re.compile(rb'"brokerEpoch":\s*(-?\d{1,19})\s*[,}]')
_PART_OF_ID = re.compile(rb"[A-Za-z0-9_-]{0,21}")


class MalformedCheckpoint(ValueError):
    """The file is not what its name says. A lost recovery point costs time, a wrong one would cost data."""


class NeverSynced(MalformedCheckpoint):
    """The power failed before it was on disk, and so before anything was promised that lies beside it."""


def write_offsets(files: Files, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Version, count, then `topic partition offset` a line."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    write_atomically(files, path, "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode())


def read_offsets(files: Files, path: Path) -> dict[TopicPartition, int]:
    """Empty if there is no file; raises MalformedCheckpoint."""
    if not files.exists(path):
        return {}
    try:
        version, count, *lines = files.read_whole(path).decode().splitlines()
        rows = [line.split(" ") for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError as error:
        raise MalformedCheckpoint(f"{path.name}: {error}") from None
    if len(offsets) != len(rows):
        raise MalformedCheckpoint(f"{path.name}: a partition has two lines")
    if version != str(_VERSION) or count != str(len(rows)):
        raise MalformedCheckpoint(
            f"{path.name}: version {version}, {count} lines announced, {len(rows)} there"
        )
    return offsets


def write_meta_properties(
    files: Files, directory: Path, cluster_id: str, node_id: int, directory_id: uuid.UUID
) -> None:
    """Kafka's version 1: a directory belongs to one node of one cluster, and has an id of its own
    (KIP-858).
    """
    lines = [
        f"cluster.id={cluster_id}",
        f"directory.id={encode_uuid(directory_id)}",
        f"node.id={node_id}",
        "version=1",
    ]
    write_atomically(files, directory / META_PROPERTIES, "\n".join(["#", *lines, ""]).encode())


def read_meta_properties(files: Files, directory: Path) -> dict[str, str]:
    """Empty if the directory is new; raises MalformedCheckpoint."""
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
    """Which topic the directory belongs to: a topic made anew under the same name must not adopt it
    (KIP-516). The first flush of the log makes it durable, before anything else of it is.
    """
    text = f"{_BEFORE_TOPIC_ID}{encode_uuid(topic_id)}"
    fd = files.open(directory / PARTITION_METADATA, exclusive=True)
    try:
        files.writev_at(fd, (text.encode(),), 0)
    finally:
        files.close(fd)


def read_partition_metadata(files: Files, directory: Path) -> uuid.UUID | None:
    """None if there is no file; raises MalformedCheckpoint, above all NeverSynced."""
    path = directory / PARTITION_METADATA
    try:
        content = files.read_whole(path)
    except FileNotFoundError:
        return None
    if _is_torn(content):
        raise NeverSynced(f"{path.name}: torn, and so never synced")
    try:
        pairs = dict(line.split(": ", 1) for line in content.decode().splitlines())
        if pairs["version"] != str(_VERSION):
            raise MalformedCheckpoint(f"{path.name}: version {pairs['version']}")
        topic_id = decode_uuid(pairs["topic_id"])
    except (KeyError, ValueError) as error:
        raise MalformedCheckpoint(f"{path.name}: {error}") from None
    if encode_uuid(topic_id) != pairs["topic_id"]:
        raise MalformedCheckpoint(f"{path.name}: no topic id is written as {pairs['topic_id']}")
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
    """Whether it is what a write that was never synced may leave: not all of it, or zeros in its place."""
    before = _BEFORE_TOPIC_ID.encode()
    begun = content[: len(before)] == before[: len(content)]
    return content.endswith(b"\0") or (begun and _PART_OF_ID.fullmatch(content[len(before) :]) is not None)


def mark_clean_shutdown(files: Files, directory: Path, broker_epoch: int = -1) -> None:
    """Written last of all, once every log of the directory was closed clean. `broker_epoch`: under which the
    directory was used (KIP-966); -1 if that is not known.
    """
    text = f'{{"version":{_VERSION},"brokerEpoch":{broker_epoch}}}'
    write_atomically(files, directory / CLEAN_SHUTDOWN, text.encode())


def read_clean_epoch(files: Files, directory: Path) -> int | None:
    """The broker epoch of the last stop if that was clean, -1 if the marker does not name one; None without a
    marker.
    """
    try:
        content = files.read_whole(directory / CLEAN_SHUTDOWN)
    except FileNotFoundError:
        return None
    found = _BROKER_EPOCH.search(content)
    return int(found[1]) if found else -1


def take_clean_shutdown(files: Files, directory: Path) -> bool:
    """Whether the last stop was clean; removes the marker for good before anything is written to a log."""
    path = directory / CLEAN_SHUTDOWN
    if not files.exists(path):
        return False
    files.unlink(path)
    files.sync_directory(directory)
    return True


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's text of an id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id: {error}") from None
