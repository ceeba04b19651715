"""DescribeQuorum (v0-2, KIP-595, KIP-836, KIP-853): the metadata quorum as its leader sees it.

Offsets are Raft indexes; ends are exclusive. Node addresses are those of the admin HTTP servers, over
which the quorum communicates.
"""

from urllib.parse import urlsplit

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.status import NodeStatus, ObserverStatus, PeerStatus
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)
from tierlog.protocol.schema import ZERO_UUID

METADATA_TOPIC = "__cluster_metadata"
LISTENER = "CONTROLLER"
UNKNOWN = -1
LEADER_TIMEOUT_S = 2.5
"""Time for the leader's response. Commands that look for the cause of an outage wait little longer."""


def describe_quorum_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: DescribeQuorumRequest) -> Reply:
        requested = [
            (topic.topic_name, [partition.partition_index for partition in topic.partitions])
            for topic in request.topics
        ]
        if requested != [(METADATA_TOPIC, [0])]:
            return _no_such_partitions(requested)
        try:
            return described(await deps.metadata.quorum(LEADER_TIMEOUT_S))
        except MetadataUnavailable as unavailable:
            return without_leader(deps.metadata.status(), str(unavailable))

    return handle


def _no_such_partitions(requested: list[tuple[str, list[int]]]) -> DescribeQuorumResponse:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            TopicDataResponse(
                topic_name=name,
                partitions=[
                    PartitionDataResponse(partition_index=number, error_code=code, error_message=None)
                    for number in numbers
                ],
            )
            for name, numbers in requested
        ],
    )


def described(status: NodeStatus) -> DescribeQuorumResponse:
    voters = [member for member in status.members if member.voter]
    learners = [member for member in status.members if not member.voter]
    partition = PartitionDataResponse(
        error_message=None,
        leader_id=status.leader,
        leader_epoch=status.term,
        high_watermark=status.commit_index + 1,
        current_voters=[_state(member) for member in voters],
        observers=[_state(member) for member in (*learners, *status.observers)],
    )
    return DescribeQuorumResponse(
        error_message=None,
        topics=[TopicDataResponse(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[Node(node_id=member.node_id, listeners=_listeners(member.url)) for member in voters],
    )


def without_leader(status: NodeStatus | ObserverStatus, problem: str) -> DescribeQuorumResponse:
    """An error, with the addresses of the voters that this node knows: their admin APIs show the cause."""
    return DescribeQuorumResponse(
        error_code=ErrorCode.NOT_CONTROLLER,
        error_message=problem,
        topics=[],
        nodes=[Node(node_id=one, listeners=_listeners(url)) for one, url in sorted(status.voters.items())],
    )


def _state(member: PeerStatus) -> ReplicaState:
    """Offset and timestamps are -1 for a member that has not responded to this leader yet."""
    heard, caught_up = member.last_heard_ms, member.last_caught_up_ms
    index = None if heard is None else member.match_index
    return ReplicaState(
        replica_id=member.node_id,
        replica_directory_id=member.directory_id or ZERO_UUID,
        log_end_offset=UNKNOWN if index is None else index + 1,
        last_fetch_timestamp=UNKNOWN if heard is None else heard,
        last_caught_up_timestamp=UNKNOWN if caught_up is None else caught_up,
    )


def _listeners(url: str) -> list[Listener]:
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        return []
    return [Listener(name=LISTENER, host=parts.hostname, port=parts.port)]
