"""Three brokers in three racks: librdkafka fetches from the replica in its own rack (KIP-392)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric, wait_for_metric
from waiting import until

from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker
from tierlog.config.node import RACK_AWARE_SELECTOR

pytestmark = pytest.mark.slow
COUNT, VALUE = 300, bytes(1000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    local = LocalCluster(tmp_path, settings={"replica.selector.class": RACK_AWARE_SELECTOR})
    for node_id, broker in local.nodes.items():
        broker.settings["broker.rack"] = f"zone-{node_id}"
    with local as running:
        yield running


SENT = "kafka_server_brokertopicmetrics_bytesout_total"


def sent_to_consumers(broker: TierlogBroker) -> float:
    return metric(broker, SENT, topic="orders")


def write(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for _ in range(COUNT):
        producer.produce("orders", VALUE)
    assert producer.flush(60) == 0


def read(consumer: Consumer) -> int:
    found, deadline = 0, time.monotonic() + 60
    while found < COUNT and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        found += message is not None and message.error() is None
    return found


def _leader(admin: AdminClient) -> int:
    """A broker that is asked at once may not know the topic yet."""
    leaders: list[int] = []

    def is_known() -> bool:
        partitions = admin.list_topics("orders", timeout=60).topics["orders"].partitions
        leaders.extend(one.leader for one in partitions.values())
        return bool(leaders)

    until(is_known, "the new topic is known")
    return leaders[0]


def test_consumer_reads_in_its_rack_and_from_the_leader_after_that_broker_fails(
    cluster: LocalCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(60)
    leader = _leader(admin)
    near = next(node_id for node_id in cluster.nodes if node_id != leader)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "client.rack": f"zone-{near}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])

    def reads_nearby() -> bool:
        """False while the nearest broker is fenced, which can happen briefly on a busy machine."""
        write(cluster)
        assert read(consumer) == COUNT
        return sent_to_consumers(cluster.nodes[near]) >= COUNT * len(VALUE)

    until(reads_nearby, "the replica of its rack serves it")
    before = sent_to_consumers(cluster.nodes[leader])

    cluster.nodes[near].kill()
    write(cluster)
    assert read(consumer) == COUNT
    consumer.close()
    wait_for_metric(cluster.nodes[leader], before + COUNT * len(VALUE), SENT, topic="orders")
