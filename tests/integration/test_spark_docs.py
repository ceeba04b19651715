"""The snippets of docs/howto/spark.md and exactly-once-spark.md run in order, as a reader would run them."""

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from spark_bucket import BucketWriter

from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOWTOS = Path(__file__).parents[2] / "docs" / "howto"
TIMEOUT_S = 90.0
MARCH_MS = 1_740_787_200_000
HOUR_MS = 3_600_000


def test_snippets_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = BucketWriter(tmp_path)
    writer.topic("orders", 1)
    stamps = [MARCH_MS + (offset - 100) * HOUR_MS for offset in range(1_000)]
    records = [NewRecord(stamp, b"k%d" % (stamp % 7), b"v") for stamp in stamps]
    writer.segment("orders", 0, [encode_batch(records)])
    writer.commit("orders", 0)
    names: dict[str, Any] = {"spark": spark}
    for snippet in snippets("spark.md", {"s3://bucket/prefix": str(tmp_path)}):
        exec(snippet, names)
    assert "1000" in capsys.readouterr().out
    assert names["march"].count() == 31 * 24
    assert names["joined"].count() == 1_000


def snippets(page: str, values: dict[str, str]) -> list[str]:
    """`values` replace what a reader would replace."""
    text = (HOWTOS / page).read_text(encoding="utf-8")
    for shown, value in values.items():
        text = text.replace(shown, value)
    return re.findall(r"```python spark\n(.*?)```", text, re.DOTALL)


def test_snippets_about_transactions_run(
    spark: SparkSession, tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    """All but the snippet of Spark's own Kafka source, which is not installed."""
    history = BucketWriter(tmp_path / "bucket")
    history.topic("orders", 1)
    history.segment("orders", 0, [encode_batch([NewRecord(MARCH_MS, b"k", b"v")])])
    history.commit("orders", 0)
    broker = tierlog_broker_factory({"transaction.two.phase.commit.enable": "true"})
    bootstrap = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(bootstrap)
    for created in admin.create_topics([NewTopic(n, 1, 1) for n in ("orders", "orders-copy")]).values():
        created.result(TIMEOUT_S)
    producer = Producer({**bootstrap, "transactional.id": "orders"})
    producer.init_transactions(TIMEOUT_S)
    for value, end in (("kept", producer.commit_transaction), ("dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("orders", value)
        end(TIMEOUT_S)
    stream = spark.readStream.format("tierlog").option("kafka.bootstrap.servers", broker.bootstrap)
    names: dict[str, Any] = {
        "spark": spark,
        "orders": stream.option("subscribe", "orders").option("startingOffsets", "earliest").load(),
        "orders_batch": spark.createDataFrame([("batch",)], "value string"),
    }
    values = {
        "s3://bucket/prefix": str(tmp_path / "bucket"),
        "127.0.0.1:9092": broker.bootstrap,
        "/tmp/orders-copy": str(tmp_path / "checkpoint"),
    }
    from_bucket, from_kafka, *writes = snippets("exactly-once-spark.md", values)
    assert 'format("kafka")' in from_kafka
    for snippet in (from_bucket, *writes):
        exec(snippet, names)
    assert names["history"].count() == 1
    names["query"].processAllAvailable()
    names["query"].stop()
    consumer = Consumer({**bootstrap, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders-copy", 0, 0)])
    found: set[bytes] = set()
    while found < {b"batch", b"kept"}:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None, message
        found.add(message.value())
    consumer.close()
    assert found == {b"batch", b"kept"}
