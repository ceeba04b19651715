"""ListOffsets (API key 2). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Int8, Message, String, Struct, struct, wire


@struct
class ListOffsetsPartition(Struct):
    partition_index: Int32 = wire(1, 11)
    current_leader_epoch: Int32 = wire(4, 11, default=-1)
    timestamp: Int64 = wire(1, 11)


@struct
class ListOffsetsTopic(Struct):
    name: String = wire(1, 11)
    partitions: list[ListOffsetsPartition] = wire(1, 11)


@struct
class ListOffsetsRequest(Message):
    VERSIONS = (1, 11)
    FLEXIBLE = 6

    replica_id: Int32 = wire(1, 11)
    isolation_level: Int8 = wire(2, 11)
    topics: list[ListOffsetsTopic] = wire(1, 11)
    timeout_ms: Int32 = wire(10, 11)


@struct
class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32 = wire(1, 11)
    error_code: Int16 = wire(1, 11)
    timestamp: Int64 = wire(1, 11, default=-1)
    offset: Int64 = wire(1, 11, default=-1)
    leader_epoch: Int32 = wire(4, 11, default=-1)


@struct
class ListOffsetsTopicResponse(Struct):
    name: String = wire(1, 11)
    partitions: list[ListOffsetsPartitionResponse] = wire(1, 11)


@struct
class ListOffsetsResponse(Message):
    VERSIONS = (1, 11)
    FLEXIBLE = 6

    throttle_time_ms: Int32 = wire(2, 11)
    topics: list[ListOffsetsTopicResponse] = wire(1, 11)
