"""Metadata (API key 3). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class MetadataRequestTopic(Struct):
    topic_id: Uuid = wire(10, 13)
    name: String | None = wire(0, 13, nullable=(10, 13))


@struct
class MetadataRequest(Message):
    VERSIONS = (0, 13)
    FLEXIBLE = 9

    topics: list[MetadataRequestTopic] | None = wire(0, 13, nullable=(1, 13))
    allow_auto_topic_creation: Bool = wire(4, 13, default=True)
    include_cluster_authorized_operations: Bool = wire(8, 10)
    include_topic_authorized_operations: Bool = wire(8, 13)


@struct
class MetadataResponseBroker(Struct):
    node_id: Int32 = wire(0, 13)
    host: String = wire(0, 13)
    port: Int32 = wire(0, 13)
    rack: String | None = wire(1, 13, default=None)


@struct
class MetadataResponsePartition(Struct):
    error_code: Int16 = wire(0, 13)
    partition_index: Int32 = wire(0, 13)
    leader_id: Int32 = wire(0, 13)
    leader_epoch: Int32 = wire(7, 13, default=-1)
    replica_nodes: list[Int32] = wire(0, 13)
    isr_nodes: list[Int32] = wire(0, 13)
    offline_replicas: list[Int32] = wire(5, 13)


@struct
class MetadataResponseTopic(Struct):
    error_code: Int16 = wire(0, 13)
    name: String | None = wire(0, 13, nullable=(12, 13))
    topic_id: Uuid = wire(10, 13)
    is_internal: Bool = wire(1, 13)
    partitions: list[MetadataResponsePartition] = wire(0, 13)
    topic_authorized_operations: Int32 = wire(8, 13, default=-2147483648)


@struct
class MetadataResponse(Message):
    VERSIONS = (0, 13)
    FLEXIBLE = 9

    throttle_time_ms: Int32 = wire(3, 13)
    brokers: list[MetadataResponseBroker] = wire(0, 13)
    cluster_id: String | None = wire(2, 13, default=None)
    controller_id: Int32 = wire(1, 13, default=-1)
    topics: list[MetadataResponseTopic] = wire(0, 13)
    cluster_authorized_operations: Int32 = wire(8, 10, default=-2147483648)
    error_code: Int16 = wire(13, 13)
