"""A streaming query in a process of its own, which dies at a chosen moment of a batch.

Arguments: bootstrap brokers, directory with `in` and `checkpoint`, moment. Any further arguments are those of
the replay job, which then is the query and dies in its second batch. The data source is tierlog's, but the
driver, its JVM and the process that commits are killed (SIGKILL) at the moment. The moment `task` kills one
Python worker after its rows are acknowledged, once.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tierlog.spark import session
from tierlog.spark.live.transactions import BatchCommitter, Decision
from tierlog.spark.options.write import parse_write_options
from tierlog.spark.source import TierlogSource
from tierlog.spark.write import StreamWriter

BOOTSTRAP, DIRECTORY, MOMENT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
REPLAY = sys.argv[4:]
VICTIMS: list[int] = []


def die() -> None:
    for victim in (*VICTIMS, os.getpid()):
        os.kill(victim, signal.SIGKILL)


class DyingCommitter(BatchCommitter):
    def decide(self, batch_id: int, prepared: Any) -> tuple[Decision, Any]:
        if REPLAY and batch_id == 0:
            return super().decide(batch_id, prepared)
        if MOMENT == "prepared":
            die()
        decided, others = super().decide(batch_id, prepared)
        if MOMENT == "decided":
            die()
        if MOMENT == "committing":
            self._transactions.end(decided.transactions[0], commit=True)
            die()
        return decided, others

    def commit(self, batch_id: int, prepared: Any) -> None:
        super().commit(batch_id, prepared)
        if MOMENT == "committed":
            die()


class DyingWriter(StreamWriter):
    def write(self, iterator: Any) -> Any:
        written = super().write(iterator)
        marker = DIRECTORY / "killed"
        if MOMENT == "task" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    def _committer(self, transactions: Any, query: str) -> BatchCommitter:
        return DyingCommitter(transactions, query)


class DyingSource(TierlogSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802 (PySpark's name)
        return DyingWriter(parse_write_options(self.options), schema)


def main() -> None:
    # Two failures of a task: local mode allows one by default.
    spark = session("dying", master="local[2,3]", **{"spark.driver.memory": "512m"})
    spark.sparkContext.setLogLevel("OFF")
    gateway: Any = spark.sparkContext._gateway
    VICTIMS.extend([os.getpid(), gateway.proc.pid])
    spark.dataSource.register(DyingSource)
    if REPLAY:
        from tierlog.spark.jobs.arguments import NoProgress, parse
        from tierlog.spark.jobs.replay import JOB

        JOB.run(parse(JOB, REPLAY), NoProgress())
        return
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(DIRECTORY / "in")).repartition(2)
    started = (
        frame.writeStream.format("tierlog")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("topic", "out")
        .option("checkpointLocation", str(DIRECTORY / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
