"""DeleteGroups (API key 42). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, struct, wire


@struct
class DeleteGroupsRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    groups_names: list[String] = wire(0, 2)


@struct
class DeletableGroupResult(Struct):
    group_id: String = wire(0, 2)
    error_code: Int16 = wire(0, 2)


@struct
class DeleteGroupsResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(0, 2)
    results: list[DeletableGroupResult] = wire(0, 2)
