"""StreamsGroupDescribe (API key 89). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Struct, UInt16, struct, wire


@struct
class StreamsGroupDescribeRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_ids: list[String] = wire(0, 0)
    include_authorized_operations: Bool = wire(0, 0)


@struct
class KeyValue(Struct):
    key: String = wire(0, 0)
    value: String = wire(0, 0)


@struct
class TopicInfo(Struct):
    name: String = wire(0, 0)
    partitions: Int32 = wire(0, 0)
    replication_factor: Int16 = wire(0, 0)
    topic_configs: list[KeyValue] = wire(0, 0)


@struct
class Subtopology(Struct):
    subtopology_id: String = wire(0, 0)
    source_topics: list[String] = wire(0, 0)
    repartition_sink_topics: list[String] = wire(0, 0)
    state_changelog_topics: list[TopicInfo] = wire(0, 0)
    repartition_source_topics: list[TopicInfo] = wire(0, 0)


@struct
class Topology(Struct):
    epoch: Int32 = wire(0, 0)
    subtopologies: list[Subtopology] | None = wire(0, 0)


@struct
class Endpoint(Struct):
    host: String = wire(0, 0)
    port: UInt16 = wire(0, 0)


@struct
class TaskOffset(Struct):
    subtopology_id: String = wire(0, 0)
    partition: Int32 = wire(0, 0)
    offset: Int64 = wire(0, 0)


@struct
class TaskIds(Struct):
    subtopology_id: String = wire(0, 0)
    partitions: list[Int32] = wire(0, 0)


@struct
class Assignment(Struct):
    active_tasks: list[TaskIds] = wire(0, 0)
    standby_tasks: list[TaskIds] = wire(0, 0)
    warmup_tasks: list[TaskIds] = wire(0, 0)


@struct
class Member(Struct):
    member_id: String = wire(0, 0)
    member_epoch: Int32 = wire(0, 0)
    instance_id: String | None = wire(0, 0, default=None)
    rack_id: String | None = wire(0, 0, default=None)
    client_id: String = wire(0, 0)
    client_host: String = wire(0, 0)
    topology_epoch: Int32 = wire(0, 0)
    process_id: String = wire(0, 0)
    user_endpoint: Endpoint | None = wire(0, 0, default=None)
    client_tags: list[KeyValue] = wire(0, 0)
    task_offsets: list[TaskOffset] = wire(0, 0)
    task_end_offsets: list[TaskOffset] = wire(0, 0)
    assignment: Assignment = wire(0, 0)
    target_assignment: Assignment = wire(0, 0)
    is_classic: Bool = wire(0, 0)


@struct
class DescribedGroup(Struct):
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)
    group_id: String = wire(0, 0)
    group_state: String = wire(0, 0)
    group_epoch: Int32 = wire(0, 0)
    assignment_epoch: Int32 = wire(0, 0)
    topology: Topology | None = wire(0, 0, default=None)
    members: list[Member] = wire(0, 0)
    authorized_operations: Int32 = wire(0, 0, default=-2147483648)


@struct
class StreamsGroupDescribeResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    groups: list[DescribedGroup] = wire(0, 0)
