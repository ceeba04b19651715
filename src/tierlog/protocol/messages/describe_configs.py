"""DescribeConfigs (API key 32). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class DescribeConfigsResource(Struct):
    resource_type: Int8 = wire(1, 4)
    resource_name: String = wire(1, 4)
    configuration_keys: list[String] | None = wire(1, 4)


@struct
class DescribeConfigsRequest(Message):
    VERSIONS = (1, 4)
    FLEXIBLE = 4

    resources: list[DescribeConfigsResource] = wire(1, 4)
    include_synonyms: Bool = wire(1, 4)
    include_documentation: Bool = wire(3, 4)


@struct
class DescribeConfigsSynonym(Struct):
    name: String = wire(1, 4)
    value: String | None = wire(1, 4)
    source: Int8 = wire(1, 4)


@struct
class DescribeConfigsResourceResult(Struct):
    name: String = wire(1, 4)
    value: String | None = wire(1, 4)
    read_only: Bool = wire(1, 4)
    config_source: Int8 = wire(1, 4, default=-1)
    is_sensitive: Bool = wire(1, 4)
    synonyms: list[DescribeConfigsSynonym] = wire(1, 4)
    config_type: Int8 = wire(3, 4)
    documentation: String | None = wire(3, 4)


@struct
class DescribeConfigsResult(Struct):
    error_code: Int16 = wire(1, 4)
    error_message: String | None = wire(1, 4)
    resource_type: Int8 = wire(1, 4)
    resource_name: String = wire(1, 4)
    configs: list[DescribeConfigsResourceResult] = wire(1, 4)


@struct
class DescribeConfigsResponse(Message):
    VERSIONS = (1, 4)
    FLEXIBLE = 4

    throttle_time_ms: Int32 = wire(1, 4)
    results: list[DescribeConfigsResult] = wire(1, 4)
