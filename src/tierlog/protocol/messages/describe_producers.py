"""DescribeProducers (API key 61). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class TopicRequest(Struct):
    name: String = wire(0, 0)
    partition_indexes: list[Int32] = wire(0, 0)


@struct
class DescribeProducersRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    topics: list[TopicRequest] = wire(0, 0)


@struct
class ProducerState(Struct):
    producer_id: Int64 = wire(0, 0)
    producer_epoch: Int32 = wire(0, 0)
    last_sequence: Int32 = wire(0, 0, default=-1)
    last_timestamp: Int64 = wire(0, 0, default=-1)
    coordinator_epoch: Int32 = wire(0, 0)
    current_txn_start_offset: Int64 = wire(0, 0, default=-1)


@struct
class PartitionResponse(Struct):
    partition_index: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)
    active_producers: list[ProducerState] = wire(0, 0)


@struct
class TopicResponse(Struct):
    name: String = wire(0, 0)
    partitions: list[PartitionResponse] = wire(0, 0)


@struct
class DescribeProducersResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    topics: list[TopicResponse] = wire(0, 0)
