"""UnregisterBroker (API key 64). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, struct, wire


@struct
class UnregisterBrokerRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    broker_id: Int32 = wire(0, 0)


@struct
class UnregisterBrokerResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0)
