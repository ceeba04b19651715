"""remote.log.copy.max.lag.ms with real processes: what the bucket alone holds after the loss of all brokers,
and how a partition shows that is not uploaded in time.
"""

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from cli_inline import json_output, run
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric, wait_for_metric
from waiting import until

from tierlog.base.types import TopicIdPartition
from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.testing import TierlogBrokerFactory
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import decode_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "events"
PARTITIONS = 3
LAG_S = 4
CONFIGS = {
    "remote.storage.enable": "true",
    "remote.log.copy.max.lag.ms": str(1000 * LAG_S),
    "local.retention.ms": "-1",
    "retention.ms": "-1",
}
"""Segments of a gigabyte and a week: nothing else rolls them in this test."""


class Acknowledged:
    """When each number was acknowledged."""

    def __init__(self) -> None:
        self.times_s: dict[int, float] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.times_s[int(message.value().split()[0])] = time.monotonic()

    def before(self, moment_s: float) -> set[int]:
        return {number for number, at_s in self.times_s.items() if at_s < moment_s}


def place_of(root: Path) -> tuple[TopicIdPartition, Keys]:
    """Partition and keys of a manifest root, from its path in the bucket."""
    cluster_id, _, *_, topic_id, number, _ = root.parts
    return TopicIdPartition(uuid.UUID(topic_id), int(number)), Keys(cluster_id)


def numbers_in_bucket(objects: Path) -> dict[int, set[int]]:
    """The numbers of each partition that the manifests in a bucket list, read without any broker."""
    found: dict[int, set[int]] = {}
    for path in objects.rglob("root"):
        where, keys = place_of(path.relative_to(objects))
        root = decode_root(path.read_bytes())
        assert not root.pages
        numbers: list[int] = []
        for entry in root.entries:
            content = (objects / keys.log(where, entry)).read_bytes()
            for at, _ in iter_batches(content):
                records = iter_records(content, at, max_bytes=1 << 20)
                numbers += [int(record.value.split()[0]) for record in records if record.value]
        assert len(numbers) == len(set(numbers))
        found[where.partition] = set(numbers)
    return found


def statuses(cluster: LocalCluster) -> list[dict[str, Any]]:
    found = [
        AdminApi(broker.admin_url).get("/v1/tier/status", topic=TOPIC)["partitions"] for broker in cluster
    ]
    return [line for lines in found for line in lines]


def test_loss_of_all_brokers_loses_at_most_the_lag(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings={"min.insync.replicas": "2"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=CONFIGS)])[TOPIC].result(60)
        client = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        acknowledged, number, queried_s = Acknowledged(), 0, time.monotonic()

        def write_some() -> None:
            nonlocal number
            for _ in range(30):
                client.produce(TOPIC, b"%d some event" % number, on_delivery=acknowledged)
                number += 1
            client.poll(0.02)

        def is_in_time() -> bool:
            """No partition is late, and each has been uploaded several times. A slow machine may be late."""
            nonlocal queried_s
            write_some()
            queried_s = time.monotonic()
            lines = statuses(cluster)
            in_time = [line for line in lines if not line["is_behind"] and line["remote_segments"] >= 3]
            return len(lines) == len(in_time) == PARTITIONS

        until(is_in_time, "all partitions are uploaded in time", within_s=120)
        cluster.kill()
    required = acknowledged.before(queried_s - LAG_S)
    assert len(required) > 100
    kept = numbers_in_bucket(tmp_path / "objects")
    assert len(kept) == PARTITIONS
    assert required <= set().union(*kept.values())


def test_partition_that_is_not_uploaded_in_time_is_visible(
    tmp_path: Path, tierlog_broker_factory: TierlogBrokerFactory
) -> None:
    with s3_servers.running("versitygw", tmp_path) as s3:
        broker = tierlog_broker_factory(
            {},
            object_store=s3.url("lag"),
            environment=s3_servers.CREDENTIALS,
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(60)
        client = Producer({"bootstrap.servers": broker.bootstrap})
        client.produce(TOPIC, b"0")
        assert client.flush(60) == 0
        wait_for_metric(broker, 1, "tierlog_remote_log_segments", topic=TOPIC, partition="0")
        # a busy machine may have been late
        until(lambda: metric(broker, "tierlog_remote_copy_behind_partitions") == 0, "it is in time")
        s3.kill()
        client.produce(TOPIC, b"1")
        assert client.flush(60) == 0
        wait_for_metric(broker, 1, "tierlog_remote_copy_behind_partitions")
        until(
            lambda: metric(broker, "tierlog_remote_copy_lag_seconds", topic=TOPIC) > LAG_S, "the lag is shown"
        )
        [sick] = json_output("cluster", "health", "--admin", broker.admin_url, code=5)
        assert any(f"{TOPIC}-0" in problem["what"] for problem in sick["problems"])
        [status] = json_output("tier", "status", TOPIC, "--admin", broker.admin_url)
        assert status["partitions"][0]["is_behind"]
        assert " s " in run("tier", "status", TOPIC, "--admin", broker.admin_url).stdout
        s3.start()
        until(lambda: metric(broker, "tierlog_remote_copy_behind_partitions") == 0, "it catches up")
        assert json_output("cluster", "health", "--admin", broker.admin_url)[0]["status"] == "healthy"
        broker.kill()
