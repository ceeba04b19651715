"""AlterShareGroupOffsets (API key 91). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, Uuid, struct, wire


@struct
class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: Int32 = wire(0, 0)
    start_offset: Int64 = wire(0, 0)


@struct
class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = wire(0, 0)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire(0, 0)


@struct
class AlterShareGroupOffsetsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_id: String = wire(0, 0)
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire(0, 0)


@struct
class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)


@struct
class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = wire(0, 0)
    topic_id: Uuid = wire(0, 0)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = wire(0, 0)


@struct
class AlterShareGroupOffsetsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = wire(0, 0)
