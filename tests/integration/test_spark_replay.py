"""The replay job between real brokers, with real Spark whose driver is killed."""

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_inline import json_output
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tierlog.spark.jobs.arguments import JobFailed, NoProgress, parse
from tierlog.spark.jobs.replay import JOB
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

START_MS = 1_700_000_000_000
PARTITIONS = 3
RECORDS = 4_000
END = 800
KILLED = Path(__file__).parents[1] / "support" / "spark_stream_killed.py"
Row = tuple[Any, ...]


def with_topic(broker: TierlogBroker, name: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic(name, partitions, 1, config={"retention.ms": "-1", **config})
    admin.create_topics([topic])[name].result(60)


def produce(broker: TierlogBroker, numbers: range) -> None:
    """Records of 50 keys, with headers and null values. Every third hundred is an aborted transaction."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer"})
    producer.init_transactions()
    for first in range(numbers.start, numbers.stop, 100):
        producer.begin_transaction()
        for number in range(first, first + 100):
            producer.produce(
                "orders",
                key=b"key-%d" % (number % 50),
                value=None if number % 11 == 0 else b"%d" % number,
                timestamp=START_MS + number,
                headers=[("number", b"%d" % number)] if number % 2 else None,
            )
        producer.flush()
        if first // 100 % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def consumed(
    broker: TierlogBroker, topic: str, partitions: int = PARTITIONS, *, end: int = 1 << 62
) -> dict[int, list[Row]]:
    """Committed records of each partition below an offset, in order: key, value, headers, timestamp."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[Row]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(60)
        assert message is not None, "an open transaction"
        if message.error() is not None:
            ended.add(message.partition())
            continue
        row = message.key(), message.value(), message.headers(), message.timestamp()[1]
        if message.offset() < end:
            found[message.partition()].append(row)
    consumer.close()
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    """Most records of `orders` are in the bucket, and the last ones only in the broker."""
    settings = {"remote.log.manager.task.interval.ms": 200}
    with TierlogBroker(tmp_path_factory.mktemp("source"), settings) as broker:
        config = {"remote.storage.enable": "true", "segment.bytes": "16384"}
        with_topic(broker, "orders", PARTITIONS, **config)
        produce(broker, range(RECORDS))
        command = [sys.executable, "-m", "tierlog", "tier", "flush", "orders", "--admin", broker.admin_url]
        subprocess.run(command, check=True)
        produce(broker, range(RECORDS, RECORDS + 500))
        yield broker


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    settings = {"transaction.two.phase.commit.enable": "true"}
    with TierlogBroker(tmp_path_factory.mktemp("target"), settings) as broker:
        yield broker


def arguments(source: TierlogBroker, target: TierlogBroker, checkpoint: Path, *more: object) -> list[str]:
    given = ["--path", source.object_dir, "--topic", "orders", "--to-bootstrap", target.bootstrap]
    return [str(one) for one in (*given, "--checkpoint", checkpoint, *more)]


def run(given: list[str]) -> dict[str, Any]:
    return JOB.run(parse(JOB, given), NoProgress())


FUNCTION = """
import pyarrow as pa
import pyarrow.compute as pc

def upper_case_keys(batch):
    kept = batch.filter(pc.not_equal(batch.column("key"), b"key-7"))
    keys = pc.utf8_upper(kept.column("key").cast(pa.string())).cast(pa.binary())
    return kept.set_column(kept.schema.get_field_index("key"), "key", keys)
"""


@pytest.mark.nightly
def test_killed_replay_loses_and_doubles_nothing_and_keeps_the_order(
    spark: SparkSession, source: TierlogBroker, target: TierlogBroker, tmp_path: Path
) -> None:
    with_topic(target, "orders", PARTITIONS)
    given = arguments(
        source, target, tmp_path / "checkpoint", "--from-bootstrap", source.bootstrap, "--commit-records", 700
    )
    for moment in ("prepared", "decided"):
        command = [sys.executable, str(KILLED), target.bootstrap, str(tmp_path), moment, *given]
        assert subprocess.run(command, timeout=300, check=False).returncode == -signal.SIGKILL
    assert run(given)["batches"] > 2
    expected = consumed(source, "orders")
    assert consumed(target, "orders") == expected
    assert run(given)["batches"] == 0
    produce(source, range(10_000, 10_200))
    run(given)
    assert consumed(target, "orders") == consumed(source, "orders") != expected


def test_filter_and_function_choose_and_change_rows_that_are_placed_by_key(
    spark: SparkSession,
    source: TierlogBroker,
    target: TierlogBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "only_here.py").write_text(FUNCTION)  # executors cannot import it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with_topic(target, "copy.orders", 5)
    given = arguments(source, target, tmp_path / "checkpoint", "--to-topic", "copy.{topic}")
    given += ["--filter", "value is not null and partition < 2", "--partitioning", "key"]
    given += ["--function", "only_here:upper_case_keys"]
    given += ["--ending-offsets", json.dumps({"orders": dict.fromkeys("012", END)})]
    done = run(given)
    placed = consumed(target, "copy.orders", 5)
    by_key: dict[bytes, list[Row]] = defaultdict(list)
    for partition, rows in consumed(source, "orders", end=END).items():
        for key, value, headers, stamp in rows:
            if value is not None and partition < 2 and key != b"key-7":
                by_key[key.upper()].append((key.upper(), value, headers, stamp))
    assert done["records_written"] == sum(map(len, by_key.values())) == sum(map(len, placed.values()))
    for key, rows in by_key.items():
        (partition,) = [place for place, found in placed.items() if any(row[0] == key for row in found)]
        assert [row for row in placed[partition] if row[0] == key] == rows
    with pytest.raises(JobFailed, match="give the same arguments, or another --checkpoint"):
        run([*given[:-2], "--filter", "true"])


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--to-topic", "nowhere"], "'nowhere' does not exist"),
        (["--to-topic", "narrow"], "use --partitioning key"),
        (["--to-topic", "wide", "--filter", "nothing > 1"], "--filter 'nothing > 1'"),
        (["--function", "only_here:absent"], "--function must be MODULE:NAME"),
    ],
)
def test_invalid_replay_says_what_is_wrong(
    spark: SparkSession,
    source: TierlogBroker,
    target: TierlogBroker,
    tmp_path: Path,
    more: list[str],
    named: str,
) -> None:
    for topic, partitions in (("narrow", 1), ("wide", 3)):
        if topic in more:
            with_topic(target, topic, partitions)
    with pytest.raises(JobFailed, match=named):
        run(arguments(source, target, tmp_path / "checkpoint", *more))


def test_topic_is_not_replayed_into_itself(
    spark: SparkSession, source: TierlogBroker, tmp_path: Path
) -> None:
    with pytest.raises(JobFailed, match="which this replay reads"):
        run(arguments(source, source, tmp_path / "checkpoint"))


def test_command_prints_the_result_as_json(
    spark: SparkSession, source: TierlogBroker, target: TierlogBroker, tmp_path: Path
) -> None:
    with_topic(target, "by-command", PARTITIONS)
    given = arguments(source, target, tmp_path / "checkpoint", "--to-topic", "by-command")
    [found] = json_output("spark", "replay", *given)
    assert found["records_written"] == sum(map(len, consumed(target, "by-command").values())) > 0
