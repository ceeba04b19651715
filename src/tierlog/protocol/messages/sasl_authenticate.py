"""SaslAuthenticate (API key 36). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int16, Int64, Message, String, struct, wire


@struct
class SaslAuthenticateRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    auth_bytes: Bytes = wire(0, 2)


@struct
class SaslAuthenticateResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 2

    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(0, 2)
    auth_bytes: Bytes = wire(0, 2)
    session_lifetime_ms: Int64 = wire(1, 2)
