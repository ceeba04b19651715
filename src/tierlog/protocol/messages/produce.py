"""Produce (API key 0). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, RequestRecords, String, Struct, Uuid, struct, wire


@struct
class PartitionProduceData(Struct):
    index: Int32 = wire(3, 13)
    records: RequestRecords | None = wire(3, 13, default=None)


@struct
class TopicProduceData(Struct):
    name: String = wire(3, 12)
    topic_id: Uuid = wire(13, 13)
    partition_data: list[PartitionProduceData] = wire(3, 13)


@struct
class ProduceRequest(Message):
    VERSIONS = (3, 13)
    FLEXIBLE = 9

    transactional_id: String | None = wire(3, 13, default=None)
    acks: Int16 = wire(3, 13)
    timeout_ms: Int32 = wire(3, 13)
    topic_data: list[TopicProduceData] = wire(3, 13)


@struct
class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = wire(8, 13)
    batch_index_error_message: String | None = wire(8, 13, default=None)


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = wire(10, 13, default=-1)
    leader_epoch: Int32 = wire(10, 13, default=-1)


@struct
class PartitionProduceResponse(Struct):
    index: Int32 = wire(3, 13)
    error_code: Int16 = wire(3, 13)
    base_offset: Int64 = wire(3, 13)
    log_append_time_ms: Int64 = wire(3, 13, default=-1)
    log_start_offset: Int64 = wire(5, 13, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(8, 13)
    error_message: String | None = wire(8, 13, default=None)
    current_leader: LeaderIdAndEpoch = wire(10, 13, tag=0)


@struct
class TopicProduceResponse(Struct):
    name: String = wire(3, 12)
    topic_id: Uuid = wire(13, 13)
    partition_responses: list[PartitionProduceResponse] = wire(3, 13)


@struct
class NodeEndpoint(Struct):
    node_id: Int32 = wire(10, 13)
    host: String = wire(10, 13)
    port: Int32 = wire(10, 13)
    rack: String | None = wire(10, 13, default=None)


@struct
class ProduceResponse(Message):
    VERSIONS = (3, 13)
    FLEXIBLE = 9

    responses: list[TopicProduceResponse] = wire(3, 13)
    throttle_time_ms: Int32 = wire(3, 13)
    node_endpoints: list[NodeEndpoint] = wire(10, 13, tag=0)
