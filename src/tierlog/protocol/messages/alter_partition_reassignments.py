"""AlterPartitionReassignments (API key 45). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Message, String, Struct, struct, wire


@struct
class ReassignablePartition(Struct):
    partition_index: Int32 = wire(0, 1)
    replicas: list[Int32] | None = wire(0, 1, default=None)


@struct
class ReassignableTopic(Struct):
    name: String = wire(0, 1)
    partitions: list[ReassignablePartition] = wire(0, 1)


@struct
class AlterPartitionReassignmentsRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    timeout_ms: Int32 = wire(0, 1, default=60000)
    allow_replication_factor_change: Bool = wire(1, 1, default=True)
    topics: list[ReassignableTopic] = wire(0, 1)


@struct
class ReassignablePartitionResponse(Struct):
    partition_index: Int32 = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1)


@struct
class ReassignableTopicResponse(Struct):
    name: String = wire(0, 1)
    partitions: list[ReassignablePartitionResponse] = wire(0, 1)


@struct
class AlterPartitionReassignmentsResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 1)
    allow_replication_factor_change: Bool = wire(1, 1, default=True)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1)
    responses: list[ReassignableTopicResponse] = wire(0, 1)
