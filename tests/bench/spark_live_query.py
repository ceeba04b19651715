"""One Spark session of `spark_live.py`, in a process of its own: reads a topic as a stream, and writes one.

Reads JSON from standard input and prints JSON lines. `format`: tierlog or kafka. `session`, `jars`: as in
`spark_query`. `bootstrap`, `topic`: what is read. `rows`: what is written to the topic `copy`. `runs`: of
each, after the first. Prints `"trickle"` when it waits for records, and `trickle_s` says how long it does.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from spark_query import make_session

TASKS = 2
POLL_S = 0.5


class Streams:
    """Queries of the topic into a sink that drops all rows."""

    def __init__(self, spark, job, directory):
        name = "topic" if job["format"] == "tierlog" else "subscribe"
        reader = spark.readStream.format(job["format"])
        reader = reader.option("kafka.bootstrap.servers", job["bootstrap"])
        self._frame = reader.option(name, job["topic"]).option("startingOffsets", "earliest").load()
        self._directory = directory

    def start(self, checkpoint, **trigger):
        writer = self._frame.writeStream.format("noop")
        return (
            writer.option("checkpointLocation", str(self._directory / checkpoint)).trigger(**trigger).start()
        )

    def rate(self, checkpoint):
        """Rows a second of everything in the topic."""
        query = self.start(checkpoint, availableNow=True)
        query.awaitTermination()
        done = with_rows(query)
        return sum(one["numInputRows"] for one in done) / sum(milliseconds(one) for one in done) * 1_000

    def trigger_ms(self, checkpoint, seconds):
        """Durations of micro-batches while records trickle in."""
        query = self.start(checkpoint, processingTime="0 seconds")
        query.processAllAvailable()
        print(json.dumps("trickle"), flush=True)
        end = time.monotonic() + seconds
        durations = {}
        while time.monotonic() < end:
            durations |= {one["batchId"]: milliseconds(one) for one in with_rows(query)}
            time.sleep(POLL_S)
        query.stop()
        return list(durations.values())


def with_rows(query):
    return [one for one in map(dict, query.recentProgress) if one["numInputRows"]]


def milliseconds(progress):
    return progress["durationMs"]["triggerExecution"]


def write_rate(spark, job):
    """Rows a second. tierlog's are in transactions, those of the Kafka sink at least once."""
    frame = spark.range(0, job["rows"], 1, TASKS).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", "CAST(rpad(id, 100, 'x') AS BINARY) AS value"
    )
    writer = frame.write.format(job["format"]).mode("append").option("topic", job["copy"])
    if job["format"] == "tierlog":
        writer = writer.option("transactional", "true")
    begin = time.perf_counter()
    writer.option("kafka.bootstrap.servers", job["bootstrap"]).save()
    return job["rows"] / (time.perf_counter() - begin)


def main():
    job = json.load(sys.stdin)
    spark = make_session(job["session"], job["jars"])
    with tempfile.TemporaryDirectory(prefix="spark-live-") as directory:
        streams = Streams(spark, job, Path(directory))
        rates = [streams.rate(str(number)) for number in range(job["runs"] + 1)]
        durations = streams.trigger_ms("0", job["trickle_s"])
        writes = [write_rate(spark, job) for _ in range(job["runs"] + 1)]
        spark.stop()
    found = {
        "tail_rows_s": round(statistics.median(rates[1:])),
        "trigger_ms": round(statistics.median(durations)),
        "triggers": len(durations),
        "write_rows_s": round(statistics.median(writes[1:])),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
