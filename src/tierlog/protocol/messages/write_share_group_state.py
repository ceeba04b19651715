"""WriteShareGroupState (API key 85). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Int8, Message, String, Struct, Uuid, struct, wire


@struct
class StateBatch(Struct):
    first_offset: Int64 = wire(0, 1)
    last_offset: Int64 = wire(0, 1)
    delivery_state: Int8 = wire(0, 1)
    delivery_count: Int16 = wire(0, 1)


@struct
class PartitionData(Struct):
    partition: Int32 = wire(0, 1)
    state_epoch: Int32 = wire(0, 1)
    leader_epoch: Int32 = wire(0, 1)
    start_offset: Int64 = wire(0, 1)
    delivery_complete_count: Int32 = wire(1, 1, default=-1)
    state_batches: list[StateBatch] = wire(0, 1)


@struct
class WriteStateData(Struct):
    topic_id: Uuid = wire(0, 1)
    partitions: list[PartitionData] = wire(0, 1)


@struct
class WriteShareGroupStateRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    group_id: String = wire(0, 1)
    topics: list[WriteStateData] = wire(0, 1)


@struct
class PartitionResult(Struct):
    partition: Int32 = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1, default=None)


@struct
class WriteStateResult(Struct):
    topic_id: Uuid = wire(0, 1)
    partitions: list[PartitionResult] = wire(0, 1)


@struct
class WriteShareGroupStateResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    results: list[WriteStateResult] = wire(0, 1)
