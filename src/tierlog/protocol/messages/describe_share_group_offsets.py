"""DescribeShareGroupOffsets (API key 90). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, Uuid, struct, wire


@struct
class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = wire(0, 1)
    partitions: list[Int32] = wire(0, 1)


@struct
class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: String = wire(0, 1)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire(0, 1)


@struct
class DescribeShareGroupOffsetsRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire(0, 1)


@struct
class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = wire(0, 1)
    start_offset: Int64 = wire(0, 1)
    leader_epoch: Int32 = wire(0, 1)
    lag: Int64 = wire(1, 1, default=-1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1, default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = wire(0, 1)
    topic_id: Uuid = wire(0, 1)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire(0, 1)


@struct
class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: String = wire(0, 1)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1, default=None)


@struct
class DescribeShareGroupOffsetsResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 1)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire(0, 1)
