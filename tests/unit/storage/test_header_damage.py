"""Flipped bits in header fields without a CRC, in a log that is opened again, compacted or uploaded."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader, assign, iter_batches, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_750_000_000_000
EPOCHS = [3] * 4 + [5] * 4 + [6] * 4
CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=100)
UNCOVERED = range(16)
"""Base offset, length and leader epoch of a batch."""


def opened(path: Path, *, clean: bool, recovery_point: int = 0) -> PartitionLog:
    rng = random.Random(1)
    return PartitionLog.open(
        path, CONFIG, OsFiles(), NOW, clean=clean, recovery_point=recovery_point, rng=rng
    )


def write(path: Path) -> PartitionLog:
    log = opened(path, clean=False)
    for epoch in EPOCHS:
        batch = encode_batch([NewRecord(NOW, None, b"value" * 10)] * 2)
        header = read_header(batch)
        assign(batch, 0, log.log_end_offset, epoch)
        log.append(memoryview(batch), header, log.log_end_offset, epoch, NOW)
    return log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path).close(clean=True)
    return tmp_path


def headers(path: Path) -> list[BatchHeader]:
    return [header for file in sorted(path.glob("*.log")) for _, header in iter_batches(file.read_bytes())]


def flip(path: Path, number: int, byte: int, bit: int) -> None:
    """Flip a bit in one of the batches."""
    for file in sorted(path.glob("*.log")):
        content = bytearray(file.read_bytes())
        for at, _ in iter_batches(bytes(content)):
            if number == 0:
                content[at + byte] ^= 1 << bit
                file.write_bytes(content)
                return
            number -= 1


def whole(path: Path) -> Iterator[tuple[Path, bytes]]:
    return ((file, file.read_bytes()) for file in path.iterdir())


@pytest.mark.parametrize("number", [0, 2, 5, len(EPOCHS) - 1])
def test_recovery_truncates_the_log_before_a_wrong_header(path: Path, number: int) -> None:
    """Above the recovery point only batches have the epoch, so that of the last one is trusted."""
    good, files = headers(path), dict(whole(path))
    for byte in UNCOVERED:
        for bit in (3, 6, 7):
            flip(path, number, byte, bit)
            log = opened(path, clean=False)
            if number == len(EPOCHS) - 1 and byte >= 12:
                assert log.was_damaged == (log.log_end_offset < 2 * len(EPOCHS))
            else:
                assert log.was_damaged and log.log_end_offset == 2 * number, (byte, bit)
                assert headers(path) == good[:number]
                assert all(epoch in EPOCHS for epoch, _ in log.epochs.entries)
            log.check()
            log.close(clean=False)
            for file in path.iterdir():
                file.unlink()
            for file, content in files.items():
                file.write_bytes(content)


@pytest.mark.parametrize("number", [0, len(EPOCHS) - 1])
@pytest.mark.parametrize("byte", [0, 7, 12, 15])
def test_clean_start_truncates_before_a_wrong_header_it_reads(path: Path, number: int, byte: int) -> None:
    flip(path, number, byte, 6)
    log = opened(path, clean=True)
    assert log.was_damaged and log.log_end_offset == 2 * number
    log.close(clean=False)


@pytest.mark.parametrize("epochs", [b"3 0\n4 8\n6 16\n", b"7 0\n8 8\n", b"1 0\n5 8\n6 16\n"])
def test_damaged_leader_epoch_checkpoint_loses_no_batch(path: Path, epochs: bytes) -> None:
    good = headers(path)
    (path / EPOCH_CHECKPOINT).write_bytes(b"0\n%d\n" % epochs.count(b"\n") + epochs)
    log = opened(path, clean=True)
    assert not log.was_damaged and headers(path) == good
    assert log.epochs.entries == ((3, 0), (5, 8), (6, 16))
    log.close(clean=False)
