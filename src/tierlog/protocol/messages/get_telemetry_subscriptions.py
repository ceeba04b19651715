"""GetTelemetrySubscriptions (API key 71). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Uuid, struct, wire


@struct
class GetTelemetrySubscriptionsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    client_instance_id: Uuid = wire(0, 0)


@struct
class GetTelemetrySubscriptionsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    client_instance_id: Uuid = wire(0, 0)
    subscription_id: Int32 = wire(0, 0)
    accepted_compression_types: list[Int8] = wire(0, 0)
    push_interval_ms: Int32 = wire(0, 0)
    telemetry_max_bytes: Int32 = wire(0, 0)
    delta_temporality: Bool = wire(0, 0)
    requested_metrics: list[String] = wire(0, 0)
