"""StreamsGroupHeartbeat (API key 88). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Int8, Message, String, Struct, UInt16, struct, wire


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
class CopartitionGroup(Struct):
    source_topics: list[Int16] = wire(0, 0)
    source_topic_regex: list[Int16] = wire(0, 0)
    repartition_source_topics: list[Int16] = wire(0, 0)


@struct
class Subtopology(Struct):
    subtopology_id: String = wire(0, 0)
    source_topics: list[String] = wire(0, 0)
    source_topic_regex: list[String] = wire(0, 0)
    state_changelog_topics: list[TopicInfo] = wire(0, 0)
    repartition_sink_topics: list[String] = wire(0, 0)
    repartition_source_topics: list[TopicInfo] = wire(0, 0)
    copartition_groups: list[CopartitionGroup] = wire(0, 0)


@struct
class Topology(Struct):
    epoch: Int32 = wire(0, 0)
    subtopologies: list[Subtopology] = wire(0, 0)


@struct
class TaskIds(Struct):
    subtopology_id: String = wire(0, 0)
    partitions: list[Int32] = wire(0, 0)


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
class StreamsGroupHeartbeatRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_id: String = wire(0, 0)
    member_id: String = wire(0, 0)
    member_epoch: Int32 = wire(0, 0)
    endpoint_information_epoch: Int32 = wire(0, 0)
    instance_id: String | None = wire(0, 0, default=None)
    rack_id: String | None = wire(0, 0, default=None)
    rebalance_timeout_ms: Int32 = wire(0, 0, default=-1)
    topology: Topology | None = wire(0, 0, default=None)
    active_tasks: list[TaskIds] | None = wire(0, 0)
    standby_tasks: list[TaskIds] | None = wire(0, 0)
    warmup_tasks: list[TaskIds] | None = wire(0, 0)
    process_id: String | None = wire(0, 0, default=None)
    user_endpoint: Endpoint | None = wire(0, 0, default=None)
    client_tags: list[KeyValue] | None = wire(0, 0)
    task_offsets: list[TaskOffset] | None = wire(0, 0)
    task_end_offsets: list[TaskOffset] | None = wire(0, 0)
    shutdown_application: Bool = wire(0, 0)


@struct
class Status(Struct):
    status_code: Int8 = wire(0, 0)
    status_detail: String = wire(0, 0)


@struct
class TopicPartition(Struct):
    topic: String = wire(0, 0)
    partitions: list[Int32] = wire(0, 0)


@struct
class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = wire(0, 0)
    active_partitions: list[TopicPartition] = wire(0, 0)
    standby_partitions: list[TopicPartition] = wire(0, 0)


@struct
class StreamsGroupHeartbeatResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)
    member_id: String = wire(0, 0)
    member_epoch: Int32 = wire(0, 0)
    heartbeat_interval_ms: Int32 = wire(0, 0)
    acceptable_recovery_lag: Int32 = wire(0, 0)
    task_offset_interval_ms: Int32 = wire(0, 0)
    status: list[Status] | None = wire(0, 0)
    active_tasks: list[TaskIds] | None = wire(0, 0)
    standby_tasks: list[TaskIds] | None = wire(0, 0)
    warmup_tasks: list[TaskIds] | None = wire(0, 0)
    endpoint_information_epoch: Int32 = wire(0, 0)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = wire(0, 0)
