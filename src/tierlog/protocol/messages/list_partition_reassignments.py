"""ListPartitionReassignments (API key 46). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, struct, wire


@struct
class ListPartitionReassignmentsTopics(Struct):
    name: String = wire(0, 0)
    partition_indexes: list[Int32] = wire(0, 0)


@struct
class ListPartitionReassignmentsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    timeout_ms: Int32 = wire(0, 0, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = wire(0, 0)


@struct
class OngoingPartitionReassignment(Struct):
    partition_index: Int32 = wire(0, 0)
    replicas: list[Int32] = wire(0, 0)
    adding_replicas: list[Int32] = wire(0, 0)
    removing_replicas: list[Int32] = wire(0, 0)


@struct
class OngoingTopicReassignment(Struct):
    name: String = wire(0, 0)
    partitions: list[OngoingPartitionReassignment] = wire(0, 0)


@struct
class ListPartitionReassignmentsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0)
    topics: list[OngoingTopicReassignment] = wire(0, 0)
