"""OffsetDelete (API key 47). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, struct, wire


@struct
class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = wire(0, 0)


@struct
class OffsetDeleteRequestTopic(Struct):
    name: String = wire(0, 0)
    partitions: list[OffsetDeleteRequestPartition] = wire(0, 0)


@struct
class OffsetDeleteRequest(Message):
    VERSIONS = (0, 0)

    group_id: String = wire(0, 0)
    topics: list[OffsetDeleteRequestTopic] = wire(0, 0)


@struct
class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)


@struct
class OffsetDeleteResponseTopic(Struct):
    name: String = wire(0, 0)
    partitions: list[OffsetDeleteResponsePartition] = wire(0, 0)


@struct
class OffsetDeleteResponse(Message):
    VERSIONS = (0, 0)

    error_code: Int16 = wire(0, 0)
    throttle_time_ms: Int32 = wire(0, 0)
    topics: list[OffsetDeleteResponseTopic] = wire(0, 0)
