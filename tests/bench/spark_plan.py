"""Plans a Spark query over a made manifest of a terabyte: time and memory of the driver.

    python tests/bench/spark_plan.py [ENTRIES]

Each entry is a segment of 1 MiB, in 100 partitions with pages of 512 entries. Only manifests exist, in a
temporary directory. The first line of JSON is of the planner alone, in this process. The second one is of a
query in a Spark session, which plans in a Python process of its own.
"""

import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from spark_bucket import BucketWriter

from tierlog.base.types import TopicIdPartition, random_uuid
from tierlog.metadata.records import RemoteSegment
from tierlog.spark.history.bucket import DirectoryBucket
from tierlog.spark.history.plan import Pruning
from tierlog.spark.history.snapshot import plan_splits
from tierlog.spark.history.summary import count_records
from tierlog.spark.options import parse_options

PARTITIONS = 100
PAGE_ENTRIES = 512
RECORDS = 1_000
PLANNER = "pyspark.sql.worker.plan_data_source_read"


def entry(rng: random.Random, number: int) -> RemoteSegment:
    return RemoteSegment(
        uuid=random_uuid(rng),
        base_offset=number * RECORDS,
        last_offset=(number + 1) * RECORDS - 1,
        leader_epochs=((0, 0),),
        log_bytes=1 << 20,
        index_bytes=4_096,
        records=RECORDS,
        first_timestamp=number * 1_000,
        max_timestamp=number * 1_000 + 999,
        has_transactions=False,
        has_aborts=False,
        log_crc32c=1,
        index_crc32c=1,
        leader_epoch=0,
        control_records=0,
        min_timestamp=number * 1_000,
    )


def write(directory: Path, entries: int) -> None:
    writer = BucketWriter(directory)
    topic_id = writer.topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        made = [entry(writer.rng, number) for number in range(entries // PARTITIONS)]
        writer.entries[TopicIdPartition(topic_id, partition)] = made
        writer.commit("t", partition, paged=len(made), page_entries=PAGE_ENTRIES)


def main() -> None:
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), entries)
        bucket, options = DirectoryBucket(Path(name)), parse_options({"path": name, "subscribe": "t"})
        started = time.perf_counter()
        records = count_records(bucket, options)
        counted = time.perf_counter()
        splits = plan_splits(bucket, options, Pruning())
        planned = time.perf_counter()
        query = planned_by_spark(name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        "entries": entries,
        "records": records,
        "splits": len(splits),
        "count_s": round(counted - started, 2),
        "plan_s": round(planned - counted, 2),
        "peak_mib": peak >> 10,
    }
    print(json.dumps(result))
    print(json.dumps(query))


def planned_by_spark(path: str) -> dict[str, float]:
    """Plan a query twice in one session. Peaks are of the process that plans, and of the JVM."""
    from tierlog.spark import session

    spark, peaks, ended = session("plan", **{"spark.log.level": "OFF"}), dict[str, int](), threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for process in descendants():
                name = "jvm_peak_mib" if "java" in process.command else "planner_peak_mib"
                if name == "jvm_peak_mib" or PLANNER in process.command:
                    peaks[name] = max(peaks.get(name, 0), process.peak_kib >> 10)

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        rows = spark.read.format("tierlog").option("path", path).option("subscribe", "t").load()
        tasks = rows.rdd.getNumPartitions()
        seconds.append(round(time.perf_counter() - started, 2))
    ended.set()
    watcher.join()
    spark.stop()
    return {"tasks": tasks, "first_query_s": seconds[0], "second_query_s": seconds[1], **peaks}


@dataclass(frozen=True, slots=True)
class Process:
    command: str
    peak_kib: int


def descendants() -> Iterator[Process]:
    """Processes that this one has started, directly or not."""
    parents, known = {}, {os.getpid()}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    while found := {child for child, parent in parents.items() if parent in known} - known:
        known |= found
    for number in known - {os.getpid()}:
        with suppress(OSError, IndexError):
            command = Path(f"/proc/{number}/cmdline").read_text().replace("\0", " ")
            peak = Path(f"/proc/{number}/status").read_text().split("VmHWM:")[1].split()[0]
            yield Process(command, int(peak))


if __name__ == "__main__":
    main()
