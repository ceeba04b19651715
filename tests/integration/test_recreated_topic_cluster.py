"""A topic that is deleted and made again: groups and clients that know the deleted one read the new one."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from tierlog.cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC, GROUP = "orders", "billing"
TIMEOUT_S = 90.0


def new_admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def make(admin: AdminClient, brokers: list[int]) -> None:
    """Create the topic with replicas on these brokers."""
    topic = NewTopic(TOPIC, 1, replica_assignment=[brokers])
    admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)


def produce(cluster: LocalCluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(60) == 0


def consume(cluster: LocalCluster, count: int) -> list[int]:
    """Read in the group, from its committed offset or the log start, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    found: list[int] = []

    def is_complete() -> bool:
        found.extend(int(one.value()) for one in consumer.consume(count, 0.2) if one.error() is None)
        return len(found) >= count

    until(is_complete, "all records are read")
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, count)], asynchronous=False)
    consumer.close()
    return found


def test_new_topic_is_read_from_its_start(tmp_path: Path) -> None:
    """The only coordinator that could delete the old topic's offset learns of both changes at its start."""
    with LocalCluster(tmp_path, 3, {"offsets.topic.replication.factor": "1"}) as cluster:
        admin = new_admin(cluster)
        make(admin, [1, 2, 3])
        produce(cluster, 0, 100)
        assert consume(cluster, 100) == list(range(100))
        described = admin.describe_consumer_groups([GROUP])[GROUP].result(TIMEOUT_S)
        coordinator = described.coordinator.id
        cluster.nodes[coordinator].kill()
        until(
            lambda: new_admin(cluster).list_topics(timeout=TIMEOUT_S).controller_id not in (-1, coordinator),
            "another node is the controller",
        )
        admin = new_admin(cluster)  # librdkafka would wait for the controller that it knows
        admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
        make(admin, [node for node in cluster.nodes if node != coordinator])
        produce(cluster, 1000, 200)
        cluster.nodes[coordinator].start()
        assert consume(cluster, 200) == list(range(1000, 1200))


def test_client_that_knows_the_deleted_topic_reads_the_new_one(tmp_path: Path) -> None:
    """The deleted topic had several leaders. A client ignores a leader of an older epoch."""
    with LocalCluster(tmp_path, 3) as cluster:
        admin = new_admin(cluster)
        make(admin, [1, 2])
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])

        def next_value() -> tuple[int, int]:
            """Value and leader epoch of the next record."""
            found = []

            def is_read() -> bool:
                found.extend(one for one in consumer.consume(1, 0.2) if one.error() is None)
                return bool(found)

            until(is_read, "a record is read")
            return int(found[0].value()), found[0].leader_epoch()

        cluster.nodes[1].kill()
        until(
            lambda: new_admin(cluster).list_topics(TOPIC, TIMEOUT_S).topics[TOPIC].partitions[0].leader == 2,
            "the partition has another leader",
        )
        cluster.nodes[1].start()
        produce(cluster, 0, 1)
        value, epoch = next_value()
        assert value == 0
        assert epoch > 0
        admin = new_admin(cluster)
        admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
        make(admin, [1, 2])
        produce(cluster, 1000, 10)
        value, next_epoch = next_value()
        assert value >= 1000, "of the new topic, from its position in the deleted one"
        assert next_epoch >= epoch
        consumer.close()
