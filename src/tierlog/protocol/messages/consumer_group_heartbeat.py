"""ConsumerGroupHeartbeat (API key 68). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = wire(0, 1)
    partitions: list[Int32] = wire(0, 1)


@struct
class ConsumerGroupHeartbeatRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    group_id: String = wire(0, 1)
    member_id: String = wire(0, 1)
    member_epoch: Int32 = wire(0, 1)
    instance_id: String | None = wire(0, 1, default=None)
    rack_id: String | None = wire(0, 1, default=None)
    rebalance_timeout_ms: Int32 = wire(0, 1, default=-1)
    subscribed_topic_names: list[String] | None = wire(0, 1, default=None)
    subscribed_topic_regex: String | None = wire(1, 1, default=None)
    server_assignor: String | None = wire(0, 1, default=None)
    topic_partitions: list[TopicPartitions] | None = wire(0, 1)


@struct
class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = wire(0, 1)


@struct
class ConsumerGroupHeartbeatResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1, default=None)
    member_id: String | None = wire(0, 1, default=None)
    member_epoch: Int32 = wire(0, 1)
    heartbeat_interval_ms: Int32 = wire(0, 1)
    assignment: Assignment | None = wire(0, 1, default=None)
