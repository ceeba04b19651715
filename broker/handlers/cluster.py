"""Metadata (v0-13), DescribeCluster (v0-2) and UnregisterBroker (v0)."""

from collections.abc import Iterable, Iterator
from itertools import chain, compress

from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.handlers.auto_creation import AutoTopicCreation
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.partition_describer import PartitionDescriber
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN, in_turns, respond_in_turns
from tierlog.broker.security.authorizer import Access, authorized_operations
from tierlog.config.topic import INTERNAL_TOPICS, is_topic_name
from tierlog.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
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
REQUEST_BY_ID_FROM = 12  # versions 10 and 11 carry topic ids, but only in responses (KIP-516)
OPERATIONS_NOT_REQUESTED = -(2**31)
PARTITIONS_PER_TURN = 2_000
"""Partitions of a response that are described in one turn of the event loop: about 15 ms. A topic is never
split between turns."""
CHECKS_PER_TURN = 2_000
"""Topics whose access is checked in one turn: some ms."""
TopicOrRequest = MetadataRequestTopic | TopicImage
"""A topic by name or id, or the topic itself if all topics are requested."""
BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2


def metadata_handler(deps: Dependencies) -> Handler:
    creation = AutoTopicCreation(deps)

    def handle(context: RequestContext, request: MetadataRequest) -> Reply | Pending:
        if context.version < REQUEST_BY_ID_FROM and any(
            topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics or ()
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "topics by id need Metadata version 12")
        describer, access = PartitionDescriber(deps, context.connection.listener), context.access
        requested = _requested_topics(describer.image, context.version, request)
        response = _response_without_topics(deps, context, request, describer.image)
        missing = _topics_to_create(deps, context, request)
        if (first := next(missing, None)) is not None:
            response.throttle_time_ms = creation.start(context, chain((first,), missing))
        shows_operations = request.include_topic_authorized_operations
        creates = deps.settings.auto_create_topics_enable and request.allow_auto_topic_creation

        def describe(topic: TopicOrRequest) -> MetadataResponseTopic:
            if access is not None and isinstance(topic, MetadataRequestTopic):
                denied = _denied_topic(describer.image, access, topic, context.version, creates)
                if denied is not None:
                    return denied
            return _topic(describer, access, topic, context.version, shows_operations)

        async def respond_with_permitted(access: Access) -> Reply:
            """All topics, of which some may not be described."""
            found = await in_turns(requested, lambda topic: _may_describe(access, topic), CHECKS_PER_TURN)
            permitted = list(compress(requested, found))
            return await respond_in_turns(
                response,
                context.version,
                "topics",
                len(permitted),
                map(describe, permitted),
                PARTITIONS_PER_TURN,
                _weight,
            )

        if access is not None and requested and isinstance(requested[0], TopicImage):
            return Pending(respond_with_permitted(access))
        topics = map(describe, requested)
        if len(requested) > ENTRIES_PER_TURN or _partitions(describer.image, requested) > PARTITIONS_PER_TURN:
            work = respond_in_turns(
                response, context.version, "topics", len(requested), topics, PARTITIONS_PER_TURN, _weight
            )
            return Pending(work)
        response.topics = list(topics)
        return response

    return handle


def _partitions(image: ClusterImage, requested: list[TopicOrRequest]) -> int:
    found = (each if isinstance(each, TopicImage) else _find_topic(image, each) for each in requested)
    return sum(len(topic.partitions) for topic in found if topic is not None)


def _weight(topic: MetadataResponseTopic) -> int:
    return PARTITIONS_PER_TURN // ENTRIES_PER_TURN + len(topic.partitions)


def _may_describe(access: Access, topic: TopicOrRequest) -> bool:
    return access.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name or "")


def _may_create(access: Access, name: str) -> bool:
    return access.allows_instead(AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or access.allows(
        AclOperation.CREATE, ResourceType.TOPIC, name
    )


def _denied_topic(
    image: ClusterImage, access: Access, requested: MetadataRequestTopic, version: int, creates: bool
) -> MetadataResponseTopic | None:
    """The response for a topic that the client may not describe, or would have to create and may not. It does
    not tell whether the topic exists; an id that is known is no secret."""
    found = _find_topic(image, requested)
    if requested.topic_id.int:
        if found is None or _may_describe(access, found):
            return None
        code, name = ErrorCode.TOPIC_AUTHORIZATION_FAILED, _null_name(version)
        return MetadataResponseTopic(error_code=code, name=name, topic_id=requested.topic_id)
    name = requested.name or ""
    if _may_describe(access, requested) and (found is not None or not creates or _may_create(access, name)):
        return None
    return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)


def _topics_to_create(deps: Dependencies, context: RequestContext, request: MetadataRequest) -> Iterator[str]:
    """Lazy, since a request may name more topics than are created at once."""
    if not deps.settings.auto_create_topics_enable or not request.allow_auto_topic_creation:
        return
    image, closed = deps.metadata.image, deps.settings.topics_of_brokers
    names = (topic.name for topic in request.topics or () if topic.name and topic.topic_id == ZERO_UUID)
    access = context.access
    for name in dict.fromkeys(names):
        if access is not None and not (
            access.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name) and _may_create(access, name)
        ):
            continue
        if name not in image.topic_ids and name not in closed and is_topic_name(name):
            yield name


def _response_without_topics(
    deps: Dependencies, context: RequestContext, request: MetadataRequest, image: ClusterImage
) -> MetadataResponse:
    wants_operations = request.include_cluster_authorized_operations
    listed = _with_this_broker(deps, image, deps.recently_fenced.listed_brokers(image))
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.broker_id, host=address[0], port=address[1], rack=broker.rack
            )
            for broker in listed
            if (address := broker.address_of(context.connection.listener)) is not None
        ],
        cluster_id=image.cluster_id,
        controller_id=_controller(deps, listed),
        cluster_authorized_operations=cluster_operations(context.access)
        if wants_operations
        else OPERATIONS_NOT_REQUESTED,
    )


def _requested_topics(image: ClusterImage, version: int, request: MetadataRequest) -> list[TopicOrRequest]:
    """The requested topics without duplicates."""
    if request.topics is None or (version <= EMPTY_MEANS_ALL_UNTIL and not request.topics):
        return [image.topics[topic_id] for _, topic_id in sorted(image.topic_ids.items())]
    unique = {topic.topic_id if topic.topic_id.int else topic.name: topic for topic in request.topics}
    return list(unique.values())


def _find_topic(image: ClusterImage, requested: MetadataRequestTopic) -> TopicImage | None:
    return image.find_topic(requested.topic_id if requested.topic_id.int else requested.name or "")


def _unknown_topic(requested: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
    if requested.topic_id != ZERO_UUID:
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=_null_name(version), topic_id=requested.topic_id
        )
    name = requested.name or ""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _null_name(version: int) -> str | None:
    return None if version >= 12 else ""


def _topic(
    describer: PartitionDescriber,
    access: Access | None,
    requested: TopicOrRequest,
    version: int,
    shows_operations: bool,
) -> MetadataResponseTopic:
    if isinstance(requested, TopicImage):
        found = requested
    elif (found_topic := _find_topic(describer.image, requested)) is not None:
        found = found_topic
    else:
        return _unknown_topic(requested, version)
    return MetadataResponseTopic(
        name=found.name,
        topic_id=found.topic_id,
        is_internal=found.name in INTERNAL_TOPICS,
        partitions=[
            _partition(describer, TopicPartition(found.name, number), partition, version)
            for number, partition in enumerate(found.partitions)
        ],
        topic_authorized_operations=authorized_operations(access, ResourceType.TOPIC, found.name)
        if shows_operations
        else OPERATIONS_NOT_REQUESTED,
    )


def _partition(
    describer: PartitionDescriber, name: TopicPartition, partition: PartitionRecord, version: int
) -> MetadataResponsePartition:
    leader, offline = describer.leader_and_offline_replicas(name, partition)
    response = MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
        partition_index=name.partition,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.in_sync),
        offline_replicas=offline,
    )
    if version <= NO_OFFLINE_UNTIL and not describer.live.issuperset(partition.replicas):
        response.replica_nodes = [replica for replica in partition.replicas if replica in describer.live]
        response.isr_nodes = [replica for replica in partition.in_sync if replica in describer.live]
        if leader != NO_LEADER:
            response.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    return response


def _with_this_broker(
    deps: Dependencies, image: ClusterImage, brokers: list[BrokerImage]
) -> list[BrokerImage]:
    """Add this broker if all brokers are fenced: its metadata may be stale, and it serves this request.

    After a response without brokers librdkafka (2.16) may not retry, and its requests to the controller wait
    until they time out.
    """
    own = image.brokers.get(deps.settings.node_id)
    if own is None or any(not broker.fenced for broker in brokers):
        return brokers
    return [own, *(broker for broker in brokers if broker.broker_id != own.broker_id)]


def _controller(deps: Dependencies, listed: Iterable[BrokerImage]) -> int:
    """The broker to which clients send admin requests, one of those in the response.

    Every broker forwards these requests to the controller, as in Kafka 4, so this broker is preferred.
    """
    own = deps.settings.node_id
    chosen = min(listed, key=lambda broker: (broker.fenced, broker.broker_id != own), default=None)
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
        listed = _with_this_broker(deps, image, image.live_brokers())
        listed_ids = {broker.broker_id for broker in listed}
        wants_operations = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=_controller(deps, listed),
            brokers=[
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=address[0],
                    port=address[1],
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for _, broker in sorted(image.brokers.items())
                if (request.include_fenced_brokers or broker.broker_id in listed_ids)
                and (address := broker.address_of(context.connection.listener)) is not None
            ],
            cluster_authorized_operations=cluster_operations(context.access)
            if wants_operations
            else OPERATIONS_NOT_REQUESTED,
        )

    return handle


def cluster_operations(access: Access | None) -> int:
    """Bits of what the client may do to the cluster; 0 without DESCRIBE, as in Kafka."""
    if access is not None and not access.allows(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return authorized_operations(access, ResourceType.CLUSTER, CLUSTER_NAME)


def unregister_broker_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: UnregisterBrokerRequest) -> Reply:
        reply = await deps.metadata.submit(UnregisterBroker(broker_id=request.broker_id))
        return UnregisterBrokerResponse(error_code=reply.error, error_message=reply.message)

    return handle
