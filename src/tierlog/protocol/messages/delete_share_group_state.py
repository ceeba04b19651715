"""DeleteShareGroupState (API key 86). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class PartitionData(Struct):
    partition: Int32 = wire(0, 0)


@struct
class DeleteStateData(Struct):
    topic_id: Uuid = wire(0, 0)
    partitions: list[PartitionData] = wire(0, 0)


@struct
class DeleteShareGroupStateRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_id: String = wire(0, 0)
    topics: list[DeleteStateData] = wire(0, 0)


@struct
class PartitionResult(Struct):
    partition: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)


@struct
class DeleteStateResult(Struct):
    topic_id: Uuid = wire(0, 0)
    partitions: list[PartitionResult] = wire(0, 0)


@struct
class DeleteShareGroupStateResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    results: list[DeleteStateResult] = wire(0, 0)
