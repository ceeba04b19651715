"""ShareAcknowledge (API key 79). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Int8, Message, String, Struct, Uuid, struct, wire


@struct
class AcknowledgementBatch(Struct):
    first_offset: Int64 = wire(1, 2)
    last_offset: Int64 = wire(1, 2)
    acknowledge_types: list[Int8] = wire(1, 2)


@struct
class AcknowledgePartition(Struct):
    partition_index: Int32 = wire(1, 2)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(1, 2)


@struct
class AcknowledgeTopic(Struct):
    topic_id: Uuid = wire(1, 2)
    partitions: list[AcknowledgePartition] = wire(1, 2)


@struct
class ShareAcknowledgeRequest(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 1

    group_id: String | None = wire(1, 2, default=None)
    member_id: String | None = wire(1, 2)
    share_session_epoch: Int32 = wire(1, 2)
    is_renew_ack: Bool = wire(2, 2)
    topics: list[AcknowledgeTopic] = wire(1, 2)


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = wire(1, 2)
    leader_epoch: Int32 = wire(1, 2)


@struct
class PartitionData(Struct):
    partition_index: Int32 = wire(1, 2)
    error_code: Int16 = wire(1, 2)
    error_message: String | None = wire(1, 2, default=None)
    current_leader: LeaderIdAndEpoch = wire(1, 2)


@struct
class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = wire(1, 2)
    partitions: list[PartitionData] = wire(1, 2)


@struct
class NodeEndpoint(Struct):
    node_id: Int32 = wire(1, 2)
    host: String = wire(1, 2)
    port: Int32 = wire(1, 2)
    rack: String | None = wire(1, 2, default=None)


@struct
class ShareAcknowledgeResponse(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(1, 2)
    error_code: Int16 = wire(1, 2)
    error_message: String | None = wire(1, 2, default=None)
    acquisition_lock_timeout_ms: Int32 = wire(2, 2)
    responses: list[ShareAcknowledgeTopicResponse] = wire(1, 2)
    node_endpoints: list[NodeEndpoint] = wire(1, 2)
