"""AddPartitionsToTxn (API key 24). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class AddPartitionsToTxnTopic(Struct):
    name: String = wire(0, 5)
    partitions: list[Int32] = wire(0, 5)


@struct
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: String = wire(4, 5)
    producer_id: Int64 = wire(4, 5)
    producer_epoch: Int16 = wire(4, 5)
    verify_only: Bool = wire(4, 5)
    topics: list[AddPartitionsToTxnTopic] = wire(4, 5)


@struct
class AddPartitionsToTxnRequest(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    v3_and_below_transactional_id: String = wire(0, 3)
    v3_and_below_producer_id: Int64 = wire(0, 3)
    v3_and_below_producer_epoch: Int16 = wire(0, 3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire(0, 3)
    transactions: list[AddPartitionsToTxnTransaction] = wire(4, 5)


@struct
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32 = wire(0, 5)
    partition_error_code: Int16 = wire(0, 5)


@struct
class AddPartitionsToTxnTopicResult(Struct):
    name: String = wire(0, 5)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(0, 5)


@struct
class AddPartitionsToTxnResult(Struct):
    transactional_id: String = wire(4, 5)
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(4, 5)


@struct
class AddPartitionsToTxnResponse(Message):
    VERSIONS = (0, 5)
    FLEXIBLE = 3

    throttle_time_ms: Int32 = wire(0, 5)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(0, 3)
    error_code: Int16 = wire(4, 5)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(4, 5)
