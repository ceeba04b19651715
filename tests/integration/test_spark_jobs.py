"""Spark's jobs on buckets that a real broker and BucketWriter have written, read back by other libraries."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas
import pyarrow.dataset
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from spark_bucket import BucketWriter
from spark_history import write_history

from tierlog.cli.process import TierlogBroker
from tierlog.spark.jobs.arguments import Job, JobFailed, NoProgress, parse
from tierlog.spark.jobs.audit import JOB as AUDIT
from tierlog.spark.jobs.backfill import JOB as BACKFILL
from tierlog.spark.jobs.stats import JOB as STATS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

START_MS = 1_700_000_000_000
PARTITIONS = 2
COLUMNS = "topic,partition,offset,timestamp,timestampType,key,value,headers"
Row = tuple[Any, ...]


def run(job: Job, *arguments: object) -> dict[str, Any]:
    return job.run(parse(job, [str(one) for one in arguments]), NoProgress())


def rows_of(table: Any) -> list[Row]:
    """The rows of an Arrow table in the order of partition and offset, with timestamps as milliseconds."""
    found = []
    for row in table.to_pylist():
        headers = [(one["key"], one["value"]) for one in row.get("headers") or ()]
        stamp = round(row["timestamp"].timestamp() * 1000)
        found.append(
            (row["topic"], row["partition"], row["offset"], stamp, row["key"], row["value"], headers)
        )
    return sorted(found)


def produce(broker: TierlogBroker, topic: str, numbers: range) -> None:
    """Records over five hours. Every third hundred is an aborted transaction."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer", "linger.ms": 5})
    producer.init_transactions()
    for first in range(numbers.start, numbers.stop, 100):
        producer.begin_transaction()
        for number in range(first, min(first + 100, numbers.stop)):
            producer.produce(
                topic,
                key=None if number % 7 == 0 else b"key-%d" % number,
                value=None if number % 11 == 0 else b"value %d " % number * 20,
                partition=number % PARTITIONS,
                timestamp=START_MS + number * 5_000,
                headers=[("number", b"%d" % number)] if number % 2 else [],
            )
        producer.flush()
        if first // 100 % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def consumed(broker: TierlogBroker, topic: str) -> list[Row]:
    """All committed records, as a real client reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Row] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is not None:
            ended.add(message.partition())
            continue
        stamp = message.timestamp()[1]
        headers = message.headers() or []
        place = (topic, message.partition(), message.offset(), stamp)
        found.append((*place, message.key(), message.value(), headers))
    consumer.close()
    return sorted(found)


def flush(broker: TierlogBroker, topic: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tierlog", "tier", "flush", topic, "--admin", broker.admin_url], check=True
    )


def test_a_brokers_history_is_exported_once_to_every_format_and_audited(
    spark: SparkSession, tierlog_broker_factory: Any, tmp_path: Path
) -> None:
    broker = tierlog_broker_factory({"remote.log.manager.task.interval.ms": 200})
    topic, path = "orders", broker.object_dir
    config = {"remote.storage.enable": "true", "segment.bytes": "65536", "retention.ms": "-1"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(60)
    warehouse = f"uri=sqlite:///{tmp_path}/catalog.db", f"warehouse=file://{tmp_path}/warehouse"
    source = ["--path", path, "--topic", topic, "--columns", COLUMNS, "--partition-by", "hour"]
    iceberg = ["--format", "iceberg", "--table", "exports.orders", "--catalog", "local"]
    for one in ("type=sql", *warehouse):
        iceberg += ["--catalog-property", one]
    for numbers in (range(3_000), range(3_000, 3_700)):
        produce(broker, topic, numbers)
        flush(broker, topic)
        expected = consumed(broker, topic)
        for target in (
            ["--to", tmp_path / "parquet", "--commit-mib", 0],
            ["--to", tmp_path / "delta", "--format", "delta"],
            iceberg,
        ):
            done = run(BACKFILL, *source, *target)
            assert done["rows"] > 0
            assert run(BACKFILL, *source, *target)["commits"] == []
        parquet = pyarrow.dataset.dataset(str(tmp_path / "parquet"), partitioning="hive").to_table()
        assert rows_of(parquet) == expected
        frame = pandas.read_parquet(tmp_path / "parquet")
        hours = pandas.to_datetime(frame["date"].astype(str)) + pandas.to_timedelta(
            frame["hour"].astype(int), "h"
        )
        assert (frame["timestamp"].dt.floor("h") == hours.dt.tz_localize("UTC")).all()
        delta = DeltaTable(str(tmp_path / "delta"))
        assert rows_of(delta.to_pyarrow_table()) == expected
        catalog = load_catalog("local", type="sql", **dict(one.split("=", 1) for one in warehouse))
        assert rows_of(catalog.load_table("exports.orders").scan().to_arrow()) == expected
    audited = run(AUDIT, "--path", path)
    assert audited["damages"] == []
    assert audited["segments"] > 10
    assert audited["unreferenced_objects"] == 0


@pytest.fixture
def history(tmp_path: Path) -> BucketWriter:
    return write_history(tmp_path / "bucket")


def exported(folder: Path) -> list[Row]:
    return rows_of(
        pyarrow.dataset.dataset(str(folder), partitioning="hive", exclude_invalid_files=False).to_table()
    )


@pytest.mark.nightly
def test_a_killed_export_shows_complete_commits_and_is_continued_without_doubles(
    spark: SparkSession, history: BucketWriter, tmp_path: Path
) -> None:
    arguments = ["--path", str(history.root), "--topic", "flights", "--columns", COLUMNS]
    whole = [*arguments, "--to", str(tmp_path / "whole")]
    assert run(BACKFILL, *whole)["rows"] > 2_000
    killed = [*arguments, "--to", str(tmp_path / "killed"), "--commit-mib", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tierlog.spark.jobs.backfill", *killed],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 3 "):
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stderr.close()
    everything = exported(tmp_path / "whole")
    before = exported(tmp_path / "killed")
    assert 0 < len(before) < len(everything)
    assert set(map(repr, before)) < set(map(repr, everything))
    assert run(BACKFILL, *killed)["is_ok"]
    assert exported(tmp_path / "killed") == everything
    assert run(BACKFILL, *killed)["commits"] == []


def test_a_second_export_of_the_same_offsets_is_refused(
    spark: SparkSession, history: BucketWriter, tmp_path: Path
) -> None:
    """Two runs are planned from the same state, and the first one commits."""
    from tierlog.spark.jobs.backfill import open_table
    from tierlog.spark.jobs.export import WrittenFile, schema_of
    from tierlog.spark.jobs.selection import plan

    for target in (
        ["--format", "delta", "--to", tmp_path / "delta"],
        ["--to", tmp_path / "parquet"],
        [
            *("--format", "iceberg", "--table", "a.b", "--catalog-property", "type=sql"),
            *("--catalog-property", f"uri=sqlite:///{tmp_path}/c.db"),
            *("--catalog-property", f"warehouse=file://{tmp_path}/w"),
        ],
    ):
        given = [str(one) for one in ("--path", history.root, "--topic", "weather", *target)]
        values = parse(BACKFILL, given)
        _, parts = plan(values, {})
        rival = open_table(values, schema_of(values["columns"].split(",")))
        ends = {parts[0].source.id: 5}
        assert run(BACKFILL, *given)["rows"] > 0
        nothing: list[WrittenFile] = []
        with pytest.raises(JobFailed, match="another run has committed"):
            rival.commit(nothing, ends)


def test_audit_names_each_damage_with_object_and_offset(
    spark: SparkSession, history: BucketWriter, tmp_path: Path
) -> None:
    assert run(AUDIT, "--path", history.root)["damages"] == []
    segments = [history.log_key("flights", 0, number) for number in range(6)]
    history.flip(segments[1], 70)
    history.flip(segments[2].with_suffix(".idx"), 400)
    segments[3].unlink()
    stray = segments[0].with_name(segments[0].name[:-5] + "0.log")
    stray.write_bytes(b"not in a manifest")
    page = tmp_path / "audit.html"
    found = run(AUDIT, "--path", history.root, "--html", page)
    by_object = {history.root / one["object"]: one for one in found["damages"]}
    assert set(by_object) == {segments[1], segments[2].with_suffix(".idx"), segments[3]}
    assert by_object[segments[1]]["offset"] == int(segments[1].name[:20])
    assert by_object[segments[1]]["position"] == 0
    assert by_object[segments[3]]["missing"]
    assert stray.relative_to(history.root).as_posix() in found["unreferenced"]
    assert not found["is_ok"]
    assert "Damages" in page.read_text()


def test_audit_exits_with_one_and_continues_after_a_stop(
    spark: SparkSession, history: BucketWriter, tmp_path: Path
) -> None:
    history.flip(history.log_key("weather", 0, 2), 300)
    state = tmp_path / "state.json"
    arguments = ["--path", str(history.root), "--resume", str(state), "--round-mib", "0"]

    class Stopped(Exception):
        pass

    class StopAfterRounds(NoProgress):
        def begin(self, label: str, total: int) -> None:
            if label.startswith("round 17 "):
                raise Stopped

    with pytest.raises(Stopped):
        AUDIT.run(parse(AUDIT, arguments), StopAfterRounds())
    kept = json.loads(state.read_text())["checked"]
    assert kept["segments"] == 16
    ended = subprocess.run(
        [sys.executable, "-m", "tierlog", "spark", "audit", "--json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    found = json.loads(ended.stdout)
    assert found["segments"] == 17
    assert [one["topic"] for one in found["damages"]] == ["weather"]
    assert not state.exists()


def test_stats_are_those_of_the_records(spark: SparkSession, history: BucketWriter, tmp_path: Path) -> None:
    page = tmp_path / "stats.html"
    found = run(STATS, "--path", history.root, "--html", page)
    assert set(found["topics"]) == {"flights", "weather"}
    exported_to = ["--path", history.root, "--topic", "flights", "--to", tmp_path / "flights"]
    run(BACKFILL, *exported_to, "--columns", COLUMNS, "--partition-by", "none")
    rows = exported(tmp_path / "flights")
    topic = found["topics"]["flights"]
    counts = Counter(row[4] for row in rows if row[4] is not None)
    assert topic["records"] == len(rows)
    assert topic["null_keys"] == len(rows) - sum(counts.values())
    assert topic["value_bytes"] == sum(len(row[5]) for row in rows if row[5] is not None)
    assert topic["distinct_keys"] == len(counts)
    assert (topic["first_timestamp"], topic["last_timestamp"]) == (
        min(row[3] for row in rows),
        max(row[3] for row in rows),
    )
    assert {one["key"]: one["records"] for one in topic["hot_keys"]} == {
        key.decode(): count
        for key, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:20]
    }
    by_partition = Counter(row[1] for row in rows)
    assert topic["partition_skew"] == round(max(by_partition.values()) * 3 / len(rows), 3)
    seconds = found["period_ms"] / 1_000
    rates = [one["records_per_second"] * seconds for one in topic["rates"]]
    assert sum(rates) == pytest.approx(len(rows), rel=0.01)
    assert "flights: skew by time" in page.read_text()
    sizes = run(STATS, "--path", history.root, "--manifests-only")["topics"]["flights"]
    assert sizes["bytes"] == topic["bytes"] > 0
    assert "records" not in sizes
