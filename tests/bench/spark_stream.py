"""Tail of a topic in Spark streams: rows a second, and the time of a trigger, beside the Kafka source.

`python tests/bench/spark_stream.py --bootstrap HOST:PORT` fills a topic on running brokers and measures both
sources there, each in a process of its own. `--kafka-python` is the Python of a PySpark that has Spark's
Kafka package (`--kafka-jars`); without it only tierlog is measured.

- `rows`: a query with Trigger.AvailableNow into the sink `noop`, after one that warmed the session up.
- `trigger`: median duration of micro-batches while records trickle in.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRICKLE_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--kafka-python")
    parser.add_argument("--kafka-jars", default="")
    parser.add_argument("--measure", help="internal: the format of this process")
    parser.add_argument("--topic", default="")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.bootstrap, given.topic, given.kafka_jars)
        return
    topic = fill(given.bootstrap, given.records, given.bytes, given.partitions)
    runs = {"tierlog": sys.executable}
    if given.kafka_python:
        runs["kafka"] = given.kafka_python
    for format, python in runs.items():
        command = [python, __file__, "--bootstrap", given.bootstrap, "--measure", format, "--topic", topic]
        with subprocess.Popen(
            [*command, "--kafka-jars", given.kafka_jars], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("trickle"):
                    trickle(given.bootstrap, topic, given.bytes, given.partitions)
                elif line.startswith("{"):
                    print(line, end="", flush=True)


def fill(bootstrap: str, records: int, size: int, partitions: int) -> str:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"tail-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    value = bytes(range(256)) * (size // 256 + 1)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value[:size], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def trickle(bootstrap: str, topic: str, size: int, partitions: int) -> None:
    """A record each 10 ms."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    end = time.monotonic() + TRICKLE_S
    number = 0
    while time.monotonic() < end:
        producer.produce(topic, bytes(size), partition=number % partitions)
        producer.poll(0.01)
        number += 1
    producer.flush()


def measure(format: str, bootstrap: str, topic: str, jars: str) -> None:
    spark = make_session(format, jars)
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format(format).option("kafka.bootstrap.servers", bootstrap)
    name = "topic" if format == "tierlog" else "subscribe"
    stream = reader.option(name, topic).option("startingOffsets", "earliest").load()
    directory = Path(tempfile.mkdtemp(prefix="tierlog-bench-"))

    def start(checkpoint: str, **trigger: Any) -> Any:
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(directory / checkpoint))
        return writer.trigger(**trigger).start()

    rates = []
    for turn in ("warm", "first", "second"):
        query = start(turn, availableNow=True)
        query.awaitTermination()
        done = [dict(progress) for progress in query.recentProgress if progress["numInputRows"]]
        seconds = sum(progress["durationMs"]["triggerExecution"] for progress in done) / 1000
        rates.append(sum(progress["numInputRows"] for progress in done) / seconds)
    query = start("second", processingTime="0 seconds")
    query.processAllAvailable()
    print("trickle", flush=True)
    deadline = time.monotonic() + TRICKLE_S * 0.9
    durations: dict[int, int] = {}
    while time.monotonic() < deadline:
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                durations[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        time.sleep(0.5)
    query.stop()
    spark.stop()
    result = {
        "source": format,
        "rows_per_second": round(max(rates[1:])),
        "trigger_ms": statistics.median(durations.values()),
        "triggers": len(durations),
    }
    print(json.dumps(result), flush=True)


def make_session(format: str, jars: str) -> Any:
    if format == "tierlog":
        from tierlog.spark import session

        return session("bench", **{"spark.driver.memory": "1g"})
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


if __name__ == "__main__":
    main()
