"""ReadShareGroupState (API key 84). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Int8, Message, String, Struct, Uuid, struct, wire


@struct
class PartitionData(Struct):
    partition: Int32 = wire(0, 0)
    leader_epoch: Int32 = wire(0, 0)


@struct
class ReadStateData(Struct):
    topic_id: Uuid = wire(0, 0)
    partitions: list[PartitionData] = wire(0, 0)


@struct
class ReadShareGroupStateRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_id: String = wire(0, 0)
    topics: list[ReadStateData] = wire(0, 0)


@struct
class StateBatch(Struct):
    first_offset: Int64 = wire(0, 0)
    last_offset: Int64 = wire(0, 0)
    delivery_state: Int8 = wire(0, 0)
    delivery_count: Int16 = wire(0, 0)


@struct
class PartitionResult(Struct):
    partition: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)
    state_epoch: Int32 = wire(0, 0)
    start_offset: Int64 = wire(0, 0)
    state_batches: list[StateBatch] = wire(0, 0)


@struct
class ReadStateResult(Struct):
    topic_id: Uuid = wire(0, 0)
    partitions: list[PartitionResult] = wire(0, 0)


@struct
class ReadShareGroupStateResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    results: list[ReadStateResult] = wire(0, 0)
