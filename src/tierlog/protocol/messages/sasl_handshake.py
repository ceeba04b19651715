"""SaslHandshake (API key 17). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Message, String, struct, wire


@struct
class SaslHandshakeRequest(Message):
    VERSIONS = (0, 1)

    mechanism: String = wire(0, 1)


@struct
class SaslHandshakeResponse(Message):
    VERSIONS = (0, 1)

    error_code: Int16 = wire(0, 1)
    mechanisms: list[String] = wire(0, 1)
