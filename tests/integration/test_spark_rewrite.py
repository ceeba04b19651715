"""`tierlog spark rewrite` and `compact` change the history of a running broker, which clients read."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from admin_proxy import AdminProxy
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.process import TierlogBroker
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.jobs.arguments import Job, JobFailed, NoProgress, parse
from tierlog.spark.jobs.audit import JOB as AUDIT
from tierlog.spark.jobs.compact import JOB as COMPACT
from tierlog.spark.jobs.rewrite import JOB as REWRITE
from tierlog.spark.options import parse_options
from tierlog.tiering.format.keys import Keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC = "events"
START_MS = 1_700_000_000_000
TRANSACTIONS, RECORDS = 40, 50  # records of each transaction
SETTINGS = {
    "remote.log.manager.task.interval.ms": 200,
    "remote.log.delete.grace.ms": 0,
    "remote.log.merge.min.segments": 0,
}
CONFIG = {
    "remote.storage.enable": "true",
    "local.retention.ms": "0",
    "retention.ms": "-1",
    "segment.bytes": "16384",
}
Row = tuple[int, int, bytes | None, bytes | None]


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The driver has the credentials in its environment, as its workers do."""
    os.environ.update(s3_servers.CREDENTIALS)
    yield spark
    for name in s3_servers.CREDENTIALS:
        del os.environ[name]


@pytest.fixture(params=["directory", pytest.param("versitygw", marks=pytest.mark.nightly)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Arguments of a broker for its object store."""
    if request.param == "directory":
        yield {}
        return
    with s3_servers.running(request.param, tmp_path) as server:
        yield {"object_store": server.url("history"), "environment": s3_servers.CREDENTIALS}


class History:
    """A broker with a tiered topic of many small segments, and the address of its bucket."""

    def __init__(self, broker: TierlogBroker, path: str) -> None:
        self.broker, self.path = broker, path
        self.admin = AdminApi(broker.admin_url)

    def arguments(self, admin: str | None = None) -> list[str]:
        """Arguments of a run that joins all segments into one, with another codec."""
        where = ["--path", self.path, "--topic", TOPIC, "--admin", admin or self.broker.admin_url]
        return [*where, "--codec", "zstd", "--segment-mib", "1"]

    def flush(self) -> None:
        """Returns once all records have left the local disk."""
        self.admin.post("/v1/tier/flush", {"topic": TOPIC})

        def is_remote() -> bool:
            [line] = self.admin.get("/v1/tier/status", topic=TOPIC)["partitions"]
            return bool(line["local_log_start_offset"] == line["log_end_offset"])

        until(is_remote, "all segments leave the local disk")

    def segments(self) -> int:
        [line] = self.admin.get("/v1/tier/status", topic=TOPIC)["partitions"]
        return int(line["remote_segments"])

    def objects(self) -> list[str]:
        """Keys of all segments in the bucket, also of those that wait for their deletion."""
        bucket = open_bucket(parse_options({"path": self.path, "topic": "any"}).store)
        [cluster] = [name for name in bucket.folders() if not name.startswith(".")]
        return [key for key in bucket.keys(Keys(cluster).everything()) if key.endswith(".log")]

    def codecs(self) -> set[Codec]:
        """The codecs of the data batches in all segments of the bucket."""
        bucket = open_bucket(parse_options({"path": self.path, "topic": "any"}).store)
        found = (header for key in self.objects() for _, header in iter_batches(bucket.read(key)))
        return {header.codec for header in found if not header.is_control}


@pytest.fixture
def history(tierlog_broker_factory: Any, store: dict[str, Any]) -> History:
    broker = tierlog_broker_factory(SETTINGS, **store)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])[TOPIC].result(60)
    produce(broker)
    found = History(broker, str(store.get("object_store", broker.object_dir)))
    found.flush()
    return found


def produce(broker: TierlogBroker) -> None:
    """Committed and aborted transactions of one producer, compressed with gzip."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": "writer",
            "compression.type": "gzip",
            "linger.ms": 5,
        }
    )
    producer.init_transactions()
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for at in range(number * RECORDS, (number + 1) * RECORDS):
            value = os.urandom(40).hex().encode() * 4
            producer.produce(TOPIC, value, b"key-%d" % (at % 17), timestamp=START_MS + at)
        producer.flush()
        if number % 5 == 4:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def read_all(broker: TierlogBroker, first: int = 0) -> list[Row]:
    """Offset, timestamp, key and value of all committed records from an offset on."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, first)])
    found: list[Message] = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        found.append(message)
    assert message is not None
    consumer.close()
    return [(one.offset(), one.timestamp()[1], one.key(), one.value()) for one in found]


@contextmanager
def reading_again_and_again(broker: TierlogBroker, expected: list[Row]) -> Iterator[None]:
    """Read everything from offset 0, again and again. Each read must find the same."""
    ended, wrong = threading.Event(), list[int]()

    def read() -> None:
        while not ended.is_set():
            found = read_all(broker)
            if found != expected:
                wrong.append(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
    assert wrong == []


def run(job: Job, *arguments: object) -> dict[str, Any]:
    return job.run(parse(job, [str(one) for one in arguments]), NoProgress())


def test_consumers_read_the_same_while_codec_and_segment_size_change(
    spark: SparkSession, history: History
) -> None:
    expected = read_all(history.broker)
    assert len(expected) == TRANSACTIONS * RECORDS * 4 // 5
    before = history.segments()
    assert before > 10
    assert history.codecs() == {Codec.GZIP}
    arguments = history.arguments()
    promised = run(REWRITE, *arguments, "--dry-run")
    assert promised["planned_segments"] == before
    assert promised["expected_bytes"] < promised["planned_bytes"] * 2
    assert history.segments() == before, "a dry run changes nothing"
    with reading_again_and_again(history.broker, expected):
        done = run(REWRITE, *arguments)
    assert done["not_replaced"] == []
    assert done["replaced_segments"] == before
    assert history.segments() == done["new_segments"] < before / 4
    until(lambda: len(history.objects()) == history.segments(), "the old objects are deleted")
    assert history.codecs() == {Codec.ZSTD}
    assert read_all(history.broker) == expected
    audited = run(AUDIT, "--path", history.path)
    assert audited["damages"] == []
    assert audited["unreferenced_objects"] == 0
    assert run(REWRITE, *arguments)["planned_groups"] == 0, "a second run finds nothing to do"


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_run_that_was_killed_before_the_hand_over_changes_nothing_and_leaves_nothing(
    history: History, spark: SparkSession
) -> None:
    expected, before = read_all(history.broker), history.segments()
    reached, killed = threading.Event(), threading.Event()

    def wait_for_kill() -> None:
        reached.set()
        killed.wait(60)
        raise ConnectionAbortedError("the driver is dead")

    proxy = AdminProxy(history.broker.admin_url, "/commit", wait_for_kill)
    with proxy.running():
        command = [*history.arguments(proxy.url), "--lease-seconds", "2"]
        driver = subprocess.Popen([sys.executable, "-m", "tierlog.spark.jobs.rewrite", *command])
        assert reached.wait(120), "the driver hands a segment over"
        assert len(history.objects()) > before
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        killed.set()
    assert history.segments() == before
    assert read_all(history.broker) == expected
    until(lambda: len(history.objects()) == before, "the objects of the dead run are deleted")
    assert run(REWRITE, *history.arguments())["is_ok"]
    assert history.segments() < before
    assert read_all(history.broker) == expected


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_records_that_are_deleted_during_a_run_stay_deleted_and_no_others(
    history: History, spark: SparkSession
) -> None:
    expected, start = read_all(history.broker), 700

    def delete_records() -> None:
        admin = AdminClient({"bootstrap.servers": history.broker.bootstrap})
        [deleted] = admin.delete_records([TopicPartition(TOPIC, 0, start)]).values()
        assert deleted.result(60).low_watermark == start

    with AdminProxy(history.broker.admin_url, "/commit", delete_records).running() as proxy:
        done = run(REWRITE, *history.arguments(proxy.url))
    assert done["is_ok"], done
    assert done["replaced_segments"] > 0, "the rest is planned again"
    assert read_all(history.broker, start) == [row for row in expected if row[0] >= start]
    until(lambda: len(history.objects()) == history.segments(), "unused objects are deleted")
    assert run(AUDIT, "--path", history.path)["damages"] == []


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_topic_that_is_deleted_during_a_run_leaves_no_object(history: History, spark: SparkSession) -> None:
    def delete_topic() -> None:
        admin = AdminClient({"bootstrap.servers": history.broker.bootstrap})
        admin.delete_topics([TOPIC])[TOPIC].result(60)

    with AdminProxy(history.broker.admin_url, "/commit", delete_topic).running() as proxy:
        try:
            left = run(REWRITE, *history.arguments(proxy.url))["not_replaced"]
        except JobFailed as failure:  # the bucket no longer describes the topic when the job plans again
            left = [str(failure)]
    assert left
    until(lambda: not history.objects(), "all objects are deleted")


COMPACTED = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
"""The brokers compact nothing by themselves: no log is dirtier than 1.0."""


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_compaction_keeps_exactly_the_newest_record_of_each_key(
    spark: SparkSession, tierlog_broker_factory: Any, store: dict[str, Any]
) -> None:
    broker = tierlog_broker_factory(SETTINGS, **store)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=COMPACTED)])[TOPIC].result(60)
    history = History(broker, str(broker.object_dir))
    produce(broker)
    history.flush()
    everything = read_all(broker)
    arguments = ["--path", history.path, "--topic", TOPIC, "--admin", broker.admin_url]
    promised = run(COMPACT, *arguments, "--dry-run")
    assert promised["planned_partitions"] == 1
    assert promised["dirty_bytes"] == promised["planned_bytes"] > 0
    assert read_all(broker) == everything
    done = run(COMPACT, *arguments)
    assert done["not_compacted"] == []
    assert done["records_removed"] > 0
    assert read_all(broker) == newest(everything)
    assert run(COMPACT, *arguments)["planned_partitions"] == 0, "a second run finds nothing to do"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key in (b"key-3", b"key-5", b"new"):
        producer.produce(TOPIC, None if key == b"key-5" else b"later", key)
    producer.flush()
    history.flush()
    later = read_all(broker)
    assert later[:-3] == newest(everything)
    assert run(COMPACT, *arguments, "--map-mib", 1)["is_ok"]
    assert read_all(broker) == newest(later), "the tombstone is among them"
    until(lambda: len(history.objects()) == history.segments(), "the old objects are deleted")
    audited = run(AUDIT, "--path", history.path)
    assert audited["damages"] == []
    assert audited["unreferenced_objects"] == 0


def newest(rows: list[Row]) -> list[Row]:
    return sorted({row[2]: row for row in rows}.values())
