"""Checks of jobs before they start Java."""

from pathlib import Path

import pytest
from spark_bucket import BucketWriter

from tierlog.spark.java import PREFERENCE
from tierlog.spark.jobs import audit, backfill, compact, load, replay, rewrite, stats
from tierlog.spark.jobs.arguments import FAILED, USAGE, Job, main

ADMIN = ("--admin", "http://127.0.0.1:1")
TOPIC = ("--topic", "orders")
TARGET = ("--to-bootstrap", "127.0.0.1:1", "--checkpoint", "checkpoint")


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PREFERENCE, "system")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize(
    ("job", "more"),
    [
        (audit.JOB, ()),
        (backfill.JOB, (*TOPIC, "--to", "table")),
        (compact.JOB, ADMIN),
        (load.JOB, (*TOPIC, *ADMIN, "--name", "first", "--input", "rows.parquet")),
        (replay.JOB, (*TOPIC, *TARGET)),
        (rewrite.JOB, (*ADMIN, "--codec", "zstd")),
        (stats.JOB, ()),
    ],
    ids=lambda value: value.name if isinstance(value, Job) else "",
)
def test_path_that_does_not_exist_is_refused_before_java_starts(
    job: Job, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(job, ["--path", "/nowhere", *more]) == USAGE
    assert "/nowhere is not a directory" in capsys.readouterr().err


def test_replay_finds_its_topic_and_its_target_before_java_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = BucketWriter(tmp_path / "bucket")
    writer.topic("flights", 1)
    given = ["--path", str(writer.root), *TARGET, "--topic"]
    assert main(replay.JOB, [*given, "flihgts"]) == USAGE
    assert "Did you mean 'flights'?" in capsys.readouterr().err
    assert main(replay.JOB, [*given, "flights"]) == FAILED
    assert "127.0.0.1:1: " in capsys.readouterr().err
