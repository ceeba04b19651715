"""Changes of partitions that a client requests: ElectLeaders (v0-2, KIP-460), AlterPartitionReassignments
(v0-1) and ListPartitionReassignments (v0, KIP-455).
"""

from collections.abc import Iterable

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, controller_timeout_s, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST
from tierlog.metadata.controller.commands import ElectionKind, ElectLeaders, NamedOutcome, Reassign
from tierlog.metadata.controller.reassignment import under_way
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tierlog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from tierlog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

KEEPS_FACTOR_FROM = 1
"""The first version whose requests can forbid a change of the replication factor (KIP-860)."""


Change = tuple[str, int, tuple[int, ...] | None]


def elect_leaders_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: ElectLeadersRequest) -> Reply:
        if request.election_type not in set(ElectionKind):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown election type {request.election_type}")
        requested = _named(request)
        if requested is not None and len(requested) > MAX_RECORDS_PER_REQUEST:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"more than {MAX_RECORDS_PER_REQUEST} partitions")
        command = ElectLeaders(partitions=requested, kind=ElectionKind(request.election_type))
        reply = await deps.metadata.submit(command, controller_timeout_s(request.timeout_ms))
        return ElectLeadersResponse(replica_election_results=_elected(reply.partitions))

    return handle


def _named(request: ElectLeadersRequest) -> tuple[tuple[str, int], ...] | None:
    """The named partitions, each once; None: all of the cluster."""
    if request.topic_partitions is None:
        return None
    return tuple(
        dict.fromkeys(
            (topic.topic, number) for topic in request.topic_partitions for number in topic.partitions
        )
    )


def _elected(outcomes: Iterable[NamedOutcome]) -> list[ReplicaElectionResult]:
    results: dict[str, ReplicaElectionResult] = {}
    for outcome in outcomes:
        result = results.setdefault(outcome.topic, ReplicaElectionResult(topic=outcome.topic))
        result.partition_result.append(
            PartitionResult(
                partition_id=outcome.partition, error_code=outcome.error, error_message=outcome.message
            )
        )
    return list(results.values())


def alter_partition_reassignments_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: AlterPartitionReassignmentsRequest) -> Reply:
        may_change = request.allow_replication_factor_change or context.version < KEEPS_FACTOR_FROM
        changes = _changes(request)
        if len(changes) > MAX_RECORDS_PER_REQUEST:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"more than {MAX_RECORDS_PER_REQUEST} partitions")
        command = Reassign(changes=changes, may_change_factor=may_change)
        reply = await deps.metadata.submit(command, controller_timeout_s(request.timeout_ms))
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_change,
            error_message=None,
            responses=_reassigned(reply.partitions),
        )

    return handle


def _changes(request: AlterPartitionReassignmentsRequest) -> tuple[Change, ...]:
    return tuple(
        (
            topic.name,
            partition.partition_index,
            None if partition.replicas is None else tuple(partition.replicas),
        )
        for topic in request.topics
        for partition in topic.partitions
    )


def _reassigned(outcomes: Iterable[NamedOutcome]) -> list[ReassignableTopicResponse]:
    topics: dict[str, ReassignableTopicResponse] = {}
    for outcome in outcomes:
        topic = topics.setdefault(outcome.topic, ReassignableTopicResponse(name=outcome.topic))
        topic.partitions.append(
            ReassignablePartitionResponse(
                partition_index=outcome.partition, error_code=outcome.error, error_message=outcome.message
            )
        )
    return list(topics.values())


def list_partition_reassignments_handler(deps: Dependencies) -> Handler:
    """Lists running reassignments, also those which clients started through other brokers."""

    @pending
    async def handle(context: RequestContext, request: ListPartitionReassignmentsRequest) -> Reply:
        image = await deps.metadata.current(controller_timeout_s(request.timeout_ms))
        return ListPartitionReassignmentsResponse(error_message=None, topics=_ongoing(image, request.topics))

    return handle


def _ongoing(
    image: ClusterImage, requested: list[ListPartitionReassignmentsTopics] | None
) -> list[OngoingTopicReassignment]:
    wanted = None
    if requested is not None:
        wanted = {(topic.name, number) for topic in requested for number in topic.partition_indexes}
    topics: dict[str, OngoingTopicReassignment] = {}
    for topic, number, partition in under_way(image):
        if wanted is not None and (topic.name, number) not in wanted:
            continue
        ongoing = topics.setdefault(topic.name, OngoingTopicReassignment(name=topic.name))
        ongoing.partitions.append(
            OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
        )
    return list(topics.values())
