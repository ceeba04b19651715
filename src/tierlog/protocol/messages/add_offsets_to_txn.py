"""AddOffsetsToTxn (API key 25). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, struct, wire


@struct
class AddOffsetsToTxnRequest(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 3

    transactional_id: String = wire(0, 4)
    producer_id: Int64 = wire(0, 4)
    producer_epoch: Int16 = wire(0, 4)
    group_id: String = wire(0, 4)


@struct
class AddOffsetsToTxnResponse(Message):
    VERSIONS = (0, 4)
    FLEXIBLE = 3

    throttle_time_ms: Int32 = wire(0, 4)
    error_code: Int16 = wire(0, 4)
