"""ShareGroupDescribe (API key 77). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class ShareGroupDescribeRequest(Message):
    VERSIONS = (1, 1)
    FLEXIBLE = 1

    group_ids: list[String] = wire(1, 1)
    include_authorized_operations: Bool = wire(1, 1)


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = wire(1, 1)
    topic_name: String = wire(1, 1)
    partitions: list[Int32] = wire(1, 1)


@struct
class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = wire(1, 1)


@struct
class Member(Struct):
    member_id: String = wire(1, 1)
    rack_id: String | None = wire(1, 1, default=None)
    member_epoch: Int32 = wire(1, 1)
    client_id: String = wire(1, 1)
    client_host: String = wire(1, 1)
    subscribed_topic_names: list[String] = wire(1, 1)
    assignment: Assignment = wire(1, 1)


@struct
class DescribedGroup(Struct):
    error_code: Int16 = wire(1, 1)
    error_message: String | None = wire(1, 1, default=None)
    group_id: String = wire(1, 1)
    group_state: String = wire(1, 1)
    group_epoch: Int32 = wire(1, 1)
    assignment_epoch: Int32 = wire(1, 1)
    assignor_name: String = wire(1, 1)
    members: list[Member] = wire(1, 1)
    authorized_operations: Int32 = wire(1, 1, default=-2147483648)


@struct
class ShareGroupDescribeResponse(Message):
    VERSIONS = (1, 1)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(1, 1)
    groups: list[DescribedGroup] = wire(1, 1)
