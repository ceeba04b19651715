"""`tierlog quorum recover` to metadata that lacks the newest remote segments, whose local copies are gone."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import prometheus
import pytest
from cli_process import run
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from tierlog.broker.diagnosis.health import assess
from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.observation import observe
from tierlog.monitoring.rules import rules_yaml
from tierlog.monitoring.tier_alerts import TIER_ALERTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPIC = "history"
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "100000",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
    "min.insync.replicas": "1",
}
SETTINGS = {"remote.log.manager.task.interval.ms": "300", "remote.log.delete.grace.ms": "1"}
METADATA = "__cluster_metadata"
RULES = prometheus.shortened(rules_yaml([TIER_ALERTS]), 300, 5, 60)
ALERT = "TierlogManifestsUnread"


def values(label: str, count: int) -> list[bytes]:
    return [b"%s %0100d" % (label.encode(), number) for number in range(count)]


def produce(bootstrap: str, records: Sequence[bytes]) -> None:
    client = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number, value in enumerate(records):
        client.produce(TOPIC, value)
        if number % 100 == 99:
            assert client.flush(60) == 0  # many batches, so that segments fill
    assert client.flush(60) == 0


def consumed(bootstrap: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": "false"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(min(1000, count - len(found)), timeout=60)
        assert messages, f"nothing more after {len(found)} records"
        found += [message.value() for message in messages if message.error() is None]
    consumer.close()
    return found


def in_sync(cluster: LocalCluster) -> set[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return set(admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].isrs)


def flush(admin_url: str) -> int:
    answer = AdminApi(admin_url).post("/v1/tier/flush", {"topic": TOPIC})
    return int(answer["partitions"][0]["remote_end_offset"])


def first_local(cluster: LocalCluster, node: int) -> int:
    """The base offset of the first segment on a node's disk."""
    names = [path.name for path in cluster.nodes[node].data_dir.glob(f"{TOPIC}-0/*.log")]
    return min((int(name.removesuffix(".log")) for name in names), default=-1)


def test_segments_that_only_the_buckets_manifest_names_are_read_after_the_recovery(tmp_path: Path) -> None:
    known, lost, last = values("known", 1500), values("lost", 3000), values("last", 1500)
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, replica_assignment=[[1, 2, 3]], num_partitions=1, config=CONFIGS)
        admin.create_topics([topic])[TOPIC].result(60)
        produce(cluster.bootstrap, known)
        assert flush(cluster.nodes[1].admin_url) == len(known)
        survivor = cluster.nodes[3]
        until(lambda: in_sync(cluster) == {1, 2, 3}, "broker 3 has the first records")
        survivor.kill()
        shutil.copytree(survivor.data_dir / METADATA, tmp_path / "older")
        survivor.start()
        produce(cluster.bootstrap, lost)
        assert flush(cluster.nodes[1].admin_url) == len(known + lost)
        for node in cluster.nodes:
            until(lambda node=node: first_local(cluster, node) > len(known) + 1000, f"broker {node} drops")
        until(lambda: in_sync(cluster) == {1, 2, 3}, "broker 3 has everything")
        cluster.kill()

        shutil.rmtree(survivor.data_dir / METADATA)
        shutil.copytree(tmp_path / "older", survivor.data_dir / METADATA)
        [root] = tmp_path.glob("objects/**/root*")
        intact = root.read_bytes()
        damaged = intact[:-1]
        root.write_bytes(damaged)
        recovered = run("quorum", "recover", str(survivor.data_dir), "--yes")
        assert recovered.returncode == 0, recovered.stderr
        survivor.start()
        api = AdminApi(survivor.admin_url)
        until(lambda: any(row["error"] for row in api.get("/v1/tier/unread")["unread"]), "it is refused")
        problems = [problem.what for problem in assess(observe([survivor.admin_url])).problems]
        assert any(f"{TOPIC}-0" in what and "recovery" in what for what in problems), problems
        with prometheus.running(tmp_path / "p", [survivor.admin_url], rules=RULES) as server:
            until(lambda: ALERT in server.firing(), "its alert fires")
            assert root.read_bytes() == damaged
            root.write_bytes(intact)
            assert consumed(survivor.bootstrap, len(known + lost)) == known + lost
            assert api.get("/v1/tier/unread")["unread"] == []
            until(lambda: ALERT not in server.firing(), "its alert ends")
        produce(survivor.bootstrap, last)
        assert flush(survivor.admin_url) == len(known + lost + last)
        until(lambda: first_local(cluster, 3) >= len(known + lost), "broker 3 drops again")
        assert consumed(survivor.bootstrap, len(known + lost + last)) == known + lost + last
