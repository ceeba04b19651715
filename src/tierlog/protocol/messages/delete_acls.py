"""DeleteAcls (API key 31). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class DeleteAclsFilter(Struct):
    resource_type_filter: Int8 = wire(1, 3)
    resource_name_filter: String | None = wire(1, 3)
    pattern_type_filter: Int8 = wire(1, 3, default=3)
    principal_filter: String | None = wire(1, 3)
    host_filter: String | None = wire(1, 3)
    operation: Int8 = wire(1, 3)
    permission_type: Int8 = wire(1, 3)


@struct
class DeleteAclsRequest(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    filters: list[DeleteAclsFilter] = wire(1, 3)


@struct
class DeleteAclsMatchingAcl(Struct):
    error_code: Int16 = wire(1, 3)
    error_message: String | None = wire(1, 3)
    resource_type: Int8 = wire(1, 3)
    resource_name: String = wire(1, 3)
    pattern_type: Int8 = wire(1, 3, default=3)
    principal: String = wire(1, 3)
    host: String = wire(1, 3)
    operation: Int8 = wire(1, 3)
    permission_type: Int8 = wire(1, 3)


@struct
class DeleteAclsFilterResult(Struct):
    error_code: Int16 = wire(1, 3)
    error_message: String | None = wire(1, 3)
    matching_acls: list[DeleteAclsMatchingAcl] = wire(1, 3)


@struct
class DeleteAclsResponse(Message):
    VERSIONS = (1, 3)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(1, 3)
    filter_results: list[DeleteAclsFilterResult] = wire(1, 3)
