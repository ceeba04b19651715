"""ShareGroupHeartbeat (API key 76). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class ShareGroupHeartbeatRequest(Message):
    VERSIONS = (1, 1)
    FLEXIBLE = 1

    group_id: String = wire(1, 1)
    member_id: String = wire(1, 1)
    member_epoch: Int32 = wire(1, 1)
    rack_id: String | None = wire(1, 1, default=None)
    subscribed_topic_names: list[String] | None = wire(1, 1, default=None)


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = wire(1, 1)
    partitions: list[Int32] = wire(1, 1)


@struct
class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = wire(1, 1)


@struct
class ShareGroupHeartbeatResponse(Message):
    VERSIONS = (1, 1)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(1, 1)
    error_code: Int16 = wire(1, 1)
    error_message: String | None = wire(1, 1, default=None)
    member_id: String | None = wire(1, 1, default=None)
    member_epoch: Int32 = wire(1, 1)
    heartbeat_interval_ms: Int32 = wire(1, 1)
    assignment: Assignment | None = wire(1, 1, default=None)
