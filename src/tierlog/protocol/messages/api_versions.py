"""ApiVersions (API key 18). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class ApiVersionsRequest(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 3

    client_software_name: String = wire(3, 4)
    client_software_version: String = wire(3, 4)


@struct
class ApiVersion(Struct):
    api_key: Int16 = wire(0, 4)
    min_version: Int16 = wire(0, 4)
    max_version: Int16 = wire(0, 4)


@struct
class SupportedFeatureKey(Struct):
    name: String = wire(3, 4)
    min_version: Int16 = wire(3, 4)
    max_version: Int16 = wire(3, 4)


@struct
class FinalizedFeatureKey(Struct):
    name: String = wire(3, 4)
    max_version_level: Int16 = wire(3, 4)
    min_version_level: Int16 = wire(3, 4)


@struct
class ApiVersionsResponse(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 3

    error_code: Int16 = wire(0, 4)
    api_keys: list[ApiVersion] = wire(0, 4)
    throttle_time_ms: Int32 = wire(1, 4)
    supported_features: list[SupportedFeatureKey] = wire(3, 4, tag=0)
    finalized_features_epoch: Int64 = wire(3, 4, default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = wire(3, 4, tag=2)
    zk_migration_ready: Bool = wire(3, 4, tag=3)
