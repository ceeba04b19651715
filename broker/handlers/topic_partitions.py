"""DescribeTopicPartitions (v0, KIP-966): topics page by page, with their eligible leader replicas."""

from collections.abc import Iterator

from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.handlers.cluster import TOPIC_OPERATIONS, is_topic_name
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.partition_views import PartitionViews
from tierlog.config.topic import INTERNAL_TOPICS
from tierlog.metadata.image import TopicImage
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def describe_topic_partitions_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> Reply:
        names = _names(deps, request)
        limit = deps.settings.max_request_partition_size_limit
        return _page(deps, request, names, max(min(limit, request.response_partition_limit), 1))

    return handle


def _names(deps: Dependencies, request: DescribeTopicPartitionsRequest) -> list[str]:
    """Requested topics, or all, in order from the cursor's topic on."""
    cursor = request.cursor
    requested = {topic.name for topic in request.topics} or deps.metadata.image.topic_ids.keys()
    if cursor is None:
        return sorted(requested)
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor is at partition {cursor.partition_index}")
    if request.topics and cursor.topic_name not in requested:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's topic is not among the requested topics")
    return sorted(name for name in requested if name >= cursor.topic_name)


def _page(
    deps: Dependencies, request: DescribeTopicPartitionsRequest, names: list[str], left: int
) -> DescribeTopicPartitionsResponse:
    """Up to `left` partitions. Unknown topics do not count; if all topics are requested, one that was deleted
    since the previous page is skipped."""
    views = PartitionViews(deps)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        found = views.image.topic(name)
        if found is None:
            if request.topics:
                response.topics.append(_unknown(name))
            continue
        at_cursor = request.cursor is not None and request.cursor.topic_name == name
        first = request.cursor.partition_index if at_cursor and request.cursor is not None else 0
        end = min(len(found.partitions), first + left)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=found.topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=list(_partitions(views, found, first, end)),
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        if end < len(found.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
        left -= max(end - first, 0)
    return response


def _partitions(
    views: PartitionViews, topic: TopicImage, first: int, end: int
) -> Iterator[DescribeTopicPartitionsResponsePartition]:
    for number in range(first, end):
        partition = topic.partitions[number]
        leader, offline = views.leader_and_offline(TopicPartition(topic.name, number), partition)
        last_known = [partition.last_leader] if partition.last_leader != NO_LEADER else []
        yield DescribeTopicPartitionsResponsePartition(
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.in_sync),
            eligible_leader_replicas=list(partition.eligible),
            last_known_elr=last_known,
            offline_replicas=offline,
        )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
