"""Heartbeat (API key 12). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, struct, wire


@struct
class HeartbeatRequest(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 4

    group_id: String = wire(0, 4)
    generation_id: Int32 = wire(0, 4)
    member_id: String = wire(0, 4)
    group_instance_id: String | None = wire(3, 4, default=None)


@struct
class HeartbeatResponse(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 4

    throttle_time_ms: Int32 = wire(1, 4)
    error_code: Int16 = wire(0, 4)
