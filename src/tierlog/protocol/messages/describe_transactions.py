"""DescribeTransactions (API key 65). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class DescribeTransactionsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    transactional_ids: list[String] = wire(0, 0)


@struct
class TopicData(Struct):
    topic: String = wire(0, 0)
    partitions: list[Int32] = wire(0, 0)


@struct
class TransactionState(Struct):
    error_code: Int16 = wire(0, 0)
    transactional_id: String = wire(0, 0)
    transaction_state: String = wire(0, 0)
    transaction_timeout_ms: Int32 = wire(0, 0)
    transaction_start_time_ms: Int64 = wire(0, 0)
    producer_id: Int64 = wire(0, 0)
    producer_epoch: Int16 = wire(0, 0)
    topics: list[TopicData] = wire(0, 0)


@struct
class DescribeTransactionsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    transaction_states: list[TransactionState] = wire(0, 0)
