"""OffsetForLeaderEpoch (API key 23). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class OffsetForLeaderPartition(Struct):
    partition: Int32 = wire(2, 4)
    current_leader_epoch: Int32 = wire(2, 4, default=-1)
    leader_epoch: Int32 = wire(2, 4)


@struct
class OffsetForLeaderTopic(Struct):
    topic: String = wire(2, 4)
    partitions: list[OffsetForLeaderPartition] = wire(2, 4)


@struct
class OffsetForLeaderEpochRequest(Message):
    VERSIONS = (2, 4)
    FLEXIBLE = 4

    replica_id: Int32 = wire(3, 4, default=-2)
    topics: list[OffsetForLeaderTopic] = wire(2, 4)


@struct
class EpochEndOffset(Struct):
    error_code: Int16 = wire(2, 4)
    partition: Int32 = wire(2, 4)
    leader_epoch: Int32 = wire(2, 4, default=-1)
    end_offset: Int64 = wire(2, 4, default=-1)


@struct
class OffsetForLeaderTopicResult(Struct):
    topic: String = wire(2, 4)
    partitions: list[EpochEndOffset] = wire(2, 4)


@struct
class OffsetForLeaderEpochResponse(Message):
    VERSIONS = (2, 4)
    FLEXIBLE = 4

    throttle_time_ms: Int32 = wire(2, 4)
    topics: list[OffsetForLeaderTopicResult] = wire(2, 4)
