"""LeaveGroup (API key 13). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, struct, wire


@struct
class MemberIdentity(Struct):
    member_id: String = wire(3, 5)
    group_instance_id: String | None = wire(3, 5, default=None)
    reason: String | None = wire(5, 5, default=None)


@struct
class LeaveGroupRequest(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 4

    group_id: String = wire(0, 5)
    member_id: String = wire(0, 2)
    members: list[MemberIdentity] = wire(3, 5)


@struct
class MemberResponse(Struct):
    member_id: String = wire(3, 5)
    group_instance_id: String | None = wire(3, 5)
    error_code: Int16 = wire(3, 5)


@struct
class LeaveGroupResponse(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 4

    throttle_time_ms: Int32 = wire(1, 5)
    error_code: Int16 = wire(0, 5)
    members: list[MemberResponse] = wire(3, 5)
