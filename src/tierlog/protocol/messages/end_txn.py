"""EndTxn (API key 26). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, struct, wire


@struct
class EndTxnRequest(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    transactional_id: String = wire(0, 5)
    producer_id: Int64 = wire(0, 5)
    producer_epoch: Int16 = wire(0, 5)
    committed: Bool = wire(0, 5)


@struct
class EndTxnResponse(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    throttle_time_ms: Int32 = wire(0, 5)
    error_code: Int16 = wire(0, 5)
    producer_id: Int64 = wire(5, 5, default=-1)
    producer_epoch: Int16 = wire(5, 5, default=-1)
