"""Leader epochs of a compacted log after a kill, which may hold no record of an epoch any more."""

import random
from pathlib import Path

import pytest
from compaction import NOW, batches_of, clean

from tierlog.base.files import OsFiles
from tierlog.base.leader_epochs import EpochEnd
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

CONFIG = TopicConfig(cleanup_policy=("compact",), file_delete_delay_ms=0)
EPOCHS = ((1, 0), (2, 2), (3, 4), (5, 6))


def open_log(directory: Path, *, recovery_point: int = 0) -> PartitionLog:
    return PartitionLog.open(
        directory,
        CONFIG,
        OsFiles(),
        NOW,
        rng=random.Random(1),
        clean=False,
        recovery_point=recovery_point,
        cleaned_to=0,
    )


def put(log: PartitionLog, epoch: int, key: str) -> None:
    base = log.log_end_offset
    batch = memoryview(bytearray(encode_batch([NewRecord(NOW, key.encode(), b"v")])))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


@pytest.fixture
def compacted(tmp_path: Path) -> PartitionLog:
    """Two records of each epoch. Compaction leaves none of epochs 2 and 3, and the second one of epoch 5."""
    log = open_log(tmp_path)
    for epoch, key in ((1, "a"), (1, "b"), (2, "x"), (2, "x"), (3, "x"), (3, "x"), (5, "x"), (5, "x")):
        put(log, epoch, key)
    log.roll(NOW)
    put(log, 5, "active")
    clean(log)
    for path in log.take_due(NOW):
        path.unlink(missing_ok=True)
    log.flush()
    assert [header.base_offset for header, _ in batches_of(log)] == [0, 1, 7, 8]
    assert log.epochs.entries == EPOCHS
    return log


@pytest.mark.parametrize("recovery_point", (0, 8, 9), ids=("all", "active", "none"))
def test_a_kill_does_not_move_the_starts_of_epochs(
    tmp_path: Path, compacted: PartitionLog, recovery_point: int
) -> None:
    restarted = open_log(tmp_path, recovery_point=recovery_point)
    assert restarted.epochs.entries == EPOCHS
    assert restarted.epochs.end_offset_for(3, restarted.log_end_offset) == EpochEnd(3, 6)


def test_an_epoch_of_the_checkpoint_that_contradicts_the_batches_is_dropped(
    tmp_path: Path, compacted: PartitionLog
) -> None:
    """It may be older than a truncation: offset 1 has epoch 1, and offset 7 epoch 5."""
    (tmp_path / EPOCH_CHECKPOINT).write_text("0\n3\n1 0\n4 1\n6 4\n")
    assert open_log(tmp_path).epochs.entries == ((1, 0), (5, 7))
