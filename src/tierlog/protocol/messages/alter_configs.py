"""AlterConfigs (API key 33). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class AlterableConfig(Struct):
    name: String = wire(0, 2)
    value: String | None = wire(0, 2)


@struct
class AlterConfigsResource(Struct):
    resource_type: Int8 = wire(0, 2)
    resource_name: String = wire(0, 2)
    configs: list[AlterableConfig] = wire(0, 2)


@struct
class AlterConfigsRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    resources: list[AlterConfigsResource] = wire(0, 2)
    validate_only: Bool = wire(0, 2)


@struct
class AlterConfigsResourceResponse(Struct):
    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(0, 2)
    resource_type: Int8 = wire(0, 2)
    resource_name: String = wire(0, 2)


@struct
class AlterConfigsResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(0, 2)
    responses: list[AlterConfigsResourceResponse] = wire(0, 2)
