"""UpdateFeatures (API key 57). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class FeatureUpdateKey(Struct):
    feature: String = wire(0, 2)
    max_version_level: Int16 = wire(0, 2)
    allow_downgrade: Bool = wire(0, 0)
    upgrade_type: Int8 = wire(1, 2, default=1)


@struct
class UpdateFeaturesRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    timeout_ms: Int32 = wire(0, 2, default=60000)
    feature_updates: list[FeatureUpdateKey] = wire(0, 2)
    validate_only: Bool = wire(1, 2)


@struct
class UpdatableFeatureResult(Struct):
    feature: String = wire(0, 1)
    error_code: Int16 = wire(0, 1)
    error_message: String | None = wire(0, 1)


@struct
class UpdateFeaturesResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 2)
    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(0, 2)
    results: list[UpdatableFeatureResult] = wire(0, 1)
