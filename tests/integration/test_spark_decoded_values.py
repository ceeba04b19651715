"""Real Spark reads values as columns, in batches and streams, with the schemas of a registry."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
import schema_registry
import shop_values as shop
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark_bucket import BucketWriter

from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.jobs.arguments import JobFailed, NoProgress, parse
from tierlog.spark.jobs.backfill import JOB as BACKFILL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FIRST_MS = shop.FIRST_S * 1_000
SCHEMA = json.dumps(shop.AVRO_SCHEMA)
NEW_FIELD = {"name": "note", "type": ["null", "string"], "default": None}


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.fixture(scope="module")
def registry() -> Iterator[schema_registry.Registry]:
    with schema_registry.running() as found:
        yield found


def write_topics(directory: Path, topics: dict[str, list[bytes | None]]) -> None:
    writer = BucketWriter(directory, keeps_rows=False)
    for topic, values in topics.items():
        writer.topic(topic, 1)
        records = [NewRecord(FIRST_MS + n, b"%d" % n, value) for n, value in enumerate(values)]
        writer.segment(topic, 0, [bytes(encode_batch(records))])
        writer.commit(topic, 0)


def read(spark: SparkSession, path: Path, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("tierlog").option("path", str(path)).option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader.load()


def rows_of(frame: DataFrame) -> list[Any]:
    rows = frame.orderBy("offset").select("value").collect()
    return [None if row.value is None else row.value.asDict(recursive=True) for row in rows]


def with_zones(order: dict[str, Any]) -> dict[str, Any]:
    """An order as PySpark shows it: local times, maps as dictionaries, bytes as bytearrays."""
    found = shop.shown(order)
    found["at"] = order["at"].astimezone().replace(tzinfo=None)
    return {**found, "attributes": order["attributes"]}


def test_avro_of_a_registry_is_a_struct_in_batches_and_streams(
    spark: SparkSession, registry: schema_registry.Registry, tmp_path: Path
) -> None:
    rng = random.Random(1)
    orders = [shop.avro_order(rng, number) for number in range(200)]
    frame = b"\0" + registry.register("orders-value", SCHEMA).to_bytes(4, "big")
    values: list[bytes | None] = [frame + shop.avro_bytes(shop.AVRO_SCHEMA, order) for order in orders]
    write_topics(tmp_path / "bucket", {"orders": [*values, None], "broken": [values[0], b"broken", None]})
    given = {
        "value_format": "avro",
        "schema_registry_url": registry.url,
        "schema_registry_basic_auth_user_info": schema_registry.USER,
    }
    found = read(spark, tmp_path / "bucket", "orders", **given)
    assert found.schema["value"].dataType.simpleString() == shop.SPARK_TYPE
    expected = [*map(with_zones, orders), None]
    assert rows_of(found) == expected
    assert found.where("value.state = 'SENT'").count() == sum(o["state"] == "SENT" for o in orders)
    stream = spark.readStream.format("tierlog").option("path", str(tmp_path / "bucket"))
    for name, value in {**given, "topic": "orders"}.items():
        stream = stream.option(name.replace("_", "."), value)
    query = stream.load().writeStream.format("memory").queryName("orders_stream").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert rows_of(spark.table("orders_stream")) == expected
    given["value_subject"] = "orders-value"
    with pytest.raises(PySparkException, match=r"broken-0: a value does not follow the schema"):
        read(spark, tmp_path / "bucket", "broken", **given).collect()
    lenient = read(spark, tmp_path / "bucket", "broken", **given, value_malformed="null")
    assert rows_of(lenient) == [expected[0], None, None]
    narrow = spark.read.format("tierlog").schema("offset BIGINT, value STRUCT<id: BIGINT>")
    for name, value in {**given, "topic": "orders", "path": str(tmp_path / "bucket")}.items():
        narrow = narrow.option(name.replace("_", "."), value)
    assert [row.value.id for row in narrow.load().orderBy("offset").limit(200).collect()] == [
        order["id"] for order in orders
    ]


def test_protobuf_and_json_are_structs(spark: SparkSession, tmp_path: Path) -> None:
    rng, order_class = random.Random(2), shop.proto_class()
    orders = [shop.proto_order(order_class, rng, number) for number in range(200)]
    (tmp_path / "shop.desc").write_bytes(shop.proto_set())
    write_topics(
        tmp_path / "bucket",
        {
            "orders": [order.SerializeToString() for order in orders],
            "events": [b'{"id": 1, "at": "2024-01-01T00:00:00Z", "tags": ["a"]}', b"{}"],
        },
    )
    proto = read(
        spark,
        tmp_path / "bucket",
        "orders",
        value_format="protobuf",
        value_schema=str(tmp_path / "shop.desc"),
        value_message="shop.Order",
    )
    for order, row in zip(orders, rows_of(proto), strict=True):
        expected = shop.proto_shown(order)
        expected["attributes"] = dict(expected["attributes"])
        at = expected["at"]
        expected["at"] = at and at.astimezone().replace(tzinfo=None)
        assert row == expected
    schema = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
    events = read(spark, tmp_path / "bucket", "events", value_format="json", value_schema=schema)
    rows = events.selectExpr("offset", "value.id", "cast(value.at as string)", "value.tags").orderBy("offset")
    assert [tuple(row) for row in rows.collect()] == [
        (0, 1, "2024-01-01 00:00:00", ["a"]),
        (1, None, None, None),
    ]


def test_values_are_exported_as_columns_and_keep_their_type(
    spark: SparkSession, registry: schema_registry.Registry, tmp_path: Path
) -> None:
    """To each format. A newer schema in the registry changes no table: its type is named."""
    rng = random.Random(3)
    orders = [shop.avro_order(rng, number) for number in range(60)]
    first = registry.register("sales-value", SCHEMA)
    values = [b"\0" + first.to_bytes(4, "big") + shop.avro_bytes(shop.AVRO_SCHEMA, one) for one in orders]
    bucket, topic = BucketWriter(tmp_path / "bucket", keeps_rows=False), "sales"
    bucket.topic(topic, 1)

    def add(base_offset: int, some: list[bytes]) -> None:
        records = [NewRecord(FIRST_MS + n, b"%d" % n, value) for n, value in enumerate(some)]
        bucket.segment(topic, 0, [bytes(encode_batch(records, base_offset=base_offset, leader_epoch=0))])
        bucket.commit(topic, 0)

    def export(*target: object) -> int:
        arguments = ["--path", bucket.root, "--topic", topic, "--partition-by", "none", *target]
        rows: int = BACKFILL.run(parse(BACKFILL, [str(one) for one in arguments]), NoProgress())["rows"]
        return rows

    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/lake",
    }
    properties = [f"--catalog-property={name}={value}" for name, value in catalog.items()]
    targets: dict[str, list[object]] = {
        "parquet": ["--to", tmp_path / "parquet"],
        "delta": ["--to", tmp_path / "delta", "--format", "delta"],
        "iceberg": ["--format", "iceberg", "--table", "shop.sales", "--catalog", "local", *properties],
    }
    address = f"schema.registry.url={registry.url}"
    user = f"schema.registry.basic.auth.user.info={schema_registry.USER}"
    decoding = [f"--value-option={one}" for one in ("value.format=avro", address, user)]
    add(0, values[:40])
    for target in targets.values():
        assert export(*target, *decoding) == 40
    newer = {**shop.AVRO_SCHEMA, "fields": [*shop.AVRO_SCHEMA["fields"], NEW_FIELD]}
    registry.register("sales-value", json.dumps(newer))
    add(40, values[40:])
    for name, target in targets.items():
        with pytest.raises(JobFailed, match=r"value\.schema\.id|note"):
            export(*target, *decoding)
        assert export(*target, *decoding, f"--value-option=value.schema.id={first}") == 20, name
        assert export(*target, *decoding, f"--value-option=value.schema.id={first}") == 0
    tables = {
        "parquet": pyarrow.dataset.dataset(str(tmp_path / "parquet")).to_table(),
        "delta": DeltaTable(str(tmp_path / "delta")).to_pyarrow_table(),
        "iceberg": load_catalog("local", **catalog).load_table("shop.sales").scan().to_arrow(),
    }
    for name, table in tables.items():
        found = table.sort_by("offset").column("value").to_pylist(maps_as_pydicts="strict")
        assert [row["id"] for row in found] == [one["id"] for one in orders], name
        assert [row["at"] for row in found] == [one["at"] for one in orders], name
        assert [row["attributes"] for row in found] == [one["attributes"] for one in orders], name
        assert [row["state"] for row in found] == [one["state"] for one in orders], name
