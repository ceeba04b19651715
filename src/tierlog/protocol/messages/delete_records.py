"""DeleteRecords (API key 21). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class DeleteRecordsPartition(Struct):
    partition_index: Int32 = wire(0, 2)
    offset: Int64 = wire(0, 2)


@struct
class DeleteRecordsTopic(Struct):
    name: String = wire(0, 2)
    partitions: list[DeleteRecordsPartition] = wire(0, 2)


@struct
class DeleteRecordsRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    topics: list[DeleteRecordsTopic] = wire(0, 2)
    timeout_ms: Int32 = wire(0, 2)


@struct
class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = wire(0, 2)
    low_watermark: Int64 = wire(0, 2)
    error_code: Int16 = wire(0, 2)


@struct
class DeleteRecordsTopicResult(Struct):
    name: String = wire(0, 2)
    partitions: list[DeleteRecordsPartitionResult] = wire(0, 2)


@struct
class DeleteRecordsResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(0, 2)
    topics: list[DeleteRecordsTopicResult] = wire(0, 2)
