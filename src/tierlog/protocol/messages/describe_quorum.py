"""DescribeQuorum (API key 55). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, UInt16, Uuid, struct, wire


@struct
class PartitionData(Struct):
    partition_index: Int32 = wire(0, 2)


@struct
class TopicData(Struct):
    topic_name: String = wire(0, 2)
    partitions: list[PartitionData] = wire(0, 2)


@struct
class DescribeQuorumRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    topics: list[TopicData] = wire(0, 2)


@struct
class ReplicaState(Struct):
    replica_id: Int32 = wire(0, 2)
    replica_directory_id: Uuid = wire(2, 2)
    log_end_offset: Int64 = wire(0, 2)
    last_fetch_timestamp: Int64 = wire(1, 2, default=-1)
    last_caught_up_timestamp: Int64 = wire(1, 2, default=-1)


@struct
class PartitionDataResponse(Struct):
    partition_index: Int32 = wire(0, 2)
    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(2, 2)
    leader_id: Int32 = wire(0, 2)
    leader_epoch: Int32 = wire(0, 2)
    high_watermark: Int64 = wire(0, 2)
    current_voters: list[ReplicaState] = wire(0, 2)
    observers: list[ReplicaState] = wire(0, 2)


@struct
class TopicDataResponse(Struct):
    topic_name: String = wire(0, 2)
    partitions: list[PartitionDataResponse] = wire(0, 2)


@struct
class Listener(Struct):
    name: String = wire(2, 2)
    host: String = wire(2, 2)
    port: UInt16 = wire(2, 2)


@struct
class Node(Struct):
    node_id: Int32 = wire(2, 2)
    listeners: list[Listener] = wire(2, 2)


@struct
class DescribeQuorumResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(2, 2)
    topics: list[TopicDataResponse] = wire(0, 2)
    nodes: list[Node] = wire(2, 2)
