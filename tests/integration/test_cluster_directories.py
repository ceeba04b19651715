"""Three brokers with two log directories each: one directory fails, returns and is replaced."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from mounts import read_only
from waiting import until

from tierlog.cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PARTITIONS = 6
ALL = {1, 2, 3}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path, settings={"log.flush.offset.checkpoint.interval.ms": 200})
    for broker in running:
        places = [broker.data_dir / name for name in ("a", "b")]
        broker.settings["log.dirs"] = ",".join(map(str, places))
        broker.settings["metadata.log.dir"] = str(broker.directory / "metadata")
    with running:
        yield running


class Topic:
    """Topic `t`, as the cluster describes it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(60)
        self.sent = 0

    def in_sync(self) -> list[set[int]]:
        partitions = self._admin.list_topics("t", timeout=60).topics["t"].partitions
        return [set(partitions[number].isrs) for number in range(PARTITIONS)]

    def leaders(self) -> list[int]:
        partitions = self._admin.list_topics("t", timeout=60).topics["t"].partitions
        return [partitions[number].leader for number in range(PARTITIONS)]

    def produce(self) -> None:
        """Produce a record to each partition with acks=all."""
        deliveries = Deliveries()
        client = Producer(
            {"bootstrap.servers": self._cluster.bootstrap, "acks": "all", "enable.idempotence": True}
        )
        for partition in range(PARTITIONS):
            client.produce("t", b"%d record" % self.sent, partition=partition, on_delivery=deliveries)
            self.sent += 1
        assert client.flush(60) == 0
        assert not deliveries.failures

    def logs_are_the_same(self) -> bool:
        for number in range(PARTITIONS):
            logs = [path for one in self._cluster for path in one.data_dir.glob(f"?/t-{number}/*0.log")]
            if len({path.read_bytes().rstrip(b"\0") for path in logs}) != 1 or len(logs) != 3:
                return False
        return True


def test_failed_directory_takes_only_its_replicas_out_of_sync_until_it_returns(
    cluster: LocalCluster,
) -> None:
    topic, broker = Topic(cluster), cluster.nodes[1]
    topic.produce()
    lost = sorted(int(path.name[2:]) for path in broker.data_dir.glob("b/t-?"))
    kept = [number for number in range(PARTITIONS) if number not in lost]
    assert lost and 1 in {topic.leaders()[number] for number in lost}

    with read_only(broker.data_dir / "b"):
        until(
            lambda: [1 in members for members in topic.in_sync()] == [n in kept for n in range(PARTITIONS)],
            "it is out of sync where its disk failed, and nowhere else",
        )
        leaders = topic.leaders()
        assert all(leaders[number] in {2, 3} for number in lost)
        assert 1 in {leaders[number] for number in kept}
        topic.produce()
        assert broker.running
    broker.restart()
    until(lambda: topic.in_sync() == [ALL] * PARTITIONS, "it has caught up")

    broker.stop()
    topic.produce()
    shutil.rmtree(broker.data_dir / "b")
    broker.start()
    until(lambda: topic.in_sync() == [ALL] * PARTITIONS, "a new disk has caught up")
    until(topic.logs_are_the_same, "the three logs are the same bytes")
