"""DeleteTopics (API key 20). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class DeleteTopicState(Struct):
    name: String | None = wire(6, 6, default=None)
    topic_id: Uuid = wire(6, 6)


@struct
class DeleteTopicsRequest(Message):
    VERSIONS = (1, 6)
    FLEXIBLE = 4

    topic_names: list[String] = wire(1, 5)
    topics: list[DeleteTopicState] = wire(6, 6)
    timeout_ms: Int32 = wire(1, 6)


@struct
class DeletableTopicResult(Struct):
    name: String | None = wire(1, 6, nullable=(6, 6))
    topic_id: Uuid = wire(6, 6)
    error_code: Int16 = wire(1, 6)
    error_message: String | None = wire(5, 6, default=None)


@struct
class DeleteTopicsResponse(Message):
    VERSIONS = (1, 6)
    FLEXIBLE = 4

    throttle_time_ms: Int32 = wire(1, 6)
    responses: list[DeletableTopicResult] = wire(1, 6)
