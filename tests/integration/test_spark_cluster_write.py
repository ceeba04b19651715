"""Streaming writes on Spark standalone: an executor that is killed, and a speculative copy of a task."""

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from committed_values import committed_values
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from spark_cluster import SparkCluster, spark_cluster
from spark_sessions import end_shared_session

from tierlog.spark import session
from tierlog.spark.options.write import parse_write_options
from tierlog.spark.source import TierlogSource
from tierlog.spark.write import StreamWriter
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(400)]

TIMEOUT_S = 120.0
ROWS = 2_000
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def spark(cluster: SparkCluster) -> Iterator[SparkSession]:
    end_shared_session()
    settings = {"spark.executor.memory": "512m", **SPECULATION}
    made = session("tierlog-cluster-write", master=cluster.url, **settings)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    running = tierlog_broker_factory({"transaction.two.phase.commit.enable": "true"})
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.create_topics([NewTopic("out", 1, 1)])["out"].result(TIMEOUT_S)
    return running


class Gate:
    """A server that holds each task after its rows are acknowledged, while its transaction is open."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(TIMEOUT_S)
        self.address = self._server.getsockname()

    def next(self) -> tuple[socket.socket, int, int]:
        """The next task: its connection, partition and attempt."""
        waiting = self._server.accept()[0]
        waiting.settimeout(TIMEOUT_S)
        partition, attempt = waiting.recv(100).split()
        return waiting, int(partition), int(attempt)

    def close(self) -> None:
        """Let all later tasks continue at once."""
        self._server.close()


def register_gated_source(spark: SparkSession, gate: Gate) -> None:
    """`format("gated")`: tierlog's writer, whose tasks wait. Its classes are local, because executors cannot
    import this module."""
    address = gate.address

    class GatedWriter(StreamWriter):
        def write(self, iterator: Any) -> Any:
            import socket
            from contextlib import suppress

            from pyspark import TaskContext

            written = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            place = f"{context.partitionId()} {context.attemptNumber()}"
            with suppress(OSError), socket.create_connection(address) as waiting:
                waiting.sendall(place.encode())
                waiting.recv(1)
            return written

    class GatedSource(TierlogSource):
        @classmethod
        def name(cls) -> str:
            return "gated"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 (PySpark's name)
            return GatedWriter(parse_write_options(self.options), schema)

    spark.dataSource.register(GatedSource)


def write_stream(spark: SparkSession, broker: TierlogBroker, directory: Path, source: str) -> None:
    frame = spark.readStream.text(str(directory / "in")).repartition(2)
    started = (
        frame.writeStream.format(source)
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": "out"})
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()


def kill_an_executor(gate: Gate, cluster: SparkCluster) -> None:
    """Both tasks have written their rows. One of them is lost with its executor."""
    first, second = gate.next()[0], gate.next()[0]
    os.kill(cluster.executors()[0], signal.SIGKILL)
    gate.close()
    first.close()
    second.close()


def let_a_copy_win(gate: Gate, _: SparkCluster) -> None:
    """One task ends. The other one waits until its speculative copy, with the same rows, has ended."""
    (first, partition, _), (slow, other, _) = gate.next(), gate.next()
    assert {partition, other} == {0, 1}
    first.close()
    copy, copied, attempt = gate.next()
    assert (copied, attempt) == (other, 1)
    gate.close()
    copy.close()
    assert slow.recv(1) == b""  # Spark has ended the task's worker
    slow.close()


@pytest.mark.parametrize("happens", [kill_an_executor, let_a_copy_win])
def test_rows_of_lost_and_of_speculative_tasks_are_committed_once(
    spark: SparkSession,
    cluster: SparkCluster,
    broker: TierlogBroker,
    tmp_path: Path,
    happens: Callable[[Gate, SparkCluster], None],
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "first").write_text("\n".join(map(str, range(ROWS))))
    gate = Gate()
    register_gated_source(spark, gate)
    with ThreadPoolExecutor(1) as pool:
        happened = pool.submit(happens, gate, cluster)
        write_stream(spark, broker, tmp_path, "gated")  # Spark finds the sink in the session's thread only
        happened.result(TIMEOUT_S)
    assert committed_values(broker.bootstrap, "out", 1, TIMEOUT_S) == Counter(map(str, range(ROWS)))
    (tmp_path / "in" / "second").write_text("last")
    write_stream(spark, broker, tmp_path, "tierlog")
    assert committed_values(broker.bootstrap, "out", 1, TIMEOUT_S) == Counter(
        [*map(str, range(ROWS)), "last"]
    )
