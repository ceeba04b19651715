"""Idempotent producers through sockets: five batches in flight, retries, epochs, wraps, kills, expiry."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from cutting_proxy import CuttingProxy
from waiting import until
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import produce
from tierlog.records.batch import read_header
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

LARGEST = 2**31 - 1
NOW_MS = int(time.time() * 1000)
TIMEOUT_S = 60.0


class Sender:
    """One producer id; batches of two records."""

    def __init__(self, client: Client, topic: str, producer_id: int | None = None) -> None:
        self.client, self.topic = client, topic
        self.producer_id = client.producer_id() if producer_id is None else producer_id

    def batch(self, sequence: int, epoch: int = 0, count: int = 2) -> bytes:
        values = [b"%d" % ((sequence + number) & LARGEST) for number in range(count)]
        records = [NewRecord(NOW_MS, None, value) for value in values]
        return bytes(
            encode_batch(records, producer_id=self.producer_id, producer_epoch=epoch, base_sequence=sequence)
        )

    def send(self, sequence: int, epoch: int = 0, count: int = 2) -> tuple[int, int]:
        answer = self.client.produce(self.topic, self.batch(sequence, epoch, count))
        return answer.error_code, answer.base_offset


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def values(client: Client, topic: str) -> list[int]:
    """The first sequence of each batch that a consumer reads."""
    found, offset = [], 0
    while records := client.fetch(topic, offset).responses[0].partitions[0].records:
        while records:
            header = read_header(records)
            found.append(header.base_sequence)
            offset = header.next_offset
            records = records[header.size :]
    return found


def test_five_batches_in_flight_are_written_in_order(client: Client) -> None:
    sender = Sender(client, client.create())
    for sequence in (0, 2, 4, 6, 8):
        data = produce.PartitionProduceData(index=0, records=sender.batch(sequence))
        topics = [produce.TopicProduceData(name=sender.topic, partition_data=[data])]
        client.post("Produce", 9, produce.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics))
    answers = [client.receive("Produce", 9).responses[0].partition_responses[0] for _ in range(5)]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, n) for n in (0, 2, 4, 6, 8)]
    assert [sender.send(sequence) for sequence in (0, 2, 4, 6, 8)] == [(0, n) for n in (0, 2, 4, 6, 8)]
    assert values(client, sender.topic) == [0, 2, 4, 6, 8]


def test_batches_after_a_missing_one_are_rejected_until_it_arrives(client: Client) -> None:
    sender = Sender(client, client.create())
    assert sender.send(0) == (0, 0)
    for late in (4, 6, 8):
        assert sender.send(late) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert [sender.send(sequence) for sequence in (2, 4, 6, 8)] == [(0, 2), (0, 4), (0, 6), (0, 8)]
    assert values(client, sender.topic) == [0, 2, 4, 6, 8]


def test_only_the_last_five_batches_are_recognised_as_duplicates(client: Client) -> None:
    sender = Sender(client, client.create())
    for sequence in range(0, 12, 2):
        sender.send(sequence)
    assert [sender.send(sequence) for sequence in range(2, 12, 2)] == [(0, n) for n in range(2, 12, 2)]
    assert sender.send(0)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(10, count=1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "not the same batch"
    assert values(client, sender.topic) == list(range(0, 12, 2))


def test_sequences_wrap_within_and_between_batches(client: Client) -> None:
    within, between = (Sender(client, client.create()) for _ in range(2))
    assert within.send(LARGEST - 1, count=4) == (0, 0)  # ..., 2^31-1, 0, 1
    assert within.send(0)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert within.send(2) == (0, 4)
    assert within.send(LARGEST - 1, count=4) == (0, 0), "a retry over the wrap"
    assert between.send(LARGEST - 1) == (0, 0)
    assert between.send(LARGEST)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert between.send(0) == (0, 2)
    assert (between.send(LARGEST - 1), between.send(0)) == ((0, 0), (0, 2))


def test_producer_epoch_starts_at_sequence_zero_and_fences_the_previous(client: Client) -> None:
    sender = Sender(client, client.create())
    assert sender.send(0) == (0, 0)
    assert sender.send(2, epoch=1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(0, epoch=1) == (0, 2)
    assert sender.send(2)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert sender.send(0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH, "its retries too"
    assert (sender.send(0, epoch=1), sender.send(2, epoch=1)) == ((0, 2), (0, 4))


def test_sequences_are_independent_per_partition_and_producer(client: Client) -> None:
    first = Sender(client, client.create())
    second = Sender(client, first.topic)
    elsewhere = Sender(client, client.create(), first.producer_id)
    assert first.producer_id != second.producer_id
    assert [each.send(0) for each in (first, second, elsewhere)] == [(0, 0), (0, 2), (0, 0)]
    assert first.send(2) == (0, 4)


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_retries_are_recognised_after_a_restart_and_across_segments(
    tierlog_broker_factory: TierlogBrokerFactory, clean: bool
) -> None:
    broker = tierlog_broker_factory()
    client = Client(broker.bootstrap)
    sender = Sender(client, client.create(segment_bytes="200"))  # a roll, and a snapshot, with each batch
    for sequence in range(0, 14, 2):
        assert sender.send(sequence) == (0, sequence)
    assert len(list(broker.data_dir.rglob("*.snapshot"))) >= 3
    client.close()
    (broker.stop if clean else broker.kill)()
    broker.start()
    client = Client(broker.bootstrap)
    again = Sender(client, sender.topic, sender.producer_id)
    assert [again.send(sequence) for sequence in range(4, 14, 2)] == [(0, n) for n in range(4, 14, 2)]
    assert again.send(14) == (0, 14)
    assert client.producer_id() > sender.producer_id, "a block that was begun is not used twice"
    client.close()


@pytest.mark.slow
@pytest.mark.nightly
def test_all_five_batches_of_1500_producers_are_known_after_a_clean_restart(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    """Their batches are interleaved, so the first of them is 6,000 batches before the end of the log."""
    broker = tierlog_broker_factory()
    client = Client(broker.bootstrap)
    topic = client.create(segment_bytes="200000")
    first = client.producer_id()
    senders = [Sender(client, topic, first)]
    senders += [Sender(client, topic, client.producer_id()) for _ in range(1499)]
    written = {
        (sender.producer_id, sequence): sender.send(sequence)
        for sequence in range(0, 10, 2)
        for sender in senders
    }
    assert {error for error, _ in written.values()} == {0}
    client.close()
    broker.stop()
    broker.start()
    client = Client(broker.bootstrap)
    for (producer_id, sequence), answer in written.items():
        assert Sender(client, topic, producer_id).send(sequence) == answer
    client.close()


def test_idle_producer_id_expires(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"producer.id.expiration.ms": 1, "log.retention.check.interval.ms": 50})
    client = Client(broker.bootstrap)
    sender = Sender(client, client.create())
    assert sender.send(0) == (0, 0)
    until(lambda: sender.send(0) == (0, 2), "a retry is taken for new once its producer is forgotten")
    until(lambda: sender.send(77)[0] == 0, "and an unknown producer may start at any sequence (KIP-360)")
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_real_client_writes_no_duplicates_over_broken_connections(
    tierlog_broker_factory: TierlogBrokerFactory, seed: int
) -> None:
    """Each connection breaks within a response, so the client sends written batches again."""
    proxy = CuttingProxy(seed, 1_000, 3_000)
    broker = tierlog_broker_factory({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"})
    proxy.forward_to(broker.host, broker.port)
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{proxy.port}",
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 20,
            "retry.backoff.ms": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "delivery.timeout.ms": 60_000,
        }
    )
    offsets: dict[int, int] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets[int(message.value() or b"")] = message.offset() or 0

    count = 6_000
    for number in range(count):
        producer.produce("t", b"%d" % number, partition=0, on_delivery=delivered)
        if number % 20 == 0:
            producer.poll(0.001)
    assert producer.flush(TIMEOUT_S) == 0
    assert proxy.cuts >= 5
    proxy.stop_cutting()
    assert offsets == {number: number for number in range(count)}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    found, deadline = [], time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [int(message.value() or b"") for message in consumer.consume(1_000, 0.1)]
    consumer.close()
    assert found == list(range(count))
    proxy.close()
