"""Real Spark on metadata tables, counts and skewed keys."""

from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name everyone knows it by)
from spark_bucket import BucketWriter
from spark_history import SEGMENTS

from tierlog.spark import count, hot_keys, replicate, salt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def load(spark: SparkSession, history: BucketWriter, **options: str) -> DataFrame:
    return spark.read.format("tierlog").options(path=str(history.root), **options).load()


def test_metadata_tables_are_queried_as_any_other(spark: SparkSession, history: BucketWriter) -> None:
    partitions = load(spark, history, table="partitions")
    assert partitions.where("topic = 'weather'").first().segments == SEGMENTS
    segments = load(spark, history, table="segments", subscribe="weather")
    newest = max(row["timestamp_ms"] for row in history.rows["weather", 0])
    found = segments.agg(F.sum("records").alias("n"), F.unix_millis(F.max("max_timestamp")).alias("t"))
    assert tuple(found.first()) == (len(history.rows["weather", 0]), newest)


def test_count_is_that_of_spark(spark: SparkSession, history: BucketWriter) -> None:
    for options in ({"subscribe": "flights"}, {"subscribePattern": ".*", "endingTimestamp": "1357034900000"}):
        assert count(str(history.root), **options) == load(spark, history, **options).count() > 0


def test_hot_keys_are_counted_and_salting_changes_no_result(
    spark: SparkSession, history: BucketWriter
) -> None:
    frame = load(spark, history, subscribe="weather")
    expected = Counter(row["key"] for row in history.rows["weather", 0])
    hot = hot_keys(frame, top=3)
    found = [(None if row.key is None else bytes(row.key), row.records) for row in hot.collect()]
    assert [records for _, records in found] == sorted(expected.values(), reverse=True)[:3]
    assert all(expected[key] == records for key, records in found)
    salted = salt(frame, hot, 4)
    per_key = salted.groupBy("key").agg(F.countDistinct("salt").alias("salts"), F.count("*").alias("n"))
    salts = {None if r.key is None else bytes(r.key): (r.salts, r.n) for r in per_key.collect()}
    assert {key: n for key, (_, n) in salts.items()} == dict(expected)
    assert all((many > 1) == (key in dict(found)) for key, (many, _) in salts.items())
    names = frame.select("key").distinct().withColumn("name", F.hex("key"))
    joined = salted.join(replicate(names, hot, 4), ["key", "salt"])
    assert joined.count() == frame.join(names, "key").count()
