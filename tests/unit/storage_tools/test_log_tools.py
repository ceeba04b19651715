"""`tierlog log` on files: intact logs have no problems, damage is located, indexes are rebuilt."""

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import compaction
import pytest

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    RECOVERY_POINTS,
    mark_clean_shutdown,
    write_offsets,
)
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.broker.storage.segment import CorruptLog
from tierlog.broker.storage_tools.dumping import Document, Wanted, dump
from tierlog.broker.storage_tools.offline import InUse, NotALog, find_partitions, locked, log_directory_of
from tierlog.broker.storage_tools.reindexing import rebuild_indexes
from tierlog.broker.storage_tools.verifying import Problem, Totals, Verification
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.codecs import Codec
from tierlog.records.indexes import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
INTERVAL = 300
CONFIG = TopicConfig(segment_bytes=1200, index_interval_bytes=INTERVAL)
ABORT = [NewRecord(NOW, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 5))]
INDEXES = ("*.index", "*.timeindex", "*.txnindex")


def append(log: PartitionLog, records: list[NewRecord], *, epoch: int, **options: object) -> None:
    base = log.log_end_offset
    fields = {"producer_id": 3, "producer_epoch": 0, "base_sequence": base, **options}
    batch = memoryview(encode_batch(records, **fields))  # type: ignore[arg-type]
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory after a clean shutdown: one partition, several segments, two epochs, an aborted
    transaction over two segments.
    """
    directory = tmp_path / "data" / "t-0"
    log = PartitionLog.open(directory, CONFIG, OsFiles(), NOW, clean=False, rng=random.Random(1))
    for number in range(40):
        epoch = int(number >= 25)
        at = NOW + (number * 37) % 1000  # timestamps go back and forth
        append(
            log,
            [NewRecord(at, b"k%d" % number, b"v" * 100, (("h", b"\xff"),))],
            epoch=epoch,
            codec=Codec.LZ4 if number % 3 else Codec.NONE,
        )
        if number in (10, 24):
            append(log, [NewRecord(at, None, b"open")] * 2, epoch=epoch, producer_id=8, transactional=True)
        if number == 30:
            append(log, ABORT, epoch=epoch, producer_id=8, transactional=True, control=True, base_sequence=-1)
    log.close(clean=True)
    assert len(log.segments) > 3
    name = TopicPartition("t", 0)
    write_offsets(OsFiles(), directory.parent / RECOVERY_POINTS, {name: log.log_end_offset})
    mark_clean_shutdown(OsFiles(), directory.parent)
    return directory.parent


def problems(path: Path) -> list[Problem]:
    return [
        problem
        for partition in find_partitions(path)
        for problem in Verification(partition, Totals(), records=True).problems()
    ]


def damage(path: Path) -> list[tuple[str, str]]:
    return [(problem.path.name, problem.message) for problem in problems(path) if problem.damage]


def first(data: Path, pattern: str, at: int = 0) -> Path:
    found = sorted((data / "t-0").glob(pattern))
    return [path for path in found if path.stat().st_size][at]


def change(path: Path, at: int, entry: struct.Struct, **fields: int) -> None:
    """Add to fields a, b, c, … of one entry of a file."""
    content = bytearray(path.read_bytes())
    at = at * entry.size if at >= 0 else len(content) + at * entry.size
    values = list(entry.unpack_from(content, at))
    for name, value in fields.items():
        values["abcde".index(name)] += value
    entry.pack_into(content, at, *values)
    path.write_bytes(content)


def offset_entry(data: Path, at: int, **fields: int) -> None:
    change(first(data, "*.index"), at, OFFSET_ENTRY, **fields)


def time_entry(data: Path, **fields: int) -> None:
    """Change the last entry."""
    change(first(data, "*.timeindex"), -1, TIME_ENTRY, **fields)


def aborted(data: Path, **fields: int) -> None:
    change(first(data, "*.txnindex"), 0, TXN_ENTRY, **fields)


def stale_snapshot(data: Path) -> None:
    shutil.copy(first(data, "*.snapshot", 1), first(data, "*.snapshot", 2))


def epochs(data: Path, text: bytes) -> None:
    (data / "t-0" / EPOCH_CHECKPOINT).write_bytes(text)


def move_offset(path: Path, by: int) -> None:
    """Change the base offset of the third or last batch; no CRC covers it."""
    content = bytearray(path.read_bytes())
    at = read_header(content).size
    at += read_header(content, at).size
    while by == 30 and at + read_header(content, at).size < len(content):
        at += read_header(content, at).size
    struct.pack_into(">q", content, at, read_header(content, at).base_offset + by)
    path.write_bytes(content)


def move_epoch(path: Path, by: int) -> None:
    """Change the leader epoch of the second batch; no CRC covers it."""
    content = bytearray(path.read_bytes())
    at = read_header(content).size
    struct.pack_into(">i", content, at + 12, read_header(content, at).leader_epoch + by)
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_intact_log_has_no_problems(data: Path) -> None:
    assert problems(data) == problems(data / "t-0") == problems(first(data, "*.log", 1)) == []
    totals = Totals()
    read: list[int] = []
    (partition,) = find_partitions(data)
    assert list(Verification(partition, totals, read.append).problems()) == []
    assert (totals.batches, totals.records) == (43, 45)
    assert sum(read) == totals.size == partition.size


def test_every_flipped_bit_of_a_log_is_detected(data: Path) -> None:
    path = first(data, "*.log", 1)
    sound = path.read_bytes()
    for at in range(0, len(sound), 7):
        content = bytearray(sound)
        content[at] ^= 1 << at % 8
        path.write_bytes(content)
        assert damage(data), at
    path.write_bytes(sound)
    assert damage(data) == []


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (lambda data: offset_entry(data, 1, b=-1), "index", "no batch begins at"),
        (lambda data: offset_entry(data, 1, a=-1), "index", "is before the batch"),
        (lambda data: offset_entry(data, -1, a=99), "index", "beyond the log"),
        (lambda data: offset_entry(data, -1, b=9999), "index", "beyond the log"),
        (lambda data: first(data, "*.index").write_bytes(b"12345"), "index", "ends inside an entry"),
        (lambda data: time_entry(data, a=-1), "timeindex", "timestamp"),
        (lambda data: time_entry(data, a=5), "timeindex", "it ends with"),
        (lambda data: time_entry(data, b=99), "timeindex", "beyond the log"),
        (lambda data: first(data, "*.txnindex").unlink(), "txnindex", "is missing"),
        (lambda data: aborted(data, b=1), "txnindex", "is not the"),
        (lambda data: aborted(data, d=-1), "txnindex", "was aborted there"),
        (stale_snapshot, "snapshot", "producer 3 has"),
        (lambda data: first(data, "*.snapshot", 1).write_bytes(b"123"), "snapshot", "too short"),
        (lambda data: epochs(data, b"0\n2\n0 0\n1 20\n"), "checkpoint", ", but 0 in the log"),
        (lambda data: move_epoch(first(data, "*.log"), 1 << 25), "log", "leader epoch 33554432 at offset"),
        (lambda data: first(data, "*.log", 1).unlink(), "log", "are missing"),
        (lambda data: move_offset(first(data, "*.log"), 1 << 40), "log", "too far from"),
        (lambda data: move_offset(first(data, "*.log"), -2), "log", "offset 0 after 1"),
        (lambda data: move_offset(first(data, "*.log"), 30), "log", "before it ends at"),
        (lambda data: cut(first(data, "*.log", 1)), "log", "of which"),
        (lambda data: first(data, "*.log", 1).write_bytes(bytes(200)), "log", "zeros"),
    ],
)
def test_damage_is_reported_with_its_file(
    data: Path, harm: Callable[[Path], object], file: str, message: str
) -> None:
    harm(data)
    assert [found for found in damage(data) if found[0].endswith(file) and message in found[1]]


def test_torn_end_of_a_log_that_was_not_closed_is_no_damage(data: Path) -> None:
    path = sorted((data / "t-0").glob("*.log"))[-1]
    path.write_bytes(path.read_bytes() + b"torn" * 30)
    assert [name for name, _ in damage(data)] == [path.name]
    (data / CLEAN_SHUTDOWN).unlink()
    assert [(problem.path, problem.damage) for problem in problems(data)] == [(path, False)]
    write_offsets(OsFiles(), data / RECOVERY_POINTS, {TopicPartition("t", 0): 1000})
    assert [name for name, _ in damage(data)] == [path.name]  # what was synced may not be torn


def test_gap_is_damage_unless_the_log_was_compacted(data: Path) -> None:
    path = first(data, "*.log", 2)
    size = read_header(path.read_bytes()).size
    path.write_bytes(path.read_bytes()[size:])
    (partition,) = find_partitions(data)
    list(rebuild_indexes(partition, INTERVAL))
    gap = [message for name, message in damage(data) if name == path.name]
    assert len(gap) == 1 and "missing" in gap[0]
    assert list(Verification(partition, Totals(), compacted=True).problems()) == []
    write_offsets(OsFiles(), data / CLEANER_OFFSETS, {TopicPartition("t", 0): 30})
    assert damage(data) == []


def test_compacted_log_and_its_indexes_have_no_problems(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    config = TopicConfig(
        segment_bytes=600,
        index_interval_bytes=100,
        cleanup_policy=("compact",),
        min_compaction_lag_ms=0,
    )
    log = compaction.open_log(directory, config)
    for number in range(60):
        compaction.put(
            log, f"key {number * 7 % 5}", "v" * 50, producer_id=7, producer_epoch=0, base_sequence=number
        )
    assert compaction.clean(log) > 0
    assert len(compaction.records_of(log)) < log.log_end_offset == 60
    log.close(clean=True)
    write_offsets(OsFiles(), tmp_path / CLEANER_OFFSETS, {TopicPartition("t", 0): log.log_end_offset})
    assert damage(tmp_path) == []
    (partition,) = find_partitions(tmp_path)
    changed = [index.path for index in rebuild_indexes(partition, 100) if index.changed]
    assert changed == []


def kinds(documents: list[Document]) -> set[str]:
    return {document["kind"] for document in documents}


def test_all_files_are_dumped(data: Path) -> None:
    found = list(dump(data, Wanted(records=True)))
    assert kinds(found) == {
        "file", "batch", "record", "offset-index", "time-index", "aborted-transaction", "producer",
        "leader-epoch", "checkpoint",
    }  # fmt: skip
    records = [each for each in found if each["kind"] == "record"]
    assert [each["offset"] for each in records] == list(range(45))
    assert (records[0]["key"], records[0]["value"]) == (b"k0", b"v" * 100)
    assert records[0]["headers"] == [("h", b"\xff")]
    markers = [(each["marker"], each["coordinator_epoch"]) for each in records if "marker" in each]
    assert markers == [("abort", 5)]
    (aborted,) = [each for each in found if each["kind"] == "aborted-transaction"]
    assert (aborted["producer_id"], aborted["first_offset"]) == (8, 11)
    assert {each["codec"] for each in found if each["kind"] == "batch"} == {"none", "lz4"}
    epochs = [(each["epoch"], each["start_offset"]) for each in found if each["kind"] == "leader-epoch"]
    assert [epoch for epoch, _ in epochs] == [0, 1]


def test_dump_of_an_offset_range_and_of_keys(data: Path) -> None:
    found = list(dump(data / "t-0", Wanted(start=12, end=20, keys=True)))
    records = [each for each in found if each["kind"] == "record"]
    assert [each["offset"] for each in records] == list(range(12, 20))
    assert not any("value" in each for each in records)
    assert all(12 <= each["offset"] < 20 for each in found if each["kind"] in ("offset-index", "time-index"))


def test_dump_reports_damage_and_continues(data: Path) -> None:
    path = first(data, "*.log")
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    found = list(dump(path, Wanted(records=True)))
    assert [each["kind"] for each in found[:3]] == ["file", "batch", "damage"]
    assert next(each["offset"] for each in found if each["kind"] == "record") == 1


def test_rebuilt_indexes_equal_the_originals(data: Path) -> None:
    (partition,) = find_partitions(data)
    assert [index.path for index in rebuild_indexes(partition, INTERVAL) if index.changed] == []
    paths = [path for name in INDEXES for path in sorted((data / "t-0").glob(name))]
    sound = {path: path.read_bytes() for path in paths}
    for number, path in enumerate(paths):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(b"anything")
    stray = first(data, "*.log", 1).with_suffix(".txnindex")
    stray.write_bytes(b"no transaction was aborted here") if stray not in sound else None
    changed = {index.path for index in rebuild_indexes(partition, INTERVAL) if index.changed}
    assert changed >= {path for path in paths if sound[path]}
    assert {path: path.read_bytes() for path in paths} == sound
    assert not stray.exists() or stray in sound
    assert problems(data) == []


def test_clean_shutdown_ends_the_time_index_like_a_rebuild(tmp_path: Path) -> None:
    """The newest batch is 1 ms newer than the last one with an index entry."""
    directory = tmp_path / "data" / "t-0"
    log = PartitionLog.open(directory, CONFIG, OsFiles(), NOW, clean=False, rng=random.Random(1))
    for number in range(5):
        append(log, [NewRecord(NOW + number, None, b"v" * 100)], epoch=0)
    log.close(clean=True)
    path = first(tmp_path / "data", "*.timeindex")
    sound = path.read_bytes()
    assert TIME_ENTRY.unpack(sound[-TIME_ENTRY.size :]) == (NOW + 4, 4)
    assert len(sound) > TIME_ENTRY.size, "it has entries before that one"
    (partition,) = find_partitions(tmp_path / "data")
    assert [index.path for index in rebuild_indexes(partition, INTERVAL) if index.changed] == []
    path.write_bytes(b"anything")
    assert [index.path for index in rebuild_indexes(partition, INTERVAL) if index.changed] == [path]
    assert path.read_bytes() == sound


def test_rebuild_of_one_segment_reads_earlier_ones_for_transactions(data: Path) -> None:
    path = first(data, "*.txnindex")
    sound = path.read_bytes()
    for snapshot in (data / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    path.write_bytes(b"")
    (partition,) = find_partitions(path.with_suffix(".log"))
    assert [index.path for index in rebuild_indexes(partition, INTERVAL) if index.changed] == [path]
    assert path.read_bytes() == sound


def test_indexes_of_a_damaged_log_are_not_rebuilt(data: Path) -> None:
    path = first(data, "*.log")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    index = path.with_suffix(".index")
    before = index.read_bytes()
    with pytest.raises(CorruptLog, match="position"):
        list(rebuild_indexes(find_partitions(path)[0], INTERVAL))
    assert index.read_bytes() == before


def test_directory_in_use_is_refused(data: Path) -> None:
    running = LogDirectory(data, OsFiles(), random.Random(1))
    running.lock()
    assert log_directory_of(data / "t-0") == log_directory_of(first(data, "*.log")) == data
    with pytest.raises(InUse), locked(data):
        pass
    running.release()
    with locked(data), pytest.raises(OSError, match="another process"):
        running.lock()


def test_path_without_a_log_is_reported(data: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "other", data / CLEAN_SHUTDOWN):
        with pytest.raises(NotALog):
            find_partitions(path)
        with pytest.raises(NotALog):
            list(dump(path, Wanted()))


def test_start_restores_removed_files(data: Path) -> None:
    """As in the runbook: the damaged files beside the log, and the two files that would make a start trust
    them.
    """
    directory = data / "t-0"
    epochs(data, b"0\n2\n0 0\n1 20\n")
    stale_snapshot(data)
    assert damage(data)
    moved = [directory / EPOCH_CHECKPOINT, first(data, "*.snapshot", 2)]
    for path in (*moved, data / CLEAN_SHUTDOWN, data / RECOVERY_POINTS):
        path.unlink()
    log = PartitionLog.open(directory, CONFIG, OsFiles(), NOW, clean=False, rng=random.Random(1))
    log.close(clean=True)
    assert problems(data) == []
    assert all(path.exists() for path in moved)


@pytest.mark.parametrize("by", [1 << 40, -2])
def test_no_index_is_built_from_invalid_offsets(data: Path, by: int) -> None:
    move_offset(first(data, "*.log"), by)
    with pytest.raises(CorruptLog, match="offset"):
        list(rebuild_indexes(find_partitions(data)[0], INTERVAL))
