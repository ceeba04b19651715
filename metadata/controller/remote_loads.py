"""Bulk loads: segments that no broker's log has had enter the manifest at its end (ADR 0044).

The same log entry adds all segments of a load to a partition and starts its next leader epoch, so that no
leader of an older epoch can use the offsets of the load: whatever it sends later is fenced, and each leader
of the new epoch knows the manifest's end first. The partition's leader makes sure before that its log and
those of all in-sync replicas end where the load begins. Invariants: those of `remote`.
"""

from itertools import pairwise

from msgspec.structs import replace

from tierlog.base.safeguards import safeguard
from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal, check_format, done
from tierlog.metadata.controller.remote import (
    MAX_ENTRIES,
    check_leader,
    is_tiered,
    partition_of,
)
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

MAX_LOADED = 256
"""Segments that one load adds to a partition. The record contains them, and the quorum keeps 512 entries."""


def load_segments(image: ClusterImage, command: c.LoadSegments, now_ms: int) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    remote = image.remote_partition(command.topic_id, command.partition)
    if _is_done(remote, command):
        return done()
    check_leader(partition, command.broker_id, command.leader_epoch)
    check_format(image, 2)
    if not is_tiered(image, command.topic_id):
        raise _refused("the topic is not tiered: nothing is loaded")
    if (command.topic_id, command.partition) in image.unread_manifests:
        raise _refused("the manifest in the bucket has not been read since the quorum was recovered")
    segments = command.segments
    if not 0 < len(segments) <= MAX_LOADED or len(remote.entries) + len(segments) > MAX_ENTRIES:
        known = len(remote.entries)
        raise _refused(f"{len(segments)} segments and {known} entries: at most {MAX_LOADED} are loaded")
    if any(two.base_offset != one.end_offset for one, two in pairwise(segments)):
        raise _refused("the segments are not successive")
    if segments[0].base_offset != remote.next_load_offset:
        end = remote.next_load_offset
        raise _refused(f"the remote log ends at {end}, and the load begins at {segments[0].base_offset}")
    for segment in segments:
        _check_started(remote, segment, command.leader_epoch)
    loaded = r.SegmentsLoaded(
        topic_id=command.topic_id,
        partition=command.partition,
        load_id=command.load_id,
        segments=segments,
        at_ms=now_ms,
    )
    return done(loaded, *_next_epoch(partition))


@safeguard("a load that is repeated adds nothing")
def _is_done(remote: RemotePartition, command: c.LoadSegments) -> bool:
    return remote.load_of(command.load_id) is not None


@safeguard("a bulk load starts a leader epoch")
def _next_epoch(partition: PartitionRecord) -> tuple[PartitionRecord, ...]:
    return (
        replace(
            partition,
            leader_epoch=partition.leader_epoch + 1,
            partition_epoch=partition.partition_epoch + 1,
        ),
    )


def _check_started(remote: RemotePartition, segment: r.RemoteSegment, leader_epoch: int) -> None:
    started = next((copy for copy in remote.started if copy.uuid == segment.uuid), None)
    if started is None or not started.loads:
        raise _refused(f"segment {segment.uuid} was not announced by a load, or was abandoned")
    if (started.base_offset, started.last_offset) != (segment.base_offset, segment.last_offset):
        raise _refused(f"segment {segment.uuid} was announced for other offsets")
    if segment.leader_epoch != leader_epoch or started.leader_epoch != leader_epoch:
        message = f"segment {segment.uuid} is of leader epoch {segment.leader_epoch}, not {leader_epoch}"
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, message)


def _refused(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
