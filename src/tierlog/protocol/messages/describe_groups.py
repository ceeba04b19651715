"""DescribeGroups (API key 15). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Bytes, Int16, Int32, Message, String, Struct, struct, wire


@struct
class DescribeGroupsRequest(Message):
    VERSIONS = (0, 6)
    FLEXIBLE = 5

    groups: list[String] = wire(0, 6)
    include_authorized_operations: Bool = wire(3, 6)


@struct
class DescribedGroupMember(Struct):
    member_id: String = wire(0, 6)
    group_instance_id: String | None = wire(4, 6, default=None)
    client_id: String = wire(0, 6)
    client_host: String = wire(0, 6)
    member_metadata: Bytes = wire(0, 6)
    member_assignment: Bytes = wire(0, 6)


@struct
class DescribedGroup(Struct):
    error_code: Int16 = wire(0, 6)
    error_message: String | None = wire(6, 6, default=None)
    group_id: String = wire(0, 6)
    group_state: String = wire(0, 6)
    protocol_type: String = wire(0, 6)
    protocol_data: String = wire(0, 6)
    members: list[DescribedGroupMember] = wire(0, 6)
    authorized_operations: Int32 = wire(3, 6, default=-2147483648)


@struct
class DescribeGroupsResponse(Message):
    VERSIONS = (0, 6)
    FLEXIBLE = 5

    throttle_time_ms: Int32 = wire(1, 6)
    groups: list[DescribedGroup] = wire(0, 6)
