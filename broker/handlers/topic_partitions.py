"""DescribeTopicPartitions (v0, KIP-966): topics page by page, with their eligible leader replicas."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.handlers.cluster import CHECKS_PER_TURN
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.partition_describer import PartitionDescriber
from tierlog.broker.handlers.turns import respond_in_turns
from tierlog.broker.security.authorizer import Access, authorized_operations
from tierlog.config.topic import INTERNAL_TOPICS, is_topic_name
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


class _Entry(NamedTuple):
    """Partitions [first, end) of one topic on a page. `topic` is None if the topic does not exist, or may not
    be described."""

    name: str
    topic: TopicImage | None
    first: int = 0
    end: int = 0
    is_denied: bool = False


def describe_topic_partitions_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> Pending:
        limit = max(min(deps.settings.max_request_partition_size_limit, request.response_partition_limit), 1)
        describer = PartitionDescriber(deps, context.connection.listener)
        return Pending(_respond(context, request, describer, _names(deps, request), limit))

    return handle


async def _respond(
    context: RequestContext,
    request: DescribeTopicPartitionsRequest,
    describer: PartitionDescriber,
    names: list[str],
    limit: int,
) -> Reply:
    access = context.access
    entries, next_cursor = await _page(describer.image, request, names, access, limit)
    return await respond_in_turns(
        DescribeTopicPartitionsResponse(next_cursor=next_cursor),
        context.version,
        "topics",
        len(entries),
        (_described(describer, access, entry) for entry in entries),
        weigh=_weight,
    )


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


async def _page(
    image: ClusterImage,
    request: DescribeTopicPartitionsRequest,
    names: list[str],
    access: Access | None,
    limit: int,
) -> tuple[list[_Entry], Cursor | None]:
    """Up to `limit` partitions, and where the next page begins. Topics that are unknown or denied do not
    count towards the limit, and are listed only if the request named them. The denied ones come last. Access
    is checked as the page is filled, as in Kafka, and in turns, because all may be denied."""
    left = limit
    entries, denied = list[_Entry](), list[_Entry]()
    for number, name in enumerate(names, 1):
        if number % CHECKS_PER_TURN == 0:
            await asyncio.sleep(0)
        if access is not None and not access.allows(
            AclOperation.DESCRIBE, ResourceType.TOPIC, name, keep=False
        ):
            if request.topics:
                denied.append(_Entry(name, None, is_denied=True))
            continue
        if left <= 0:
            return entries + denied, Cursor(topic_name=name, partition_index=0)
        found = image.topic(name)
        if found is None:
            if request.topics:
                entries.append(_Entry(name, None))
            continue
        at_cursor = request.cursor is not None and request.cursor.topic_name == name
        first = request.cursor.partition_index if at_cursor and request.cursor is not None else 0
        end = min(len(found.partitions), first + left)
        entries.append(_Entry(name, found, first, end))
        if end < len(found.partitions):
            return entries + denied, Cursor(topic_name=name, partition_index=end)
        left -= max(end - first, 0)
    return entries + denied, None


def _described(
    describer: PartitionDescriber, access: Access | None, entry: _Entry
) -> DescribeTopicPartitionsResponseTopic:
    if entry.is_denied:
        return DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=entry.name
        )
    operations = authorized_operations(access, ResourceType.TOPIC, entry.name)
    if entry.topic is None:
        return _unknown(entry.name, operations)
    return DescribeTopicPartitionsResponseTopic(
        name=entry.name,
        topic_id=entry.topic.topic_id,
        is_internal=entry.name in INTERNAL_TOPICS,
        partitions=list(_partitions(describer, entry.topic, entry.first, entry.end)),
        topic_authorized_operations=operations,
    )


def _weight(topic: DescribeTopicPartitionsResponseTopic) -> int:
    return 1 + len(topic.partitions)


def _partitions(
    describer: PartitionDescriber, topic: TopicImage, first: int, end: int
) -> Iterator[DescribeTopicPartitionsResponsePartition]:
    for number in range(first, end):
        partition = topic.partitions[number]
        leader, offline = describer.leader_and_offline_replicas(TopicPartition(topic.name, number), partition)
        last_known = [partition.last_known_leader] if partition.last_known_leader != NO_LEADER else []
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


def _unknown(name: str, operations: int) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations,
    )
