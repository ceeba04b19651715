"""Fetch (API key 1). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Int8, Message, Records, String, Struct, Uuid, struct, wire


@struct
class ReplicaState(Struct):
    replica_id: Int32 = wire(15, 18, default=-1)
    replica_epoch: Int64 = wire(15, 18, default=-1)


@struct
class FetchPartition(Struct):
    partition: Int32 = wire(4, 18)
    current_leader_epoch: Int32 = wire(9, 18, default=-1)
    fetch_offset: Int64 = wire(4, 18)
    last_fetched_epoch: Int32 = wire(12, 18, default=-1)
    log_start_offset: Int64 = wire(5, 18, default=-1)
    partition_max_bytes: Int32 = wire(4, 18)
    replica_directory_id: Uuid = wire(17, 18, tag=0)
    high_watermark: Int64 = wire(18, 18, default=9223372036854775807, tag=1)


@struct
class FetchTopic(Struct):
    topic: String = wire(4, 12)
    topic_id: Uuid = wire(13, 18)
    partitions: list[FetchPartition] = wire(4, 18)


@struct
class ForgottenTopic(Struct):
    topic: String = wire(7, 12)
    topic_id: Uuid = wire(13, 18)
    partitions: list[Int32] = wire(7, 18)


@struct
class FetchRequest(Message):
    VERSIONS = (4, 18)
    FLEXIBLE = 12

    cluster_id: String | None = wire(12, 18, default=None, tag=0)
    replica_id: Int32 = wire(4, 14, default=-1)
    replica_state: ReplicaState = wire(15, 18, tag=1)
    max_wait_ms: Int32 = wire(4, 18)
    min_bytes: Int32 = wire(4, 18)
    max_bytes: Int32 = wire(4, 18, default=2147483647)
    isolation_level: Int8 = wire(4, 18)
    session_id: Int32 = wire(7, 18)
    session_epoch: Int32 = wire(7, 18, default=-1)
    topics: list[FetchTopic] = wire(4, 18)
    forgotten_topics_data: list[ForgottenTopic] = wire(7, 18)
    rack_id: String = wire(11, 18)


@struct
class EpochEndOffset(Struct):
    epoch: Int32 = wire(12, 18, default=-1)
    end_offset: Int64 = wire(12, 18, default=-1)


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = wire(12, 18, default=-1)
    leader_epoch: Int32 = wire(12, 18, default=-1)


@struct
class SnapshotId(Struct):
    end_offset: Int64 = wire(12, 18, default=-1)
    epoch: Int32 = wire(12, 18, default=-1)


@struct
class AbortedTransaction(Struct):
    producer_id: Int64 = wire(4, 18)
    first_offset: Int64 = wire(4, 18)


@struct
class PartitionData(Struct):
    partition_index: Int32 = wire(4, 18)
    error_code: Int16 = wire(4, 18)
    high_watermark: Int64 = wire(4, 18)
    last_stable_offset: Int64 = wire(4, 18, default=-1)
    log_start_offset: Int64 = wire(5, 18, default=-1)
    diverging_epoch: EpochEndOffset = wire(12, 18, tag=0)
    current_leader: LeaderIdAndEpoch = wire(12, 18, tag=1)
    snapshot_id: SnapshotId = wire(12, 18, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = wire(4, 18)
    preferred_read_replica: Int32 = wire(11, 18, default=-1)
    records: Records | None = wire(4, 18, default=None)


@struct
class FetchableTopicResponse(Struct):
    topic: String = wire(4, 12)
    topic_id: Uuid = wire(13, 18)
    partitions: list[PartitionData] = wire(4, 18)


@struct
class NodeEndpoint(Struct):
    node_id: Int32 = wire(16, 18)
    host: String = wire(16, 18)
    port: Int32 = wire(16, 18)
    rack: String | None = wire(16, 18, default=None)


@struct
class FetchResponse(Message):
    VERSIONS = (4, 18)
    FLEXIBLE = 12

    throttle_time_ms: Int32 = wire(4, 18)
    error_code: Int16 = wire(7, 18)
    session_id: Int32 = wire(7, 18)
    responses: list[FetchableTopicResponse] = wire(4, 18)
    node_endpoints: list[NodeEndpoint] = wire(16, 18, tag=0)
