"""ListGroups (API key 16). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, struct, wire


@struct
class ListGroupsRequest(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    states_filter: list[String] = wire(4, 5)
    types_filter: list[String] = wire(5, 5)


@struct
class ListedGroup(Struct):
    group_id: String = wire(0, 5)
    protocol_type: String = wire(0, 5)
    group_state: String = wire(4, 5)
    group_type: String = wire(5, 5)


@struct
class ListGroupsResponse(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    throttle_time_ms: Int32 = wire(1, 5)
    error_code: Int16 = wire(0, 5)
    groups: list[ListedGroup] = wire(0, 5)
