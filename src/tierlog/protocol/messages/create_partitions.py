"""CreatePartitions (API key 37). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Message, String, Struct, struct, wire


@struct
class CreatePartitionsAssignment(Struct):
    broker_ids: list[Int32] = wire(0, 3)


@struct
class CreatePartitionsTopic(Struct):
    name: String = wire(0, 3)
    count: Int32 = wire(0, 3)
    assignments: list[CreatePartitionsAssignment] | None = wire(0, 3)


@struct
class CreatePartitionsRequest(Message):
    VERSIONS = (0, 3)
    FLEXIBLE = 2

    topics: list[CreatePartitionsTopic] = wire(0, 3)
    timeout_ms: Int32 = wire(0, 3)
    validate_only: Bool = wire(0, 3)


@struct
class CreatePartitionsTopicResult(Struct):
    name: String = wire(0, 3)
    error_code: Int16 = wire(0, 3)
    error_message: String | None = wire(0, 3, default=None)


@struct
class CreatePartitionsResponse(Message):
    VERSIONS = (0, 3)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(0, 3)
    results: list[CreatePartitionsTopicResult] = wire(0, 3)
