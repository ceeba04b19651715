"""ExpireDelegationToken (API key 40). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int16, Int32, Int64, Message, struct, wire


@struct
class ExpireDelegationTokenRequest(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 2

    hmac: Bytes = wire(1, 2)
    expiry_time_period_ms: Int64 = wire(1, 2)


@struct
class ExpireDelegationTokenResponse(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 2

    error_code: Int16 = wire(1, 2)
    expiry_timestamp_ms: Int64 = wire(1, 2)
    throttle_time_ms: Int32 = wire(1, 2)
