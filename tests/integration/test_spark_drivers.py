"""Streaming writes of drivers that die at any request, two of them with one checkpoint, on a real broker.

Spark itself is replaced by threads: a driver runs the tasks of a batch, commits it and notes that in the
checkpoint, as Spark does, but a thousand times as often as a session could be killed.
"""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from committed_values import committed_values
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from tierlog.client import ClientError
from tierlog.spark import write
from tierlog.spark.live.produce import WriteFailed
from tierlog.spark.live.transactions import Transactions
from tierlog.spark.options.write import WriteOptions, parse_write_options
from tierlog.testing import TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIMEOUT_S = 90.0
BATCHES, TASKS, ATTEMPTS, ROWS, PARTITIONS = 8, 3, 4, 20, 2
SCHEMA = StructType().add("value", "string")


class Died(BaseException):
    """The process died before or after a request."""


class This(threading.local):
    """Chance and task of the thread. Without `rng` it does not die."""

    rng: random.Random | None = None
    task: "Task"
    checkpoint: "Checkpoint"


THIS = This()


class DyingTransactions(Transactions):
    def ask(self, *arguments: Any, **more: Any) -> Any:
        self._chance()
        found = super().ask(*arguments, **more)
        self._chance()
        return found

    def _chance(self) -> None:
        drawn = 1.0 if THIS.rng is None else THIS.rng.random()
        if drawn < 0.012:
            raise Died
        if drawn < 0.05:
            THIS.checkpoint.wait_for_another()


@dataclass
class Task:
    """The parts of a TaskContext that a writer uses, and the rows of the task."""

    batch: int
    partition: int

    def partitionId(self) -> int:  # noqa: N802 (PySpark's name)
        return self.partition

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return {write.QUERY_ID: "query", write.BATCH_ID: str(self.batch)}[name]

    def rows(self) -> list[str]:
        return [f"{self.batch}-{self.partition}-{row}" for row in range(ROWS)]


class Checkpoint:
    """The last batch that is committed, as in the commit log of Spark."""

    def __init__(self) -> None:
        self.committed = -1
        self._changed = threading.Condition()

    def commit(self, batch: int) -> bool:
        """Returns whether this driver was the first."""
        with self._changed:
            is_first = self.committed == batch - 1
            self.committed = max(self.committed, batch)
            self._changed.notify_all()
        return is_first

    def wait_for_another(self) -> None:
        """Stand still until a driver commits a batch, and for a second if there is no other one."""
        with self._changed:
            self._changed.wait(1.0)


class Driver(threading.Thread):
    """Starts again each time it has died, until `BATCHES` are committed."""

    def __init__(self, options: WriteOptions, checkpoint: Checkpoint, seed: int | None) -> None:
        super().__init__()
        self._writer = write.StreamWriter(options, SCHEMA)
        self._checkpoint = checkpoint
        self._rng = random.Random(seed)
        self._dies = seed is not None

    def run(self) -> None:
        while (batch := self._checkpoint.committed + 1) < BATCHES:
            self.one_batch(batch)

    def one_batch(self, batch: int) -> bool:
        """Returns whether the driver survives it."""
        messages: list[write.TaskWritten | None] = [None] * TASKS
        seeds = [self._rng.random() for _ in range(TASKS)]

        def attempts(partition: int) -> None:
            THIS.rng = random.Random(seeds[partition]) if self._dies else None
            THIS.checkpoint = self._checkpoint
            THIS.task = Task(batch, partition)
            for _ in range(ATTEMPTS):
                values = pa.RecordBatch.from_pydict({"value": pa.array(THIS.task.rows())})
                try:
                    messages[partition] = self._writer.write(iter([values]))
                    break
                except (Died, WriteFailed, ClientError):
                    continue

        tasks = [threading.Thread(target=attempts, args=(partition,)) for partition in range(TASKS)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        THIS.rng, THIS.checkpoint = self._rng if self._dies else None, self._checkpoint
        try:
            if None in messages:
                self._writer.abort(messages, batch)
                return False
            self._writer.commit(messages, batch)
        except (Died, WriteFailed, ClientError):
            return False
        if self._dies and self._rng.random() < 0.1:
            return False  # before Spark's own record of the batch
        return self._checkpoint.commit(batch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seeds", [pytest.param((1,), marks=pytest.mark.nightly), (2, 3)], ids=["one", "two"])
def test_drivers_that_die_at_any_request_write_each_batch_once(
    tierlog_broker_factory: TierlogBrokerFactory, monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...]
) -> None:
    monkeypatch.setattr(write, "Transactions", DyingTransactions)
    monkeypatch.setattr(write, "_task", lambda: THIS.task)
    broker = tierlog_broker_factory({"transaction.two.phase.commit.enable": "true"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("out", PARTITIONS, 1)])["out"].result(TIMEOUT_S)
    options = parse_write_options({"kafka.bootstrap.servers": broker.bootstrap, "topic": "out"})
    checkpoint = Checkpoint()
    drivers = [Driver(options, checkpoint, seed) for seed in seeds]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    last = Driver(options, checkpoint, None)  # its batch aborts what the others have left
    assert last.one_batch(BATCHES)
    expected = [row for n in range(BATCHES + 1) for p in range(TASKS) for row in Task(n, p).rows()]
    assert committed_values(broker.bootstrap, "out", PARTITIONS, TIMEOUT_S) == Counter(expected)
