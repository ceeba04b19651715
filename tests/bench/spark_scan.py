#!/usr/bin/env python3
"""`make bench-spark`: scans of the same records by tierlog's Spark source, by Spark's own Kafka source with
Apache Kafka, and from Parquet, with the goals.

    spark_scan.py [--shapes "100 B,1 KiB"] [--sides kafka,plain,builder,parquet] [--runs 3] [--rounds 1]
                  [--peer-pyspark DIRECTORY] [--directory DIRECTORY] [--docs PAGE] [--note TEXT]

Each side of each round is a session in a new process (`spark_query.py`), so its first query pays for all that
a session loads once. All sides must return the same aggregates. `--peer-pyspark`: PySpark of the Kafka side,
if Maven does not have that source for the installed PySpark. `--directory`: keeps the bucket and the Parquet
files for the next run. Results are in results/spark.json after each session; a run of some shapes and sides
replaces only theirs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import spark_data
import spark_page
import suite

from tierlog.spark.java import find_java_home

HERE = Path(__file__).parent
RESULT = suite.RESULTS / "spark.json"
LIVE_RESULT = suite.RESULTS / "spark_live.json"
"""Written by `spark_live.py`, which runs before."""
SESSION_LIMIT_S = 280
NARROW = "offset,timestamp"


class Bench:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        self.bootstrap = {}

    def bucket(self, shape):
        path = self.directory / f"bucket-{shape.value_bytes}"
        if not path.exists():
            path.mkdir()
            spark_data.write_bucket(path, shape)
        return path

    def parquet(self, shape):
        path = self.directory / f"parquet-{shape.value_bytes}"
        if not path.exists():
            spark_data.write_parquet(path, shape)
        return path

    def job(self, side, shape):
        """What `spark_query.py` reads."""
        everything, narrow = "all columns", "offset, timestamp"
        job = {
            "session": "plain",
            "jars": "",
            "runs": self.options.runs,
            "queries": [(everything, {}), (narrow, {})],
            "exports": side in (spark_page.KAFKA, spark_page.BUILDER),
        }
        match side:
            case "kafka":
                topic = {"kafka.bootstrap.servers": self.bootstrap[shape], "subscribe": spark_data.TOPIC}
                return {**job, "source": "kafka", "options": topic, "jars": f"{fetched('spark-kafka')}/*"}
            case "parquet":
                return {**job, "source": "parquet", "options": {"path": str(self.parquet(shape))}}
            case _:
                job |= {"session": side, "queries": [(everything, {}), (narrow, {"columns": NARROW})]}
                topic = {"path": str(self.bucket(shape)), "topic": spark_data.TOPIC}
                return {**job, "source": "tierlog", "options": topic}

    def measure(self, side, shape):
        environment = {**os.environ, "JAVA_HOME": str(find_java_home())}
        if side == "kafka" and self.options.peer_pyspark:
            paths = [str(self.options.peer_pyspark), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        done = subprocess.run(
            [sys.executable, HERE / "spark_query.py"],
            input=json.dumps(self.job(side, shape)),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=environment,
            timeout=SESSION_LIMIT_S,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps({"shape": shape.name, "side": side, **found}), flush=True)
        return found

    def run(self, shape):
        sides = self.options.sides.split(",")
        measured = {side: [] for side in sides}
        with ExitStack() as stack:
            if "kafka" in sides:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-bench-")))
                classpath = f"{fetched(HERE.parent / 'clients' / 'fetch-java.sh')}/*"
                self.bootstrap[shape] = stack.enter_context(spark_data.kafka_with(classpath, folder, shape))
            for number in range(self.options.rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    measured[side].append(self.measure(side, shape))
                    self.results.setdefault(shape.name, {})[side] = measured[side]
                    RESULT.parent.mkdir(exist_ok=True)
                    RESULT.write_text(json.dumps(self.results, indent=1))
        check_answers(self.results[shape.name])


def fetched(script):
    """The directory that a script of the clients' tests or of this directory prints."""
    path = HERE / script / "fetch.sh" if isinstance(script, str) else script
    return subprocess.run([path], check=True, capture_output=True, text=True).stdout.strip()


def check_answers(sides):
    """Raises an error unless all sessions have read the same records."""
    for query in spark_page.QUERIES:
        answers = {
            side: {tuple(found[query]["answer"]) for found in sessions} for side, sessions in sides.items()
        }
        if len(set().union(*answers.values())) != 1:
            raise RuntimeError(f"the sides have read different records: {query}: {answers}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=",".join(shape.name for shape in spark_data.SHAPES))
    parser.add_argument("--sides", default=",".join(spark_page.SIDES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer-pyspark", type=Path)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--docs", type=Path, help="the page to write")
    parser.add_argument("--note", default="", help="of the page: what else the machine did")
    options = parser.parse_args()
    wanted = options.shapes.split(",")
    with ExitStack() as stack:
        directory = options.directory
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-bench-")))
        directory.mkdir(exist_ok=True)
        bench = Bench(options, directory)
        for shape in spark_data.SHAPES:
            if shape.name in wanted:
                bench.run(shape)
    print(spark_page.table(bench.results))
    if options.docs:
        live = json.loads(LIVE_RESULT.read_text()) if LIVE_RESULT.exists() else {}
        options.docs.write_text(spark_page.page(bench.results, live, suite.machine(), options.note))


if __name__ == "__main__":
    main()
