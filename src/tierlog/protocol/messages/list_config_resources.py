"""ListConfigResources (API key 74). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class ListConfigResourcesRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    resource_types: list[Int8] = wire(1, 1)


@struct
class ConfigResource(Struct):
    resource_name: String = wire(0, 1)
    resource_type: Int8 = wire(1, 1, default=16)


@struct
class ListConfigResourcesResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    config_resources: list[ConfigResource] = wire(0, 1)
