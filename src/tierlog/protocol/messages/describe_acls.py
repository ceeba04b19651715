"""DescribeAcls (API key 29). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class DescribeAclsRequest(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    resource_type_filter: Int8 = wire(1, 3)
    resource_name_filter: String | None = wire(1, 3)
    pattern_type_filter: Int8 = wire(1, 3, default=3)
    principal_filter: String | None = wire(1, 3)
    host_filter: String | None = wire(1, 3)
    operation: Int8 = wire(1, 3)
    permission_type: Int8 = wire(1, 3)


@struct
class AclDescription(Struct):
    principal: String = wire(1, 3)
    host: String = wire(1, 3)
    operation: Int8 = wire(1, 3)
    permission_type: Int8 = wire(1, 3)


@struct
class DescribeAclsResource(Struct):
    resource_type: Int8 = wire(1, 3)
    resource_name: String = wire(1, 3)
    pattern_type: Int8 = wire(1, 3, default=3)
    acls: list[AclDescription] = wire(1, 3)


@struct
class DescribeAclsResponse(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(1, 3)
    error_code: Int16 = wire(1, 3)
    error_message: String | None = wire(1, 3)
    resources: list[DescribeAclsResource] = wire(1, 3)
