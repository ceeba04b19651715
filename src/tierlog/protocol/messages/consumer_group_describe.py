"""ConsumerGroupDescribe (API key 69). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, Uuid, struct, wire


@struct
class ConsumerGroupDescribeRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    group_ids: list[String] = wire(0, 1)
    include_authorized_operations: Bool = wire(0, 1)


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = wire(0, 1)
    topic_name: String = wire(0, 1)
    partitions: list[Int32] = wire(0, 1)


@struct
class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = wire(0, 1)


@struct
class Member(Struct):
    member_id: String = wire(0, 1)
    instance_id: String | None = wire(0, 1, default=None)
    rack_id: String | None = wire(0, 1, default=None)
    member_epoch: Int32 = wire(0, 1)
    client_id: String = wire(0, 1)
    client_host: String = wire(0, 1)
    subscribed_topic_names: list[String] = wire(0, 1)
    subscribed_topic_regex: String | None = wire(0, 1, default=None)
    assignment: Assignment = wire(0, 1)
    target_assignment: Assignment = wire(0, 1)
    member_type: Int8 = wire(1, 1, default=-1)


@struct
class DescribedGroup(Struct):
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1, default=None)
    group_id: String = wire(0, 1)
    group_state: String = wire(0, 1)
    group_epoch: Int32 = wire(0, 1)
    assignment_epoch: Int32 = wire(0, 1)
    assignor_name: String = wire(0, 1)
    members: list[Member] = wire(0, 1)
    authorized_operations: Int32 = wire(0, 1, default=-2147483648)


@struct
class ConsumerGroupDescribeResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 1)
    groups: list[DescribedGroup] = wire(0, 1)
