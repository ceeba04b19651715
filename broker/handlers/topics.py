"""CreateTopics (v2-7), DeleteTopics (v1-6) and CreatePartitions (v0-3). The controller decides."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from uuid import UUID

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, controller_timeout_s, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.described import describe_topic
from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST, TOO_LARGE
from tierlog.broker.handlers.mutations import OVER_QUOTA, OVER_QUOTA_MESSAGE, MutationQuota
from tierlog.broker.handlers.turns import in_turns, respond_in_turns, weighted_slices
from tierlog.broker.security.authorizer import Access
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.metadata.controller.commands import (
    USE_DEFAULT,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicOutcome,
    TopicRef,
)
from tierlog.metadata.image import TopicImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from tierlog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tierlog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tierlog.protocol.schema import ZERO_UUID

CONFIGS_FROM = 5  # CreateTopics returns the settings of the topic (KIP-525)
TOPIC_IDS_FROM = 6  # DeleteTopics by id (KIP-516)
CREATE_STRICT_FROM, DELETE_STRICT_FROM, CREATE_PARTITIONS_STRICT_FROM = 6, 5, 3
"""First versions that fail with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

NO_WAIT_TIMEOUT_S = 5.0
"""Timeout of a command whose client asks for none: it does not wait until the topic is usable on all brokers,
but for the controller."""

MAX_PARTITIONS_PER_REQUEST = MAX_RECORDS_PER_REQUEST
MAX_TOPICS_PER_REQUEST = MAX_RECORDS_PER_REQUEST // 2  # a topic with one partition takes two records
TOPICS_PER_TURN = 100
"""Topics of a response, with all their settings, that are built in one turn: about 10 ms."""
TOPICS_PER_DELETION = 200  # the controller decides one command in one turn of its event loop


def create_topics_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: CreateTopicsRequest) -> Reply:
        if (reason := _too_large(deps, request)) is not None:
            refused = [
                CreatableTopicResult(
                    name=topic.name, error_code=ErrorCode.POLICY_VIOLATION, error_message=reason
                )
                for topic in request.topics
            ]
            return CreateTopicsResponse(topics=refused)
        names = Counter(topic.name for topic in request.topics)
        twice = {name for name, count in names.items() if count > 1}
        wanted = [topic for topic in request.topics if topic.name not in twice]
        quota = MutationQuota(deps, context, CREATE_STRICT_FROM)
        timeout_s = _timeout_s(request.timeout_ms)
        outcomes = await _create_within_quota(quota, deps, wanted, request.validate_only, timeout_s)
        await wait_until_usable(deps, request.timeout_ms)
        overrides = {topic.name: {c.name: c.value or "" for c in topic.configs} for topic in wanted}
        results = chain(
            (_duplicate_result(name) for name in sorted(twice)),
            _created_results(deps, context, outcomes, overrides),
        )
        response = CreateTopicsResponse(throttle_time_ms=quota.throttle_time_ms)
        count = len(twice) + len(outcomes)
        return await respond_in_turns(response, context.version, "topics", count, results, TOPICS_PER_TURN)

    return handle


def _too_large(deps: Dependencies, request: CreateTopicsRequest) -> str | None:
    """Why the whole request is rejected, in the words of Kafka's ReplicationControlManager. A negative
    partition count counts as 0 here, and later fails only its own topic."""
    default = deps.settings.num_partitions
    partitions = sum(
        len(topic.assignments)
        or (default if topic.num_partitions == USE_DEFAULT else max(topic.num_partitions, 0))
        for topic in request.topics
    )
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        return "Excessively large number of partitions per request."
    if len(request.topics) > MAX_TOPICS_PER_REQUEST:
        return TOO_LARGE
    return None


def _duplicate_result(name: str) -> CreatableTopicResult:
    message = f"Create topics request from client contains multiple entries for {name}."
    return CreatableTopicResult(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=message)


async def _create_within_quota(
    quota: MutationQuota,
    deps: Dependencies,
    topics: list[CreatableTopic],
    validate_only: bool,
    timeout_s: float,
) -> list[TopicOutcome]:
    """Validate the topics first: only valid ones count against the quota, even if their creation fails."""
    if not quota.is_set:
        return list(await _create(deps, topics, validate_only, timeout_s))
    outcomes = [
        TopicOutcome(name=checked.name, error=OVER_QUOTA, message=OVER_QUOTA_MESSAGE)
        if checked.error is ErrorCode.NONE and not quota.allow(checked.partitions)
        else checked
        for checked in await _create(deps, topics, True, timeout_s)
    ]
    if validate_only:
        return outcomes
    allowed = [
        topic for topic, checked in zip(topics, outcomes, strict=True) if checked.error is ErrorCode.NONE
    ]
    created = {outcome.name: outcome for outcome in await _create(deps, allowed, False, timeout_s)}
    return [created.get(outcome.name, outcome) for outcome in outcomes]


async def _create(
    deps: Dependencies, topics: list[CreatableTopic], validate_only: bool, timeout_s: float
) -> tuple[TopicOutcome, ...]:
    if not topics:
        return ()
    reply = await deps.metadata.submit(
        CreateTopics(
            topics=tuple(_new_topic(topic) for topic in topics),
            default_partitions=deps.settings.num_partitions,
            default_replication_factor=deps.settings.default_replication_factor,
            validate_only=validate_only,
        ),
        timeout_s,
    )
    return reply.topics


def _timeout_s(timeout_ms: int) -> float:
    """Timeout of each command of a request."""
    return controller_timeout_s(timeout_ms) if timeout_ms > 0 else NO_WAIT_TIMEOUT_S


async def wait_until_usable(deps: Dependencies, timeout_ms: int) -> None:
    """Wait until new partitions can be used, up to the timeout: a disk may hang."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            await deps.replicas.wait_until_created()


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((item.partition_index, tuple(item.broker_ids)) for item in topic.assignments),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


def _created_results(
    deps: Dependencies,
    context: RequestContext,
    outcomes: Iterable[TopicOutcome],
    overrides: dict[str, dict[str, str]],
) -> Iterator[CreatableTopicResult]:
    described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}  # by overrides
    for outcome in outcomes:
        result = CreatableTopicResult(
            name=outcome.name,
            topic_id=outcome.topic_id,
            error_code=outcome.error,
            error_message=outcome.message,
            num_partitions=outcome.partitions,
            replication_factor=outcome.replication_factor,
        )
        if context.version >= CONFIGS_FROM and outcome.error is ErrorCode.NONE:
            if context.access is not None and not context.access.allows(
                AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, outcome.name
            ):
                result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.num_partitions = result.replication_factor = -1
                result.configs = None
                yield result
                continue
            own = overrides.get(outcome.name, {})
            key = tuple(own.items())
            if key not in described:
                described.clear()  # keep only the last entry: most requests give all topics the same settings
                described[key] = _configs(deps, own)
            result.configs = described[key]
        yield result


def _configs(deps: Dependencies, overrides: dict[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=entry.name, value=entry.value, config_source=entry.source, is_sensitive=False
        )
        for entry in describe_topic(deps.settings, deps.metadata.image, overrides)
    ]


def delete_topics_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: DeleteTopicsRequest) -> Reply:
        requested = (
            request.topics
            if context.version >= TOPIC_IDS_FROM
            else [DeleteTopicState(name=name) for name in request.topic_names]
        )
        quota = MutationQuota(deps, context, DELETE_STRICT_FROM)
        checked = await in_turns(requested, partial(_reference, deps, context.access))
        results = [item for item in checked if isinstance(item, DeletableTopicResult)]
        valid = [item for item in checked if isinstance(item, TopicRef)]
        if quota.is_set:
            topics = {ref: _topic(deps, ref) for ref in valid}
            refused = {
                ref: topic
                for ref, topic in topics.items()
                if topic is not None and not quota.allow(len(topic.partitions))
            }
            results += [_over_quota(topic) for topic in refused.values()]
            valid = [ref for ref in valid if ref not in refused]
        results += await _delete(deps, valid, _timeout_s(request.timeout_ms))
        response = DeleteTopicsResponse(throttle_time_ms=quota.throttle_time_ms)
        return await respond_in_turns(response, context.version, "responses", len(results), results)

    return handle


def _reference(
    deps: Dependencies, access: Access | None, topic: DeleteTopicState
) -> TopicRef | DeletableTopicResult:
    """An id that this broker does not know, or did not when access was checked, may not reach the controller,
    which may know it: nothing has checked its topic."""
    if topic.name is not None and topic.topic_id != ZERO_UUID:
        return DeletableTopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="You may not specify both topic name and topic id.",
        )
    if topic.name is not None:
        return TopicRef(name=topic.name)
    if topic.topic_id != ZERO_UUID:
        ref = TopicRef(topic_id=topic.topic_id)
        if access is None or _may_delete(access, _topic(deps, ref)):
            return ref
        return DeletableTopicResult(
            name=None,
            topic_id=topic.topic_id,
            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            error_message="This broker does not know the topic yet, or you may not delete it.",
        )
    return DeletableTopicResult(
        name=None,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="Neither topic name nor id were specified.",
    )


def _may_delete(access: Access, topic: TopicImage | None) -> bool:
    return topic is not None and access.allows(AclOperation.DELETE, ResourceType.TOPIC, topic.name)


def _topic(deps: Dependencies, ref: TopicRef) -> TopicImage | None:
    key = ref.topic_id if ref.name is None else ref.name
    return None if key is None else deps.metadata.image.find_topic(key)


def _over_quota(topic: TopicImage) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=OVER_QUOTA, error_message=OVER_QUOTA_MESSAGE
    )


async def _delete(deps: Dependencies, refs: list[TopicRef], timeout_s: float) -> list[DeletableTopicResult]:
    """Delete at most TOPICS_PER_DELETION topics with one command. The controller rejects a topic that one
    command names twice, so all references to a topic go into the same command."""
    mentions: dict[TopicRef | UUID, list[TopicRef]] = {}
    for ref in dict.fromkeys(refs):
        topic = _topic(deps, ref)
        mentions.setdefault(ref if topic is None else topic.topic_id, []).append(ref)
    twice = {ref for ref, count in Counter(refs).items() if count > 1}
    results: list[DeletableTopicResult] = []
    for batch in weighted_slices(mentions.values(), TOPICS_PER_DELETION):
        named = [ref for refs in batch for ref in refs]
        again = [ref for ref in named if ref in twice]
        outcomes = (await deps.metadata.submit(DeleteTopics(topics=(*named, *again)), timeout_s)).topics
        # outcomes of the repeated references (`again`) come last and are not reported
        results += [_deleted_result(ref, outcome) for ref, outcome in zip(named, outcomes, strict=False)]
        await asyncio.sleep(0)  # a command without changes may return without yielding
    return results


def _deleted_result(ref: TopicRef, outcome: TopicOutcome) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=ref.name if ref.name is not None else outcome.name or None,
        topic_id=outcome.topic_id,
        error_code=outcome.error,
        error_message=outcome.message,
    )


def create_partitions_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: CreatePartitionsRequest) -> Reply:
        wanted = tuple(
            MorePartitions(
                name=topic.name,
                count=topic.count,
                assignments=tuple(tuple(item.broker_ids) for item in topic.assignments or ()),
            )
            for topic in request.topics
        )
        quota = MutationQuota(deps, context, CREATE_PARTITIONS_STRICT_FROM)
        if _creates_too_many_partitions(deps, wanted):
            outcomes = [
                TopicOutcome(name=topic.name, error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE)
                for topic in wanted
            ]
        else:
            outcomes = await _create_partitions_within_quota(
                quota, deps, wanted, request.validate_only, _timeout_s(request.timeout_ms)
            )
        await wait_until_usable(deps, request.timeout_ms)
        return CreatePartitionsResponse(
            throttle_time_ms=quota.throttle_time_ms,
            results=[
                CreatePartitionsTopicResult(
                    name=outcome.name, error_code=outcome.error, error_message=outcome.message
                )
                for outcome in {outcome.name: outcome for outcome in outcomes}.values()
            ],
        )

    return handle


def _creates_too_many_partitions(deps: Dependencies, wanted: Sequence[MorePartitions]) -> bool:
    """Whether the whole request is rejected; unknown topics count as 0 partitions."""
    found = [(topic.count, deps.metadata.image.topic(topic.name)) for topic in wanted]
    more = sum(max(count - len(topic.partitions), 0) for count, topic in found if topic is not None)
    return more > MAX_PARTITIONS_PER_REQUEST or len(wanted) > MAX_TOPICS_PER_REQUEST


async def _create_partitions_within_quota(
    quota: MutationQuota,
    deps: Dependencies,
    wanted: tuple[MorePartitions, ...],
    validate_only: bool,
    timeout_s: float,
) -> list[TopicOutcome]:
    """Add partitions within the controller mutation quota, against which only valid partitions count."""
    if not quota.is_set:
        return list(await _create_partitions(deps, wanted, validate_only, timeout_s))
    refused: dict[str, TopicOutcome] = {}
    validated = await _create_partitions(deps, wanted, True, timeout_s)
    for topic, checked in zip(wanted, validated, strict=True):
        now = deps.metadata.image.topic(topic.name)
        more = topic.count - len(now.partitions) if now is not None else 0
        if checked.error is ErrorCode.NONE and not quota.allow(more):
            refused[topic.name] = TopicOutcome(name=topic.name, error=OVER_QUOTA, message=OVER_QUOTA_MESSAGE)
    allowed = tuple(topic for topic in wanted if topic.name not in refused)
    outcomes = await _create_partitions(deps, allowed, validate_only, timeout_s)
    done = {outcome.name: outcome for outcome in outcomes}
    return [refused.get(topic.name) or done[topic.name] for topic in wanted]


async def _create_partitions(
    deps: Dependencies, wanted: tuple[MorePartitions, ...], validate_only: bool, timeout_s: float
) -> tuple[TopicOutcome, ...]:
    if not wanted:
        return ()
    command = CreatePartitions(topics=wanted, validate_only=validate_only)
    reply = await deps.metadata.submit(command, timeout_s)
    return reply.topics
