"""Job runner: the Spark session of a job, and tasks that run a Python function on the executors.

A task is one row of a DataFrame, and its function runs in Python workers (`mapInArrow`). Only the task's
number and its result pass through the JVM. It works with Spark Connect too, which has no RDDs.
"""

import ctypes
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tierlog.spark.java import NoJava
from tierlog.spark.jobs.arguments import JobFailed, Progress, Values, pairs
from tierlog.spark.worker import freeze_heap

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

POLL_SECONDS = 0.5
_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h of glibc
KEPT_BYTES = 512 << 20
_LAST_LINE = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Object\w*|Unavailable)?: .*", re.M
)


@contextmanager
def spark_session(name: str, values: Values) -> Iterator["SparkSession"]:
    """The session of spark-submit, that of a Connect server, or a local one. One that existed before is not
    stopped."""
    conf = pairs("conf", values["conf"])
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        # writes each analysis error to stderr as a page of JSON; the job reports it
        PySparkLogger.getLogger(logger).disabled = True

    before = SparkSession.getActiveSession()
    if before is not None:
        yield before
        return
    if values["remote"] or "PYSPARK_GATEWAY_PORT" in os.environ:  # the latter is set by spark-submit
        builder = SparkSession.builder.appName(f"tierlog {name}")
        if values["remote"]:
            builder = builder.remote(values["remote"])
        for key, value in conf.items():
            builder = builder.config(key, value)
        made = _started(builder.getOrCreate)
    else:
        from tierlog.spark.java import session

        settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF", **conf}
        made = _started(lambda: session(f"tierlog {name}", master=values["master"], **settings))
    try:
        yield made
    finally:
        made.stop()


def _started(start: "Callable[[], SparkSession]") -> "SparkSession":
    """Raises JobFailed if there is no session, without the stack traces of both languages."""
    try:
        return start()
    except NoJava:
        raise
    except Exception as failure:
        lines = [line.strip(": ") for line in str(failure).splitlines() if line.strip()]
        reasons = [line for line in lines if not line.startswith("An error occurred while calling")]
        reason = next(iter(reasons), type(failure).__name__).rstrip(".")
        raise JobFailed(f"cannot start Spark: {reason}. Check --master, --remote and --conf") from failure


def run_tasks(
    spark: "SparkSession",
    work: Callable[[T], R],
    tasks: Sequence[T],
    progress: Progress,
    sizes: Sequence[int] | None = None,
) -> list[R]:
    """The results of `work` for all tasks, in order. `work` must be importable or picklable, and it may run
    more than once for a task; only one result counts. `sizes`: of the tasks, for the progress. Raises
    JobFailed with the message of the exception in the executor."""
    if not tasks:
        return []
    count, total = len(tasks), sum(sizes) if sizes else len(tasks)
    frame = spark.range(0, count, 1, count).mapInArrow(_mapper(work, list(tasks)), "task long, result binary")
    with watched(spark, progress, total / count):
        try:
            rows = frame.collect()
        except Exception as failure:
            raise JobFailed(reason(failure)) from failure
    progress.reach(total)
    found = {row.task: pickle.loads(bytes(row.result)) for row in rows}
    return [found[number] for number in range(count)]


def _mapper(work: Callable[[T], R], tasks: list[T]) -> Callable[[Iterator["pa.RecordBatch"]], Any]:
    def run(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        keep_memory()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(work(tasks[number]))
                freeze_heap()
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([result], pa.binary())], ["task", "result"]
                )

    return run


@cache
def keep_memory() -> None:
    """Once in a Python worker: keep freed memory, whose pages the kernel would clear again for each array."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@contextmanager
def watched(spark: "SparkSession", progress: Progress, size: float) -> Iterator[None]:
    """Report the completed tasks of the Spark job that runs in this context. `size`: mean of a task. Spark
    Connect has no tracker: there only complete rounds are reported."""
    try:
        context = spark.sparkContext
    except Exception:
        yield
        return
    group, ended = f"tierlog-{id(progress)}", threading.Event()

    def watch() -> None:
        tracker = context.statusTracker()
        while not ended.wait(POLL_SECONDS):
            stages = [
                tracker.getStageInfo(stage)
                for job in tracker.getJobIdsForGroup(group)[-1:]
                for stage in getattr(tracker.getJobInfo(job), "stageIds", ())
            ]
            progress.reach(int(size * sum(stage.numCompletedTasks for stage in stages if stage)))

    before = {name: context.getLocalProperty(name) for name in _GROUP_PROPERTIES}
    context.setJobGroup(group, "tierlog job")
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        for name, value in before.items():  # the session's own jobs are not part of this one
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it


def reason(failure: Exception) -> str:
    """The message of the exception in the executor, without the stack traces of both languages."""
    text = str(failure).partition("=== Streaming Query ===")[0]
    found = [line for line in _LAST_LINE.findall(text) if not line.startswith(("org.apache", "java."))]
    return found[-1].strip() if found else text.splitlines()[0]
