"""Spark Connect: the client has no JVM, and the server imports the data source for itself."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession
from spark_bucket import BucketWriter
from spark_cluster import connect_server
from spark_history import LOG_START, write_history
from spark_sessions import end_shared_session

from tierlog.spark.java import FAST_SETTINGS
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with connect_server(**FAST_SETTINGS) as address:
        yield address


@pytest.fixture(scope="module")
def spark(server: str) -> Iterator[SparkSession]:
    end_shared_session()
    made = SparkSession.builder.remote(server).create()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    return write_history(tmp_path_factory.mktemp("bucket"))


def committed(history: BucketWriter) -> list[tuple[int, bytes | None]]:
    """Offset and value of the rows of flights-0."""
    place = next(p for p in history.entries if p.topic_id == history.topics["flights"] and p.partition == 0)
    end = history.entries[place][-1].end_offset
    return [
        (row["offset"], row["value"])
        for row in history.rows["flights", 0]
        if LOG_START <= row["offset"] < end
    ]


def test_history_is_read(spark: SparkSession, history: BucketWriter) -> None:
    options = {"path": str(history.root), "topic": "flights", "partitions": "0", "splitBytes": "10000"}
    rows = spark.read.format("tierlog").options(**options).load().select("offset", "value").collect()
    found = sorted((row.offset, None if row.value is None else bytes(row.value)) for row in rows)
    assert found == committed(history)


def test_filters_prune(spark: SparkSession, history: BucketWriter) -> None:
    frame = spark.read.format("tierlog").options(path=str(history.root), topic="flights").load()
    last = committed(history)[-1][0]
    assert frame.where(f"partition = 0 and offset >= {last}").count() == 1


def test_error_names_the_option(spark: SparkSession, history: BucketWriter) -> None:
    frame = spark.read.format("tierlog").options(path=str(history.root), topik="flights").load()
    with pytest.raises(PySparkException, match=r"unknown option topik\. Did you mean `topic`"):
        frame.count()


def test_rows_are_written_and_streamed_back(
    spark: SparkSession, tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    broker: TierlogBroker = tierlog_broker_factory({})
    address = {"kafka.bootstrap.servers": broker.bootstrap}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("out", 2, 1)])["out"].result(TIMEOUT_S)
    rows = spark.range(500).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format("tierlog").mode("append").options(**address, topic="out").save()
    stream = spark.readStream.format("tierlog").options(
        **address, subscribe="out", startingOffsets="earliest"
    )
    query = (
        stream.load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert query.awaitTermination(TIMEOUT_S)
    values = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(int(row.value) for row in values) == list(range(500))


@pytest.mark.nightly
def test_jobs_run_on_the_server(server: str, history: BucketWriter, tmp_path: Path) -> None:
    """In a process of its own, as a user starts them."""
    audit = run_job("audit", "--path", history.root, "--remote", server)
    assert audit["is_ok"]
    table = tmp_path / "table"
    export = ("--path", history.root, "--topic", "flights", "--to", table, "--remote", server)
    first, second = run_job("backfill", *export), run_job("backfill", *export)
    assert (first["rows"] > len(committed(history)), second["rows"]) == (True, 0)


def run_job(name: str, *words: object) -> dict[str, Any]:
    command = [sys.executable, "-m", f"tierlog.spark.jobs.{name}", *map(str, words), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
