"""`tierlog txn` against a running broker with real transactions, and one that hangs."""

from collections.abc import Callable
from typing import Any

import pytest
from cli_inline import json_output, run
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from wire_client import Client

from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.messages import produce
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = pytest.mark.slow

Ask = Callable[..., Any]
TIMEOUT_S = 90.0
HANGING_PRODUCER = 4711


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    running = tierlog_broker_factory({"transaction.partition.verification.enable": "false"})
    client = AdminClient({"bootstrap.servers": running.bootstrap})
    client.create_topics([NewTopic("orders", 1, 1)])["orders"].result(TIMEOUT_S)
    return running


@pytest.fixture
def ask(broker: TierlogBroker) -> Ask:
    def ask(*words: str, code: int = 0) -> Any:
        documents = json_output("txn", *words, "--bootstrap", broker.bootstrap, code=code)
        return documents[0] if documents else None

    return ask


def producer(broker: TierlogBroker, name: str) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    made.init_transactions(TIMEOUT_S)
    made.begin_transaction()
    made.produce("orders", b"1")
    assert made.flush(TIMEOUT_S) == 0
    return made


def test_transactions_are_listed_and_described(broker: TierlogBroker, ask: Ask) -> None:
    assert ask("list") == []
    first, second = producer(broker, "a"), producer(broker, "b")
    first.commit_transaction(TIMEOUT_S)
    found = {row["transactional_id"]: row["state"] for row in ask("list")}
    assert found == {"a": "CompleteCommit", "b": "Ongoing"}
    for state in ("Ongoing", "ongoing"):
        assert [row["transactional_id"] for row in ask("list", "--state", state)] == ["b"]
    unknown = run("txn", "list", "--state", "open", "--bootstrap", broker.bootstrap)
    assert unknown.returncode == 2 and "Use one of Empty, Ongoing," in unknown.stderr
    assert ask("list", "--open-longer-than", "3600") == []
    assert [row["transactional_id"] for row in ask("list", "--open-longer-than", "0")] == ["b"]
    assert [row["transactional_id"] for row in ask("list", "--pattern", "[bc]")] == ["b"]
    invalid = run("txn", "list", "--pattern", "(", "--bootstrap", broker.bootstrap)
    assert invalid.returncode == 1 and "Regular expressions are RE2's" in invalid.stderr
    described = ask("describe", "b")
    assert (described["state"], described["partitions"]) == ("Ongoing", ["orders-0"])
    assert ask("list", "--producer-id", str(described["producer_id"]))[0]["transactional_id"] == "b"
    missing = run("txn", "describe", "nosuch", "--bootstrap", broker.bootstrap)
    assert missing.returncode == 4 and "is not known" in missing.stderr
    second.abort_transaction(TIMEOUT_S)


def test_hanging_transaction_is_found_and_aborted(broker: TierlogBroker, ask: Ask) -> None:
    """Its coordinator has never heard of it: verification of transactions is off."""
    living = producer(broker, "living")
    records = encode_batch(
        [NewRecord(0, b"k", b"v")],
        producer_id=HANGING_PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = produce.PartitionProduceData(index=0, records=records)
    request = produce.ProduceRequest(
        transactional_id="hanging",
        acks=-1,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name="orders", partition_data=[data])],
    )
    response = Client(broker.bootstrap).send("Produce", 11, request).responses[0].partition_responses[0]
    assert response.error_code == E.NONE
    [hanging] = ask("find-hanging", "--older-than", "0")
    assert (hanging["producer_id"], hanging["start_offset"]) == (HANGING_PRODUCER, response.base_offset)
    assert ask("find-hanging") == []
    target = ("orders", "0", str(response.base_offset), "--yes")
    assert ask("abort", *target)["producer_id"] == HANGING_PRODUCER
    assert ask("find-hanging", "--older-than", "0") == []
    again = run("txn", "abort", *target, "--bootstrap", broker.bootstrap)
    assert again.returncode == 4 and "no open transaction" in again.stderr
    living.commit_transaction(TIMEOUT_S)


def test_transaction_that_its_coordinator_will_end_is_not_aborted(broker: TierlogBroker, ask: Ask) -> None:
    """A marker in one of its partitions would tear it: the coordinator commits the others."""
    living = producer(broker, "living")
    refused = run("txn", "abort", "orders", "0", "0", "--yes", "--bootstrap", broker.bootstrap)
    assert refused.returncode == 1 and "does not hang" in refused.stderr
    assert "tierlog txn describe living" in refused.stderr
    living.commit_transaction(TIMEOUT_S)
    assert ask("describe", "living")["state"] == "CompleteCommit"
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    reader.assign([TopicPartition("orders", 0, 0)])
    message = reader.poll(TIMEOUT_S)
    assert message is not None and message.value() == b"1"
    reader.close()
