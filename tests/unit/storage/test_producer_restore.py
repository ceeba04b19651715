"""A producer's last five batches are restored after a restart, whatever their size and place.

Snapshots of tierlog contain them. After a snapshot of Kafka or an older tierlog, the log is searched for
them.
"""

import random
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.storage.core.producer_state import BATCHES_KEPT, Duplicate, ProducerStateManager
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
MIB = 1024 * 1024


class CountingReads(OsFiles):
    def __init__(self) -> None:
        self.bytes_read = 0

    def read_at(self, fd: int, count: int, position: int) -> bytes:  # type: ignore[override]
        self.bytes_read += count
        return OsFiles.read_at(fd, count, position)


def open_log(
    directory: Path, config: TopicConfig, *, clean: bool, files: OsFiles | None = None
) -> PartitionLog:
    files = files or OsFiles()
    return PartitionLog.open(directory, config, files, NOW, clean=clean, rng=random.Random(1))


def append(log: PartitionLog, producer: int, sequence: int, value: bytes) -> memoryview:
    base = log.log_end_offset
    data = encode_batch(
        [NewRecord(NOW, None, value)], producer_id=producer, producer_epoch=0, base_sequence=sequence
    )
    batch = memoryview(bytearray(data))
    assign(batch, 0, base, 0)
    log.append(batch, read_header(batch), base, 0, NOW)
    return batch[:61]


@pytest.mark.parametrize("of_kafka", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 30, 3 * MIB])
def test_large_batches_are_restored_after_a_clean_shutdown(
    tmp_path: Path, segment_bytes: int, of_kafka: bool
) -> None:
    config = TopicConfig(segment_bytes=segment_bytes)
    log = open_log(tmp_path, config, clean=False)
    value = bytes(700_000)
    heads = [append(log, n % 2, 10 + n // 2, value) for n in range(2 * (BATCHES_KEPT + 1))]
    log.producers.has_all_batches = not of_kafka
    log.close(clean=True)
    log = open_log(tmp_path, config, clean=True)
    for offset, head in enumerate(heads[2:], 2):
        assert log.producers.validate(read_header(head)) == Duplicate(offset, offset, NOW)
    assert not isinstance(log.producers.validate(read_header(heads[0])), Duplicate)
    log.check()


PRODUCERS = 1500


@pytest.mark.parametrize("ends", ["clean", "killed", "cut"])
def test_all_five_batches_of_many_producers_are_restored(tmp_path: Path, ends: str) -> None:
    config = TopicConfig(segment_bytes=200_000)
    log = open_log(tmp_path, config, clean=False)
    heads = [append(log, n, sequence, bytes(10)) for sequence in range(6) for n in range(PRODUCERS)]
    if ends == "cut":  # as a follower's log is, which becomes the leader's
        for n in range(PRODUCERS):
            append(log, n, 6, bytes(10))
        log.truncate_to(len(heads), NOW)
    else:
        log.close(clean=ends == "clean")
        log = open_log(tmp_path, config, clean=ends == "clean")
    for offset, head in enumerate(heads[PRODUCERS:], PRODUCERS):
        assert log.producers.validate(read_header(head)) == Duplicate(offset, offset, NOW)
    log.check()


def append_before_kafka(log: PartitionLog, count: int) -> None:
    for n in range(count):  # each producer's second batch, so none of them is whole
        append(log, n, 1, bytes(1000))
    log.producers.has_all_batches = False  # then a snapshot has Kafka's part alone


def test_batches_after_a_kafka_snapshot_are_kept_in_snapshots(tmp_path: Path) -> None:
    """A replica starts after a segment uploaded by an older tierlog, with five later batches."""
    before = open_log(tmp_path / "before", TopicConfig(), clean=False)
    append_before_kafka(before, 2)
    bundle = before.producers.encode()
    assert not ProducerStateManager.decode(bundle).has_all_batches
    log = open_log(tmp_path / "after", TopicConfig(), clean=False)
    log.truncate_fully_and_start_at(2, NOW, before.epochs.entries, bundle)
    heads = [append(log, 0, sequence, bytes(10)) for sequence in range(2, 2 + BATCHES_KEPT)]
    log.close(clean=True)
    newest = tmp_path / "after" / f"{log.log_end_offset:020}.snapshot"
    assert ProducerStateManager.decode(newest.read_bytes()).has_all_batches
    log = open_log(tmp_path / "after", TopicConfig(), clean=True)
    for offset, head in enumerate(heads, 2):
        assert log.producers.validate(read_header(head)) == Duplicate(offset, offset, NOW)


def test_start_does_not_read_far_back_through_small_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, TopicConfig(), clean=False)
    append_before_kafka(log, 3000)
    log.close(clean=True)
    files = CountingReads()
    log = open_log(tmp_path, TopicConfig(), clean=True, files=files)
    assert len(log.producers) == 3000
    assert files.bytes_read < 2.5 * MIB


def test_damaged_batch_does_not_prevent_a_clean_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, TopicConfig(), clean=False)
    for n in range(20):
        append(log, 1, n, bytes(1000))
    log.close(clean=True)
    with next(tmp_path.glob("*.log")).open("r+b") as file:
        file.seek(1061 * 2)
        file.write(b"\xff" * 200)
    log = open_log(tmp_path, TopicConfig(), clean=True)
    assert log.log_end_offset == 20
    producer = log.producers.get(1)
    assert producer is not None and producer.batches[-1].last_sequence == 19
