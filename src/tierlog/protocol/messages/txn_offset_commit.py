"""TxnOffsetCommit (API key 28). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: Int32 = wire(0, 5)
    committed_offset: Int64 = wire(0, 5)
    committed_leader_epoch: Int32 = wire(2, 5, default=-1)
    committed_metadata: String | None = wire(0, 5)


@struct
class TxnOffsetCommitRequestTopic(Struct):
    name: String = wire(0, 5)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(0, 5)


@struct
class TxnOffsetCommitRequest(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    transactional_id: String = wire(0, 5)
    group_id: String = wire(0, 5)
    producer_id: Int64 = wire(0, 5)
    producer_epoch: Int16 = wire(0, 5)
    generation_id: Int32 = wire(3, 5, default=-1)
    member_id: String = wire(3, 5)
    group_instance_id: String | None = wire(3, 5, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = wire(0, 5)


@struct
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: Int32 = wire(0, 5)
    error_code: Int16 = wire(0, 5)


@struct
class TxnOffsetCommitResponseTopic(Struct):
    name: String = wire(0, 5)
    partitions: list[TxnOffsetCommitResponsePartition] = wire(0, 5)


@struct
class TxnOffsetCommitResponse(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    throttle_time_ms: Int32 = wire(0, 5)
    topics: list[TxnOffsetCommitResponseTopic] = wire(0, 5)
