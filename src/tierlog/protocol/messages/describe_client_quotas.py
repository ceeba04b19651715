"""DescribeClientQuotas (API key 48). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Float64, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class ComponentData(Struct):
    entity_type: String = wire(0, 1)
    match_type: Int8 = wire(0, 1)
    match: String | None = wire(0, 1)


@struct
class DescribeClientQuotasRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    components: list[ComponentData] = wire(0, 1)
    strict: Bool = wire(0, 1)


@struct
class EntityData(Struct):
    entity_type: String = wire(0, 1)
    entity_name: String | None = wire(0, 1)


@struct
class ValueData(Struct):
    key: String = wire(0, 1)
    value: Float64 = wire(0, 1)


@struct
class EntryData(Struct):
    entity: list[EntityData] = wire(0, 1)
    values: list[ValueData] = wire(0, 1)


@struct
class DescribeClientQuotasResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1)
    entries: list[EntryData] | None = wire(0, 1)
