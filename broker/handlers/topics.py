"""Topics: CreateTopics (v2-7), DeleteTopics (v1-6), CreatePartitions (v0-3). The controller decides."""

import asyncio
from collections import Counter
from contextlib import suppress

from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.described import describe_topic
from tierlog.broker.wire.errors import ErrorCode
from tierlog.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from tierlog.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tierlog.broker.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tierlog.broker.wire.schema import ZERO_UUID
from tierlog.metadata.controller.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicOutcome,
    TopicRef,
)

CONFIGS_FROM = 5  # CreateTopics tells the topic's settings (KIP-525)
IDS_FROM = 6  # DeleteTopics by id (KIP-516)


def create_topics_handler(deps: Dependencies) -> Handler:
    async def handle(context: RequestContext, request: CreateTopicsRequest) -> Reply:
        names = Counter(topic.name for topic in request.topics)
        twice = {name for name, count in names.items() if count > 1}
        wanted = [topic for topic in request.topics if topic.name not in twice]
        outcomes = await _create(deps, wanted, request.validate_only, request.timeout_ms)
        answers = [
            CreatableTopicResult(
                name=name,
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"Create topics request from client contains multiple entries for {name}.",
            )
            for name in sorted(twice)
        ]
        overrides = {topic.name: {c.name: c.value or "" for c in topic.configs} for topic in wanted}
        answers += [
            _created(deps, context.version, outcome, overrides.get(outcome.name, {})) for outcome in outcomes
        ]
        return CreateTopicsResponse(topics=answers)

    return handle


async def _create(
    deps: Dependencies, topics: list[CreatableTopic], validate_only: bool, timeout_ms: int
) -> tuple[TopicOutcome, ...]:
    if not topics:
        return ()
    reply = await deps.metadata.submit(
        CreateTopics(
            topics=tuple(_new_topic(topic) for topic in topics),
            default_partitions=deps.settings.num_partitions,
            default_replication_factor=deps.settings.default_replication_factor,
            validate_only=validate_only,
        )
    )
    await made(deps, timeout_ms)
    return reply.topics


async def made(deps: Dependencies, timeout_ms: int) -> None:
    """Waits, so that what was created can be used at once; but not for ever for a disk."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            await deps.replicas.made()


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((item.partition_index, tuple(item.broker_ids)) for item in topic.assignments),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


def _created(
    deps: Dependencies, version: int, outcome: TopicOutcome, overrides: dict[str, str]
) -> CreatableTopicResult:
    answer = CreatableTopicResult(
        name=outcome.name,
        topic_id=outcome.topic_id,
        error_code=outcome.error,
        error_message=outcome.message,
        num_partitions=outcome.partitions,
        replication_factor=outcome.replication_factor,
    )
    if version >= CONFIGS_FROM and outcome.error is ErrorCode.NONE:
        answer.configs = [
            CreatableTopicConfigs(
                name=entry.name, value=entry.value, config_source=entry.source, is_sensitive=False
            )
            for entry in describe_topic(deps.settings, overrides)
        ]
    return answer


def delete_topics_handler(deps: Dependencies) -> Handler:
    async def handle(context: RequestContext, request: DeleteTopicsRequest) -> Reply:
        asked = (
            request.topics
            if context.version >= IDS_FROM
            else [DeleteTopicState(name=name) for name in request.topic_names]
        )
        response = DeleteTopicsResponse()
        good: list[TopicRef] = []
        for topic in asked:
            if topic.name is not None and topic.topic_id != ZERO_UUID:
                response.responses.append(
                    DeletableTopicResult(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        error_code=ErrorCode.INVALID_REQUEST,
                        error_message="You may not specify both topic name and topic id.",
                    )
                )
            elif topic.name is not None:
                good.append(TopicRef(name=topic.name))
            elif topic.topic_id != ZERO_UUID:
                good.append(TopicRef(topic_id=topic.topic_id))
            else:
                response.responses.append(
                    DeletableTopicResult(
                        name=None,
                        error_code=ErrorCode.INVALID_REQUEST,
                        error_message="Neither topic name nor id were specified.",
                    )
                )
        if good:
            response.responses += await _delete(deps, good)
        return response

    return handle


async def _delete(deps: Dependencies, refs: list[TopicRef]) -> list[DeletableTopicResult]:
    reply = await deps.metadata.submit(DeleteTopics(topics=tuple(refs)))
    return [
        DeletableTopicResult(
            name=ref.name if ref.name is not None else outcome.name or None,
            topic_id=outcome.topic_id,
            error_code=outcome.error,
            error_message=outcome.message,
        )
        for ref, outcome in dict(zip(refs, reply.topics, strict=True)).items()
    ]


def create_partitions_handler(deps: Dependencies) -> Handler:
    async def handle(context: RequestContext, request: CreatePartitionsRequest) -> Reply:
        wanted = tuple(
            MorePartitions(
                name=topic.name,
                count=topic.count,
                assignments=tuple(tuple(item.broker_ids) for item in topic.assignments or ()),
            )
            for topic in request.topics
        )
        reply = await deps.metadata.submit(
            CreatePartitions(topics=wanted, validate_only=request.validate_only)
        )
        await made(deps, request.timeout_ms)
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=outcome.name, error_code=outcome.error, error_message=outcome.message
                )
                for outcome in {outcome.name: outcome for outcome in reply.topics}.values()
            ]
        )

    return handle
