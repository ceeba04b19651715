"""One Spark session of `spark_scan.py`, in a process of its own: times the same queries, first and warm.

Reads JSON from standard input and prints JSON. `source`: tierlog, kafka or parquet. `session`: plain,
or builder for `tierlog.spark.session`. `options`: of the source. `queries`: names of QUERIES with further
options, in order. `jars`: class path of Spark's Kafka source. `runs`: of each query, after the first.
`exports`: also times an export to Parquet: by `backfill` in the builder's session, which audits and counts as
well, and with Spark's writer in others.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

FIRST, RUNS = "first", "runs"
START, EXPORT, AUDIT, COUNT = "session", "export", "audit", "count"
CODEC = "zstd"
QUERIES = {
    "all columns": (
        "count(*)", "sum(length(key))", "sum(length(value))", "sum(length(topic))", "sum(partition)",
        "sum(offset)", "max(timestamp)", "sum(timestampType)",
    ),
    "offset, timestamp": ("count(*)", "sum(offset)", "max(timestamp)"),
}  # fmt: skip
"""Aggregates that need every value of the columns."""
CORES = "local[2]"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "2g",
}
"""Settings of all sessions. None of them changes how rows are read."""


def make_session(kind, jars):
    if kind == "builder":
        from tierlog.spark import session

        return session("bench", master=CORES, **SETTINGS)
    from pyspark.sql import SparkSession

    from tierlog.spark.java import find_java_home

    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("bench").master(CORES)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if jars:
        builder = builder.config("spark.driver.extraClassPath", jars)
    return builder.getOrCreate()


def run(spark, source, options, query):
    """Seconds, and the row of the aggregates as text."""
    begin = time.perf_counter()
    frame = spark.read.format(source).options(**options).load()
    [row] = frame.selectExpr(*QUERIES[query]).collect()
    return time.perf_counter() - begin, [str(value) for value in row]


def seconds_of(work, runs):
    """The time of each run but the first."""
    taken = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return taken[1:]


def exports(spark, job, directory):
    if job["session"] != "builder":
        frame = spark.read.format(job["source"]).options(**job["options"]).load()
        writer = frame.write.mode("overwrite").option("compression", CODEC)
        return {EXPORT: seconds_of(lambda: writer.parquet(str(directory / "table")), job["runs"])}
    from tierlog.spark import count
    from tierlog.spark.jobs.arguments import NoProgress, parse
    from tierlog.spark.jobs.audit import JOB as AUDIT_JOB
    from tierlog.spark.jobs.backfill import JOB as BACKFILL

    path, topic = job["options"]["path"], job["options"]["topic"]
    targets = iter(range(job["runs"] + 1))

    def backfill():
        target = str(directory / str(next(targets)))
        given = ["--path", path, "--topic", topic, "--to", target, "--compression", CODEC]
        BACKFILL.run(parse(BACKFILL, given), NoProgress())

    audit = parse(AUDIT_JOB, ["--path", path, "--topic", topic])
    return {
        EXPORT: seconds_of(backfill, job["runs"]),
        AUDIT: seconds_of(lambda: AUDIT_JOB.run(audit, NoProgress()), job["runs"]),
        COUNT: seconds_of(lambda: count(path, topic=topic), job["runs"]),
    }


def main():
    job = json.load(sys.stdin)
    begin = time.perf_counter()
    spark = make_session(job["session"], job["jars"])
    found = {START: time.perf_counter() - begin}
    try:
        for query, more in job["queries"]:
            timed = [
                run(spark, job["source"], {**job["options"], **more}, query) for _ in range(job["runs"] + 1)
            ]
            [answer] = {tuple(answer) for _, answer in timed}
            seconds = [taken for taken, _ in timed]
            found[query] = {FIRST: seconds[0], RUNS: seconds[1:], "answer": answer}
        if job.get("exports"):
            with tempfile.TemporaryDirectory(prefix="spark-bench-") as directory:
                found |= exports(spark, job, Path(directory))
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
