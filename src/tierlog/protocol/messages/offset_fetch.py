"""OffsetFetch (API key 9). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Struct, Uuid, struct, wire


@struct
class OffsetFetchRequestTopic(Struct):
    name: String = wire(1, 7)
    partition_indexes: list[Int32] = wire(1, 7)


@struct
class OffsetFetchRequestTopics(Struct):
    name: String = wire(8, 9)
    topic_id: Uuid = wire(10, 10)
    partition_indexes: list[Int32] = wire(8, 10)


@struct
class OffsetFetchRequestGroup(Struct):
    group_id: String = wire(8, 10)
    member_id: String | None = wire(9, 10, default=None)
    member_epoch: Int32 = wire(9, 10, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire(8, 10)


@struct
class OffsetFetchRequest(Message):
    VERSIONS = (1, 10)
    FLEXIBLE = 6

    group_id: String = wire(1, 7)
    topics: list[OffsetFetchRequestTopic] | None = wire(1, 7, nullable=(2, 7))
    groups: list[OffsetFetchRequestGroup] = wire(8, 10)
    require_stable: Bool = wire(7, 10)


@struct
class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = wire(1, 7)
    committed_offset: Int64 = wire(1, 7)
    committed_leader_epoch: Int32 = wire(5, 7, default=-1)
    metadata: String | None = wire(1, 7)
    error_code: Int16 = wire(1, 7)


@struct
class OffsetFetchResponseTopic(Struct):
    name: String = wire(1, 7)
    partitions: list[OffsetFetchResponsePartition] = wire(1, 7)


@struct
class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32 = wire(8, 10)
    committed_offset: Int64 = wire(8, 10)
    committed_leader_epoch: Int32 = wire(8, 10, default=-1)
    metadata: String | None = wire(8, 10)
    error_code: Int16 = wire(8, 10)


@struct
class OffsetFetchResponseTopics(Struct):
    name: String = wire(8, 9)
    topic_id: Uuid = wire(10, 10)
    partitions: list[OffsetFetchResponsePartitions] = wire(8, 10)


@struct
class OffsetFetchResponseGroup(Struct):
    group_id: String = wire(8, 10)
    topics: list[OffsetFetchResponseTopics] = wire(8, 10)
    error_code: Int16 = wire(8, 10)


@struct
class OffsetFetchResponse(Message):
    VERSIONS = (1, 10)
    FLEXIBLE = 6

    throttle_time_ms: Int32 = wire(3, 10)
    topics: list[OffsetFetchResponseTopic] = wire(1, 7)
    error_code: Int16 = wire(2, 7)
    groups: list[OffsetFetchResponseGroup] = wire(8, 10)
