"""Spark standalone and Spark Connect on loopback, each part a process of its own, from PySpark's own jars."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pyspark

from tierlog.spark.java import find_java_home
from tierlog.spark.startup import class_archive_options

HOME = Path(pyspark.__file__).parent
PACKAGE = "org.apache.spark.deploy"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkCluster:
    """`url`: of the master, spark://host:port."""

    def __init__(self, url: str, workers: "list[subprocess.Popen[str]]") -> None:
        self.url = url
        self.workers = workers

    def executors(self) -> list[int]:
        """Process ids of the executors, which workers start for each application."""
        workers = {worker.pid for worker in self.workers}
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
                is_executor = b"CoarseGrainedExecutorBackend" in (directory / "cmdline").read_bytes()
            except OSError:  # the process ended
                continue
            if parent in workers and is_executor:
                found.append(int(directory.name))
        return found


@contextmanager
def spark_cluster(directory: Path, workers: int = 2, **environment: str) -> Iterator[SparkCluster]:
    """A master and workers of one core each, on loopback addresses of their own, because Spark starts a
    speculative task on another host only; all end with the block. `environment`: of the executors too."""
    variables = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **environment,
    }
    with ExitStack() as stack:
        master = stack.enter_context(
            _running(f"{PACKAGE}.master.Master", "--host", "127.0.0.1", "--port", "0", variables=variables)
        )
        url = _await(master, r"Starting Spark master at (spark://\S+)")
        started = []
        for number in range(workers):
            host = f"127.0.0.{number + 1}"
            words = ("--host", host, "--cores", "1", "--memory", "1g")
            place = ("--work-dir", str(directory / f"worker-{number}"), url)
            own = {**variables, "SPARK_LOCAL_IP": host}
            worker = _running(f"{PACKAGE}.worker.Worker", *words, *place, variables=own)
            started.append(stack.enter_context(worker))
        for worker in started:
            _await(worker, "(Successfully registered) with master")
        yield SparkCluster(url, started)


@contextmanager
def connect_server(**settings: str) -> Iterator[str]:
    """A Spark Connect server with local executors, which ends with the block; its address, sc://host:port."""
    java_home = find_java_home()
    fixed = {
        "spark.driver.defaultJavaOptions": f"-XX:TieredStopAtLevel=1 {class_archive_options(java_home)}",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        **settings,
    }
    words = [word for name, value in fixed.items() for word in ("--conf", f"{name}={value}")]
    variables = {**os.environ, "JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable}
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", CONNECT, *words]
    with subprocess.Popen(
        [*command, "spark-internal"], env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield "sc://" + _await(process, r"Spark Connect server started at: (\S+)")
        finally:
            process.terminate()


@contextmanager
def _running(name: str, *words: str, variables: Mapping[str, str]) -> "Iterator[subprocess.Popen[str]]":
    command = [str(HOME / "bin" / "spark-class"), name, "--webui-port", "0", *words]  # it becomes java
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _await(process: "subprocess.Popen[str]", pattern: str) -> str:
    """The group of the first line that matches. A thread reads the lines after it."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(pattern, line):
            threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
            return found[1]
    raise RuntimeError(f"no line matches {pattern!r}:\n{''.join(said)}")


def _drain(lines: IO[str]) -> None:
    with suppress(ValueError):  # closed meanwhile
        for _ in lines:
            pass
