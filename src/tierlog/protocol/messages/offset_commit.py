"""OffsetCommit (API key 8). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, Uuid, struct, wire


@struct
class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = wire(2, 10)
    committed_offset: Int64 = wire(2, 10)
    committed_leader_epoch: Int32 = wire(6, 10, default=-1)
    committed_metadata: String | None = wire(2, 10)


@struct
class OffsetCommitRequestTopic(Struct):
    name: String = wire(2, 9)
    topic_id: Uuid = wire(10, 10)
    partitions: list[OffsetCommitRequestPartition] = wire(2, 10)


@struct
class OffsetCommitRequest(Message):
    VERSIONS = (2, 10)
    FLEXIBLE = 8

    group_id: String = wire(2, 10)
    generation_id_or_member_epoch: Int32 = wire(2, 10, default=-1)
    member_id: String = wire(2, 10)
    retention_time_ms: Int64 = wire(2, 4, default=-1)
    group_instance_id: String | None = wire(7, 10, default=None)
    topics: list[OffsetCommitRequestTopic] = wire(2, 10)


@struct
class OffsetCommitResponsePartition(Struct):
    partition_index: Int32 = wire(2, 10)
    error_code: Int16 = wire(2, 10)


@struct
class OffsetCommitResponseTopic(Struct):
    name: String = wire(2, 9)
    topic_id: Uuid = wire(10, 10)
    partitions: list[OffsetCommitResponsePartition] = wire(2, 10)


@struct
class OffsetCommitResponse(Message):
    VERSIONS = (2, 10)
    FLEXIBLE = 8

    throttle_time_ms: Int32 = wire(3, 10)
    topics: list[OffsetCommitResponseTopic] = wire(2, 10)
