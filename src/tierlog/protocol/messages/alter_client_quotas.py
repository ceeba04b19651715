"""AlterClientQuotas (API key 49). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Float64, Int16, Int32, Message, String, Struct, struct, wire


@struct
class EntityData(Struct):
    entity_type: String = wire(0, 1)
    entity_name: String | None = wire(0, 1)


@struct
class OpData(Struct):
    key: String = wire(0, 1)
    value: Float64 = wire(0, 1)
    remove: Bool = wire(0, 1)


@struct
class EntryData(Struct):
    entity: list[EntityData] = wire(0, 1)
    ops: list[OpData] = wire(0, 1)


@struct
class AlterClientQuotasRequest(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    entries: list[EntryData] = wire(0, 1)
    validate_only: Bool = wire(0, 1)


@struct
class EntryDataResponse(Struct):
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1)
    entity: list[EntityData] = wire(0, 1)


@struct
class AlterClientQuotasResponse(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    throttle_time_ms: Int32 = wire(0, 1)
    entries: list[EntryDataResponse] = wire(0, 1)
