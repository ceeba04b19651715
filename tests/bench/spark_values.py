"""Benchmark of decoded values: `value.format` of tierlog's source beside Spark's own functions.

    python tests/bench/spark_values.py [--rows 1000000] [--formats json,avro,protobuf] [--avro-jar FILE]
                                       [--protobuf-jar FILE]

The same values, orders of 11 fields with an array of structs, are read as columns by `value.format`, and as
bytes to which `from_json`, `from_avro` or `from_protobuf` is applied. Those of Protobuf have 23 fields. Rows
go to a sink that drops them (`all fields`), or two fields are summed (`two fields`). The side `named fields`
has a schema of these two alone, since a data source cannot see which ones a query needs. The functions for
Avro and Protobuf are in jars of their own (org.apache.spark:spark-avro_2.13), and are left out without them.
Figures are rows a second: medians of RUNS runs after a first one.
"""

import argparse
import json
import random
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import shop_values as shop
from spark_bucket import BucketWriter

from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark import session

DISTINCT = 4_000
BATCH_RECORDS = 250
SEGMENT_BATCHES = 1_000
PARTITIONS = 2
RUNS = 3
LINE = {
    "name": "Line",
    "type": "record",
    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": ["null", "string"]},
            {"name": "amount", "type": "double"},
            {"name": "paid", "type": "boolean"},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
            {"name": "city", "type": "string"},
            {"name": "street", "type": "string"},
            {"name": "number", "type": "int"},
            {"name": "weight", "type": "float"},
            {"name": "lines", "type": {"type": "array", "items": LINE}},
            {"name": "attributes", "type": {"type": "array", "items": "string"}},
        ],
    }
)
DDL = (
    "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, state STRING, city STRING, street STRING, "
    "number INT, weight FLOAT, lines ARRAY<STRUCT<sku: STRING, n: INT>>, attributes ARRAY<STRING>"
)


NAMED = "value STRUCT<id: BIGINT, amount: DOUBLE>"


def order(rng, number):
    return {
        "id": rng.randrange(2**40),
        "customer": rng.choice([None, f"customer-{rng.randrange(10**6):06}"]),
        "amount": rng.random() * 100,
        "paid": rng.random() < 0.5,
        "state": rng.choice(["NEW", "SENT"]),
        "city": rng.choice(["Zürich", "Berlin", "Lyon"]),
        "street": f"Street of the long name {rng.randrange(1_000)}",
        "number": rng.randrange(500),
        "weight": 0.5,
        "lines": [{"sku": f"sku-{rng.randrange(10**5):05}", "n": n} for n in range(rng.randrange(1, 4))],
        "attributes": ["gift", "express"][: rng.randrange(3)],
    }


def values(format):
    rng = random.Random(1)
    if format == "protobuf":
        order_class = shop.proto_class()
        return [shop.proto_order(order_class, rng, n).SerializeToString() for n in range(DISTINCT)]
    orders = [order(rng, n) for n in range(DISTINCT)]
    if format == "json":
        return [json.dumps(one).encode() for one in orders]
    return [shop.avro_bytes(json.loads(AVRO), one) for one in orders]


def write_bucket(directory, format, rows):
    writer = BucketWriter(directory, keeps_rows=False)
    writer.topic("bench", PARTITIONS)
    some = values(format)
    templates = [
        bytes(
            encode_batch([NewRecord(1_700_000_000_000, b"key", one) for one in some[at : at + BATCH_RECORDS]])
        )
        for at in range(0, DISTINCT, BATCH_RECORDS)
    ]
    for partition in range(PARTITIONS):
        batches = rows // PARTITIONS // BATCH_RECORDS
        for first in range(0, batches, SEGMENT_BATCHES):
            numbers = range(first, min(first + SEGMENT_BATCHES, batches))
            segment = [
                struct.pack(">q", n * BATCH_RECORDS) + templates[n % len(templates)][8:] for n in numbers
            ]
            writer.segment("bench", partition, segment)
        writer.commit("bench", partition)
    return sum(map(len, some)) / len(some)


def frames(spark, directory, format, descriptors):
    """The values as a struct, by each side."""
    from pyspark.sql import functions as F  # noqa: N812

    reader = spark.read.format("tierlog").option("path", str(directory)).option("topic", "bench")
    raw = reader.load()
    reader = reader.option("value.format", format)
    if format == "json":
        yield "tierlog", reader.option("value.schema", DDL).load()
        yield "named fields", reader.schema(NAMED).load()
        yield "Spark", raw.select(F.from_json(F.col("value").cast("string"), DDL).alias("value"))
    elif format == "avro":
        from pyspark.sql.avro.functions import from_avro

        yield "tierlog", reader.option("value.schema", AVRO).load()
        yield "named fields", reader.schema(NAMED).load()
        yield "Spark", raw.select(from_avro("value", AVRO).alias("value"))
    else:
        from pyspark.sql.protobuf.functions import from_protobuf

        message = "shop.Order"
        yield (
            "tierlog",
            reader.option("value.schema", str(descriptors)).option("value.message", message).load(),
        )
        yield "Spark", raw.select(from_protobuf("value", message, str(descriptors)).alias("value"))


def drop(frame):
    frame.select("value.*").write.format("noop").mode("overwrite").save()


def add(frame):
    frame.selectExpr("sum(value.id % 7)", "sum(value.amount)").collect()


def measure(work, rows):
    work()
    figures = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        work()
        figures.append(rows / (time.perf_counter() - begun))
    return statistics.median(figures)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", default="json,avro,protobuf")
    parser.add_argument("--avro-jar", default="")
    parser.add_argument("--protobuf-jar", default="")
    options = parser.parse_args()
    jars = ",".join(filter(None, (options.avro_jar, options.protobuf_jar)))
    spark = session("values", **({"spark.jars": jars} if jars else {}))
    spark.sparkContext.setLogLevel("OFF")
    has_functions = {"json": True, "avro": options.avro_jar, "protobuf": options.protobuf_jar}
    for format in options.formats.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            size = write_bucket(directory / "bucket", format, options.rows)
            descriptors = directory / "shop.desc"
            descriptors.write_bytes(shop.proto_set())
            for side, frame in frames(spark, directory / "bucket", format, descriptors):
                if side == "Spark" and not has_functions[format]:
                    continue
                for name, work in (("all fields", drop), ("two fields", add)):
                    if side == "named fields" and name == "all fields":
                        continue
                    rate = measure(lambda work=work, frame=frame: work(frame), options.rows)
                    result = {"format": format, "bytes": round(size), "side": side, "case": name}
                    print(json.dumps({**result, "rows_per_second": round(rate)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
