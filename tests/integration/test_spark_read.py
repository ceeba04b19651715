"""Real Spark on a bucket written in tierlog's formats, compared with the records written."""

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql import functions as F  # noqa: N812 (the name everyone knows it by)
from spark_bucket import BucketWriter
from spark_history import CHUNK_BYTES, FIRST_MS, LOG_START, SEGMENTS, UNCOMMITTED, write_history

from tierlog.records.batch import iter_batches
from tierlog.spark.java import java_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def load(
    spark: SparkSession, history: BucketWriter, schema: str | None = None, **options: object
) -> DataFrame:
    reader = spark.read.format("tierlog").option("path", str(history.root)).option("splitBytes", 10_000)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader.schema(schema) if schema else reader).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows by topic, partition and offset, with timestamps as milliseconds."""
    columns = [
        F.unix_millis("timestamp").alias("timestamp_ms") if c == "timestamp" else c for c in frame.columns
    ]
    found = [row.asDict(recursive=True) for row in frame.select(*columns).collect()]
    for row in found:
        for name in ("key", "value"):
            row[name] = None if row[name] is None else bytes(row[name])
        for header in row.get("headers") or ():
            header["value"] = None if header["value"] is None else bytes(header["value"])
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def committed(history: BucketWriter, topic: str, partition: int) -> list[dict[str, Any]]:
    """The records that Spark may return: without the deleted head of flights-0 and the last segment of
    flights-1.
    """
    place = next(
        p for p in history.entries if p.topic_id == history.topics[topic] and p.partition == partition
    )
    dropped = UNCOMMITTED if (topic, partition) == ("flights", 1) else 0
    end = history.entries[place][-1 - dropped].end_offset
    start = LOG_START if (topic, partition) == ("flights", 0) else 0
    return [row for row in history.rows[topic, partition] if start <= row["offset"] < end]


def without_headers(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "headers"} for row in expected]


def test_every_committed_record_is_read_unchanged(spark: SparkSession, history: BucketWriter) -> None:
    frame = load(spark, history, topics="flights,weather", includeHeaders=True)
    expected = [
        row
        for place in (("flights", 0), ("flights", 1), ("weather", 0))
        for row in committed(history, *place)
    ]
    assert rows(frame) == expected
    assert frame.rdd.getNumPartitions() > 40  # chunks of segments, not whole ones


def test_columns_are_those_of_sparks_kafka_source(spark: SparkSession, history: BucketWriter) -> None:
    assert load(spark, history, topic="weather").dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    headers = load(spark, history, topic="weather", includeHeaders="true").dtypes[-1]
    assert headers == ("headers", "array<struct<key:string,value:binary>>")


def test_columns_by_option_are_the_only_ones_that_are_read(
    spark: SparkSession, history: BucketWriter
) -> None:
    frame = load(spark, history, topic="weather", columns="offset, headers")
    assert frame.dtypes == [("offset", "bigint"), ("headers", "array<struct<key:string,value:binary>>")]
    expected = [(row["offset"], len(row["headers"] or ())) for row in committed(history, "weather", 0)]
    found = frame.selectExpr("offset", "coalesce(size(headers), 0)").collect()
    assert sorted(map(tuple, found)) == [(offset, max(count, 0)) for offset, count in expected]
    with pytest.raises(Exception, match="no column size; the columns are key, value"):
        load(spark, history, topic="weather", columns="offset,size")


def test_a_new_worker_has_the_decoder_loaded_and_exempt_from_collection(spark: SparkSession) -> None:
    def state(_: int) -> tuple[bool, bool]:
        import gc
        import sys

        return "tierlog.records.kernels" in sys.modules, gc.get_freeze_count() > 100_000

    assert spark.sparkContext.parallelize([1], 1).map(state).collect() == [(True, True)]


@pytest.mark.parametrize("split_bytes", [1, 1_500, 1 << 30])
def test_no_input_split_loses_or_duplicates_records(
    spark: SparkSession, history: BucketWriter, split_bytes: int
) -> None:
    frame = load(
        spark,
        history,
        "partition int, offset bigint",
        topic="flights",
        partitions="1",
        splitBytes=split_bytes,
    )
    offsets = sorted(row.offset for row in frame.collect())
    assert offsets == [row["offset"] for row in committed(history, "flights", 1)]


def test_offsets_bound_each_partition_exactly(spark: SparkSession, history: BucketWriter) -> None:
    starting = json.dumps({"flights": {"0": 300, "1": 777}})
    ending = json.dumps({"flights": {"0": 301, "1": 1_000}})
    frame = load(
        spark, history, topic="flights", partitions="0,1", startingOffsets=starting, endingOffsets=ending
    )
    expected = [row for row in committed(history, "flights", 0) if row["offset"] == 300]
    expected += [row for row in committed(history, "flights", 1) if 777 <= row["offset"] < 1_000]
    assert rows(frame) == without_headers(expected)


def test_timestamp_bound_is_the_first_offset_at_or_after_it(
    spark: SparkSession, history: BucketWriter
) -> None:
    everything = committed(history, "weather", 0)
    start_ms, end_ms = FIRST_MS + 400_500, FIRST_MS + 900_000
    start = next(row["offset"] for row in everything if row["timestamp_ms"] >= start_ms)
    end = next(row["offset"] for row in everything if row["timestamp_ms"] >= end_ms)
    frame = load(spark, history, topic="weather", startingTimestamp=start_ms, endingTimestamp=end_ms)
    assert rows(frame) == without_headers([row for row in everything if start <= row["offset"] < end])


def test_timestamp_after_the_last_record_is_an_error_unless_waived(
    spark: SparkSession, history: BucketWriter
) -> None:
    late = {"subscribe": "weather", "startingTimestamp": FIRST_MS * 2}
    with pytest.raises(PySparkException, match="no record at or after timestamp"):
        load(spark, history, **late).count()
    assert load(spark, history, startingOffsetsByTimestampStrategy="latest", **late).count() == 0


def test_partition_without_uploads_is_empty(spark: SparkSession, history: BucketWriter) -> None:
    assert load(spark, history, topic="flights", partitions="2").collect() == []


def test_deleted_offsets_are_an_error_unless_waived(spark: SparkSession, history: BucketWriter) -> None:
    gone = {"topic": "flights", "partitions": "0", "startingOffsets": '{"flights":{"0":3}}'}
    with pytest.raises(PySparkException, match="offset 3 is not in the bucket"):
        load(spark, history, **gone).count()
    frame = load(spark, history, failOnDataLoss=False, **gone)
    assert frame.count() == len(committed(history, "flights", 0))


def test_aggregates_match_the_records(spark: SparkSession, history: BucketWriter) -> None:
    frame = load(spark, history, topic="flights")
    found = frame.groupBy("partition").agg(
        F.count("*").alias("records"),
        F.sum("offset").alias("offsets"),
        F.sum(F.length("value")).alias("bytes"),
        F.max("timestamp").alias("newest"),
    )
    for row in found.collect():
        expected = committed(history, "flights", row.partition)
        assert row.records == len(expected)
        assert row.offsets == sum(r["offset"] for r in expected)
        assert row.bytes == sum(len(r["value"]) for r in expected if r["value"] is not None)
        newest_ms = round(row.newest.astimezone(UTC).timestamp() * 1000)
        assert newest_ms == max(r["timestamp_ms"] for r in expected)


@pytest.mark.skipif(not hasattr(datasource, "EqualTo"), reason="PySpark 4.0 pushes no filters")
def test_pushed_filters_read_less_and_return_the_same(spark: SparkSession, history: BucketWriter) -> None:
    condition = (F.col("partition") == 1) & F.col("offset").between(300, 420)
    pushed = load(spark, history, topic="flights", pushFilters=True).where(condition)
    plain = load(spark, history, topic="flights").where(condition)
    assert rows(pushed) == rows(plain) != []
    assert pushed.rdd.getNumPartitions() < plain.rdd.getNumPartitions() / 4


def test_filters_on_one_minute_read_less_and_return_the_same(
    spark: SparkSession, history: BucketWriter
) -> None:
    """BETWEEN arrives as two filters. Late records, a minute behind the others, must not be left out."""
    condition = "timestamp BETWEEN timestamp_millis({0}) AND timestamp_millis({0} + 60000)".format(
        FIRST_MS + 500_000
    )
    options = {"topic": "flights", "splitBytes": 1}
    plain = load(spark, history, **options).where(condition)
    since = load(spark, history, pushFilters=True, **options).where(condition)
    within = load(spark, history, pushFilters=True, maxLateness=600_000, **options).where(condition)
    assert rows(since) == rows(plain) != []
    assert rows(within) == rows(plain)
    splits = [frame.rdd.getNumPartitions() for frame in (plain, since, within)]
    assert splits[0] > splits[1] > splits[2]


def test_subscribe_assign_and_numbers_of_partitions(spark: SparkSession, history: BucketWriter) -> None:
    expected = without_headers(committed(history, "flights", 1))
    assert rows(load(spark, history, assign='{"flights":[1]}', maxPartitions=1)) == expected
    assert load(spark, history, subscribePattern="fl.*", maxPartitions=2).rdd.getNumPartitions() == 2
    frame = load(spark, history, assign='{"flights":[1]}', maxRecordsPerPartition=100)
    assert rows(frame) == expected and frame.rdd.getNumPartitions() >= len(expected) / 100
    assert max(frame.groupBy(F.spark_partition_id()).count().toPandas()["count"]) <= 100


def test_error_names_an_unknown_column(spark: SparkSession, history: BucketWriter) -> None:
    with pytest.raises(PySparkException, match="unknown column nonsense:string"):
        load(spark, history, "nonsense string", topic="flights").count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "flights", "splitByte": 5}, "Did you mean `splitBytes`"),
        ({"topic": "flight"}, "Did you mean 'flights'"),
        ({"topic": "flights", "path": "/nowhere"}, "/nowhere is not a directory"),
    ],
)
def test_unknown_names_are_said_in_few_lines(
    spark: SparkSession, history: BucketWriter, options: dict[str, object], message: str
) -> None:
    with pytest.raises(PySparkException, match=message) as failed:
        load(spark, history, **options).count()
    assert len(str(failed.value).splitlines()) <= 6


@pytest.mark.parametrize("chunk_bytes", (CHUNK_BYTES, None))
def test_corrupt_bytes_fail_the_query(spark: SparkSession, tmp_path: Path, chunk_bytes: int | None) -> None:
    damaged = write_history(tmp_path, chunk_bytes)
    path = damaged.log_key("weather", 0, 2)
    damaged.flip(path, path.stat().st_size // 2)
    with pytest.raises(PySparkException, match=r"weather-0: .*\.log, bytes \d+ to \d+: .*CRC-32C is"):
        load(spark, damaged, topic="weather").count()


def test_damaged_base_offset_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The checksum of the batch does not cover it. The record would be left out, as one behind the end."""
    damaged = write_history(tmp_path)
    path = damaged.log_key("weather", 0, SEGMENTS - 1)
    last_batch = [at for at, _ in iter_batches(path.read_bytes())][-1]
    damaged.flip(path, last_batch + 3)
    with pytest.raises(PySparkException, match=r"weather-0: .*\.log, bytes .*: the object is damaged"):
        load(spark, damaged, topic="weather").count()


def test_bundles_without_chunk_tables_are_read(spark: SparkSession, tmp_path: Path) -> None:
    earlier = write_history(tmp_path, chunk_bytes=None)
    frame = load(spark, earlier, topic="flights", includeHeaders=True)
    assert rows(frame) == committed(earlier, "flights", 0) + committed(earlier, "flights", 1)
    assert frame.rdd.getNumPartitions() > 20


def test_error_names_a_missing_object(spark: SparkSession, tmp_path: Path) -> None:
    damaged = write_history(tmp_path)
    damaged.log_key("weather", 0, 2).unlink()
    with pytest.raises(PySparkException, match="deleted the object after the query was planned"):
        load(spark, damaged, topic="weather").count()


def test_the_session_is_on_loopback_and_runs_a_java_that_spark_supports(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    import os

    assert java_version(Path(os.environ["JAVA_HOME"]) / "bin" / "java") >= 17
