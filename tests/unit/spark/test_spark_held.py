"""A query of a snapshot gives the same rows while the manifest moves on."""

import asyncio
from pathlib import Path

import pytest
from spark_bucket import BucketWriter

from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark import snapshots
from tierlog.spark.history import held
from tierlog.spark.history.bucket import DirectoryBucket
from tierlog.spark.history.plan import Pruning
from tierlog.spark.history.snapshot import choose_snapshot, plan_splits, read_split
from tierlog.spark.history.summary import table_rows
from tierlog.spark.options import InvalidOption, parse_options
from tierlog.spark.source import TierlogSource
from tierlog.spark.tables import count
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.snapshots import SnapshotEnded, Snapshots


def segment(writer: BucketWriter, first: int) -> None:
    records = [NewRecord(first + n, None, b"v") for n in range(10)]
    writer.segment("t", 0, [encode_batch(records, base_offset=first)])
    writer.commit("t", 0)


@pytest.fixture
def writer(tmp_path: Path) -> BucketWriter:
    writer = BucketWriter(tmp_path / "bucket")
    writer.topic("t", 1)
    segment(writer, 0)
    return writer


def plan(writer: BucketWriter, snapshot: str) -> tuple[str | None, list[object]]:
    bucket = DirectoryBucket(writer.root)
    given = {"path": str(writer.root), "topic": "t", "snapshot": snapshot}
    options = choose_snapshot(bucket, parse_options(given))
    return options.snapshot, list(plan_splits(bucket, options, Pruning()))


def test_plan_of_a_snapshot_is_repeatable(writer: BucketWriter) -> None:
    taken, first = plan(writer, "now")
    assert taken is not None and taken != "now"
    segment(writer, 10)
    assert plan(writer, taken)[1] == first
    assert plan(writer, "now")[1] != first


def test_data_source_chooses_its_snapshot_once(writer: BucketWriter) -> None:
    options = {"path": str(writer.root), "topic": "t", "Snapshot": "now"}
    source = TierlogSource(options)
    chosen = source.options["snapshot"]
    segment(writer, 10)
    assert plan(writer, chosen)[1] == plan(writer, chosen)[1] != plan(writer, "now")[1]
    assert options["Snapshot"] == "now"
    assert (
        TierlogSource({"path": str(writer.root), "topic": "t", "snapshot": chosen}).options["snapshot"]
        == chosen
    )


def test_snapshot_is_no_option_of_a_stream(writer: BucketWriter) -> None:
    source = TierlogSource(
        {"path": str(writer.root), "topic": "t", "snapshot": "now", "startingoffsets": "x"}
    )
    with pytest.raises(InvalidOption, match="`snapshot` belongs to"):
        source.streamReader(None)  # type: ignore[arg-type]


def test_snapshot_that_does_not_exist_or_has_ended_is_refused(writer: BucketWriter) -> None:
    with pytest.raises(InvalidOption, match="there is no snapshot 'other'"):
        plan(writer, "other")
    with pytest.raises(InvalidOption, match="invalid snapshot name"):
        plan(writer, "a/b")
    with pytest.raises(InvalidOption, match="no snapshot of these topics as of 2026"):
        plan(writer, "2026-01-01T00:00:00Z")
    taken, _ = plan(writer, "now")
    assert taken is not None
    asyncio.run(Snapshots(LocalStore(writer.root), writer.keys).end(taken))
    with pytest.raises(InvalidOption, match="has ended"):
        plan(writer, taken)


def test_topic_outside_of_a_snapshot_is_refused(writer: BucketWriter) -> None:
    taken, _ = plan(writer, "now")
    writer.topic("u", 1)
    given = {"path": str(writer.root), "topic": "u", "snapshot": str(taken)}
    with pytest.raises(InvalidOption, match="'u' is not in the bucket"):
        plan_splits(DirectoryBucket(writer.root), parse_options(given), Pruning())


def test_named_snapshot_is_created_read_listed_and_ended(writer: BucketWriter) -> None:
    path = str(writer.root)
    taken = snapshots.create("audit", path, topic="t")
    first = plan(writer, "audit")[1]
    segment(writer, 10)
    assert plan(writer, "audit")[1] == first
    assert count(path, topic="t", snapshot="audit") == 10
    assert count(path, topic="t") == 20
    with pytest.raises(InvalidOption, match="exists"):
        snapshots.create("audit", path, topic="t")
    [row] = table_rows(DirectoryBucket(writer.root), parse_options({"path": path, "table": "snapshots"}))
    assert (row["snapshot_id"], row["name"], row["start_offset"], row["end_offset"]) == (
        taken,
        "audit",
        0,
        10,
    )
    other = parse_options({"path": path, "table": "snapshots", "topic": "u"})
    assert list(table_rows(DirectoryBucket(writer.root), other)) == []
    snapshots.end("audit", path)
    with pytest.raises(InvalidOption, match="has ended"):
        plan(writer, "audit")
    snapshots.create("audit", path, topic="t")
    assert plan(writer, "audit")[1] != first


def test_tasks_renew_the_lease_and_fail_once_it_has_ended(
    writer: BucketWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_next_renewal_s", {})
    bucket = DirectoryBucket(writer.root)
    given = {"path": str(writer.root), "topic": "t", "snapshot": "now"}
    options = choose_snapshot(bucket, parse_options(given))
    [split] = plan_splits(bucket, options, Pruning())
    known = Snapshots(LocalStore(writer.root), writer.keys)

    def renewals() -> int:
        return asyncio.run(known.leases())[0][0].renewals

    before = renewals()
    assert len(list(read_split(bucket, options, split))) == 1
    assert len(list(read_split(bucket, options, split))) == 1
    assert renewals() == before + 1  # one worker, within a share of the lease
    asyncio.run(known.end(str(options.snapshot)))
    (writer.root / split[0].key).unlink()
    with pytest.raises(SnapshotEnded, match="has ended"):
        list(read_split(bucket, options, split))
    held._next_renewal_s.clear()
    with pytest.raises(SnapshotEnded, match="has ended"):
        list(read_split(bucket, options, split))
