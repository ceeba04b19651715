"""DeleteShareGroupOffsets (API key 92). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, Uuid, struct, wire


@struct
class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = wire(0, 0)


@struct
class DeleteShareGroupOffsetsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    group_id: String = wire(0, 0)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire(0, 0)


@struct
class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = wire(0, 0)
    topic_id: Uuid = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)


@struct
class DeleteShareGroupOffsetsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0, default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire(0, 0)
