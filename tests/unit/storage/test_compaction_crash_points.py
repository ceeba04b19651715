"""Power failure at every file operation of a cleaning: each segment has either the old or the new content."""

import shutil
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from compaction import NOW, append, batches_of, begin, clean, open_log, put, records_of
from power_loss import KEPT, LOST, TORN, Killed, PowerLoss

from tierlog.base.files import OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment_swap import SwapStage
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import iter_batches
from tierlog.records.record import Record
from tierlog.records.writer import NewRecord

RETENTION = 1000
CONFIG = TopicConfig(
    segment_bytes=400,
    index_interval_bytes=0,
    cleanup_policy=("compact",),
    delete_retention_ms=RETENTION,
    file_delete_delay_ms=0,
)


def marker(commit: bool) -> list[NewRecord]:
    return [NewRecord(NOW, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))]


def write(log: PartitionLog) -> None:
    """Ten keys in turn, one of them deleted, by an active producer, with an aborted and a committed
    transaction.
    """
    for n in range(14):
        put(log, f"key {n % 5}", f"value {n}")
    put(log, "key 9", "soon gone")
    put(log, "key 9", None)
    put(log, "of a producer", "1", producer_id=3, producer_epoch=0, base_sequence=0)
    for producer, commit in ((7, False), (8, True)):
        options = {"producer_id": producer, "producer_epoch": 0, "transactional": True}
        append(log, [NewRecord(NOW, b"of %d" % producer, b"1")], base_sequence=0, **options)
        append(log, marker(commit), base_sequence=-1, control=True, **options)
    for n in range(14):
        put(log, f"key {n % 6}", f"newer {n}")
    put(log, "of a producer", "2")
    log.producers.on_high_watermark_updated(log.log_end_offset)
    log.roll(NOW)
    put(log, "the last one", "of the active segment")
    log.flush()


def last_values(records: list[Record]) -> dict[bytes | None, bytes | None]:
    """The values that a read_committed reader sees; the aborted transaction is that of producer 7."""
    last = {record.key: record.value for record in records if record.key is not None and len(record.key) > 4}
    return {key: value for key, value in last.items() if key is not None and value is not None}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "t-0"
    log = open_log(directory, CONFIG)
    write(log)
    log.close(clean=True)
    return directory


def passes(log: PartitionLog, files: OsFiles) -> None:
    """Two passes: the second removes the expired tombstone and merges what the first left."""
    clean(log, NOW, files=files)
    for path in log.take_due(NOW):
        files.unlink(path)
    log.cleaned_to = 0
    clean(log, NOW + RETENTION, files=files)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "what",
    [pytest.param(KEPT, marks=pytest.mark.nightly), pytest.param(LOST, marks=pytest.mark.nightly), TORN],
)
def test_power_failure_at_every_file_operation(memory_path: Path, before: Path, what: str) -> None:
    log = open_log(before, CONFIG, clean=True)
    written = {record.offset: record for record in records_of(log)}
    expected, end, recovery_point = last_values(records_of(log)), log.log_end_offset, log.recovery_point
    assert expected[b"key 5"] == b"newer 11"
    for left in range(10_000):
        directory = memory_path / str(left)
        shutil.copytree(before, directory)
        files = PowerLoss(directory, left)
        log = open_log(directory, CONFIG, files, clean=True)
        finished = False
        with suppress(Killed):
            passes(log, files)
            finished = True
        log.close(clean=False)
        del log
        files.crash(what)
        again = open_log(directory, CONFIG, recovery_point=recovery_point)
        again.check()
        assert again.log_end_offset == end, left
        assert (again.recovered_truncated_bytes, again.recovered_dropped_segments) == (0, 0), left
        records = records_of(again)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), left
        assert last_values(records) == expected, left
        assert all(record.value == written[record.offset].value for record in records), left
        producer = again.producers.get(3)
        assert producer is not None and producer.batches[-1].last_sequence == 0, left
        names = [path.name for path in directory.iterdir()]
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))], (left, names)
        clean(again, NOW + 3 * RETENTION)  # and it can be cleaned as if nothing had happened
        assert last_values(records_of(again)) == expected, left
        again.close(clean=False)
        shutil.rmtree(directory)
        if finished:
            assert left > 60  # the number of operations, each of which failed once
            return
    pytest.fail("the cleaning never ended")


@pytest.mark.parametrize("clean_stop", [True, False])
@pytest.mark.parametrize("steps", [1, 2])
def test_node_stops_between_two_steps_of_a_swap(
    tmp_path: Path, before: Path, steps: int, clean_stop: bool
) -> None:
    directory = tmp_path / "t-0"
    shutil.copytree(before, directory)
    log = open_log(directory, CONFIG, clean=True)
    expected = last_values(records_of(log))
    cleaning = begin(log)
    groups = cleaning.build_offset_map()
    assert len(groups[0]) > 0
    swap = cleaning.clean(groups[0])
    assert swap is not None and log.swaps.begin(log, swap)
    if steps == 2:
        log.swaps.install(log, swap, NOW)
        assert last_values(records_of(log)) == expected
    log.close(clean=clean_stop)
    again = open_log(directory, CONFIG, clean=clean_stop, recovery_point=log.recovery_point)
    again.check()
    assert last_values(records_of(again)) == expected
    assert again.segments[0].end_offset == groups[0][-1].end_offset
    assert len(records_of(again)) < 37
    again.close(clean=False)


def test_deletion_completes_a_pending_swap(tmp_path: Path, before: Path) -> None:
    directory = tmp_path / "t-0"
    shutil.copytree(before, directory)
    log = open_log(directory, CONFIG, clean=True)
    cleaning = begin(log)
    swap = cleaning.clean(cleaning.build_offset_map()[0])
    assert swap is not None and log.swaps.begin(log, swap)
    log.delete_local_before(swap.cleaned.end_offset, NOW)
    assert swap.stage is SwapStage.FINISHED
    assert log.log_start_offset == swap.cleaned.end_offset
    log.swaps.install(log, swap, NOW)  # the cleaner continues
    log.swaps.finish(swap)
    log.check()
    assert not log.has(swap.cleaned)


def test_swap_is_refused_if_a_source_segment_was_deleted(tmp_path: Path, before: Path) -> None:
    directory = tmp_path / "t-0"
    shutil.copytree(before, directory)
    log = open_log(directory, CONFIG, clean=True)
    cleaning = begin(log)
    swap = cleaning.clean(cleaning.build_offset_map()[0])
    assert swap is not None
    log.delete_local_before(swap.cleaned.end_offset, NOW)
    assert not log.swaps.begin(log, swap)
    log.check()


def test_readers_of_a_replaced_segment_can_finish(tmp_path: Path, before: Path) -> None:
    directory = tmp_path / "t-0"
    shutil.copytree(before, directory)
    log = open_log(directory, CONFIG, clean=True)
    slow = log.batches(0)
    first = next(slow)
    offsets = [header.base_offset for header, _ in batches_of(log)]
    clean(log)
    assert len(batches_of(log)) < len(offsets)
    assert [first[0].header.base_offset, *(batch.header.base_offset for batch, _ in slow)] == offsets


def test_abort_in_the_clean_part_does_not_remove_later_committed_data(tmp_path: Path) -> None:
    log = open_log(tmp_path, TopicConfig(cleanup_policy=("compact",)))
    transaction = {"producer_id": 7, "producer_epoch": 0, "transactional": True}

    def end(commit: bool) -> None:
        append(log, marker(commit), base_sequence=-1, control=True, **transaction)
        log.producers.on_high_watermark_updated(log.log_end_offset)

    put(log, "key", "old")
    put(log, "other", "aborted", base_sequence=0, **transaction)
    end(commit=False)
    log.roll(NOW)
    put(log, "another", "1")
    clean(log)
    put(log, "key", "new", base_sequence=1, **transaction)
    end(commit=True)
    log.roll(NOW)
    put(log, "another", "2")
    clean(log)
    assert [record.value for record in records_of(log) if record.key == b"key"] == [b"new"]


@pytest.mark.parametrize("kept_batches", [0, 1, 2])
@pytest.mark.parametrize("synced", [False, True, None])
def test_segment_that_ends_early_counts_as_compacted_only_if_synced(
    tmp_path: Path, kept_batches: int, synced: bool | None
) -> None:
    """Offsets may be missing in a compacted log, but not because of a power failure: a reader must not skip
    lost records. With an unknown recovery point (None) everything is kept.
    """
    log = open_log(tmp_path, CONFIG)
    while len(log.segments) < 4:
        put(log, f"key {log.log_end_offset}", "value")
    log.flush()
    victim, following = log.segments[1:3]
    starts = [at for at, _ in iter_batches(victim.path_log.read_bytes())]
    end = log.log_end_offset
    log.close(clean=False)
    content = victim.path_log.read_bytes()
    victim.path_log.write_bytes(content[: starts[kept_batches]])
    known = {True: end, False: victim.base_offset, None: None}
    again = open_log(tmp_path, CONFIG, recovery_point=known[synced])
    if synced is not False:
        assert again.log_end_offset == end
    else:
        assert again.log_end_offset == victim.base_offset + kept_batches
        assert following.base_offset not in {record.offset for record in records_of(again)}
    again.check()
