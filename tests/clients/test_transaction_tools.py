"""Kafka's `kafka-transactions` tool with tierlog, on open transactions and one that hangs."""

import pytest
from confluent_kafka import Producer
from java_process import TOOLS, java
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

TIMEOUT_S = 60.0
HANGING_PRODUCER = 4711


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    """Without verification, so that a transaction can hang."""
    return tierlog_broker_factory({"transaction.partition.verification.enable": "false"})


def open_transaction(broker: TierlogBroker, name: str, topic: str) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    made.init_transactions(TIMEOUT_S)
    made.begin_transaction()
    made.produce(topic, b"1")
    assert made.flush(TIMEOUT_S) == 0
    return made


def rows(output: str) -> list[dict[str, str]]:
    """A table of the tool, without its header."""
    header, *lines = [line.split("\t") for line in output.splitlines() if "\t" in line]
    names = [name.strip() for name in header]
    return [dict(zip(names, map(str.strip, line), strict=True)) for line in lines]


def test_kafka_transactions_lists_describes_and_aborts(java_classpath: str, broker: TierlogBroker) -> None:
    client = Client(broker.bootstrap)
    topic = client.create()
    first, _open = (open_transaction(broker, name, topic) for name in ("orders-1", "copies-1"))
    first.commit_transaction(TIMEOUT_S)
    hanging = encode_batch(
        [NewRecord(0, b"k", b"v")],
        producer_id=HANGING_PRODUCER,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    produced = client.produce(topic, bytes(hanging), version=11, transactional_id="hanging")
    assert produced.error_code == ErrorCode.NONE
    command = (f"{TOOLS}.TransactionsCommand", "--bootstrap-server", broker.bootstrap)

    def tool(*arguments: str) -> list[dict[str, str]]:
        return rows(java(java_classpath, *command, *arguments))

    states = {row["TransactionalId"]: row["TransactionState"] for row in tool("list")}
    assert states == {"orders-1": "CompleteCommit", "copies-1": "Ongoing"}
    longer = tool("list", "--duration-filter", "0", "--transactional-id-pattern", "(orders|copies)-.*")
    assert [row["TransactionalId"] for row in longer] == ["copies-1"]
    [described] = tool("describe", "--transactional-id", "copies-1")
    assert (described["TransactionState"], described["TopicPartitions"]) == ("Ongoing", f"{topic}-0")
    place = ("--topic", topic, "--partition", "0")
    starts = {
        row["ProducerId"]: row["CurrentTransactionStartOffset"] for row in tool("describe-producers", *place)
    }
    assert starts[described["ProducerId"]] == "1"  # after the record of `orders-1`
    assert starts[str(HANGING_PRODUCER)] == str(produced.base_offset)

    found = tool("find-hanging", "--max-transaction-timeout", "0", *place)
    assert [row["ProducerId"] for row in found] == [str(HANGING_PRODUCER)]
    java(java_classpath, *command, "abort", *place, "--start-offset", str(produced.base_offset))
    java(java_classpath, *command, "forceTerminateTransaction", "--transactionalId", "copies-1")
    after = {
        row["ProducerId"]: row["CurrentTransactionStartOffset"] for row in tool("describe-producers", *place)
    }
    assert set(after.values()) == {"None"}
    client.close()
