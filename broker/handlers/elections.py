"""ElectLeaders (v0-2, KIP-460): preferred or unclean elections."""

from collections.abc import Iterable

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.request_timeouts import within_s
from tierlog.metadata.controller.commands import ElectionKind, ElectLeaders, NamedOutcome
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PARTITIONS_MAX = 10_000  # of one request, as in Kafka


def elect_leaders_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: ElectLeadersRequest) -> Reply:
        if request.election_type not in set(ElectionKind):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown election type {request.election_type}")
        asked = _asked(request)
        if asked is not None and len(asked) > PARTITIONS_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"more than {PARTITIONS_MAX} partitions")
        command = ElectLeaders(partitions=asked, kind=ElectionKind(request.election_type))
        reply = await deps.metadata.submit(command, within_s(request.timeout_ms))
        return ElectLeadersResponse(replica_election_results=_by_topic(reply.partitions))

    return handle


def _asked(request: ElectLeadersRequest) -> tuple[tuple[str, int], ...] | None:
    """Each once; None: all."""
    if request.topic_partitions is None:
        return None
    return tuple(
        dict.fromkeys(
            (topic.topic, number) for topic in request.topic_partitions for number in topic.partitions
        )
    )


def _by_topic(outcomes: Iterable[NamedOutcome]) -> list[ReplicaElectionResult]:
    results: dict[str, ReplicaElectionResult] = {}
    for outcome in outcomes:
        result = results.setdefault(outcome.topic, ReplicaElectionResult(topic=outcome.topic))
        result.partition_result.append(
            PartitionResult(
                partition_id=outcome.partition, error_code=outcome.error, error_message=outcome.message
            )
        )
    return list(results.values())
