"""A log restarts empty at an offset, with an error or a power failure at every file operation."""

import contextlib
import random
from pathlib import Path

import pytest
from failing_files import FailingFiles
from power_loss import KEPT, LOST, TORN, ZEROED, Killed, PowerLoss

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.leader_epochs import EpochEntry
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
PRODUCER, OLD, NEW = 3, 0, 3
HISTORY = [EpochEntry(OLD, 0), EpochEntry(NEW, 8)]


def open_log(directory: Path, files: OsFiles, *, tiered: bool, recovery_point: int = 0) -> PartitionLog:
    config = TopicConfig(
        segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0, remote_storage_enable=tiered
    )
    arguments = (directory, config, files, NOW)
    return PartitionLog.open(*arguments, recovery_point=recovery_point, clean=False, rng=random.Random(1))


def append(log: PartitionLog, epoch: int, count: int = 2) -> None:
    base = log.log_end_offset
    batch = memoryview(batch_at(base, count))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def batch_at(base: int, count: int) -> bytearray:
    new = [NewRecord(NOW + base + n, None, b"%d" % (base + n)) for n in range(count)]
    return encode_batch(new, producer_id=PRODUCER, producer_epoch=0, base_sequence=base)


def snapshot(offset: int) -> bytes:
    """A snapshot of the producer that wrote everything below the offset."""
    state = ProducerStateManager()
    for _, header in iter_batches(batch_at(offset - 2, 2)):
        state.apply(header, offset - 2)
    return state.encode()


def stored(log: PartitionLog) -> list[tuple[int, int]]:
    """Offset and epoch of each batch."""
    found = log.read(log.local_log_start_offset, 1 << 30, log.log_end_offset, min_one=True)
    data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
    return [(header.base_offset, header.leader_epoch) for _, header in iter_batches(data)]


def begin(log: PartitionLog, start: int, *, tiered: bool) -> None:
    """Restart the log as a follower and `TierStateMachine` do."""
    if tiered:
        log.truncate_fully_and_start_at(start, NOW, HISTORY, snapshot(start))
        log.flush()
        log.active.create()
    else:
        log.truncate_fully_and_start_at(start, NOW)


@pytest.mark.parametrize("start", [4, 50])
@pytest.mark.parametrize("tiered", [False, True])
def test_log_continues_after_an_error_at_every_operation(tmp_path: Path, start: int, tiered: bool) -> None:
    history, producers = (HISTORY, snapshot(start)) if tiered else ([], b"")
    for left in range(1000):
        directory, files = tmp_path / str(left), FailingFiles()
        log = open_log(directory, files, tiered=tiered)
        for _ in range(10):
            append(log, OLD)
        log.flush()
        files.left = left
        refused = False
        try:
            log.truncate_fully_and_start_at(start, NOW, history, producers)
        except OSError:
            refused = True
        files.left = None
        log.check()
        assert log.local_log_start_offset in ((0, start) if refused else (start,))
        if log.log_end_offset != start:
            assert len(stored(log)) == 10, "nothing was done"
            log.truncate_fully_and_start_at(start, NOW, history, producers)
        known = log.producers.get(PRODUCER)
        assert (known is not None and known.batches[-1].last_offset == start - 1) if tiered else known is None
        append(log, NEW)
        log.flush()
        assert stored(log) == [(start, NEW)]
        log.check()
        log.close(clean=False)
        if not refused:
            assert left > 3
            return
    pytest.fail("it never ended")


def live(directory: Path, files: OsFiles, start: int, *, tiered: bool, durable: list[int]) -> None:
    """`durable`: recovery points that were reached."""
    log = open_log(directory, files, tiered=tiered)
    for _ in range(10):
        append(log, OLD)
    durable.append(log.flush())
    begin(log, start, tiered=tiered)
    durable.append(log.recovery_point)
    for _ in range(9):
        append(log, NEW)
    durable.append(log.flush())
    for path in log.take_due(NOW):
        files.unlink(path)
    log.close(clean=False)
    durable.append(-1)


@pytest.mark.slow
@pytest.mark.parametrize("what", [KEPT, LOST, TORN, ZEROED])
@pytest.mark.parametrize(("start", "tiered"), [(4, False), (50, False), (50, True)])
def test_power_failure_at_every_operation_of_a_restart(
    memory_path: Path, what: str, start: int, tiered: bool
) -> None:
    for left in range(1000):
        directory, durable = memory_path / str(left), list[int]()
        directory.mkdir()
        files = PowerLoss(directory, left)
        with contextlib.suppress(Killed):
            live(directory, files, start, tiered=tiered, durable=durable)
        files.crash(what, random.Random(left))
        point = min([*durable, 0]) if len(durable) < 3 else durable[2]
        again = open_log(directory, OsFiles(), tiered=tiered, recovery_point=max(point, 0))
        again.check()
        batches, producer = stored(again), again.producers.get(PRODUCER)
        epochs = [epoch for _, epoch in batches]
        assert epochs == sorted(epochs), left
        first = again.local_log_start_offset
        assert [offset for offset, _ in batches] == list(range(first, again.log_end_offset, 2)), left
        if len(durable) >= 3:
            assert (first, again.log_end_offset) == (start, start + 18), left
        if start == 50 and first < start:
            assert set(epochs) <= {OLD} and again.log_end_offset <= 20, left
            assert {entry.epoch for entry in again.epochs.entries} <= {OLD}, left
        elif tiered:
            assert list(again.epochs.entries) == HISTORY, left
        if first == start and (tiered or batches):
            assert producer is not None and producer.batches[-1].last_offset == again.log_end_offset - 1, left
        append(again, NEW)
        again.close(clean=False)
        if durable[-1:] == [-1]:
            assert left > 20
            return
    pytest.fail("it never ended")
