"""DescribeTopicPartitions (API key 75). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class TopicRequest(Struct):
    name: String = wire(0, 0)


@struct
class Cursor(Struct):
    topic_name: String = wire(0, 0)
    partition_index: Int32 = wire(0, 0)


@struct
class DescribeTopicPartitionsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    topics: list[TopicRequest] = wire(0, 0)
    response_partition_limit: Int32 = wire(0, 0, default=2000)
    cursor: Cursor | None = wire(0, 0, default=None)


@struct
class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16 = wire(0, 0)
    partition_index: Int32 = wire(0, 0)
    leader_id: Int32 = wire(0, 0)
    leader_epoch: Int32 = wire(0, 0, default=-1)
    replica_nodes: list[Int32] = wire(0, 0)
    isr_nodes: list[Int32] = wire(0, 0)
    eligible_leader_replicas: list[Int32] | None = wire(0, 0, default=None)
    last_known_elr: list[Int32] | None = wire(0, 0, default=None)
    offline_replicas: list[Int32] = wire(0, 0)


@struct
class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16 = wire(0, 0)
    name: String | None = wire(0, 0)
    topic_id: Uuid = wire(0, 0)
    is_internal: Bool = wire(0, 0)
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(0, 0)
    topic_authorized_operations: Int32 = wire(0, 0, default=-2147483648)


@struct
class DescribeTopicPartitionsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(0, 0)
    next_cursor: Cursor | None = wire(0, 0, default=None)
