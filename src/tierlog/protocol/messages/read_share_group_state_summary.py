"""ReadShareGroupStateSummary (API key 87). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, Uuid, struct, wire


@struct
class PartitionData(Struct):
    partition: Int32 = wire(0, 1)
    leader_epoch: Int32 = wire(0, 1)


@struct
class ReadStateSummaryData(Struct):
    topic_id: Uuid = wire(0, 1)
    partitions: list[PartitionData] = wire(0, 1)


@struct
class ReadShareGroupStateSummaryRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    group_id: String = wire(0, 1)
    topics: list[ReadStateSummaryData] = wire(0, 1)


@struct
class PartitionResult(Struct):
    partition: Int32 = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1, default=None)
    state_epoch: Int32 = wire(0, 1)
    leader_epoch: Int32 = wire(0, 1)
    start_offset: Int64 = wire(0, 1)
    delivery_complete_count: Int32 = wire(1, 1, default=-1)


@struct
class ReadStateSummaryResult(Struct):
    topic_id: Uuid = wire(0, 1)
    partitions: list[PartitionResult] = wire(0, 1)


@struct
class ReadShareGroupStateSummaryResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    results: list[ReadStateSummaryResult] = wire(0, 1)
