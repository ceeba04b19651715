"""Disk space is reserved ahead of appends and released when unused: a whole segment with `preallocate`, else
the segment's size again.
"""

import errno
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tierlog.base.files import Buffer, OsFiles, Space
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import RESERVE_FROM
from tierlog.config.sources import settings_from
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
SEGMENT_BYTES = 1 << 20
RESERVES = TopicConfig(segment_bytes=SEGMENT_BYTES, preallocate=True)
DOES_NOT = TopicConfig(segment_bytes=SEGMENT_BYTES)
SMALL = 64 << 10  # maximum size of a file without preallocated blocks


class EmptyDisk(OsFiles):
    """A large disk that is mostly free."""

    def space(self, path: Path) -> Space:
        return Space(1 << 40, 1 << 39)


def opened(
    directory: Path, config: TopicConfig = RESERVES, files: OsFiles | None = None, *, clean: bool = False
) -> PartitionLog:
    return PartitionLog.open(directory, config, files or EmptyDisk(), NOW, clean=clean, rng=random.Random(1))


def append(log: PartitionLog, count: int = 1, size: int = 1000) -> None:
    for _ in range(count):
        batch = memoryview(encode_batch([NewRecord(NOW, None, b"v" * size)]))
        base = log.log_end_offset
        assign(batch, 0, base, 0)
        log.append(batch, read_header(batch), base, 0, NOW)


def on_disk(directory: Path) -> list[int]:
    """Bytes allocated for each segment, oldest first."""
    return [path.stat().st_blocks * 512 for path in sorted(directory.glob("*.log"))]


def test_preallocated_segment_releases_unused_space(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert sum(on_disk(tmp_path)) == 0  # an idle partition takes none
    append(log, 3)
    path = next(tmp_path.glob("*.log"))
    assert (path.stat().st_size, on_disk(tmp_path)[0] >= SEGMENT_BYTES) == (log.size_bytes, True)
    log.roll(NOW)
    append(log)
    rolled, active = on_disk(tmp_path)
    assert rolled < SMALL < SEGMENT_BYTES <= active
    log.close(clean=True)
    assert max(on_disk(tmp_path)) < SMALL


def test_preallocate_can_change_while_the_log_is_open(tmp_path: Path) -> None:
    log = opened(tmp_path, DOES_NOT)
    append(log)
    log.update_config(RESERVES)
    append(log)
    log.roll(NOW)
    append(log)
    before, after = on_disk(tmp_path)
    assert before < SMALL < SEGMENT_BYTES <= after


def test_growing_segment_reserves_its_size_again_and_releases_the_rest(tmp_path: Path) -> None:
    log = opened(tmp_path, TopicConfig(segment_bytes=8 * RESERVE_FROM))
    append(log, 9, RESERVE_FROM // 10)
    assert on_disk(tmp_path)[0] < RESERVE_FROM + SMALL
    append(log, 2, RESERVE_FROM // 10)
    assert on_disk(tmp_path)[0] >= 2 * RESERVE_FROM
    append(log, 30, RESERVE_FROM // 10)
    assert log.size_bytes <= on_disk(tmp_path)[0] <= 8 * RESERVE_FROM + SMALL
    again = opened(tmp_path, DOES_NOT)  # after a kill
    assert (again.log_end_offset, again.recovered_truncated_bytes) == (41, 0)
    assert on_disk(tmp_path)[0] < again.size_bytes + SMALL
    append(again, 1, RESERVE_FROM)
    again.close(clean=True)
    assert sum(on_disk(tmp_path)) < again.size_bytes + 2 * SMALL


def test_recovery_releases_reserved_space_after_a_kill(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, 5)
    again = opened(tmp_path)
    assert (again.log_end_offset, again.recovered_truncated_bytes) == (5, 0)
    assert on_disk(tmp_path)[0] < SMALL
    append(again)
    assert again.log_end_offset == 6


def test_zeros_preallocated_by_kafka_are_truncated(tmp_path: Path) -> None:
    """Kafka's preallocated files have segment.bytes until they are closed."""
    log = opened(tmp_path, DOES_NOT)
    append(log, 5)
    size = log.size_bytes
    path = next(tmp_path.glob("*.log"))
    with path.open("r+b") as file:
        file.truncate(SEGMENT_BYTES)
    again = opened(tmp_path, DOES_NOT)
    assert (again.log_end_offset, again.size_bytes) == (5, size)
    assert path.stat().st_size == size


class Poor(OsFiles):
    """Little space, or a file system without reservations."""

    def __init__(self, usable: int, total: int) -> None:
        self.usable, self.total = usable, total

    def space(self, path: Path) -> Space:
        return Space(self.total, self.usable)

    def reserve(self, fd: int, position: int, count: int) -> None:
        if self.usable > 1 << 30:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        super().reserve(fd, position, count)


@pytest.mark.parametrize(
    ("usable", "total"),
    [
        (2 * SEGMENT_BYTES - 1, 4 * SEGMENT_BYTES),
        (100 * SEGMENT_BYTES, 1001 * SEGMENT_BYTES),
        (1 << 40, 1 << 40),
    ],
)
def test_appends_continue_without_a_reservation(tmp_path: Path, usable: int, total: int) -> None:
    log = opened(tmp_path, RESERVES, Poor(usable, total))
    append(log, 3)
    assert (log.log_end_offset, on_disk(tmp_path)[0] < SMALL) == (3, True)
    assert not log.active.release_reserved()


def test_appends_continue_after_reserved_space_is_released(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, 3)
    assert log.active.release_reserved()
    assert on_disk(tmp_path)[0] < SMALL
    append(log, 3)
    assert opened(tmp_path).log_end_offset == 6


def test_preallocate_can_be_set_for_all_topics() -> None:
    settings = settings_from({"log.preallocate": "true"})
    assert settings.topic_config({}).preallocate
    assert not settings.topic_config({"preallocate": "false"}).preallocate


class Scarce(OsFiles):
    """After a write that triggers a reservation the descriptor is closed and no other can be opened."""

    log: PartitionLog | None = None

    def writev_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        written = super().writev_at(fd, buffers, position)
        if position > RESERVE_FROM and self.log is not None:
            self.log.active.close()
        return written

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.log is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, create=create, exclusive=exclusive)


def test_failed_reservation_does_not_fail_the_append(tmp_path: Path) -> None:
    files = Scarce()
    log = opened(tmp_path, TopicConfig(segment_bytes=8 * RESERVE_FROM), files)
    append(log, 1, RESERVE_FROM)
    log.active.reserved_to = RESERVE_FROM  # the next append reserves again
    files.log = log
    append(log)
    assert log.log_end_offset == log.active.end_offset == 2
