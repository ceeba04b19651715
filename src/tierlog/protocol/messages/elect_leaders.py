"""ElectLeaders (API key 43). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class TopicPartitions(Struct):
    topic: String = wire(0, 2)
    partitions: list[Int32] = wire(0, 2)


@struct
class ElectLeadersRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    election_type: Int8 = wire(1, 2)
    topic_partitions: list[TopicPartitions] | None = wire(0, 2)
    timeout_ms: Int32 = wire(0, 2, default=60000)


@struct
class PartitionResult(Struct):
    partition_id: Int32 = wire(0, 2)
    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(0, 2)


@struct
class ReplicaElectionResult(Struct):
    topic: String = wire(0, 2)
    partition_result: list[PartitionResult] = wire(0, 2)


@struct
class ElectLeadersResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(0, 2)
    error_code: Int16 = wire(1, 2)
    replica_election_results: list[ReplicaElectionResult] = wire(0, 2)
