"""`tierlog.spark.load` adds rows to a topic of three brokers, whose leader is killed just after a commit."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq
import pytest
import s3_servers
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from pyspark.sql import SparkSession

from tierlog.cli.local_cluster import LocalCluster
from tierlog.client.partitioner import partition_of
from tierlog.metadata.records import RemoteSegment
from tierlog.spark import load
from tierlog.spark.jobs.arguments import InvalidArgument, JobFailed, NoProgress, parse
from tierlog.spark.jobs.load import JOB
from tierlog.spark.jobs.load_client import LoadClient, Loaded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC, PARTITIONS = "orders", 2
BEFORE, ROWS, AFTER = 200, 6_000, 100
CONFIG = {"remote.storage.enable": "true", "segment.bytes": "100000", "retention.ms": "-1"}
SETTINGS = {
    "remote.log.manager.task.interval.ms": "300",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "3000",
}


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The driver has the credentials in its environment, as its workers do."""
    os.environ.update(s3_servers.CREDENTIALS)
    yield spark
    for name in s3_servers.CREDENTIALS:
        del os.environ[name]


def produce(bootstrap: str, numbers: range) -> None:
    """Idempotent writes, with the partitioner of Java's producer."""
    deliveries = Deliveries()
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"}
    client = Producer(settings)
    for number in numbers:
        client.produce(TOPIC, value(number), key(number), on_delivery=deliveries)
    assert client.flush(60) == 0 and not deliveries.failures


def consume(bootstrap: str, count: int) -> dict[int, list[bytes]]:
    """The values of each partition from offset 0 on; offsets have no gaps."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    while (missing := count - sum(map(len, found.values()))) > 0:
        messages = consumer.consume(min(1000, missing), timeout=60)
        assert messages, f"nothing more after {found}"
        for message in messages:
            assert message.error() is None
            assert message.offset() == len(found[message.partition()])
            found[message.partition()].append(message.value())
    consumer.close()
    return found


def key(number: int) -> bytes:
    return b"key-%d" % (number % 97)


def value(number: int) -> bytes:
    return b"%d" % number


def expected(numbers: range) -> dict[int, list[bytes]]:
    """The values of each partition, in order."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for number in numbers:
        found[partition_of(key(number), PARTITIONS)].append(value(number))
    return found


@pytest.mark.nightly
def test_loaded_rows_follow_and_precede_produced_ones_although_a_leader_is_killed(
    tmp_path: Path, s3: s3_servers.S3Server, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.url("load")
    with LocalCluster(
        tmp_path, settings={**SETTINGS, "object.store.url": url}, environment=s3_servers.CREDENTIALS
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=CONFIG)])[TOPIC].result(60)
        produce(cluster.bootstrap, range(BEFORE))
        admins = ",".join(node.admin_url for node in cluster.nodes.values())
        committed: list[int] = []
        commit = LoadClient.commit

        def commit_and_kill(
            client: LoadClient, partition: int, segments: tuple[RemoteSegment, ...]
        ) -> Loaded:
            loaded = commit(client, partition, segments)
            if not committed:
                partitions = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
                cluster.nodes[partitions[partition].leader].kill()
            committed.append(partition)
            return loaded

        monkeypatch.setattr(LoadClient, "commit", commit_and_kill)
        numbers = spark.range(BEFORE, BEFORE + ROWS, 1, 3)
        rows = numbers.selectExpr("concat('key-', id % 97) AS key", "cast(id AS string) AS value")

        def run() -> dict[str, Any]:
            return load(rows, topic=TOPIC, path=url, admin=admins, name="history", compression="none")

        first = run()
        assert committed[0] == 0
        second = first if first["is_ok"] else run()
        assert second["is_ok"], second
        third = run()
        assert [row["state"] for row in third["partitions"]] == ["loaded before"] * PARTITIONS
        assert sum(row["records"] for row in third["partitions"]) == ROWS
        produce(cluster.bootstrap, range(BEFORE + ROWS, BEFORE + ROWS + AFTER))
        total = BEFORE + ROWS + AFTER
        assert consume(cluster.bootstrap, total) == expected(range(total))


def test_job_loads_parquet_files_once(
    tmp_path: Path, tierlog_broker_factory: Any, spark: SparkSession
) -> None:
    broker = tierlog_broker_factory(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIG)])[TOPIC].result(60)
    files = str(tmp_path / "rows")
    spark.range(0, 1000).selectExpr("concat('key-', id % 97) AS k", "id", "999 - id AS n").write.parquet(
        files
    )
    arguments = ["--input", files, "--topic", TOPIC, "--name", "first", "--admin", broker.admin_url]
    arguments += ["--path", str(broker.object_dir), "--order-by", "value"]
    arguments += ["--select", "k AS key", "--select", "lpad(cast(n AS string), 4, '0') AS value"]
    document = JOB.run(parse(JOB, arguments), NoProgress())
    assert (document["is_ok"], document["records"]) == (True, 1000)
    assert JOB.run(parse(JOB, arguments), NoProgress())["records"] == 0
    found = consume(broker.bootstrap, 1000)
    assert all(values == sorted(values) for values in found.values())
    assert sorted([*found[0], *found[1]]) == [b"%04d" % number for number in range(1000)]
    for wrong, why in (("--select", "nothing AS headers"), ("--input", str(tmp_path / "no"))):
        with pytest.raises(InvalidArgument, match=r"UNRESOLVED_COLUMN|PATH_NOT_FOUND"):
            JOB.run(parse(JOB, [*arguments, wrong, why]), NoProgress())
    texts = [f"{number:04}" for number in range(5000)]
    for name, some in (("a", texts[:10]), ("b", texts[10:])):  # Spark begins with the larger file
        pq.write_table(
            pyarrow.table({"value": some, "topic": [name] * len(some)}), tmp_path / f"{name}.parquet"
        )
    second = [*arguments[2:4], "--name", "second", *arguments[6:10], "--select", "value"]
    second += ["--select", "0 AS partition"]
    for name in "ab":
        second += ["--input", str(tmp_path / f"{name}.parquet")]
    with pytest.raises(JobFailed, match="the rows are of several topics"):
        JOB.run(parse(JOB, [*second, "--select", "topic"]), NoProgress())
    assert JOB.run(parse(JOB, second), NoProgress())["records"] == 5000
    assert [*consume(broker.bootstrap, 6000)[0]][-5000:] == [text.encode() for text in texts]
