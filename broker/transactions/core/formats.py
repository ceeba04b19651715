"""Record formats of `__transaction_state`: Kafka's own, so that Kafka's tools can read the topic.

A key begins with an int16 version 0. A value begins with version 0, or 1, which has tagged fields (KIP-890);
both are read, and version 1 is written. A value of None is a tombstone.

Tag 3 is of KIP-939, and Kafka 4.3 ignores it.

Schemas: transaction-coordinator/src/main/resources/common/message/TransactionLog{Key,Value}.json of Kafka.
"""

from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.broker.coordinators.core.stored import (
    FormatError,
    decode_stored,
    encode_stored,
    stored_version,
)
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.states import TransactionState
from tierlog.broker.transactions.core.transaction import NO_EPOCH, Transaction
from tierlog.protocol.schema import Int8, Int16, Int32, Int64, Message, String, Struct, struct, versions

WRITTEN_VERSION = 1


@struct
class _TransactionLogKey(Message):
    VERSIONS = (0, 0)

    transactional_id: String = versions(0, 0)


@struct
class _Partitions(Struct):
    topic: String = versions(0, 1)
    partition_ids: list[Int32] = versions(0, 1)


@struct
class _TransactionLogValue(Message):
    VERSIONS = (0, 1)
    FLEXIBLE = 1

    producer_id: Int64 = versions(0, 1)
    previous_producer_id: Int64 = versions(1, 1, default=NO_PRODUCER_ID, tag=0)
    next_producer_id: Int64 = versions(1, 1, default=NO_PRODUCER_ID, tag=1)
    producer_epoch: Int16 = versions(0, 1)
    transaction_timeout_ms: Int32 = versions(0, 1)
    transaction_status: Int8 = versions(0, 1)
    transaction_partitions: list[_Partitions] | None = versions(0, 1, default=None)
    transaction_last_update_timestamp_ms: Int64 = versions(0, 1)
    transaction_start_timestamp_ms: Int64 = versions(0, 1)
    client_transaction_version: Int16 = versions(1, 1, tag=2)
    next_producer_epoch: Int16 = versions(1, 1, default=NO_EPOCH, tag=3)


def encode_key(transactional_id: str) -> bytes:
    return encode_stored(_TransactionLogKey(transactional_id=transactional_id), 0)


def decode_key(data: bytes | memoryview) -> str | None:
    """The transactional id; None for an unknown key version. Raises FormatError for a malformed key."""
    if (version := stored_version(data)) != 0:
        return None
    return decode_stored(_TransactionLogKey, version, data).transactional_id


def encode_value(transaction: Transaction) -> bytes:
    numbers = numbers_by_topic(transaction.partitions)
    partitions = [_Partitions(topic=topic, partition_ids=ids) for topic, ids in numbers.items()]
    value = _TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
        next_producer_epoch=transaction.next_producer_epoch,
    )
    return encode_stored(value, WRITTEN_VERSION)


def decode_value(transactional_id: str, data: bytes | memoryview) -> Transaction:
    """Raises FormatError."""
    value = decode_stored(_TransactionLogValue, stored_version(data), data)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise FormatError(f"transaction status {value.transaction_status} is not known") from None
    if state is TransactionState.DEAD:
        raise FormatError("a dead transactional id has a tombstone")
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(each.topic, partition)
            for each in value.transaction_partitions or ()
            for partition in each.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )
