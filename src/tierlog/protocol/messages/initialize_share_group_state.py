"""InitializeShareGroupState (API key 83). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, Uuid, struct, wire


@struct
class PartitionData(Struct):
    partition: Int32 = wire(0, 0)
    state_epoch: Int32 = wire(0, 0)
    start_offset: Int64 = wire(0, 0)


@struct
class InitializeStateData(Struct):
    topic_id: Uuid = wire(0, 0)
    partitions: list[PartitionData] = wire(0, 0)


@struct
class InitializeShareGroupStateRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_id: String = wire(0, 0)
    topics: list[InitializeStateData] = wire(0, 0)


@struct
class PartitionResult(Struct):
    partition: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)


@struct
class InitializeStateResult(Struct):
    topic_id: Uuid = wire(0, 0)
    partitions: list[PartitionResult] = wire(0, 0)


@struct
class InitializeShareGroupStateResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    results: list[InitializeStateResult] = wire(0, 0)
