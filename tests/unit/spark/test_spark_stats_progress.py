"""Job `stats` with --resume: a run that was stopped is continued, and nothing is counted twice."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from spark_bucket import BucketWriter

from tierlog.records.batch import assign
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.jobs import stats
from tierlog.spark.jobs.arguments import InvalidArgument, JobFailed, NoProgress, parse
from tierlog.spark.jobs.stats import JOB

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Killed(BaseException):
    """The driver ends here."""


class Driver:
    """Runs tasks in this process. `rounds_left`: before it is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root, self.read, self.rounds_left = root, 0, 99
        monkeypatch.setattr(stats, "spark_session", lambda *_: nullcontext())
        monkeypatch.setattr(stats, "run_tasks", self._run_tasks)
        monkeypatch.setattr(stats, "TASK_BYTES", 1)
        monkeypatch.setattr(stats, "ROUND_TASKS", 1)

    def _run_tasks(self, spark: Any, work: Any, tasks: Any, *_: Any) -> list[Any]:
        if self.rounds_left == 0:
            raise Killed
        self.rounds_left -= 1
        self.read += len(tasks)
        return [work(task) for task in tasks]

    def run(self, *arguments: object) -> dict[str, Any]:
        given = ["--path", str(self.root), *map(str, arguments)]
        return JOB.run(parse(JOB, given), NoProgress())


@pytest.fixture
def writer(tmp_path: Path) -> BucketWriter:
    """Two topics of two partitions, with four segments each."""
    made = BucketWriter(tmp_path / "bucket")
    for topic in ("orders", "visits"):
        made.topic(topic, 2)
        for partition in range(2):
            for number in range(4):
                records = [
                    NewRecord(
                        START_MS + number * HOUR_MS,
                        b"%d" % (n % (3 + number)) if n else None,
                        b"v" * n if n % 5 else None,
                    )
                    for n in range(20)
                ]
                batch = encode_batch(records)
                assign(batch, 0, number * len(records), 0)
                made.segment(topic, partition, [batch])
            made.commit(topic, partition)
    return made


def test_run_that_is_killed_after_any_round_is_continued(
    writer: BucketWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, file = Driver(monkeypatch, tmp_path / "bucket"), tmp_path / "progress"
    whole, rounds = driver.run(), driver.read
    assert whole["topics"]["orders"]["records"] == 160
    for killed_after in range(rounds):
        driver.read, driver.rounds_left = 0, killed_after
        with pytest.raises(Killed):
            driver.run("--resume", file)
        driver.rounds_left = 99
        assert driver.run("--resume", file) == whole
        assert driver.read == rounds
        assert not file.exists()


def test_progress_of_other_arguments_or_topics_is_refused(
    writer: BucketWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, file = Driver(monkeypatch, tmp_path / "bucket"), tmp_path / "progress"
    driver.rounds_left = 1
    with pytest.raises(Killed):
        driver.run("--resume", file, "--topic", "orders")
    with pytest.raises(InvalidArgument, match=r"another --topic: \['orders'\]"):
        driver.run("--resume", file)
    (writer.root / writer.keys.topic(writer.topics["orders"])).unlink()
    writer.topic("orders", 2)  # has another id
    with pytest.raises(JobFailed, match="deleted since"):
        driver.run("--resume", file, "--topic", "orders")
    file.write_bytes(b"{}")
    with pytest.raises(JobFailed, match="no progress of stats"):
        driver.run("--resume", file)
