"""IncrementalAlterConfigs (API key 44). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class AlterableConfig(Struct):
    name: String = wire(0, 1)
    config_operation: Int8 = wire(0, 1)
    value: String | None = wire(0, 1)


@struct
class AlterConfigsResource(Struct):
    resource_type: Int8 = wire(0, 1)
    resource_name: String = wire(0, 1)
    configs: list[AlterableConfig] = wire(0, 1)


@struct
class IncrementalAlterConfigsRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    resources: list[AlterConfigsResource] = wire(0, 1)
    validate_only: Bool = wire(0, 1)


@struct
class AlterConfigsResourceResponse(Struct):
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1)
    resource_type: Int8 = wire(0, 1)
    resource_name: String = wire(0, 1)


@struct
class IncrementalAlterConfigsResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(0, 1)
    responses: list[AlterConfigsResourceResponse] = wire(0, 1)
