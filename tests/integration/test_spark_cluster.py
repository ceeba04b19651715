"""Spark standalone: a master and two workers as processes, executors that are killed, and bare executors."""

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import py4j
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from spark_bucket import BucketWriter
from spark_cluster import SparkCluster, spark_cluster
from spark_history import UNCOMMITTED, write_history
from spark_sessions import end_shared_session

from tierlog.spark import session
from tierlog.spark.package import write_package

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def spark(cluster: SparkCluster) -> Iterator[SparkSession]:
    end_shared_session()
    made = session("tierlog-cluster", master=cluster.url, **{"spark.executor.memory": "512m"})
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> BucketWriter:
    return write_history(tmp_path_factory.mktemp("bucket"))


def offsets(history: BucketWriter) -> list[int]:
    """The committed offsets of flights-1."""
    place = next(p for p in history.entries if p.topic_id == history.topics["flights"] and p.partition == 1)
    end = history.entries[place][-1 - UNCOMMITTED].end_offset
    return [row["offset"] for row in history.rows["flights", 1] if row["offset"] < end]


def test_job_counts_right_after_an_executor_is_killed(
    cluster: SparkCluster, spark: SparkSession, history: BucketWriter
) -> None:
    """Every task waits at the gate: the executor dies while its task has read rows and returned none."""
    gate = socket.create_server(("127.0.0.1", 0))
    gate.settimeout(120)
    address = gate.getsockname()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket
        from contextlib import suppress

        for batch in batches:
            with suppress(OSError), socket.create_connection(address) as waiting:
                waiting.recv(1)
            yield batch

    frame = (
        spark.read.format("tierlog")
        .options(path=str(history.root), topic="flights", partitions="1", splitBytes=10_000)
        .schema("offset bigint")
        .load()
        .mapInArrow(wait, "offset bigint")
    )
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(frame.collect)
        with gate:
            waiting = [gate.accept()[0] for _ in range(2)]  # one task on each executor
            killed, other = cluster.executors()
            os.kill(killed, signal.SIGKILL)
        for connection in waiting:
            connection.close()
        assert sorted(row.offset for row in rows.result(120)) == offsets(history)
    assert killed not in cluster.executors()
    assert other in cluster.executors()


BARE = """
import json, sys
from pyspark.sql import SparkSession

archive, master, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
settings = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.archives": archive + "#tierlog-executor",
    "spark.executorEnv.PYTHONPATH": "./tierlog-executor",
}
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
reader = spark.read.format("tierlog")
for name, value in options.items():
    reader = reader.option(name, value)
frame = reader.load()

def places(rows):
    import sys
    import tierlog
    from tierlog.records import kernels

    count = sum(1 for _ in rows)
    functions = [one for one in vars(kernels).values() if hasattr(one, "stats")]
    compiled = sum(sum(one.stats.cache_misses.values()) for one in functions)
    yield {"place": tierlog.__file__, "python": sys.prefix, "compiled": compiled, "rows": count}

print(json.dumps(frame.rdd.mapPartitions(places).collect()))  # mapInArrow wants pandas on the driver
"""


def test_executors_of_a_bare_python_need_the_archive_alone(
    cluster: SparkCluster, history: BucketWriter, tmp_path: Path
) -> None:
    """The interpreter of the driver and of the executors has no package at all."""
    archive = write_package(tmp_path / "executor.tar.gz").path
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "driver", filter="data")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "sparks").mkdir()
    for module in (pyspark, py4j):  # a cluster has them
        directory = Path(str(module.__file__)).parent
        (tmp_path / "sparks" / directory.name).symlink_to(directory)
    python = str(tmp_path / "venv" / "bin" / "python")
    rows = bare_rows(python, tmp_path, archive, cluster, history)
    assert sum(row["rows"] for row in rows) == len(offsets(history))
    assert {row["python"] for row in rows} == {str(tmp_path / "venv")}
    assert {row["compiled"] for row in rows} == {0}
    assert all("/tierlog-executor/tierlog/" in row["place"] for row in rows)


def bare_rows(
    python: str, directory: Path, archive: Path, cluster: SparkCluster, history: BucketWriter
) -> list[dict[str, Any]]:
    options = {"path": str(history.root), "topic": "flights", "partitions": "1", "includeHeaders": "true"}
    environment = {
        **os.environ,
        "PYTHONPATH": f"{directory / 'driver'}:{directory / 'sparks'}",
        "PYSPARK_PYTHON": python,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    ended = subprocess.run(
        [python, "-c", BARE, str(archive), cluster.url, json.dumps(options)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return found
