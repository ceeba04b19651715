"""ListTransactions (API key 66). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class ListTransactionsRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    state_filters: list[String] = wire(0, 2)
    producer_id_filters: list[Int64] = wire(0, 2)
    duration_filter: Int64 = wire(1, 2, default=-1)
    transactional_id_pattern: String | None = wire(2, 2, default=None)


@struct
class TransactionState(Struct):
    transactional_id: String = wire(0, 2)
    producer_id: Int64 = wire(0, 2)
    transaction_state: String = wire(0, 2)


@struct
class ListTransactionsResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 2)
    error_code: Int16 = wire(0, 2)
    unknown_state_filters: list[String] = wire(0, 2)
    transaction_states: list[TransactionState] = wire(0, 2)
