"""What Spark's jobs say when an argument, a table or a session is wrong, and what they leave behind."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from spark_bucket import BucketWriter
from spark_history import write_history

from tierlog.records.columnar import Columns
from tierlog.spark import worker
from tierlog.spark.daemon import without_broken_pipes
from tierlog.spark.jobs import runner
from tierlog.spark.jobs.arguments import (
    FAILED,
    USAGE,
    InvalidArgument,
    JobFailed,
    NoProgress,
    Values,
    main,
    parse,
)
from tierlog.spark.jobs.audit import JOB as AUDIT
from tierlog.spark.jobs.backfill import JOB as BACKFILL
from tierlog.spark.jobs.backfill import open_table
from tierlog.spark.jobs.export import LAST_US, ExportTask, _Files, schema_of
from tierlog.spark.jobs.file_stores import FileStore
from tierlog.spark.jobs.tables import COMMITS, ParquetTable
from tierlog.spark.options import parse_options

COLUMNS = ("topic", "partition", "offset", "timestamp")


@pytest.fixture
def history(tmp_path: Path) -> BucketWriter:
    return write_history(tmp_path / "bucket")


def values_of(*arguments: object) -> Values:
    return parse(BACKFILL, ["--path", "/bucket", "--topic", "t", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --topic or --pattern"),
        (["--topic", "flights"], "--format parquet needs --to URL"),
        (["--topic", "flights", "--format", "iceberg", "--table", "orders"], "needs --table NAMESPACE.TABLE"),
        (["--topic", "flights", "--to", "{table}", "--columns", "ofset"], "--columns: unknown ofset"),
        (["--topic", "flights", "--to", "{table}", "--conf", "nothing"], "--conf must be KEY=VALUE"),
        (["--topic", "flights", "--to", "{table}", "--starting-offsets", "latest"], "must not be latest"),
        (
            ["--topic", "flights", "--to", "{table}", "--starting-offsets", '{"flights":{"0":-1}}'],
            "must not be latest",
        ),
        (
            ["--topic", "flights", "--to", "{table}", "--starting-offsets", '{"flight":{"0":5}}'],
            "set for flight-0, which the query does not read",
        ),
        (["--topic", "flights", "--to", "{table}", "--path", "/nowhere"], "/nowhere is not a directory"),
    ],
)
def test_invalid_arguments_have_the_exit_code_of_usage_errors(
    history: BucketWriter, tmp_path: Path, arguments: list[str], message: str, capsys: Any
) -> None:
    given = [word.format(table=tmp_path / "table") if word == "{table}" else word for word in arguments]
    assert main(BACKFILL, ["--path", str(history.root), *given]) == USAGE
    assert message in capsys.readouterr().err


def test_a_topic_that_is_not_in_the_bucket_is_a_failure_that_names_the_nearest(
    history: BucketWriter, tmp_path: Path, capsys: Any
) -> None:
    words = ["--path", str(history.root), "--topic", "flight", "--to", str(tmp_path / "table")]
    assert main(BACKFILL, words) == FAILED
    assert "topic 'flight' is not in the bucket. Did you mean 'flights'?" in capsys.readouterr().err


def test_failures_of_a_tables_library_are_one_line_that_names_table_and_arguments(
    history: BucketWriter, tmp_path: Path
) -> None:
    source = ["--path", history.root, "--topic", "flights"]
    words = ["--format", "iceberg", "--table", "sales.orders", "--catalog", "prod"]
    catalog = ["type=sql", f"uri=sqlite:///{tmp_path}/missing/catalog.db", f"warehouse=file://{tmp_path}"]
    words += [word for one in catalog for word in ("--catalog-property", one)]
    (tmp_path / "file").touch()
    for given, place, advice in (
        (words, "table sales.orders of the catalog 'prod': ", "Check --catalog and --catalog-property"),
        (
            ["--format", "delta", "--to", tmp_path / "file"],
            f"{tmp_path}/file: ",
            "Check --to and --store-option",
        ),
    ):
        with pytest.raises(JobFailed) as failed:
            BACKFILL.run(parse(BACKFILL, [str(one) for one in (*source, *given)]), NoProgress())
        text = str(failed.value)
        assert text.startswith(place) and advice in text and len(text.splitlines()) == 1


def test_parquet_and_delta_do_not_share_a_folder(tmp_path: Path) -> None:
    parquet, delta = tmp_path / "parquet", tmp_path / "delta"
    open_table(values_of("--to", parquet), schema_of(COLUMNS)).commit([], {})
    open_table(values_of("--to", delta, "--format", "delta"), schema_of(COLUMNS))
    with pytest.raises(JobFailed, match="has an export of --format parquet"):
        open_table(values_of("--to", parquet, "--format", "delta"), schema_of(COLUMNS))
    with pytest.raises(JobFailed, match="is a Delta table, and no export: give --to a new folder"):
        open_table(values_of("--to", delta), schema_of(COLUMNS))


def test_a_folder_with_other_files_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "other.parquet").touch()
    with pytest.raises(JobFailed, match=r"already has other.parquet, and no export"):
        open_table(values_of("--to", tmp_path), schema_of(COLUMNS))


def test_a_commit_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and all new folders are synced before the commit appears, and the commit before it returns."""
    events: list[Path] = []
    fsync, link = os.fsync, os.link

    def recorded_sync(handle: int) -> None:
        fsync(handle)
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")))

    def recorded_link(source: str, target: str) -> None:
        link(source, target)
        events.append(Path(target))

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "link", recorded_link)
    folder = tmp_path / "table"
    table = ParquetTable(FileStore(str(folder)), {"columns": list(COLUMNS), "partition_by": "day"})
    staged = table.destination().folder
    written = files_of(table.destination().store, staged, far_us=0)
    day = folder / staged / "date=1970-01-01"
    assert [folder / staged / file.path for file in written] == events[:1]
    assert {day, folder / staged, folder / staged.rpartition("/")[0], folder, tmp_path} <= set(events)
    events.clear()
    commit = folder / table.commit(written, {})
    at = events.index(commit)
    assert any(event.name.startswith(commit.name) for event in events[:at]), "content, then name"
    assert folder / COMMITS in events[at:] and folder / "date=1970-01-01" in events[at:]


def files_of(store: FileStore, folder: str, far_us: int, has_far_dates: bool = True) -> Any:
    """The files of a task with one row."""
    values = parse_options({"path": "/bucket", "topic": "t"})
    task = ExportTask((), values, COLUMNS, "day", store, folder, True, "snappy", has_far_dates)
    arrays = {
        "offset": pa.array([7], pa.int64()),
        "timestamp": pa.array([far_us], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    files = _Files(task)
    part = cast(Any, type("Part", (), {"source": type("Source", (), {"topic": "t", "partition": 0})}))
    files.add(part, Columns(1, arrays))
    return files.close()


@pytest.mark.parametrize("has_far_dates", [True, False])
def test_timestamps_after_the_year_9999_are_clipped_for_readers_that_have_none(
    tmp_path: Path, has_far_dates: bool
) -> None:
    far_us = 1_709_251_200_000_000_000
    [file] = files_of(FileStore(str(tmp_path)), "data", far_us, has_far_dates)
    expected = far_us if has_far_dates else LAST_US
    assert file.values == {"date": "9999-12-31"} and file.bounds["timestamp"] == (expected, expected)
    column = pq.read_table(tmp_path / "data" / file.path, partitioning=None).column("timestamp")
    assert np.asarray(column.cast(pa.int64())).tolist() == [expected]


@pytest.mark.parametrize("name", ["resume", "html"])
def test_an_audit_checks_first_whether_it_can_keep_its_result(tmp_path: Path, name: str) -> None:
    values = parse(AUDIT, ["--path", str(tmp_path), f"--{name}", str(tmp_path / "missing" / "file")])
    with pytest.raises(InvalidArgument, match=f"--{name} .*/missing/file: there is no such directory"):
        AUDIT.run(values, NoProgress())


def test_a_worker_whose_rows_are_no_longer_wanted_ends_without_a_traceback() -> None:
    def closed(connection: Any, is_authenticated: bool) -> int:
        raise BrokenPipeError

    assert without_broken_pipes(closed)(None, True) == 1
    assert without_broken_pipes(lambda *_: 0)(None, True) == 0


class FakeContext:
    """Local properties as SparkContext has them."""

    def __init__(self) -> None:
        self.properties: dict[str, str | None] = {"spark.job.description": "mine"}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 (PySpark's name)
        return self.properties.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.properties[name] = value

    def setJobGroup(self, group: str, description: str) -> None:  # noqa: N802
        self.properties |= {"spark.jobGroup.id": group, "spark.job.description": description}

    def statusTracker(self) -> Any:  # noqa: N802
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return []


def test_a_job_leaves_the_job_group_of_the_session_as_it_was() -> None:
    context = FakeContext()
    spark = cast(Any, type("Session", (), {"sparkContext": context}))
    with suppress(ZeroDivisionError), runner.watched(spark, NoProgress(), 1.0):
        assert context.properties["spark.job.description"] == "tierlog job"
        raise ZeroDivisionError
    assert context.properties["spark.jobGroup.id"] is None
    assert context.properties["spark.job.description"] == "mine"


def test_a_session_that_does_not_start_is_one_line() -> None:
    text = (
        "An error occurred while calling None.Session.\n: java.lang.IllegalStateException: stopped.\n\tat x"
    )

    def start() -> Any:
        raise RuntimeError(text)

    with pytest.raises(JobFailed, match=r"^cannot start Spark: java.lang.IllegalStateException: stopped. Ch"):
        runner._started(start)


@pytest.mark.parametrize(("version", "is_warned"), [("4.0.5", False), ("4.1.0", True)])
def test_sessions_of_spark_4_0_get_no_advice_about_a_newer_setting(
    version: str, is_warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    worker.warn_of_tcp_sockets.cache_clear()
    worker.warn_of_tcp_sockets()
    assert ("spark.python.unix.domain.socket.enabled" in capsys.readouterr().err) is is_warned
