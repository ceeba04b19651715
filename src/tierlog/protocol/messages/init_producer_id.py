"""InitProducerId (API key 22). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, struct, wire


@struct
class InitProducerIdRequest(Message):
    VERSIONS = (0, 6)
    FLEXIBLE = 2

    transactional_id: String | None = wire(0, 6)
    transaction_timeout_ms: Int32 = wire(0, 6)
    producer_id: Int64 = wire(3, 6, default=-1)
    producer_epoch: Int16 = wire(3, 6, default=-1)
    enable2_pc: Bool = wire(6, 6)
    keep_prepared_txn: Bool = wire(6, 6)


@struct
class InitProducerIdResponse(Message):
    VERSIONS = (0, 6)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(0, 6)
    error_code: Int16 = wire(0, 6)
    producer_id: Int64 = wire(0, 6, default=-1)
    producer_epoch: Int16 = wire(0, 6)
    ongoing_txn_producer_id: Int64 = wire(6, 6, default=-1)
    ongoing_txn_producer_epoch: Int16 = wire(6, 6, default=-1)
