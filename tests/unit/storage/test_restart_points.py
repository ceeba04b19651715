"""Starts after a kill read the active segment from its restart point on; other starts read all of it."""

import errno
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from power_loss import KEPT, Killed, PowerLoss
from restarted_log import (
    NOW,
    VALUE,
    append,
    checkpoint,
    end_transaction,
    open_log,
    restart_point,
    state_of,
)

from tierlog.base.files import FileSlice, OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.broker.storage.restart_point import PRODUCERS_PER_INTERVAL
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records

CONFIG = TopicConfig(file_delete_delay_ms=0)
SMALL_SEGMENTS = TopicConfig(file_delete_delay_ms=0, segment_bytes=60_000)
BATCH = len(VALUE)


class ReadFiles(OsFiles):
    """Real files that know from where on they were read; of each log the first bytes do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.read_from: dict[str, int] = {}

    def read_at(self, fd: int, count: int, position: int) -> bytes:  # type: ignore[override]
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if position:
            self.read_from[name] = min(position, self.read_from.get(name, position))
        return OsFiles.read_at(fd, count, position)


class FullDisk(OsFiles):
    """No file gets a name while `full`. Calls `before_sync` once, before the next fsync."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.before_sync: Callable[[], object] | None = None

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.full and create:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create, exclusive=exclusive)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        hook, self.before_sync = self.before_sync, None
        if hook is not None:
            hook()
        OsFiles.sync(fd)


def killed_log(directory: Path, *, before: int = 8, after: int = 3) -> int:
    """A log that is killed after a checkpoint and some more batches; returns the recovery point."""
    log = open_log(directory, CONFIG, OsFiles(), 0, same_boot=False)
    for n in range(before):
        append(log, after_ms=n)
    point = checkpoint(log)
    for n in range(after):
        append(log, after_ms=n)
    log.close(clean=False)
    return point


def opened(
    directory: Path,
    point: int | None,
    *,
    same_boot: bool = True,
    files: OsFiles | None = None,
    **options: bool,
) -> PartitionLog:
    return PartitionLog.open(
        directory,
        CONFIG,
        files or OsFiles(),
        NOW,
        recovery_point=point,
        clean=False,
        same_boot=same_boot,
        rng=random.Random(1),
        **options,
    )


def batch_starts(path: Path) -> list[int]:
    return [at for at, _ in iter_batches(path.read_bytes())]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_start_after_a_kill_reads_the_active_segment_from_the_last_checkpoint(tmp_path: Path) -> None:
    point = killed_log(tmp_path)
    assert restart_point(tmp_path) == point == 8
    files = ReadFiles()
    log = open_log(tmp_path, CONFIG, files, point, same_boot=True)
    assert log.log_end_offset == 11 and log.recovery_point == 8
    last_indexed = batch_starts(tmp_path / f"{0:020d}.log")[7]
    assert files.read_from == {f"{0:020d}.log": last_indexed}


def test_segment_rolled_since_the_checkpoint_is_read_from_the_recovery_point(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG, OsFiles(), 0, same_boot=False)
    for _ in range(8):
        append(log)
    point = checkpoint(log)
    append(log)
    log.roll(NOW)
    assert restart_point(tmp_path) is None
    append(log)
    log.close(clean=False)
    files = ReadFiles()
    log = open_log(tmp_path, CONFIG, files, point, same_boot=True)
    assert log.log_end_offset == 10
    assert files.read_from[f"{0:020d}.log"] >= batch_starts(tmp_path / f"{0:020d}.log")[6]


@pytest.mark.parametrize(("same_boot", "may_have_lost"), [(False, False), (True, True), (False, True)])
def test_start_that_may_follow_a_power_failure_reads_everything(
    tmp_path: Path, same_boot: bool, may_have_lost: bool
) -> None:
    point = killed_log(tmp_path)
    flip(tmp_path / f"{0:020d}.log", 2 * BATCH + 300)
    log = opened(tmp_path, point, same_boot=same_boot, may_have_lost=may_have_lost)
    assert log.log_end_offset == 2
    assert restart_point(tmp_path) is None


def test_start_with_an_unknown_recovery_point_reads_everything(tmp_path: Path) -> None:
    killed_log(tmp_path)
    flip(tmp_path / f"{0:020d}.log", 2 * BATCH + 300)
    assert opened(tmp_path, None).log_end_offset == 2


def test_flipped_bit_after_the_restart_point_is_found(tmp_path: Path) -> None:
    point = killed_log(tmp_path)
    path = tmp_path / f"{0:020d}.log"
    flip(path, batch_starts(path)[9] + 300)
    log = opened(tmp_path, point)
    assert (log.log_end_offset, log.was_damaged) == (9, True)


def test_flipped_bit_before_the_restart_point_removes_nothing_at_the_start(tmp_path: Path) -> None:
    """Replicas may have more than is before it: the scrubber reports it, and repairs the range."""
    point = killed_log(tmp_path)
    flip(tmp_path / f"{0:020d}.log", 2 * BATCH + 300)
    log = opened(tmp_path, point)
    assert (log.log_end_offset, log.was_damaged) == (11, False)


def _remove_index(directory: Path) -> None:
    (directory / f"{0:020d}.index").unlink()


def _index_of_other_batches(directory: Path) -> None:
    flip(directory / f"{0:020d}.index", 6 * 8 + 7)  # the position of the last batch but one


def _index_beyond_the_log(directory: Path) -> None:
    path = directory / f"{0:020d}.index"
    path.write_bytes(path.read_bytes()[:-4] + b"\x7f\0\0\0")


def _tear_transaction_index(directory: Path) -> None:
    (directory / f"{0:020d}.txnindex").write_bytes(bytes(10))


def _tear_snapshot(directory: Path) -> None:
    path = directory / f"{8:020d}.snapshot"
    path.write_bytes(path.read_bytes()[:-1])


def _remove_epochs(directory: Path) -> None:
    (directory / EPOCH_CHECKPOINT).unlink()


def _shorten_log(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[: batch_starts(path)[7]])


@pytest.mark.parametrize(
    "harm",
    [
        _remove_index,
        _index_of_other_batches,
        _index_beyond_the_log,
        _tear_transaction_index,
        _tear_snapshot,
        _remove_epochs,
        _shorten_log,
    ],
)
def test_restart_point_with_a_wrong_file_is_not_used(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    point = killed_log(tmp_path / "t-0", after=0)
    harm(tmp_path / "t-0")
    shutil.copytree(tmp_path / "t-0", tmp_path / "whole")
    whole = opened(tmp_path / "whole", point, same_boot=False)
    log = opened(tmp_path / "t-0", point)
    assert state_of(log) == state_of(whole)
    assert log.was_damaged is whole.was_damaged
    assert restart_point(tmp_path / "t-0") is None


def test_log_that_has_not_grown_enough_gets_no_restart_point(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG, OsFiles(), 0, same_boot=False)
    append(log)
    append(log)
    checkpoint(log)
    assert restart_point(tmp_path) == 2
    append(log, value=b"")
    checkpoint(log)
    assert restart_point(tmp_path) == 2
    producers = PRODUCERS_PER_INTERVAL * (2 * BATCH // CONFIG.index_interval_bytes - 1)
    for producer_id in range(producers):
        append(log, value=b"", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    checkpoint(log)
    assert restart_point(tmp_path) == 2
    append(log, value=bytes(2 * BATCH))
    checkpoint(log)
    assert restart_point(tmp_path) == log.log_end_offset


def test_roll_or_close_during_a_flush_voids_the_restart_point(tmp_path: Path) -> None:
    for name, action in {
        "roll": lambda log: log.roll(NOW),
        "close": lambda log: log.close(clean=False),
    }.items():
        disk = FullDisk()
        log = open_log(tmp_path / name, CONFIG, disk, 0, same_boot=False)
        for _ in range(3):
            append(log)
        disk.before_sync = lambda log=log, action=action: action(log)
        with suppress(OSError):
            checkpoint(log)
        assert restart_point(tmp_path / name) is None
        if name == "roll":
            assert [path.name for path in (tmp_path / name).glob("*.snapshot")] == [f"{3:020d}.snapshot"]
        log.close(clean=False)


def test_append_during_a_flush_is_not_in_the_restart_point(tmp_path: Path) -> None:
    disk = FullDisk()
    log = open_log(tmp_path, CONFIG, disk, 0, same_boot=False)
    for sequence in range(3):
        append(log, producer_id=5, producer_epoch=0, base_sequence=sequence)
    disk.before_sync = lambda: append(log, producer_id=5, producer_epoch=0, base_sequence=3)
    point = checkpoint(log)
    assert (point, restart_point(tmp_path)) == (3, 3)
    expected = state_of(log)
    log.close(clean=False)
    assert state_of(opened(tmp_path, point)) == expected


def test_full_disk_fails_no_flush_because_of_a_restart_point(tmp_path: Path) -> None:
    disk = FullDisk()
    log = open_log(tmp_path, CONFIG, disk, 0, same_boot=False)
    for _ in range(3):
        append(log)
    log.flush()
    disk.full = True
    assert checkpoint(log) == 3
    assert restart_point(tmp_path) is None
    disk.full = False
    checkpoint(log)
    assert restart_point(tmp_path) == 3


def test_directory_that_a_log_moves_to_gets_a_restart_point_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", CONFIG, OsFiles(), 0, same_boot=False)
    for _ in range(3):
        append(log)
    point = checkpoint(log)
    shutil.copytree(
        tmp_path / "t-0", tmp_path / "moved", ignore=shutil.ignore_patterns("*index", "*snapshot")
    )
    log.switch_directory(tmp_path / "moved", OsFiles())
    assert restart_point(tmp_path / "moved") is None
    checkpoint(log)
    assert restart_point(tmp_path / "moved") == 3
    expected = state_of(log)
    log.close(clean=False)
    assert state_of(opened(tmp_path / "moved", point)) == expected


def test_restart_point_outlives_a_truncation_above_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG, OsFiles(), 0, same_boot=False)
    for _ in range(5):
        append(log)
    point = checkpoint(log)
    for _ in range(3):
        append(log)
    log.truncate_to(6, NOW)
    append(log, 1)
    assert restart_point(tmp_path) == 5
    expected = state_of(log)
    log.close(clean=False)
    again = opened(tmp_path, point)
    assert state_of(again) == expected and again.epochs.entries == ((0, 0), (1, 6))
    again.truncate_to(3, NOW)
    assert restart_point(tmp_path) is None


def test_flush_after_a_kill_syncs_a_segment_that_ends_at_the_recovery_point(tmp_path: Path) -> None:
    """A later start after a power failure trusts its index files."""
    files = PowerLoss(tmp_path, 10_000)
    log = open_log(tmp_path, CONFIG, files, 0, same_boot=False)
    for n in range(4):
        append(log, producer_id=3, producer_epoch=0, base_sequence=n, transactional=True)
        end_transaction(log, 0, 3, commit=False)
    point = checkpoint(log)
    log.roll(NOW)
    log.close(clean=False)
    log = open_log(tmp_path, CONFIG, files, point, same_boot=True)
    append(log)
    assert checkpoint(log) > point and files.unsynced() == set()


def test_batches_after_a_truncation_are_flushed_though_the_recovery_point_is_above_them(
    tmp_path: Path,
) -> None:
    files = PowerLoss(tmp_path, 10_000)
    log = open_log(tmp_path, CONFIG, files, 0, same_boot=False)
    for _ in range(8):
        append(log)
    point = checkpoint(log)
    log.truncate_to(4, NOW)
    append(log)
    checkpoint(log)
    append(log)
    log.close(clean=False)
    assert restart_point(tmp_path) == 5
    log = open_log(tmp_path, CONFIG, files, point, same_boot=True)
    assert log.recovery_point < log.log_end_offset == 6
    assert f"{0:020d}.log" in files.unsynced()
    assert log.flush() == 6 and f"{0:020d}.log" not in files.unsynced()


@pytest.mark.parametrize("same_boot", [False, True])
def test_batches_across_a_recovery_point_of_before_a_truncation_are_kept(
    tmp_path: Path, same_boot: bool
) -> None:
    """A follower truncates its log, leads, and is killed before it lowers the recovery point."""
    log = open_log(tmp_path, CONFIG, OsFiles(), 0, same_boot=False)
    for _ in range(10):
        append(log)
    point = checkpoint(log)
    log.truncate_to(9, NOW)
    for _ in range(3):
        append(log, 1)
    log.close(clean=False)
    log = opened(tmp_path, point, same_boot=same_boot)
    assert (log.log_end_offset, log.was_damaged) == (12, False)
    assert log.epochs.entries == ((0, 0), (1, 9))


def test_epoch_that_begins_between_a_roll_and_the_restart_point_keeps_its_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG, OsFiles(), 0, same_boot=False)
    for _ in range(4):
        append(log)
    point = checkpoint(log)
    append(log)
    log.roll(NOW)
    for _ in range(4):
        append(log, 1)
    checkpoint(log)  # killed before the recovery point is written
    log.close(clean=False)
    assert opened(tmp_path, point).epochs.entries == ((0, 0), (1, 5))


def test_start_after_a_start_that_was_killed_has_all_aborted_transactions(memory_path: Path) -> None:
    """The killed start rebuilds a rolled segment, as after an interrupted compaction."""
    source, directory = memory_path / "source", memory_path / "killed"
    log = open_log(source, CONFIG, OsFiles(), 0, same_boot=False)
    for n in range(9):
        append(log, producer_id=3, producer_epoch=0, base_sequence=n, transactional=True)
        end_transaction(log, 0, 3, commit=False)
        if n % 3 == 2:
            log.roll(NOW)
    point, expected = checkpoint(log), state_of(log)
    log.close(clean=False)
    (source / f"{0:020d}.index").unlink()
    for count in range(1_000):
        shutil.copytree(source, directory)
        files = PowerLoss(directory, count)
        with suppress(Killed):
            opened(directory, point, files=files).close(clean=False)
        log = opened(directory, point)
        assert state_of(log) == expected, count
        log.close(clean=False)
        shutil.rmtree(directory)
        if files.left:
            assert count > 15
            return


def records(log: PartitionLog) -> list[tuple[int, int]]:
    """Offset and leader epoch of each record."""
    found = log.read(log.local_log_start_offset, 1 << 30, log.log_end_offset, min_one=True)
    data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
    return [
        (record.offset, header.leader_epoch)
        for at, header in iter_batches(data)
        for record in iter_records(data, at, max_bytes=1 << 20)
    ]


class Scenario:
    """A log with checkpoints, transactions, rolls, truncations and a restart at another offset."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self.begun: set[int] = set()
        self.checkpointed = 0
        self.is_complete = False

    def run(self, directory: Path, files: OsFiles) -> None:
        log = open_log(directory, SMALL_SEGMENTS, files, 0, same_boot=False)
        self._fill(log, 0, 9)
        self._truncate(log, log.log_end_offset - 2)
        self._fill(log, 1, 3)
        self._truncate(log, log.segments[-1].base_offset - 2)  # into a segment that was rolled
        self._fill(log, 2, 6)
        self._lower(log)
        start = log.log_end_offset + 5
        self.written = []
        log.truncate_fully_and_start_at(start, NOW)
        self._lower(log)
        self._fill(log, 3, 4)
        self.is_complete = True

    def _fill(self, log: PartitionLog, epoch: int, batches: int) -> None:
        for n in range(batches):
            self._produce(log, epoch, producer_id=n % 2)
            if n % 3 == 2:
                self.begun.add(log.log_end_offset)
                end_transaction(log, epoch, n % 2, commit=False)
                self.written.append((log.log_end_offset - 1, epoch))
            if n % 3 != 1:
                self.checkpointed = checkpoint(log)
                log.flusher.on_checkpointed(log.flusher.truncations)

    def _produce(self, log: PartitionLog, epoch: int, producer_id: int) -> None:
        known = log.producers.get(producer_id)
        last = known.batches[-1].last_sequence if known is not None and known.batches else -1
        options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": last + 1}
        self.begun.add(log.log_end_offset)
        append(log, epoch, transactional=True, **options)
        self.written.append((log.log_end_offset - 1, epoch))

    def _truncate(self, log: PartitionLog, offset: int) -> None:
        self.written = [record for record in self.written if record[0] < offset]
        log.truncate_to(offset, NOW)
        self._lower(log)

    def _lower(self, log: PartitionLog) -> None:
        self.checkpointed = min(self.checkpointed, log.recovery_point)
        log.flusher.on_checkpointed(log.flusher.truncations)


@pytest.mark.slow
def test_kill_at_every_file_operation(memory_path: Path) -> None:
    """Nothing that was written is lost, and the log is the same as if all of it had been read."""
    resumed = 0
    for count in range(10_000):
        directory, copy = memory_path / str(count), memory_path / "whole"
        directory.mkdir()
        scenario, files = Scenario(), PowerLoss(directory, count)
        with suppress(Killed):
            scenario.run(directory, files)
        files.crash(KEPT)
        shutil.copytree(directory, copy)
        whole = open_log(copy, SMALL_SEGMENTS, OsFiles(), scenario.checkpointed, same_boot=False)
        expected = state_of(whole)
        whole.close(clean=False)
        resumed += restart_point(directory) is not None
        log = open_log(directory, SMALL_SEGMENTS, OsFiles(), scenario.checkpointed, same_boot=True)
        log.check()
        assert state_of(log) == expected, count
        assert set(scenario.written) <= set(records(log)), count
        assert {offset for offset, _ in records(log)} <= scenario.begun, count
        log.close(clean=False)
        shutil.rmtree(directory)
        shutil.rmtree(copy)
        if scenario.is_complete:
            assert count > 150 and resumed > 50
            return
    pytest.fail("no run reached the end of the scenario")
