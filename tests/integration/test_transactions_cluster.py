"""Three broker processes: transactions outlive their coordinator and their leaders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until
from wire_client import Client, message

from tierlog.broker.coordinators.shards import partition_of
from tierlog.cli.local_cluster import LocalCluster
from tierlog.config.topic import TRANSACTIONS_TOPIC
from tierlog.protocol.errors import ErrorCode

pytestmark = pytest.mark.slow

TOPIC, PARTITIONS = "orders", 3
TIMEOUT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(TIMEOUT_S)
        yield running


def leader_of(cluster: LocalCluster, topic: str, partition: int) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return int(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[partition].leader)


def coordinator_of(cluster: LocalCluster, transactional_id: str) -> int:
    return leader_of(cluster, TRANSACTIONS_TOPIC, partition_of(transactional_id, 50))


class Transactions:
    """Transactions of one producer, each with a record in every partition; every third is aborted."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": "t",
                "transaction.timeout.ms": 30_000,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._count = 0
        self.committed: list[str] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            value = str(self._count)
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, value, partition=partition)
            if self._count % 3 == 0:
                self._retried(self._producer.abort_transaction)
            else:
                self._retried(self._producer.commit_transaction)
                self.committed.append(value)

    def open(self) -> None:
        """Begin a transaction, with a record in every partition."""
        self._producer.begin_transaction()
        for partition in range(PARTITIONS):
            self._producer.produce(TOPIC, "open", partition=partition)
        assert self._producer.flush(TIMEOUT_S) == 0

    def commit(self) -> None:
        self._retried(self._producer.commit_transaction)
        self.committed.append("open")

    @staticmethod
    def _retried(end: object) -> None:
        while True:
            try:
                end(TIMEOUT_S)  # type: ignore[operator]
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def read(cluster: LocalCluster, partition: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found: list[str] = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "neither a record nor the end"
        if message.error() is None:
            found.append(message.value().decode())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return found


def move_away(cluster: LocalCluster, topic: str, partition: int) -> None:
    """Reassign the partition to the brokers that do not lead it, and wait until that is done."""
    leader = leader_of(cluster, topic, partition)
    replicas = [node for node in cluster.nodes if node != leader]
    client = Client(cluster.bootstrap.split(",")[0])
    moved = {
        "topics": [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    }
    request = message("AlterPartitionReassignments", moved)
    [response] = client.send("AlterPartitionReassignments", 1, request).responses
    assert response.partitions[0].error_code == ErrorCode.NONE, response
    pending = message("ListPartitionReassignments", {"topics": None})
    until(
        lambda: not client.send("ListPartitionReassignments", 0, pending).topics,
        "the reassignment does not end",
    )
    client.close()
    until(lambda: leader_of(cluster, topic, partition) != leader, "the former leader still leads")


def test_open_transaction_outlives_a_reassignment(cluster: LocalCluster) -> None:
    """One of its partitions moves, and the partition that stores its state: its coordinator changes too."""
    transactions = Transactions(cluster)
    transactions.run(4)
    transactions.open()
    move_away(cluster, TOPIC, 0)
    move_away(cluster, TRANSACTIONS_TOPIC, partition_of("t", 50))
    transactions.commit()
    transactions.run(4)
    for partition in range(PARTITIONS):
        assert read(cluster, partition) == transactions.committed


@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_transactions_outlive_a_killed_broker(cluster: LocalCluster, victim: str) -> None:
    """The producer meets no fatal error, and each partition has exactly what was committed, in order."""
    transactions = Transactions(cluster)
    transactions.run(10)
    transactions.open()
    broker = coordinator_of(cluster, "t") if victim == "coordinator" else leader_of(cluster, TOPIC, 0)
    cluster.nodes[broker].kill()
    transactions.commit()
    transactions.run(10)
    for partition in range(PARTITIONS):
        assert read(cluster, partition) == transactions.committed
