"""JoinGroup (API key 11). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Bytes, Int16, Int32, Message, String, Struct, struct, wire


@struct
class JoinGroupRequestProtocol(Struct):
    name: String = wire(0, 9)
    metadata: Bytes = wire(0, 9)


@struct
class JoinGroupRequest(Message):
    VERSIONS = (0, 9)
    FLEXIBLE = 6

    group_id: String = wire(0, 9)
    session_timeout_ms: Int32 = wire(0, 9)
    rebalance_timeout_ms: Int32 = wire(1, 9, default=-1)
    member_id: String = wire(0, 9)
    group_instance_id: String | None = wire(5, 9, default=None)
    protocol_type: String = wire(0, 9)
    protocols: list[JoinGroupRequestProtocol] = wire(0, 9)
    reason: String | None = wire(8, 9, default=None)


@struct
class JoinGroupResponseMember(Struct):
    member_id: String = wire(0, 9)
    group_instance_id: String | None = wire(5, 9, default=None)
    metadata: Bytes = wire(0, 9)


@struct
class JoinGroupResponse(Message):
    VERSIONS = (0, 9)
    FLEXIBLE = 6

    throttle_time_ms: Int32 = wire(2, 9)
    error_code: Int16 = wire(0, 9)
    generation_id: Int32 = wire(0, 9, default=-1)
    protocol_type: String | None = wire(7, 9, default=None)
    protocol_name: String | None = wire(0, 9, nullable=(7, 9))
    leader: String = wire(0, 9)
    skip_assignment: Bool = wire(9, 9)
    member_id: String = wire(0, 9)
    members: list[JoinGroupResponseMember] = wire(0, 9)
