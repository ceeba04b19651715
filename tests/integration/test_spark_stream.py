"""Streams of real Spark: a broker process that tiers to a directory, and confluent-kafka as the producer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tierlog.cli.admin import AdminApi
from tierlog.records.columnar import decode_columns
from tierlog.spark.history.plan import OffsetRange, OffsetsUnavailable
from tierlog.spark.live.fetch import fetch_range
from tierlog.spark.live.positions import BrokerPositions
from tierlog.spark.options.stream import parse_stream_options
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIMEOUT_S = 90.0
DRIVER = Path(__file__).parents[1] / "support" / "spark_stream_driver.py"
Rows = dict[tuple[int, int], bytes]
"""Value by partition and offset."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("stream") / "broker") as started:
        yield started


class Topic:
    """A tiered topic with small segments that are deleted locally as soon as they are uploaded. `expected`:
    the committed records that were acknowledged."""

    def __init__(self, broker: TierlogBroker, name: str, partitions: int = 2) -> None:
        self.broker, self.name, self.partitions = broker, name, partitions
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.expected: Rows = {}
        self._sent = 0
        self.create()

    def create(self) -> None:
        config = {"remote.storage.enable": "true", "segment.bytes": "50000", "local.retention.ms": "1"}
        new = NewTopic(self.name, self.partitions, 1, config=config)
        self.admin.create_topics([new])[self.name].result(TIMEOUT_S)

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(TIMEOUT_S)

    def grow(self, partitions: int) -> None:
        self.partitions = partitions
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(TIMEOUT_S)

    def send(self, count: int, transactional_id: str | None = None, *, commit: bool = True) -> None:
        """Send records to all partitions by turns, in one transaction if an id is given."""
        settings = {"bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        sent: Rows = {}

        def acknowledged(error: Any, message: Any) -> None:
            assert error is None, error
            sent[message.partition(), message.offset()] = message.value()

        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        producer = Producer(settings)
        if transactional_id is not None:
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
        for _ in range(count):
            value = b"value %d of %s;" % (self._sent, self.name.encode()) * 5
            producer.produce(self.name, value, partition=self._sent % self.partitions, callback=acknowledged)
            self._sent += 1
            if not self._sent % 100:
                producer.flush(TIMEOUT_S)
        assert producer.flush(TIMEOUT_S) == 0
        if transactional_id is not None and commit:
            producer.commit_transaction(TIMEOUT_S)
        elif transactional_id is not None:
            producer.abort_transaction(TIMEOUT_S)
        if commit:
            self.expected |= sent

    def upload(self) -> None:
        """Upload all records, and wait until the broker has deleted its copies."""
        api = AdminApi(self.broker.admin_url)
        api.post("/v1/tier/flush", {"topic": self.name})
        for _ in api.changes():
            rows = api.get("/v1/tier/status", topic=self.name)["partitions"]
            if all(row["local_log_start_offset"] == row["remote_end_offset"] for row in rows):
                return

    def both(self, **more: object) -> dict[str, str]:
        return {**self.live(), **self.path(), **_text(more)}

    def live(self, **more: object) -> dict[str, str]:
        return {"topic": self.name, "kafka.bootstrap.servers": self.broker.bootstrap, **_text(more)}

    def path(self, **more: object) -> dict[str, str]:
        return {"topic": self.name, "path": str(self.broker.object_dir), **_text(more)}


def _text(options: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """`start(options, available_now=False, sink="memory", name="rows")` starts a query into a table."""
    queries: list[StreamingQuery] = []

    def started(
        options: dict[str, str], *, available_now: bool = False, sink: str = "memory", name: str = "rows"
    ) -> StreamingQuery:
        stream = spark.readStream.format("tierlog").options(**options).load()
        writer = stream.writeStream.format(sink).queryName(name)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
        writer = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        )
        query = writer.start()
        queries.append(query)
        return query

    yield started
    for query in queries:
        with suppress(Exception):
            query.stop()


def rows(spark: SparkSession) -> Rows:
    """The rows of the table in memory, none of which is there twice."""
    found = spark.table("rows").select("partition", "offset", "value").collect()
    by_place = {(row.partition, row.offset): bytes(row.value) for row in found}
    assert len(by_place) == len(found)
    return by_place


def test_stream_has_no_gap_at_the_seam_while_segments_move_to_the_bucket(
    spark: SparkSession, broker: TierlogBroker, start: Start
) -> None:
    """Transactions are aborted on both sides of the seam, and one is open over it."""
    topic = Topic(broker, "seam")
    topic.send(600)
    topic.send(200, "a", commit=False)
    topic.send(200, "b")
    topic.upload()
    topic.send(200, "a", commit=False)
    topic.send(200)
    query = start(topic.both(maxOffsetsPerTrigger=500))
    query.processAllAvailable()
    assert rows(spark) == topic.expected
    for _ in range(3):
        topic.send(300)
        topic.send(100, "a", commit=False)
        topic.upload()
        topic.send(100, "b")
        query.processAllAvailable()
        assert rows(spark) == topic.expected
    assert query.exception() is None


def test_open_transaction_holds_the_stream_at_the_last_stable_offset(
    spark: SparkSession, broker: TierlogBroker, start: Start
) -> None:
    topic = Topic(broker, "open", partitions=1)
    topic.send(50)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "holds"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic.name, b"undecided")
    assert producer.flush(TIMEOUT_S) == 0
    before = dict(topic.expected)
    topic.send(50)
    query = start(topic.live())
    query.processAllAvailable()
    assert rows(spark) == before
    producer.commit_transaction(TIMEOUT_S)
    query.processAllAvailable()
    assert rows(spark) == {**topic.expected, (0, 50): b"undecided"}


def test_path_alone_follows_the_manifest(spark: SparkSession, broker: TierlogBroker, start: Start) -> None:
    topic = Topic(broker, "uploaded")
    topic.send(400)
    topic.send(100, "path", commit=False)
    topic.upload()
    query = start(topic.path())
    query.processAllAvailable()
    assert rows(spark) == topic.expected
    topic.send(100)
    topic.upload()
    query.processAllAvailable()
    assert rows(spark) == topic.expected


def test_available_now_reads_in_limited_batches_and_reports_the_newest_offsets(
    spark: SparkSession, broker: TierlogBroker, start: Start
) -> None:
    topic = Topic(broker, "limited")
    topic.send(1_000)
    topic.upload()
    topic.send(500)
    query = start(topic.both(maxOffsetsPerTrigger=400), available_now=True)
    assert query.awaitTermination(TIMEOUT_S * 4)
    assert rows(spark) == topic.expected
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(batches) == 1_500 and len(batches) == 4 and max(batches) <= 400
    newest = query.lastProgress["sources"][0]["latestOffset"]
    newest = json.loads(newest) if isinstance(newest, str) else newest
    assert newest["topics"]["limited"]["partitions"] == {"0": 750, "1": 750}


def test_new_partitions_are_read_from_their_start(
    spark: SparkSession, broker: TierlogBroker, start: Start
) -> None:
    topic = Topic(broker, "growing", partitions=1)
    topic.send(100)
    query = start(topic.both())
    query.processAllAvailable()
    topic.grow(3)
    topic.send(300)
    query.processAllAvailable()
    assert rows(spark) == topic.expected
    assert {partition for partition, _ in topic.expected} == {0, 1, 2}


def test_pattern_and_assignment_select_what_is_read_on_both_sides_of_the_seam(
    spark: SparkSession, broker: TierlogBroker, start: Start
) -> None:
    topics = [Topic(broker, name) for name in ("choice-a", "choice-b")]
    for topic in topics:
        topic.send(300)
        topic.upload()
        topic.send(100)
    common = {name: value for name, value in topics[0].both().items() if name != "topic"}
    for options, expected in (
        ({"subscribePattern": "choice-.*"}, {(topic.name, n): 200 for topic in topics for n in (0, 1)}),
        ({"assign": '{"choice-b":[1]}'}, {("choice-b", 1): 200}),
    ):
        query = start({**common, **options}, available_now=True, name=f"chosen_{len(expected)}")
        assert query.awaitTermination(TIMEOUT_S * 4)
        counted = spark.table(query.name).groupBy("topic", "partition").count().collect()
        assert {(row.topic, row.partition): row["count"] for row in counted} == expected


def test_topic_that_is_created_again_is_an_error(broker: TierlogBroker, start: Start) -> None:
    topic = Topic(broker, "again")
    topic.send(100)
    query = start(topic.live(), sink="noop")
    query.processAllAvailable()
    query.stop()
    topic.delete()
    topic.create()
    topic.send(500)
    query = start(topic.live(), available_now=True, sink="noop")
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        query.awaitTermination(TIMEOUT_S * 4)


def test_deleted_records_are_an_error_unless_the_user_accepts_their_loss(broker: TierlogBroker) -> None:
    topic = Topic(broker, "truncated", partitions=1)
    topic.send(100)
    deleted = topic.admin.delete_records([TopicPartition(topic.name, 0, 60)])
    next(iter(deleted.values())).result(TIMEOUT_S)
    options = parse_stream_options(topic.live())
    live = options.live
    assert live is not None
    [source] = BrokerPositions(live, options).sources()

    def offsets(first: int, *, fail_on_data_loss: bool) -> list[int]:
        wanted = OffsetRange(first, 100)
        return [
            offset
            for fetched in fetch_range(live, source, wanted, fail_on_data_loss=fail_on_data_loss)
            for columns in decode_columns(fetched.batches, ["offset"], first_offset=fetched.first_offset)
            for offset in columns.arrays["offset"].to_pylist()
        ]

    with pytest.raises(OffsetsUnavailable, match="offset 10 is not on the brokers, whose log starts at 60"):
        offsets(10, fail_on_data_loss=True)
    with pytest.warns(UserWarning, match="log starts at 60: records were lost"):
        assert offsets(10, fail_on_data_loss=False) == list(range(60, 100))
    assert offsets(60, fail_on_data_loss=True) == list(range(60, 100))


@pytest.mark.nightly
def test_driver_that_is_killed_continues_from_its_checkpoint(broker: TierlogBroker, tmp_path: Path) -> None:
    topic = Topic(broker, "killed")
    topic.send(1_000)
    topic.upload()
    topic.send(1_000)
    arguments = {
        "options": topic.both(maxOffsetsPerTrigger=150),
        "output": str(tmp_path / "output"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "until_end": False,
    }
    command = [sys.executable, str(DRIVER)]
    with subprocess.Popen(
        [*command, json.dumps(arguments)], stdout=subprocess.PIPE, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if int(line) >= 4:
                break
        os.killpg(driver.pid, signal.SIGKILL)
    topic.send(300)
    topic.upload()
    arguments["until_end"] = True
    subprocess.run([*command, json.dumps(arguments)], check=True, stdout=subprocess.DEVNULL, timeout=200)
    assert parquet_rows(tmp_path / "output") == topic.expected


def parquet_rows(output: Path) -> Rows:
    """The rows of the files that the sink has committed, none of which is there twice."""
    committed = {
        Path(json.loads(line)["path"]).name
        for log in (output / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
    }
    found = [row for name in committed for row in pq.read_table(output / name).to_pylist()]
    by_place = {(row["partition"], row["offset"]): row["value"] for row in found}
    assert len(by_place) == len(found)
    return by_place
