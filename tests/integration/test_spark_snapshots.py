"""Snapshots with real Spark, a broker process that deletes, merges and compacts, and a real S3 server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import s3_servers
from changed_constants import python_with
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from scraping import metric, wait_for_metric
from uploaded_segments import upload_segments
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.spark import count, snapshots
from tierlog.spark.options import InvalidOption
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PREFIX, SEGMENTS, RECORDS = "snapshots", 30, 5
FEW = 3  # segments, too few to merge them
WAIT_S = 120.0
SETTINGS = {
    "remote.log.manager.task.interval.ms": 200,
    "remote.log.delete.grace.ms": 0,
    "remote.log.merge.min.segments": 4,
}
CONFIG = {"remote.storage.enable": "true", "local.retention.ms": "0", "retention.ms": "-1"}
COMPACTED = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture(scope="module")
def broker(s3: s3_servers.S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    directory = tmp_path_factory.mktemp("snapshots")
    python = python_with(directory, ("tierlog.tiering.held_snapshots", "LOOK_INTERVAL_MS", 1_000))
    url, environment = s3.url(PREFIX), s3_servers.CREDENTIALS
    with TierlogBroker(
        directory / "broker", SETTINGS, object_store=url, environment=environment, python=python
    ) as started:
        yield started


@pytest.fixture
def bucket(s3: s3_servers.S3Server) -> dict[str, str]:
    """Options of Spark."""
    return {
        "path": s3.url(PREFIX),
        "accessKey": s3_servers.ACCESS_KEY,
        "secretKey": s3_servers.SECRET_KEY,
    }


def fill(broker: TierlogBroker, topic: str, config: dict[str, str], segments: int = SEGMENTS) -> None:
    values = [
        [
            (b"%d" % (number % 7), b"%s %d" % (topic.encode(), number))
            for number in range(first, first + RECORDS)
        ]
        for first in range(0, segments * RECORDS, RECORDS)
    ]
    upload_segments(broker, topic, config, values)


def admin_of(broker: TierlogBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def delete_records(broker: TierlogBroker, topic: str, offset: int) -> None:
    admin, until_offset = admin_of(broker), TopicPartition(topic, 0, offset)
    admin.delete_records([until_offset])[until_offset].result(60)


def data_of(s3: s3_servers.S3Server, topic_id: str) -> set[str]:
    """The segments and pages of a topic in the bucket."""
    listed = s3.minio_client().list_objects(s3_servers.BUCKET, f"{PREFIX}/", recursive=True)
    return {
        one.object_name
        for one in listed
        if topic_id in str(one.object_name) and one.object_name.endswith((".log", ".idx", ".page"))
    }


def topic_id(broker: TierlogBroker, topic: str) -> str:
    cluster = AdminApi(broker.admin_url).get("/v1/cluster")
    return next(str(one["id"]) for one in cluster["topics"] if one["name"] == topic)


def read(spark: SparkSession, bucket: dict[str, str], topic: str, **options: str) -> DataFrame:
    return spark.read.format("tierlog").options(**bucket, topic=topic, **options).load()


def rows(frame: DataFrame) -> list[tuple[int, bytes]]:
    return [
        (row.offset, bytes(row.value)) for row in frame.select("offset", "value").orderBy("offset").collect()
    ]


def cli(broker: TierlogBroker, *arguments: str) -> Any:
    command = [sys.executable, "-m", "tierlog.cli.main", "tier", "snapshots", *arguments, "--json"]
    environment = {**os.environ, "TIERLOG_ADMIN": broker.admin_url}
    ran = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout)


def test_snapshot_gives_the_same_rows_while_history_is_deleted_and_merged(
    spark: SparkSession, broker: TierlogBroker, s3: s3_servers.S3Server, bucket: dict[str, str]
) -> None:
    fill(broker, "held", CONFIG, segments=FEW)
    now = read(spark, bucket, "held", snapshot="now")
    first = rows(now)
    assert len(first) == FEW * RECORDS
    created = cli(broker, "create", "audit", "held", "--lease", "1h")
    assert rows(read(spark, bucket, "held", snapshot="audit")) == first
    place = topic_id(broker, "held")
    before = data_of(s3, place)

    fill_more(broker, "held")
    wait_for_metric(broker, 1, "tierlog_remote_merges_total")
    until(lambda: not before & listed_objects(spark, bucket), "the first segments are not merged", WAIT_S)
    delete_records(broker, "held", FEW * RECORDS)
    fill(broker, "passing", CONFIG)
    passing = topic_id(broker, "passing")
    old = data_of(s3, passing)
    delete_records(broker, "passing", SEGMENTS * RECORDS)
    until(lambda: not old & data_of(s3, passing), "objects of another topic are not deleted", WAIT_S)
    assert before <= data_of(s3, place)
    ends = FEW * RECORDS, (FEW + SEGMENTS) * RECORDS
    assert [offset for offset, _ in rows(read(spark, bucket, "held"))] == list(range(*ends))
    for _ in range(2):
        assert rows(now) == first
        assert rows(read(spark, bucket, "held", snapshot="audit")) == first
    path, options = bucket["path"], {name: value for name, value in bucket.items() if name != "path"}
    assert count(path, topic="held", snapshot="audit", **options) == len(first)

    wait_for_metric(broker, 1, "tierlog_remote_snapshot_held_bytes")
    wait_for_metric(broker, 2, "tierlog_remote_snapshots")
    assert metric(broker, "tierlog_remote_snapshots") == 2
    listed = {one["id"]: one for one in cli(broker, "list")["snapshots"]}
    assert listed[created["id"]]["name"] == "audit" and listed[created["id"]]["held_bytes"] > 0
    table = spark.read.format("tierlog").options(**bucket, table="snapshots").load().collect()
    assert {row.snapshot_id for row in table} == set(listed)

    admin = admin_of(broker)
    admin.delete_topics(["held"])["held"].result(60)
    until(
        lambda: "held" not in [row.topic for row in spark_topics(spark, bucket)],
        "the bucket describes a deleted topic",
        WAIT_S,
    )
    assert rows(read(spark, bucket, "held", snapshot="audit")) == first
    assert rows(now) == first

    for snapshot_id in listed:
        cli(broker, "end", snapshot_id)
    until(lambda: not data_of(s3, place), "the objects stay after the snapshots have ended", WAIT_S)
    with pytest.raises(PySparkException, match="has ended"):
        rows(now)


def listed_objects(spark: SparkSession, bucket: dict[str, str]) -> set[str]:
    """Keys of all segments of the newest manifests."""
    frame = spark.read.format("tierlog").options(**bucket, table="segments").load()
    return {f"{PREFIX}/{row.object}" for row in frame.select("object").collect()}


def spark_topics(spark: SparkSession, bucket: dict[str, str]) -> list[Any]:
    frame = spark.read.format("tierlog").options(**bucket, table="partitions").load()
    return frame.select("topic").distinct().collect()


@pytest.mark.nightly
def test_snapshot_holds_what_compaction_replaces(
    spark: SparkSession, broker: TierlogBroker, bucket: dict[str, str]
) -> None:
    fill(broker, "compacted", COMPACTED)
    held = read(spark, bucket, "compacted", snapshot="now")
    first, compactions = rows(held), metric(broker, "tierlog_remote_compactions_total")
    fill_more(broker, "compacted")
    wait_for_metric(broker, compactions + 1, "tierlog_remote_compactions_total")
    until(
        lambda: read(spark, bucket, "compacted").where("offset < 100").count() < 100,
        "compaction removes no record from the bucket",
        WAIT_S,
    )
    assert rows(held) == first


def fill_more(broker: TierlogBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(SEGMENTS * RECORDS):
        producer.produce(topic, b"later %d" % number, b"%d" % (number % 7))
        if number % RECORDS == RECORDS - 1:
            producer.flush()
            AdminApi(broker.admin_url, timeout_s=60).post("/v1/tier/flush", {"topic": topic})


@pytest.mark.nightly
def test_objects_are_deleted_after_a_lease_that_nothing_renews(
    spark: SparkSession, broker: TierlogBroker, s3: s3_servers.S3Server, bucket: dict[str, str]
) -> None:
    fill(broker, "expiring", CONFIG, segments=6)
    frame = read(spark, bucket, "expiring", snapshot="now", snapshotLeaseMs="90000")
    place = topic_id(broker, "expiring")
    old = data_of(s3, place)
    delete_records(broker, "expiring", 6 * RECORDS)
    assert len(rows(frame)) == 6 * RECORDS
    until(lambda: not old & data_of(s3, place), "the lease of a dead reader holds its objects", 2 * WAIT_S)
    with pytest.raises(PySparkException, match="has ended"):
        rows(frame)


def test_one_of_several_creators_gets_a_name(
    broker: TierlogBroker, s3: s3_servers.S3Server, bucket: dict[str, str]
) -> None:
    fill(broker, "raced", CONFIG, segments=4)
    path, options = bucket["path"], {name: value for name, value in bucket.items() if name != "path"}

    def create(_: int) -> str | InvalidOption:
        try:
            return snapshots.create("raced", path, topic="raced", **options)
        except InvalidOption as refused:
            return refused

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(create, range(6)))
    [winner] = [one for one in results if isinstance(one, str)]
    assert all("snapshot 'raced'" in str(one) for one in results if one != winner)
    assert [one["id"] for one in cli(broker, "list")["snapshots"] if one["topics"] == ["raced"]] == [winner]
    assert count(path, topic="raced", snapshot="raced", **options) == 4 * RECORDS
    snapshots.end("raced", path, **options)
    with pytest.raises(InvalidOption, match="has ended"):
        count(path, topic="raced", snapshot="raced", **options)
    assert snapshots.create("raced", path, topic="raced", **options) != winner
