"""Kill at every file operation of a log: everything acknowledged is there, in order, once.

The file port counts operations and fails all of them from the chosen one on, as for a killed process.
"""

import contextlib
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from watched_disk import WatchedDisk

from tierlog.base.files import FileSlice, OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.record import iter_records
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)


class Killed(BaseException):
    """Not an Exception, so that the log cannot catch it and clean up."""


class KilledAt(OsFiles):
    """Performs `left` modifying operations; the next one is torn if it is a write, and all later
    ones fail.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def _spend(self) -> None:
        if self.left <= 0:
            raise Killed
        self.left -= 1

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        if self.left <= 0:
            data = b"".join(buffers)
            super().writev_at(fd, [data[: len(data) // 2]], position)
        self._spend()
        return super().writev_at(fd, buffers, position)

    def truncate(self, fd, size):  # type: ignore[no-untyped-def]
        self._spend()
        super().truncate(fd, size)

    def rename(self, source, target):  # type: ignore[no-untyped-def]
        self._spend()
        super().rename(source, target)

    def unlink(self, path, *, missing_ok=False):  # type: ignore[no-untyped-def]
        self._spend()
        super().unlink(path, missing_ok=missing_ok)

    def sync(self, fd):  # type: ignore[no-untyped-def]
        self._spend()
        super().sync(fd)


class Life:
    """Operations on a log, and what was acknowledged when it ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged = 0
        self.log_start = 0
        self.recovery_point = 0
        self.closed_clean = False

    def run(self, files: OsFiles) -> None:
        log = open_log(self.directory, files)
        for n in range(24):
            if n == 9:
                log.assign_epoch(1, log.log_end_offset)
            append(log, 2, epoch=int(n >= 9))
            self.acknowledged = log.log_end_offset
            if n % 7 == 3:
                self.recovery_point = log.flush()
            if n == 18:
                self.log_start = 10  # from here on it may be the old start or the new one
                log.delete_local_before(12, NOW)
                for path in log.take_due(NOW):
                    files.unlink(path)
        log.close(clean=True)
        self.recovery_point = log.recovery_point
        self.closed_clean = True


def open_log(
    directory: Path,
    files: OsFiles,
    *,
    recovery_point: int = 0,
    clean: bool = False,
    config: TopicConfig = CONFIG,
) -> PartitionLog:
    return PartitionLog.open(
        directory, config, files, NOW, recovery_point=recovery_point, clean=clean, rng=random.Random(1)
    )


def append(log: PartitionLog, count: int, *, epoch: int = 0, producer: int = 3, **options: object) -> int:
    base = log.log_end_offset
    records = [NewRecord(NOW + base + n, None, b"value %d" % (base + n)) for n in range(count)]
    options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": base, **options}
    batch = memoryview(encode_batch(options.pop("records", records), **options))  # type: ignore[arg-type]
    assign(batch, 0, base, epoch)  # type: ignore[arg-type]
    log.append(batch, read_header(batch), base, epoch, NOW)
    return base


def values(log: PartitionLog) -> dict[int, bytes | None]:
    found = log.read(log.local_log_start_offset, 1 << 30, log.log_end_offset, min_one=True)
    data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
    records = [r for at, _ in iter_batches(data) for r in iter_records(data, at, max_bytes=1 << 20)]
    assert len({record.offset for record in records}) == len(records)
    return {record.offset: record.value for record in records}


def test_kill_at_every_file_operation(tmp_path: Path) -> None:
    for left in range(10_000):
        directory = tmp_path / str(left)
        life = Life(directory)
        with contextlib.suppress(Killed):
            life.run(KilledAt(left))
        again = open_log(directory, OsFiles(), recovery_point=life.recovery_point, clean=life.closed_clean)
        again.check()
        # One batch may have been written whole without having been acknowledged.
        assert life.acknowledged <= again.log_end_offset <= life.acknowledged + 2, left
        assert again.log_start_offset <= 12
        assert values(again) == {
            offset: b"value %d" % offset for offset in range(again.log_start_offset, again.log_end_offset)
        }, left
        producer = again.producers.get(3)
        if again.log_end_offset:
            assert producer is not None and producer.batches[-1].last_offset == again.log_end_offset - 1
        assert not [path.name for path in directory.iterdir() if path.suffix in (".deleted", ".tmp")]
        assert append(again, 1, epoch=1) == again.log_end_offset - 1
        if life.closed_clean:
            assert left > 100  # the life has that many operations, and each was the last one once
            return
    pytest.fail("the log's life never ended")


@pytest.mark.parametrize("clean", [True, False])
def test_aborted_transactions_survive_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, OsFiles())
    for _ in range(4):  # over several segments
        append(log, 2, producer=7, transactional=True)
        append(log, 2)
    first_open = log.producers.first_unstable_offset()
    assert first_open == 0
    abort = [NewRecord(NOW, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 5))]
    marker = append(log, 1, producer=7, records=abort, transactional=True, control=True, base_sequence=-1)
    expected = [(7, 0, marker, marker + 1)]
    assert [tuple(entry) for entry in log.aborted(0, log.log_end_offset)] == expected
    log.flush()
    log.close(clean=clean)
    again = open_log(tmp_path, OsFiles(), clean=clean)
    assert [tuple(entry) for entry in again.aborted(0, again.log_end_offset)] == expected
    producer = again.producers.get(7)
    assert producer is not None and (producer.transaction_first_offset, producer.coordinator_epoch) == (-1, 5)
    for _ in range(20):  # the marker's segment is rolled, and others are read more often
        append(again, 2)
    values(again)
    assert [tuple(entry) for entry in again.aborted(0, again.log_end_offset)] == expected
    again.close(clean=True)
    for _ in range(2):
        again = open_log(tmp_path, OsFiles(), clean=True)
        assert [tuple(entry) for entry in again.aborted(0, again.log_end_offset)] == expected
        victim = sorted(tmp_path.glob("*.index"))[0]  # its rebuilding finds nothing twice
        victim.unlink()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", [None, b"", b"\x00\x00\x00", bytes(24), b"\x7f" * 24])
def test_invalid_indexes_are_rebuilt(tmp_path: Path, suffix: str, harm: bytes | None) -> None:
    log = open_log(tmp_path, OsFiles())
    for _ in range(20):
        append(log, 2)
    log.close(clean=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix == suffix}
    victim = tmp_path / sorted(before)[1]
    victim.unlink() if harm is None else victim.write_bytes(harm)
    again = open_log(tmp_path, OsFiles(), clean=True)
    again.check()
    assert list(values(again)) == list(range(40))
    for offset in range(40):
        found = run_all_steps(again.offset_for_timestamp(NOW + offset))
        assert found is not None and found.offset == offset
        at = again.read(offset, 1, 40, min_one=True)
        assert at.base_offset == offset - offset % 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kept", [lambda old: old[:-3], lambda old: b"", lambda old: bytes(len(old))])
@pytest.mark.parametrize("harmed", [1, 100])
def test_unsynced_snapshots_are_ignored_and_written_again(
    tmp_path: Path, harmed: int, kept: Callable[[bytes], bytes], clean: bool
) -> None:
    log = open_log(tmp_path, OsFiles())
    for _ in range(20):
        append(log, 2)
    log.close(clean=True)
    whole = {path: path.read_bytes() for path in tmp_path.glob("*.snapshot")}
    for path in sorted(whole)[-harmed:]:
        path.write_bytes(kept(whole[path]))
    again = open_log(tmp_path, OsFiles(), clean=clean)
    producer = again.producers.get(3)
    assert producer is not None and [batch.last_offset for batch in producer.batches] == [31, 33, 35, 37, 39]
    again.close(clean=True)
    assert {path: path.read_bytes() for path in whole} == whole


def test_everything_a_clean_start_relies_on_is_durable(tmp_path: Path) -> None:
    disk, directory = WatchedDisk(), tmp_path / "t-0"
    log = open_log(directory, disk)
    for _ in range(20):
        append(log, 2)
    log.close(clean=True)
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert files == disk.surviving(directory)
    assert f"{40:020d}.snapshot" in files


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("harm", [None, b"", b"0\n3\n0 0\n1 20\n2 3", b"0\n3\n0 0\n\0\0\0\0\0\0\0"])
def test_epochs_are_rebuilt_from_synced_batches(tmp_path: Path, harm: bytes | None, clean: bool) -> None:
    """The checkpoint is written at once and synced later, so the power may fail in between."""
    log = open_log(tmp_path, OsFiles())
    for n in range(45):
        append(log, 1, epoch=n // 20)
    entries = log.epochs.entries
    assert entries == ((0, 0), (1, 20), (2, 40))
    log.flush()
    log.close(clean=clean)
    path = tmp_path / EPOCH_CHECKPOINT
    path.unlink() if harm is None else path.write_bytes(harm)
    again = open_log(tmp_path, OsFiles(), recovery_point=45, clean=clean)
    assert again.epochs.entries == entries


def test_readers_of_a_deleted_segment_can_finish(tmp_path: Path) -> None:
    log = open_log(tmp_path, OsFiles())
    for _ in range(20):
        append(log, 2)
    found = log.read(0, 1 << 20, 40, min_one=True)
    before = [part.read() for part in found.parts if isinstance(part, FileSlice)]
    log.delete_local_before(40, NOW)
    for path in log.take_due(NOW):
        path.unlink()
    assert [part.read() for part in found.parts if isinstance(part, FileSlice)] == before


def test_file_deleted_twice_is_kept_for_the_second_delay(tmp_path: Path) -> None:
    log = open_log(tmp_path, OsFiles())
    log.update_config(replace(CONFIG, file_delete_delay_ms=100))
    for now_ms in (NOW, NOW + 60):
        append(log, 2)
        log.truncate_to(0, now_ms)
    assert log.take_due(NOW + 159) == []
    due = log.take_due(NOW + 160)
    assert f"{0:020d}.log.deleted" in {path.name for path in due}
    assert len(due) == len(set(due))


def test_rolled_segments_keep_few_files_open(tmp_path: Path) -> None:
    log = open_log(tmp_path, OsFiles())
    for _ in range(100):
        append(log, 2)
    assert len(log.segments) > 20
    assert list(values(log)) == list(range(200))
    log.flush()
    assert open_files(tmp_path) <= 6
    log.close(clean=True)
    for clean in (False, True):
        counting = MostOpen(tmp_path)
        log = open_log(tmp_path, counting, clean=clean)
        assert (log.log_end_offset, counting.most <= 6) == (200, True)
        assert open_files(tmp_path) <= 6


class MostOpen(OsFiles):
    """The largest number of open files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.most = directory, 0

    def open(self, path, *, create=False, exclusive=False):  # type: ignore[no-untyped-def]
        fd = super().open(path, create=create, exclusive=exclusive)
        self.most = max(self.most, open_files(self.directory))
        return fd


def open_files(directory: Path) -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    targets = [str(link.readlink()) for link in links if link.exists()]
    return sum(target.startswith(str(directory)) for target in targets)
