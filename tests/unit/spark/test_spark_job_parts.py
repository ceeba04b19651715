"""Parts of Spark's jobs without Spark: files of an export, commits of a folder, checks of segments."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest
from spark_bucket import BucketWriter
from spark_history import LOG_START, write_history

from tierlog.base.types import TopicIdPartition
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.jobs import runner
from tierlog.spark.jobs.arguments import ARGUMENTS, MEANINGS, InvalidArgument, JobFailed, pairs, parse
from tierlog.spark.jobs.audit import _read_manifests, _rounds, _tasks
from tierlog.spark.jobs.backfill import JOB as BACKFILL
from tierlog.spark.jobs.backfill import _tasks as tasks_of
from tierlog.spark.jobs.export import _periods, export, partition_values, schema_of
from tierlog.spark.jobs.file_stores import FileStore
from tierlog.spark.jobs.page import Chart, Page
from tierlog.spark.jobs.segment_check import Damage, check_segments
from tierlog.spark.jobs.selection import ends_of, plan, segments_of, sources_of
from tierlog.spark.jobs.tables import COMMITS, STAGED, ParquetTable
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import decode_topic

SETTINGS = {"columns": ["topic", "partition", "offset", "timestamp", "value"], "partition_by": "hour"}


@pytest.fixture
def history(tmp_path: Path) -> BucketWriter:
    return write_history(tmp_path / "bucket")


def values_of(history: BucketWriter, *arguments: str) -> Any:
    return parse(
        BACKFILL, ["--path", str(history.root), "--topic", "flights", "--partition-by", "hour", *arguments]
    )


def export_into(table: ParquetTable, values: Any, ends: Any) -> tuple[list[Any], Any]:
    options, parts = plan(values, ends)
    tasks = tasks_of(parts, options, schema_of(SETTINGS["columns"]), table, values)
    return [file for task in tasks for file in export(task)], ends_of(parts)


def offsets(folder: Path) -> list[tuple[int, int]]:
    if not folder.exists():
        return []
    table = pyarrow.dataset.dataset(str(folder), partitioning="hive").to_table()
    return sorted((row["partition"], row["offset"]) for row in table.to_pylist()) if table.num_rows else []


def test_a_commit_whose_files_were_not_moved_is_completed_by_the_next_run(
    history: BucketWriter, tmp_path: Path
) -> None:
    folder, values = tmp_path / "table", values_of(history)

    class Crash(Exception):
        pass

    class CrashingTable(ParquetTable):
        def _publish(self, commit: dict[str, Any]) -> None:
            raise Crash

    table = CrashingTable(FileStore(str(folder)), SETTINGS)
    files, ends = export_into(table, values, {})
    assert offsets(folder) == [], "readers do not see files without a commit"
    with pytest.raises(Crash):
        table.commit(files, ends)
    again = ParquetTable(FileStore(str(folder)), SETTINGS)
    assert again.ends(ends) == ends
    expected = sorted(
        (row["partition"], row["offset"])
        for (topic, partition), rows in history.rows.items()
        for row in rows
        if topic == "flights"
        and (LOG_START if partition == 0 else 0) <= row["offset"]
        and row["offset"] < ends[TopicIdPartition(history.topics["flights"], partition)]
    )
    assert offsets(folder) == expected
    assert plan(values, again.ends(ends))[1] == []
    assert list(FileStore(str(folder)).names(STAGED)) == []


def test_only_one_of_two_runs_commits(history: BucketWriter, tmp_path: Path) -> None:
    store, values = FileStore(str(tmp_path / "table")), values_of(history)
    first, second = ParquetTable(store, SETTINGS), ParquetTable(store, SETTINGS)
    of_first, of_second = (export_into(table, values, {}) for table in (first, second))
    second.commit(*of_second)
    with pytest.raises(JobFailed, match="another run has committed"):
        first.commit(*of_first)
    found = offsets(tmp_path / "table")
    assert len(found) == len(set(found)) == sum(file.rows for file in of_second[0])
    assert len(list(store.names(COMMITS))) == 1


def test_a_folder_of_other_columns_is_refused(history: BucketWriter, tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "table"))
    table = ParquetTable(store, SETTINGS)
    table.commit(*export_into(table, values_of(history), {}))
    with pytest.raises(JobFailed, match="exported with --partition-by hour, not day"):
        ParquetTable(store, {**SETTINGS, "partition_by": "day"})


def test_a_run_starts_where_the_last_one_ended(history: BucketWriter) -> None:
    values = values_of(history)
    _, parts = plan(values, {})
    segments = list(segments_of(parts))
    ends = ends_of(segments[0])
    _, rest = plan(values, ends)
    assert [part.key for part in rest] == [part.key for segment in segments[1:] for part in segment]
    with pytest.raises(JobFailed, match="--allow-data-loss"):
        plan(values, {next(iter(ends)): 3})
    assert plan(values_of(history, "--allow-data-loss"), {next(iter(ends)): 3})[1] == parts


def checked(history: BucketWriter) -> list[Damage]:
    bucket = open_bucket(StoreAddress(path=str(history.root)))
    keys = Keys("spark-test")
    documents = [decode_topic(bucket.read(key)) for key in bucket.keys(keys.topics())]
    manifests = _read_manifests(bucket, keys, sources_of(documents))
    damages = [damage for manifest in manifests for damage in manifest.damages]
    for segments in _rounds(manifests, {}, 1 << 40):
        for task in _tasks(segments, StoreAddress(path=str(history.root)), "spark-test"):
            damages += check_segments(task).damages
    return damages


@pytest.mark.parametrize("chunk_bytes", [None, 4_000])
def test_every_flipped_byte_of_a_segment_is_found(tmp_path: Path, chunk_bytes: int | None) -> None:
    history = write_history(tmp_path / "bucket", chunk_bytes)
    assert checked(history) == []
    key = history.log_key("weather", 0, 1)
    size = key.stat().st_size
    for position in (*range(61), size // 2, size - 1):
        history.flip(key, position)
        found = checked(history)
        assert found and {history.root / damage.object for damage in found} == {key}, position
        history.flip(key, position)


def test_every_flipped_byte_of_an_index_bundle_is_found(history: BucketWriter) -> None:
    key = history.log_key("weather", 0, 1).with_suffix(".idx")
    for position in range(0, key.stat().st_size, 37):
        history.flip(key, position)
        assert {history.root / damage.object for damage in checked(history)} == {key}, position
        history.flip(key, position)


def test_a_damaged_page_hides_its_segments_and_is_damage(history: BucketWriter) -> None:
    [page] = history.root.rglob("*.page")
    history.flip(page, 30)
    [damage] = checked(history)
    assert history.root / damage.object == page
    assert "damaged-object.md" in damage.remedy


def test_partition_values_are_those_of_utc() -> None:
    assert partition_values(0, "day") == {"date": "1970-01-01"}
    assert partition_values(-1, "hour") == {"date": "1969-12-31", "hour": "23"}
    assert partition_values(473_368, "hour") == {"date": "2024-01-01", "hour": "16"}
    assert partition_values(0, "none") == {}


def test_times_that_no_reader_has_a_date_for_are_in_the_last_partition() -> None:
    times = np.array([0, 2**62, -(2**62)])
    found = {partition_values(period, "day")["date"]: list(rows) for period, rows in _periods(times, "day")}
    assert found == {"1970-01-01": [0], "9999-12-31": [1], "0001-01-01": [2]}


def test_key_value_arguments_are_checked() -> None:
    assert pairs("conf", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(InvalidArgument, match="--store-option must be KEY=VALUE: number 2") as refused:
        pairs("store-option", ["region=eu", "secret_key hush"])
    assert "hush" not in str(refused.value), "a job's log is no place for secrets"


def test_every_job_has_arguments_and_a_meaning() -> None:
    assert ARGUMENTS.keys() == MEANINGS.keys()
    for arguments in ARGUMENTS.values():
        names = [argument.name for argument in arguments]
        assert len(names) == len(set(names))


def test_the_reason_of_a_failed_task_is_its_exception() -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 3\ntierlog.CorruptObject: t-0: damaged\n'
    failure = Exception(f"org.apache.spark.SparkException: Job aborted\n{text}\tat org.apache.spark.X")
    assert runner.reason(failure) == "tierlog.CorruptObject: t-0: damaged"


def test_a_page_escapes_names_and_needs_nothing_from_elsewhere() -> None:
    page = Page("<b>", {"bytes": 5})
    page.charts.append(Chart.bars("bars", {"<script>": 3}, "B"))
    page.charts.append(Chart.times("times", {"a": [(0, 1.0), (1000, 2.0)]}, "B"))
    page.charts.append(Chart.times("nothing", {}, "B"))
    html = page.html()
    assert "<script" not in html and "http" not in html
    assert json.dumps(html)
