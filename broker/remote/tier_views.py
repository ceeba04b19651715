"""Tier views: a partition's status over both tiers, and the location of one offset.

Called by the remote log manager, for the admin API and the CLI, and by the gateway's directory page and
metrics.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from tierlog.base.files import FileSlice
from tierlog.base.types import NO_LEADER
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.records.batch import read_header
from tierlog.tiering import planner
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog

SEGMENTS_PER_TURN = 100
SEGMENTS_PER_STATUS = 4
"""Local segments that are described in one turn of the event loop: a millisecond. A partition costs as much
as some of its segments."""


class TierRefused(Exception):
    """An operator's request about tiering cannot succeed; the message says why."""


class TierConflict(TierRefused):
    """The topic or partition exists, but is not tiered, its uploads are stopped, or another broker leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTierStatus:
    """Offsets and sizes of a partition in both tiers. Ends are exclusive. Without remote data the remote
    offsets are None. `pending_…`: what is not uploaded (planner.UploadLag)."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    local_log_start_offset: int
    log_end_offset: int
    remote_start_offset: int | None
    remote_end_offset: int | None
    local_bytes: int
    remote_bytes: int
    local_segments: int
    remote_segments: int
    uploading: bool
    pending_bytes: int
    pending_segments: int
    pending_age_ms: int
    last_error: str | None
    copy_lag_ms: int | None = None
    """Age of the oldest record that the bucket does not have, 0 if there is none; None without
    remote.log.copy.max.lag.ms."""
    is_behind: bool = False
    """Whether `copy_lag_ms` exceeds remote.log.copy.max.lag.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLocation:
    """Location of one offset. `tier`: `local` or `remote`. `position`: start of its batch in `location`,
    the path of the file or the key of the object. `also_remote`: the object that has a local offset too."""

    tier: str
    location: str
    position: int
    batch_bytes: int
    base_offset: int
    last_offset: int
    also_remote: str | None = None


def describe(
    replica: Replica,
    remote: RemotePartition,
    now_ms: int,
    *,
    uploading: bool,
    last_error: str | None,
    copy_lag_ms: int | None,
) -> PartitionTierStatus:
    """The current status of a partition, from its leader."""
    segments = replica.segments
    first, lag = remote.first_offset, planner.upload_lag(remote, segments, now_ms)
    return PartitionTierStatus(
        topic=replica.name.topic,
        partition=replica.name.partition,
        log_start_offset=replica.log_start_offset,
        high_watermark=replica.high_watermark,
        local_log_start_offset=replica.local_log_start_offset,
        log_end_offset=replica.log_end_offset,
        remote_start_offset=None if first is None else max(first, remote.log_start_offset),
        remote_end_offset=remote.end_offset,
        local_bytes=sum(segment.size_bytes for segment in segments),
        remote_bytes=remote_bytes(remote),
        local_segments=len(segments),
        remote_segments=len(remote.entries) + sum(page.entries for page in remote.pages),
        uploading=uploading,
        pending_bytes=lag.bytes,
        pending_segments=lag.segments,
        pending_age_ms=lag.age_ms if copy_lag_ms is None else copy_lag_ms,
        last_error=last_error,
        copy_lag_ms=copy_lag_ms,
        is_behind=copy_lag_ms is not None and copy_lag_ms > replica.config.remote_log_copy_max_lag_ms,
    )


def remote_bytes(remote: RemotePartition) -> int:
    """Bytes of a partition's segments in the object store."""
    return sum(page.log_bytes for page in remote.pages) + sum(entry.log_bytes for entry in remote.entries)


def why_not_here(image: ClusterImage, topic: str, partition: int) -> str:
    """Why this broker has no replica of a partition."""
    found = image.topic(topic)
    if found is None:
        return f"there is no topic {topic!r}"
    if partition not in range(len(found.partitions)):
        return f"topic {topic!r} has no partition {partition}: it has {len(found.partitions)}, from 0"
    leader = found.partitions[partition].leader
    led = f"broker {leader} leads it" if leader != NO_LEADER else "no broker leads it"
    return f"{topic}-{partition} has no replica on this broker: {led}"


async def locate_offset(
    replica: Replica, remote: RemotePartition, remote_log: RemoteLog, offset: int
) -> OffsetLocation:
    """The location from which an offset is served. Raises TierRefused or ObjectStoreError."""
    tiered = remote.first_offset is not None and remote.first_offset <= offset < (remote.end_offset or 0)
    if offset >= replica.local_log_start_offset:
        place = None
        if tiered:
            with suppress(ObjectStoreError):  # the store is not needed to locate a local offset
                place = await remote_log.locate(replica.id, offset)
        return _local_location(replica, offset, place.key if place else None)
    place = await remote_log.locate(replica.id, offset) if tiered else None
    if place is None:
        raise TierRefused(f"{replica.name}: offset {offset} is in neither tier")
    return OffsetLocation(
        tier="remote",
        location=place.key,
        position=place.position,
        batch_bytes=place.batch_bytes,
        base_offset=place.base_offset,
        last_offset=place.last_offset,
    )


def _local_location(replica: Replica, offset: int, also_remote: str | None) -> OffsetLocation:
    """The batch that a consumer would get, since this is the same read path."""
    found = replica.read(offset, 1).slice
    part = found.parts[0] if found is not None and found.parts else None
    if not isinstance(part, FileSlice):
        raise TierRefused(f"{replica.name}: offset {offset} cannot be read now")
    header = read_header(part.read())
    return OffsetLocation(
        tier="local",
        location=str(part.file.path),
        position=part.position,
        batch_bytes=header.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        also_remote=also_remote,
    )


async def statuses_in_turns(
    replicas: Iterable[Replica], status_of: Callable[[Replica], PartitionTierStatus | None]
) -> list[PartitionTierStatus]:
    """The statuses of the partitions that have one, sorted by name."""
    found: list[PartitionTierStatus] = []
    segments = 0
    for replica in sorted(replicas, key=attrgetter("name")):
        if (status := status_of(replica)) is not None:
            found.append(status)
            segments += SEGMENTS_PER_STATUS + status.local_segments
        if segments >= SEGMENTS_PER_TURN:
            segments = 0
            await asyncio.sleep(0)  # let requests run
    return found
