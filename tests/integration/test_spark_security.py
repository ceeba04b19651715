"""Spark writes to brokers and streams from them over TLS, with a login."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import call
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.process import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
USER, PASSWORD = "spark", "canary-of-spark"


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options of a broker that has nothing but a SASL_SSL listener."""
    authority = LocalAuthority(tmp_path / "certificates", int(time.time()), 30)
    authority.issue("broker", ("localhost", "127.0.0.1"))
    running = TierlogBroker(
        tmp_path,
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.directory / "broker.pem",
            "transaction.two.phase.commit.enable": "true",
        },
    )
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    credential = f"SCRAM-SHA-512=[name={USER},password-file={tmp_path / 'password'}]"
    ended = call("storage", "format", "--set", f"log.dirs={running.data_dir}", "--add-scram", credential)
    assert ended.code == 0, ended
    running.start()
    admin = AdminClient(
        {
            "bootstrap.servers": running.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.directory / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )
    admin.create_topics([NewTopic("numbers", 2, 1)])["numbers"].result(60)
    yield {
        "kafka.bootstrap.servers": running.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca.location": str(authority.directory / "ca.pem"),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": PASSWORD,
    }
    running.stop()
    assert PASSWORD not in running.log_path.read_text()


def test_rows_are_written_and_streamed_back(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) as value")
    for transactional in ("false", "true"):
        rows.write.format("tierlog").mode("append").options(
            **options, topic="numbers", transactional=transactional
        ).save()
    query = (
        spark.readStream.format("tierlog")
        .options(**options, topic="numbers")
        .load()
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "rows"), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [bytes(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).select("value").collect()]
    assert sorted(found) == sorted([str(number).encode() for number in range(1000)] * 2)


def test_a_wrong_password_ends_the_write_and_is_not_shown(
    spark: SparkSession, options: dict[str, str]
) -> None:
    wrong = {**options, "kafka.sasl.password": "canary-that-is-wrong"}
    writer = spark.range(1).selectExpr("cast(id as string) as value").write.format("tierlog")
    with pytest.raises(PySparkException) as failed:
        writer.mode("append").options(**wrong, topic="numbers").save()
    assert "uthentication failed" in str(failed.value)
    assert "canary" not in str(failed.value)
