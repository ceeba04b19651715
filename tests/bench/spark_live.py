#!/usr/bin/env python3
"""Streams of a topic's tail and writes, by tierlog's source with a tierlog broker and by Spark's own Kafka
source and sink with Apache Kafka. A part of `make bench-spark`.

    spark_live.py [--rows 2000000] [--sides kafka,tierlog] [--runs 2] [--peer-pyspark DIRECTORY]

The topics have the same records of 100 B in four partitions. Each side is a session in a new process
(`spark_live_query.py`). tierlog writes in transactions, the Kafka sink at least once. Results are in
results/spark_live.json, which `spark_scan.py --docs` adds to the page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import spark_data
import suite
from spark_scan import LIVE_RESULT, fetched
from topics import Topics

from tierlog.spark.java import find_java_home

HERE = Path(__file__).parent
COPY = "copy"
TRICKLE_S = 20
RECORDS_A_SECOND = 100
TIERLOG = {"transaction.two.phase.commit.enable": "true"}


@contextmanager
def broker_of(side, shape):
    """The bootstrap address of a broker that has the topic."""
    with ExitStack() as stack:
        if side == "kafka":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-bench-")))
            classpath = f"{fetched(HERE.parent / 'clients' / 'fetch-java.sh')}/*"
            bootstrap = stack.enter_context(spark_data.kafka_with(classpath, folder, shape))
        else:
            bootstrap = stack.enter_context(suite.tierlog_broker(settings=TIERLOG)).bootstrap
            spark_data.fill(bootstrap, shape)
        Topics(bootstrap).create(spark_data.PARTITIONS, name=COPY)
        yield bootstrap


def trickle(bootstrap):
    """A record each 10 ms."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    begin = time.monotonic()
    for number in range(TRICKLE_S * RECORDS_A_SECOND):
        producer.produce(spark_data.TOPIC, bytes(100), partition=number % spark_data.PARTITIONS)
        while (left := begin + number / RECORDS_A_SECOND - time.monotonic()) > 0:
            producer.poll(left)  # returns early if a record was delivered
    producer.flush()


def measure(side, shape, options):
    with broker_of(side, shape) as bootstrap:
        environment = {**os.environ, "JAVA_HOME": str(find_java_home())}
        job = {"format": side, "session": "builder", "jars": "", "bootstrap": bootstrap, "copy": COPY}
        job |= {"topic": spark_data.TOPIC, "rows": options.rows, "runs": options.runs, "trickle_s": TRICKLE_S}
        if side == "kafka":
            job |= {"session": "plain", "jars": f"{fetched('spark-kafka')}/*"}
            if options.peer_pyspark:
                paths = [str(options.peer_pyspark), environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        session = subprocess.Popen(
            [sys.executable, HERE / "spark_live_query.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            session.stdin.write(json.dumps(job))
            session.stdin.close()
            for line in session.stdout:
                said = json.loads(line)
                if said == "trickle":
                    trickle(bootstrap)
                else:
                    return said
        finally:
            session.terminate()
            session.wait()
    raise RuntimeError(f"{side}: the session ended without a result")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--sides", default="kafka,tierlog")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--peer-pyspark", type=Path)
    options = parser.parse_args()
    shape = spark_data.Shape("100 B", options.rows, 100)
    results = json.loads(LIVE_RESULT.read_text()) if LIVE_RESULT.exists() else {}
    for side in options.sides.split(","):
        begin = time.monotonic()
        results[side] = measure(side, shape, options)
        LIVE_RESULT.parent.mkdir(exist_ok=True)
        LIVE_RESULT.write_text(json.dumps(results, indent=1))
        print(json.dumps({"side": side, **results[side], "s": round(time.monotonic() - begin)}), flush=True)


if __name__ == "__main__":
    main()
