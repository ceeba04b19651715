"""Metadata (v0-13), DescribeCluster (v0-2) and UnregisterBroker (v0)."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.handlers.auto_creation import AutoTopicCreation
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.partition_views import PartitionViews
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN, in_slices
from tierlog.metadata.controller.commands import UnregisterBroker
from tierlog.metadata.image import BrokerImage, ClusterImage, TopicImage
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tierlog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tierlog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tierlog.protocol.schema import ZERO_UUID

EMPTY_MEANS_ALL_UNTIL = 0  # Metadata v0 has no null
NO_OFFLINE_UNTIL = 0  # clients of v0 look up each replica among the brokers: offline ones are omitted
ASK_BY_ID_FROM = 12  # versions 10 and 11 carry topic ids, but only in responses (KIP-516)
NOT_ASKED = -(2**31)
PARTITIONS_PER_TURN = 2_000
"""Partitions of a response that are described in one turn of the event loop: about 15 ms. A topic is never
split between turns."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
TopicOrRequest = MetadataRequestTopic | TopicImage
"""A topic by name or id, or the topic itself if all topics are requested."""
BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(3, 9)
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(9, 13)
TOPIC_OPERATIONS = _bits(READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)
"""KIP-430. Without an authorizer every client may do everything."""


def metadata_handler(deps: Dependencies) -> Handler:
    creation = AutoTopicCreation(deps)

    def handle(context: RequestContext, request: MetadataRequest) -> Reply | Pending:
        if context.version < ASK_BY_ID_FROM and any(
            topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics or ()
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "topics by id need Metadata version 12")
        views = PartitionViews(deps)
        asked = _asked(views.image, context.version, request)
        response = _without_topics(deps, request, views.image)
        missing = _to_create(deps, request)
        if (first := next(missing, None)) is not None:
            response.throttle_time_ms = creation.start(context, chain((first,), missing))
        shows_operations = request.include_topic_authorized_operations
        topics = (_topic(views, topic, context.version, shows_operations) for topic in asked)
        if len(asked) > ENTRIES_PER_TURN or _partitions(views.image, asked) > PARTITIONS_PER_TURN:
            work = in_slices(
                response, context.version, "topics", len(asked), topics, PARTITIONS_PER_TURN, _weight
            )
            return Pending(work)
        response.topics = list(topics)
        return response

    return handle


def _partitions(image: ClusterImage, asked: list[TopicOrRequest]) -> int:
    found = (each if isinstance(each, TopicImage) else _named(image, each) for each in asked)
    return sum(len(topic.partitions) for topic in found if topic is not None)


def _weight(topic: MetadataResponseTopic) -> int:
    return PARTITIONS_PER_TURN // ENTRIES_PER_TURN + len(topic.partitions)


def _to_create(deps: Dependencies, request: MetadataRequest) -> Iterator[str]:
    """A lazy iterator, since a request may name more topics than are created at once."""
    if not deps.settings.auto_create_topics_enable or not request.allow_auto_topic_creation:
        return
    image = deps.metadata.image
    names = (topic.name for topic in request.topics or () if topic.name and topic.topic_id == ZERO_UUID)
    for name in dict.fromkeys(names):
        if name not in image.topic_ids and name not in INTERNAL_TOPICS and is_topic_name(name):
            yield name


def _without_topics(deps: Dependencies, request: MetadataRequest, image: ClusterImage) -> MetadataResponse:
    wants_cluster = request.include_cluster_authorized_operations
    named = _or_itself(deps, image, deps.recently_fenced.listed_brokers(image))
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in named
        ],
        cluster_id=image.cluster_id,
        controller_id=_controller(deps, named),
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants_cluster else NOT_ASKED,
    )


def _asked(image: ClusterImage, version: int, request: MetadataRequest) -> list[TopicOrRequest]:
    """Each topic once."""
    if request.topics is None or (version <= EMPTY_MEANS_ALL_UNTIL and not request.topics):
        return [image.topics[topic_id] for _, topic_id in sorted(image.topic_ids.items())]
    once = {asked.topic_id if asked.topic_id.int else asked.name: asked for asked in request.topics}
    return list(once.values())


def _named(image: ClusterImage, asked: MetadataRequestTopic) -> TopicImage | None:
    return image.topics.get(asked.topic_id) if asked.topic_id.int else image.topic(asked.name or "")


def _missing(asked: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
    if asked.topic_id != ZERO_UUID:
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=_no_name(version), topic_id=asked.topic_id
        )
    name = asked.name or ""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _no_name(version: int) -> str | None:
    return None if version >= 12 else ""


def _topic(
    views: PartitionViews, asked: TopicOrRequest, version: int, shows_operations: bool
) -> MetadataResponseTopic:
    if isinstance(asked, TopicImage):
        found = asked
    elif (named := _named(views.image, asked)) is not None:
        found = named
    else:
        return _missing(asked, version)
    return MetadataResponseTopic(
        name=found.name,
        topic_id=found.topic_id,
        is_internal=found.name in INTERNAL_TOPICS,
        partitions=[
            _partition(views, TopicPartition(found.name, number), partition, version)
            for number, partition in enumerate(found.partitions)
        ],
        topic_authorized_operations=TOPIC_OPERATIONS if shows_operations else NOT_ASKED,
    )


def _partition(
    views: PartitionViews, name: TopicPartition, partition: PartitionRecord, version: int
) -> MetadataResponsePartition:
    leader, offline = views.leader_and_offline(name, partition)
    answer = MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
        partition_index=name.partition,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.in_sync),
        offline_replicas=offline,
    )
    if version <= NO_OFFLINE_UNTIL and not views.live.issuperset(partition.replicas):
        answer.replica_nodes = [one for one in partition.replicas if one in views.live]
        answer.isr_nodes = [one for one in partition.in_sync if one in views.live]
        if leader != NO_LEADER:
            answer.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    return answer


def is_topic_name(name: str) -> bool:
    """Kafka's rule: 1 to 249 of [a-zA-Z0-9._-], and neither `.` nor `..`."""
    return name not in (".", "..") and re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) is not None


def _or_itself(deps: Dependencies, image: ClusterImage, brokers: list[BrokerImage]) -> list[BrokerImage]:
    """Add this broker if all brokers are fenced: it may just have been unfenced, with stale metadata.

    After a response without brokers librdkafka (2.16) may not retry; requests to the controller then wait
    until they time out.
    """
    own = image.brokers.get(deps.settings.node_id)
    if own is None or any(not broker.fenced for broker in brokers):
        return brokers
    return [own, *(broker for broker in brokers if broker.broker_id != own.broker_id)]


def _controller(deps: Dependencies, named: Iterable[BrokerImage]) -> int:
    """The broker for admin requests: any live broker forwards them, as in Kafka 4, so this one. It must be
    among the brokers in the response."""
    own = deps.settings.node_id
    chosen = min(named, key=lambda broker: (broker.fenced, broker.broker_id != own), default=None)
    return -1 if chosen is None else chosen.broker_id


def describe_cluster_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeClusterRequest) -> Reply:
        if request.endpoint_type == CONTROLLER_ENDPOINTS:
            raise KafkaError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE, "controllers have no Kafka listener, only HTTP"
            )
        if request.endpoint_type != BROKER_ENDPOINTS:
            raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {request.endpoint_type}")
        image = deps.metadata.image
        named = _or_itself(deps, image, image.live_brokers())
        listed = {broker.broker_id for broker in named}
        wants = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=_controller(deps, named),
            brokers=[
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=broker.host,
                    port=broker.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for _, broker in sorted(image.brokers.items())
                if request.include_fenced_brokers or broker.broker_id in listed
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS if wants else NOT_ASKED,
        )

    return handle


def unregister_broker_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: UnregisterBrokerRequest) -> Reply:
        reply = await deps.metadata.submit(UnregisterBroker(broker_id=request.broker_id))
        return UnregisterBrokerResponse(error_code=reply.error, error_message=reply.message)

    return handle
