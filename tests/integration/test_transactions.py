"""Transactions of real clients on one broker (KIP-98): commits, aborts, offsets, fencing, timeouts."""

import asyncio
from collections.abc import Iterator

import aiokafka
import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from swallowing_proxy import SwallowingProxy
from waiting import until
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import end_txn, list_transactions
from tierlog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

TIMEOUT_S = 90.0
TOPIC, OTHER = "orders", "payments"


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    running = tierlog_broker_factory()
    topics = [NewTopic(TOPIC, 2, 1), NewTopic(OTHER, 1, 1)]
    client = admin(running)
    for created in client.create_topics(topics).values():
        created.result(TIMEOUT_S)
    return running


@pytest.fixture
def wire(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap)
    yield client
    client.close()


def admin(broker: TierlogBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def producer(broker: TierlogBroker, name: str = "t", **options: object) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, **options})
    made.init_transactions(TIMEOUT_S)
    return made


def send(made: Producer, *values: str, topic: str = TOPIC, partition: int = 0) -> None:
    failed: list[object] = []
    for value in values:
        made.produce(topic, value, partition=partition, on_delivery=lambda error, _: failed.append(error))
    assert made.flush(TIMEOUT_S) == 0
    assert failed == [None] * len(values)


def end_offset(broker: TierlogBroker, topic: str, partition: int, *, committed: bool) -> int:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    name = TopicPartition(topic, partition)
    client = admin(broker)
    found = client.list_offsets({name: OffsetSpec.latest()}, isolation_level=level)
    return int(found[name].result(TIMEOUT_S).offset)


def read(broker: TierlogBroker, topic: str, partition: int = 0, *, committed: bool = True) -> list[str]:
    """The values below the end that this isolation level sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[str] = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "neither a record nor the end"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        found.append(message.value().decode())
    consumer.close()
    return found


def test_transaction_over_partitions_is_committed_or_aborted_as_a_whole(broker: TierlogBroker) -> None:
    made = producer(broker)
    made.begin_transaction()
    send(made, "a")
    send(made, "b", partition=1)
    assert read(broker, TOPIC) == []
    assert read(broker, TOPIC, committed=False) == ["a"]
    made.commit_transaction(TIMEOUT_S)
    made.begin_transaction()
    send(made, "c")
    send(made, "d", partition=1)
    made.abort_transaction(TIMEOUT_S)
    assert (read(broker, TOPIC), read(broker, TOPIC, 1)) == (["a"], ["b"])
    assert read(broker, TOPIC, committed=False) == ["a", "c"]


def test_offsets_count_with_the_transaction(broker: TierlogBroker) -> None:
    made, name = producer(broker), TopicPartition(TOPIC, 0)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "copy", "enable.auto.commit": False}
    reader = Consumer({**settings, "auto.offset.reset": "earliest"})
    reader.subscribe([TOPIC])
    made.begin_transaction()
    send(made, "x")
    made.commit_transaction(TIMEOUT_S)
    message = reader.poll(TIMEOUT_S)
    assert message is not None and message.value() == b"x"
    for end, expected in (("abort", -1001), ("commit", 1)):
        made.begin_transaction()
        send(made, "y", topic=OTHER)
        made.send_offsets_to_transaction(
            [TopicPartition(TOPIC, 0, 1)], reader.consumer_group_metadata(), TIMEOUT_S
        )
        (made.abort_transaction if end == "abort" else made.commit_transaction)(TIMEOUT_S)
        assert reader.committed([name], TIMEOUT_S)[0].offset == expected
    reader.close()
    assert read(broker, OTHER) == ["y"]


def test_new_producer_fences_the_old_one_and_aborts_its_transaction(broker: TierlogBroker) -> None:
    old = producer(broker)
    old.begin_transaction()
    send(old, "lost")
    new = producer(broker)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    new.begin_transaction()
    send(new, "kept")
    new.commit_transaction(TIMEOUT_S)
    assert read(broker, TOPIC) == ["kept"]


def test_open_transaction_is_aborted_after_its_timeout(broker: TierlogBroker) -> None:
    made = producer(broker, **{"transaction.timeout.ms": 3000})
    made.begin_transaction()
    send(made, "late")
    record_and_marker = 2
    until(
        lambda: end_offset(broker, TOPIC, 0, committed=True) == record_and_marker,
        "the last stable offset passes the abort marker",
    )
    with pytest.raises(KafkaException):
        made.commit_transaction(TIMEOUT_S)
    assert read(broker, TOPIC) == []


def test_records_are_deleted_inside_an_open_transaction(broker: TierlogBroker) -> None:
    """The rest of the transaction stays hidden until its end, and is dropped by an abort."""
    made, client = producer(broker), admin(broker)
    for partition, end in enumerate((made.commit_transaction, made.abort_transaction)):
        made.begin_transaction()
        send(made, "a", "b", partition=partition)
        deleted = TopicPartition(TOPIC, partition, 1)
        client.delete_records([deleted])[deleted].result(TIMEOUT_S)
        assert end_offset(broker, TOPIC, partition, committed=True) == 1
        assert read(broker, TOPIC, partition) == []
        assert read(broker, TOPIC, partition, committed=False) == ["b"]
        send(made, "c", partition=partition)
        end(TIMEOUT_S)
    for partition, expected in enumerate((["b", "c"], [])):
        until(
            lambda partition=partition: end_offset(broker, TOPIC, partition, committed=True) == 4,  # type: ignore[misc]
            "the last stable offset passes the marker",
        )
        assert read(broker, TOPIC, partition) == expected


def test_transaction_ends_although_one_of_its_topics_was_deleted(broker: TierlogBroker) -> None:
    """Its other partitions get their outcome, the next transaction begins, and a new topic of the same name
    has nothing of it."""
    made, client = producer(broker), admin(broker)
    made.begin_transaction()
    send(made, "kept")
    send(made, "deleted", topic=OTHER)
    client.delete_topics([OTHER])[OTHER].result(TIMEOUT_S)
    client.create_topics([NewTopic(OTHER, 1, 1)])[OTHER].result(TIMEOUT_S)
    made.commit_transaction(TIMEOUT_S)
    made.begin_transaction()
    send(made, "next")
    made.commit_transaction(TIMEOUT_S)
    until(lambda: read(broker, TOPIC) == ["kept", "next"], "both transactions are committed")
    assert read(broker, OTHER, committed=False) == []


def test_timeout_above_the_maximum_is_refused(broker: TierlogBroker) -> None:
    made = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "transaction.timeout.ms": 900_001}
    )
    with pytest.raises(KafkaException, match="timeout"):
        made.init_transactions(TIMEOUT_S)


@pytest.mark.parametrize("version", [4, 5])
def test_delayed_end_cannot_touch_a_later_transaction(
    broker: TierlogBroker, wire: Client, version: int
) -> None:
    """Only with transaction version 2 (EndTxn version 5): in older ones all transactions of a producer have
    the same epoch (KIP-890)."""
    made = wire.transactional_producer("t")

    def end(epoch: int, *, commit: bool) -> end_txn.EndTxnResponse:
        request = end_txn.EndTxnRequest(
            transactional_id="t", producer_id=made.producer_id, producer_epoch=epoch, committed=commit
        )
        response: end_txn.EndTxnResponse = wire.send("EndTxn", version, request)
        return response

    def send_in_transaction(value: bytes, epoch: int, sequence: int) -> int:
        names = {"producer_id": made.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        batch = encode_batch([NewRecord(1, b"k", value)], transactional=True, **names)
        if version < 5:
            added = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=made.producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
            )
            wire.send("AddPartitionsToTxn", 3, added)
        produce_version = 12 if version >= 5 else 11
        return wire.produce(TOPIC, bytes(batch), version=produce_version, transactional_id="t").error_code

    epoch = made.producer_epoch
    assert send_in_transaction(b"first", epoch, 0) == ErrorCode.NONE
    ended = end(epoch, commit=True)
    assert ended.error_code == ErrorCode.NONE
    later = ended.producer_epoch if version >= 5 else epoch
    assert send_in_transaction(b"second", later, 0 if version >= 5 else 1) == ErrorCode.NONE
    delayed = end(epoch, commit=False).error_code
    if version < 5:
        assert delayed == ErrorCode.NONE, "older clients are exposed, as with Kafka"
        return
    assert delayed == ErrorCode.PRODUCER_FENCED
    assert send_in_transaction(b"late", epoch, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(later, commit=True).error_code == ErrorCode.NONE
    until(lambda: read(broker, TOPIC) == ["first", "second"], "both transactions are committed")


async def test_transactions_of_aiokafka(broker: TierlogBroker) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="aio") as made:
        async with made.transaction():
            await made.send_and_wait(TOPIC, b"one", partition=0)
        with pytest.raises(ZeroDivisionError):
            async with made.transaction():
                await made.send_and_wait(TOPIC, b"two", partition=0)
                raise ZeroDivisionError
    assert await asyncio.to_thread(read, broker, TOPIC) == ["one"]


def test_transactions_are_listed_by_a_pattern_of_their_ids(broker: TierlogBroker, wire: Client) -> None:
    for name in ("orders-1", "orders-2", "other-orders-3"):
        producer(broker, name)

    def listed(pattern: str | None) -> tuple[int, list[str]]:
        request = list_transactions.ListTransactionsRequest(transactional_id_pattern=pattern)
        answer = wire.send("ListTransactions", 2, request)
        return answer.error_code, sorted(each.transactional_id for each in answer.transaction_states)

    assert listed("orders-[0-9]") == (ErrorCode.NONE, ["orders-1", "orders-2"])
    assert listed("orders") == (ErrorCode.NONE, []), "the whole id must match, as in Kafka"
    everything = ["orders-1", "orders-2", "other-orders-3"]
    assert listed(None) == listed("") == (ErrorCode.NONE, everything)
    for invalid in ("(", r"(a)\1", "(.*){1000}"):
        assert listed(invalid) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])


@pytest.fixture
def proxy() -> Iterator[SwallowingProxy]:
    made = SwallowingProxy()
    yield made
    made.close()


def test_record_after_an_abort_is_not_lost(
    tierlog_broker_factory: TierlogBrokerFactory, proxy: SwallowingProxy
) -> None:
    """librdkafka aborts while it does not know whether a batch was appended, and gives its sequence to the
    next record. Kafka takes that record for a retry."""
    running = tierlog_broker_factory({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"})
    proxy.target_port = running.port
    client = admin(running)
    client.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(TIMEOUT_S)
    made = producer(running)
    proxy.swallow()
    made.begin_transaction()
    made.produce(TOPIC, "aborted", partition=0)
    until(lambda: made.poll(0.01) == 0 and proxy.refused.is_set(), "the batch is repeated")
    made.abort_transaction(TIMEOUT_S)
    proxy.let_through()
    tries = 0
    while not commit(made, "committed"):
        tries += 1
    assert read(running, TOPIC) == ["committed"]
    assert tries == 1


def commit(made: Producer, value: str) -> bool:
    """Send a value in a transaction. If that fails it is aborted."""
    made.begin_transaction()
    made.produce(TOPIC, value, partition=0)
    try:
        made.commit_transaction(TIMEOUT_S)
    except KafkaException as failure:
        assert failure.args[0].txn_requires_abort(), failure
        made.abort_transaction(TIMEOUT_S)
        return False
    return True
