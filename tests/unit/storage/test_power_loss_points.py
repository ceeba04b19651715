"""Power failure at every file operation of a log, with the loss of some unsynced data.

The log sees appends in three leader epochs, flushes, rolls by size, retention, a truncation and a clean
shutdown; compaction has a test of its own. After each failure everything synced is there, every record is one
that was written at its offset, and no record of an older epoch follows one of a newer epoch (guarantees 2, 4
and 8).
"""

import contextlib
import random
from pathlib import Path

import pytest
from power_loss import KEPT, LOST, TORN, ZEROED, Killed, PowerLoss

from tierlog.base.files import FileSlice, OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)
PRODUCER = 3

Written = list[tuple[int, int]]
"""Offset and leader epoch of each record, in the order of the log."""


def open_log(
    directory: Path, files: OsFiles, recovery_point: int = 0, *, clean: bool = False
) -> PartitionLog:
    return PartitionLog.open(
        directory, CONFIG, files, NOW, recovery_point=recovery_point, clean=clean, rng=random.Random(1)
    )


def append(log: PartitionLog, epoch: int) -> None:
    """Append two records whose values say at which offset and in which epoch they were written."""
    base = log.log_end_offset
    records = [NewRecord(NOW + base + n, None, b"%d %d" % (base + n, epoch)) for n in range(2)]
    batch = memoryview(encode_batch(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=base))
    assign(batch, 0, base, epoch)
    log.append(batch, read_header(batch), base, epoch, NOW)


def stored(log: PartitionLog) -> Written:
    found = log.read(log.local_log_start_offset, 1 << 30, log.log_end_offset, min_one=True)
    data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
    found_records = []
    for at, header in iter_batches(data):
        for record in iter_records(data, at, max_bytes=1 << 20):
            assert record.value == b"%d %d" % (record.offset, header.leader_epoch)
            found_records.append((record.offset, header.leader_epoch))
    return found_records


class Scenario:
    """A log with operations on it, and what must remain of it after a crash."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.epoch = 0
        self.durable: Written = []
        self.may_be_found: set[tuple[int, int]] = set()
        self.recovery_point = 0
        self.closed_clean = False

    def run(self, files: OsFiles) -> None:
        log = open_log(self.directory, files)
        self._write(log, 9)
        self._truncate(log, 11)
        self._write(log, 6)
        self.durable = [record for record in self.durable if record[0] >= 9]
        log.delete_local_before(9, NOW)
        for path in log.take_due(NOW):
            files.unlink(path)
        self._write(log, 5)
        log.close(clean=True)
        self.recovery_point, self.closed_clean = log.recovery_point, True

    def _write(self, log: PartitionLog, batches: int) -> None:
        log.assign_epoch(self.epoch, log.log_end_offset)
        for n in range(batches):
            self.may_be_found |= {(log.log_end_offset + at, self.epoch) for at in range(2)}
            append(log, self.epoch)
            if n % 4 == 2:
                self.recovery_point = log.flush()
                self.durable = stored(log)
        self.epoch += 1

    def _truncate(self, log: PartitionLog, offset: int) -> None:
        """Durable after the next flush: a crash before that may restore the truncated records."""
        self.durable = [record for record in self.durable if record[0] < offset - 1]
        log.truncate_to(offset, NOW)
        self.recovery_point = log.flush()
        self.may_be_found = {record for record in self.may_be_found if record[0] < offset - 1}


@pytest.mark.slow
@pytest.mark.parametrize("what", [KEPT, LOST, TORN, ZEROED])
def test_power_failure_at_every_file_operation_of_a_log(memory_path: Path, what: str) -> None:
    for count in range(10_000):
        directory = memory_path / str(count)
        directory.mkdir()
        scenario, files = Scenario(directory), PowerLoss(directory, count)
        with contextlib.suppress(Killed):
            scenario.run(files)
        files.crash(what, random.Random(count))
        again = open_log(directory, OsFiles(), scenario.recovery_point, clean=scenario.closed_clean)
        again.check()
        found = stored(again)
        start = again.local_log_start_offset
        assert [offset for offset, _ in found] == list(range(start, again.log_end_offset)), count
        assert set(found) <= scenario.may_be_found, count
        assert set(scenario.durable) <= set(found), count
        epochs = [epoch for _, epoch in found]
        assert epochs == sorted(epochs), count
        assert all(again.epochs.epoch_of(offset) == epoch for offset, epoch in found), count
        if found:
            producer = again.producers.get(PRODUCER)
            assert producer is not None and producer.batches[-1].last_offset == found[-1][0], count
        assert not [path.name for path in directory.iterdir() if path.suffix in (".deleted", ".tmp")], count
        append(again, scenario.epoch)
        assert len(stored(again)) == len(found) + 2
        again.close(clean=False)
        if scenario.closed_clean:
            assert count > 100  # power failed after each operation of the scenario
            return
    pytest.fail("no run reached the end of the scenario")
