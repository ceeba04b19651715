"""ShareFetch (API key 78). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Int8, Message, Records, String, Struct, Uuid, struct, wire


@struct
class AcknowledgementBatch(Struct):
    first_offset: Int64 = wire(1, 2)
    last_offset: Int64 = wire(1, 2)
    acknowledge_types: list[Int8] = wire(1, 2)


@struct
class FetchPartition(Struct):
    partition_index: Int32 = wire(1, 2)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(1, 2)


@struct
class FetchTopic(Struct):
    topic_id: Uuid = wire(1, 2)
    partitions: list[FetchPartition] = wire(1, 2)


@struct
class ForgottenTopic(Struct):
    topic_id: Uuid = wire(1, 2)
    partitions: list[Int32] = wire(1, 2)


@struct
class ShareFetchRequest(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 1

    group_id: String | None = wire(1, 2, default=None)
    member_id: String | None = wire(1, 2)
    share_session_epoch: Int32 = wire(1, 2)
    max_wait_ms: Int32 = wire(1, 2)
    min_bytes: Int32 = wire(1, 2)
    max_bytes: Int32 = wire(1, 2, default=2147483647)
    max_records: Int32 = wire(1, 2)
    batch_size: Int32 = wire(1, 2)
    share_acquire_mode: Int8 = wire(2, 2)
    is_renew_ack: Bool = wire(2, 2)
    topics: list[FetchTopic] = wire(1, 2)
    forgotten_topics_data: list[ForgottenTopic] = wire(1, 2)


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = wire(1, 2)
    leader_epoch: Int32 = wire(1, 2)


@struct
class AcquiredRecords(Struct):
    first_offset: Int64 = wire(1, 2)
    last_offset: Int64 = wire(1, 2)
    delivery_count: Int16 = wire(1, 2)


@struct
class PartitionData(Struct):
    partition_index: Int32 = wire(1, 2)
    error_code: Int16 = wire(1, 2)
    error_message: String | None = wire(1, 2, default=None)
    acknowledge_error_code: Int16 = wire(1, 2)
    acknowledge_error_message: String | None = wire(1, 2, default=None)
    current_leader: LeaderIdAndEpoch = wire(1, 2)
    records: Records = wire(1, 2)
    acquired_records: list[AcquiredRecords] = wire(1, 2)


@struct
class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = wire(1, 2)
    partitions: list[PartitionData] = wire(1, 2)


@struct
class NodeEndpoint(Struct):
    node_id: Int32 = wire(1, 2)
    host: String = wire(1, 2)
    port: Int32 = wire(1, 2)
    rack: String | None = wire(1, 2, default=None)


@struct
class ShareFetchResponse(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(1, 2)
    error_code: Int16 = wire(1, 2)
    error_message: String | None = wire(1, 2, default=None)
    acquisition_lock_timeout_ms: Int32 = wire(1, 2)
    responses: list[ShareFetchableTopicResponse] = wire(1, 2)
    node_endpoints: list[NodeEndpoint] = wire(1, 2)
