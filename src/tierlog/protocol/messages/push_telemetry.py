"""PushTelemetry (API key 72). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Bytes, Int16, Int32, Int8, Message, Uuid, struct, wire


@struct
class PushTelemetryRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    client_instance_id: Uuid = wire(0, 0)
    subscription_id: Int32 = wire(0, 0)
    terminating: Bool = wire(0, 0)
    compression_type: Int8 = wire(0, 0)
    metrics: Bytes = wire(0, 0)


@struct
class PushTelemetryResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
