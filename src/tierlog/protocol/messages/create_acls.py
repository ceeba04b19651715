"""CreateAcls (API key 30). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class AclCreation(Struct):
    resource_type: Int8 = wire(1, 3)
    resource_name: String = wire(1, 3)
    resource_pattern_type: Int8 = wire(1, 3, default=3)
    principal: String = wire(1, 3)
    host: String = wire(1, 3)
    operation: Int8 = wire(1, 3)
    permission_type: Int8 = wire(1, 3)


@struct
class CreateAclsRequest(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    creations: list[AclCreation] = wire(1, 3)


@struct
class AclCreationResult(Struct):
    error_code: Int16 = wire(1, 3)
    error_message: String | None = wire(1, 3)


@struct
class CreateAclsResponse(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(1, 3)
    results: list[AclCreationResult] = wire(1, 3)
