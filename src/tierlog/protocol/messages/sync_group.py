"""SyncGroup (API key 14). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int16, Int32, Message, String, Struct, struct, wire


@struct
class SyncGroupRequestAssignment(Struct):
    member_id: String = wire(0, 5)
    assignment: Bytes = wire(0, 5)


@struct
class SyncGroupRequest(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 4

    group_id: String = wire(0, 5)
    generation_id: Int32 = wire(0, 5)
    member_id: String = wire(0, 5)
    group_instance_id: String | None = wire(3, 5, default=None)
    protocol_type: String | None = wire(5, 5, default=None)
    protocol_name: String | None = wire(5, 5, default=None)
    assignments: list[SyncGroupRequestAssignment] = wire(0, 5)


@struct
class SyncGroupResponse(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 4

    throttle_time_ms: Int32 = wire(1, 5)
    error_code: Int16 = wire(0, 5)
    protocol_type: String | None = wire(5, 5, default=None)
    protocol_name: String | None = wire(5, 5, default=None)
    assignment: Bytes = wire(0, 5)
