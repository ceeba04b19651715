"""FindCoordinator (API key 10). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class FindCoordinatorRequest(Message):
    VERSIONS = (0, 6)
    FLEXIBLE = 3

    key: String = wire(0, 3)
    key_type: Int8 = wire(1, 6)
    coordinator_keys: list[String] = wire(4, 6)


@struct
class Coordinator(Struct):
    key: String = wire(4, 6)
    node_id: Int32 = wire(4, 6)
    host: String = wire(4, 6)
    port: Int32 = wire(4, 6)
    error_code: Int16 = wire(4, 6)
    error_message: String | None = wire(4, 6)


@struct
class FindCoordinatorResponse(Message):
    VERSIONS = (0, 6)
    FLEXIBLE = 3

    throttle_time_ms: Int32 = wire(1, 6)
    error_code: Int16 = wire(0, 3)
    error_message: String | None = wire(1, 3)
    node_id: Int32 = wire(0, 3)
    host: String = wire(0, 3)
    port: Int32 = wire(0, 3)
    coordinators: list[Coordinator] = wire(4, 6)
