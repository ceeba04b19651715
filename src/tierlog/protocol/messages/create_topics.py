"""CreateTopics (API key 19). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, Uuid, struct, wire


@struct
class CreatableReplicaAssignment(Struct):
    partition_index: Int32 = wire(2, 7)
    broker_ids: list[Int32] = wire(2, 7)


@struct
class CreatableTopicConfig(Struct):
    name: String = wire(2, 7)
    value: String | None = wire(2, 7)


@struct
class CreatableTopic(Struct):
    name: String = wire(2, 7)
    num_partitions: Int32 = wire(2, 7)
    replication_factor: Int16 = wire(2, 7)
    assignments: list[CreatableReplicaAssignment] = wire(2, 7)
    configs: list[CreatableTopicConfig] = wire(2, 7)


@struct
class CreateTopicsRequest(Message):
    VERSIONS = (2, 7)
    FLEXIBLE = 5

    topics: list[CreatableTopic] = wire(2, 7)
    timeout_ms: Int32 = wire(2, 7, default=60000)
    validate_only: Bool = wire(2, 7)


@struct
class CreatableTopicConfigs(Struct):
    name: String = wire(5, 7)
    value: String | None = wire(5, 7)
    read_only: Bool = wire(5, 7)
    config_source: Int8 = wire(5, 7, default=-1)
    is_sensitive: Bool = wire(5, 7)


@struct
class CreatableTopicResult(Struct):
    name: String = wire(2, 7)
    topic_id: Uuid = wire(7, 7)
    error_code: Int16 = wire(2, 7)
    error_message: String | None = wire(2, 7)
    topic_config_error_code: Int16 = wire(5, 7, tag=0)
    num_partitions: Int32 = wire(5, 7, default=-1)
    replication_factor: Int16 = wire(5, 7, default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(5, 7)


@struct
class CreateTopicsResponse(Message):
    VERSIONS = (2, 7)
    FLEXIBLE = 5

    throttle_time_ms: Int32 = wire(2, 7)
    topics: list[CreatableTopicResult] = wire(2, 7)
