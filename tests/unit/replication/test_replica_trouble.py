"""Replica: temporary errors, retries of unconfirmed batches, failures and close."""

import random
import uuid
from pathlib import Path

import pytest
from opened_replica import opened_replica

from tierlog.base.files import OsFiles
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.names import EPOCH_CHECKPOINT
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, seal
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
DAY_MS = 86_400_000


class FullDisk(OsFiles):
    """No small file can be created while `full`; open files can still be written."""

    full = False

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.full and exclusive:
            raise OSError(28, "No space left on device")
        return super().open(path, create=create, exclusive=exclusive)


def open_replica(directory: Path, config: TopicConfig, files: OsFiles | None = None) -> Replica:
    name, files = TopicPartition("t", 0), files or OsFiles()
    replica = opened_replica(
        name, uuid.UUID(int=1), 1, directory / "t-0", config, files, NOW, clean=False, rng=random.Random(1)
    )
    replica.become_leader(0, 0, [1])
    return replica


def batch(sequence: int = 0, *, at_ms: int = NOW, codec: Codec = Codec.NONE) -> memoryview:
    records = [NewRecord(at_ms, b"k", b"v" * 100)]
    data = encode_batch(records, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return memoryview(bytearray(data))


def test_retry_of_an_unflushed_batch_is_acknowledged(tmp_path: Path) -> None:
    files, acknowledged = FullDisk(), []
    replica = open_replica(tmp_path, TopicConfig(flush_messages=1), files)
    replica.listeners.append(
        lambda moved: acknowledged.append((moved.high_watermark, moved.as_leader.acknowledgement(1)))
    )
    refused, accepted = (0, ErrorCode.KAFKA_STORAGE_ERROR), (1, ErrorCode.NONE)
    files.full = True  # the leader epoch's file cannot be replaced
    for _ in range(2):
        assert replica.as_leader.append(batch(), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
        assert (replica.log_end_offset, replica.high_watermark) == (1, 0)
    files.full = False
    again = replica.as_leader.append(batch(), NOW)
    assert (again.error, again.base_offset) == (ErrorCode.NONE, 0)
    assert (replica.log_end_offset, replica.log.recovery_point, acknowledged) == (
        1,
        1,
        [refused, refused, accepted],
    )
    assert replica.as_leader.append(batch(1), NOW).base_offset == 1
    replica.check()


@pytest.mark.parametrize("clean", [True, False])
def test_closed_replica_returns_kafka_storage_error(tmp_path: Path, clean: bool) -> None:
    replica = open_replica(tmp_path, TopicConfig())
    assert replica.as_leader.append(batch(), NOW).error == ErrorCode.NONE
    replica.close(clean=clean)
    assert replica.as_leader.append(batch(1), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.read(0, 100).error == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("at_ms", [NOW - 30 * DAY_MS, NOW + 30 * DAY_MS])
def test_producers_expire_by_the_monotonic_clock_and_not_by_record_timestamps(
    tmp_path: Path, at_ms: int
) -> None:
    config = TopicConfig(retention_ms=-1, message_timestamp_after_max_ms=60 * DAY_MS)
    replica = open_replica(tmp_path, config)
    assert replica.as_leader.append(batch(at_ms=at_ms), NOW).error == ErrorCode.NONE
    replica.log.producers.expire(5, DAY_MS)
    replica.log.producers.expire(5 + DAY_MS - 1, DAY_MS)
    assert replica.as_leader.append(batch(at_ms=at_ms), NOW).base_offset == 0
    assert replica.log_end_offset == 1
    replica.log.producers.expire(5 + DAY_MS, DAY_MS)
    replica.log.producers.expire(5 + 2 * DAY_MS, DAY_MS)
    assert replica.log.producers.get(7) is None


def test_records_that_cannot_be_recompressed_are_rejected(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(compression_type="zstd"))
    data = batch(codec=Codec.GZIP)
    data[HEADER_SIZE + 20 : HEADER_SIZE + 24] = b"\xff\xff\xff\xff"
    seal(data, 0, len(data))
    assert replica.as_leader.append(data, NOW).error == ErrorCode.CORRUPT_MESSAGE
    assert replica.as_leader.append(batch(), NOW).error == ErrorCode.NONE


class DiskFullForSuffixes(OsFiles):
    """A disk on which files with some suffixes can no longer be written."""

    full_suffixes: tuple[str, ...] = ()

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        name = path.name.removesuffix(".tmp")
        if (create or exclusive) and self.full_suffixes and name.endswith(self.full_suffixes):
            raise OSError(28, "No space left on device")
        return super().open(path, create=create, exclusive=exclusive)


def filled(directory: Path, files: OsFiles, config: TopicConfig) -> Replica:
    """Three segments of one batch each."""
    replica = open_replica(directory, config, files)
    for sequence in range(3):
        assert replica.as_leader.append(batch(sequence), NOW).error == ErrorCode.NONE
    assert len(replica.segments) == 3
    return replica


def test_retention_frees_space_on_a_full_disk(tmp_path: Path) -> None:
    files = DiskFullForSuffixes()
    config = TopicConfig(segment_bytes=200, retention_ms=1000, file_delete_delay_ms=0)
    replica = filled(tmp_path, files, config)
    replica.flush()  # else retention must write the leader epochs before it deletes anything
    files.full_suffixes = (".snapshot", EPOCH_CHECKPOINT)
    assert replica.apply_retention(NOW + 10_000) == 2  # all three are old, but there is no space for a fourth
    assert (replica.log_start_offset, len(replica.log.take_due(NOW + 10_000)) > 2) == (2, True)
    files.full_suffixes = ()
    assert replica.apply_retention(NOW + 10_000) == 1
    assert replica.log_start_offset == replica.log_end_offset == 3
    replica.check()


def test_append_succeeds_while_the_epoch_checkpoint_cannot_be_written(tmp_path: Path) -> None:
    files = DiskFullForSuffixes()
    replica = open_replica(tmp_path, TopicConfig(), files)
    files.full_suffixes = (EPOCH_CHECKPOINT,)
    replica.become_leader(7, 1, [1])
    assert replica.as_leader.append(batch(), NOW).error == ErrorCode.NONE
    with pytest.raises(OSError, match="No space left"):
        replica.flush()
    files.full_suffixes = ()
    replica.flush()
    stored = LeaderEpochs.decode((tmp_path / "t-0" / EPOCH_CHECKPOINT).read_bytes())
    assert stored.latest == (7, 0)


def test_failed_replica_is_not_a_leader(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig())
    assert replica.is_leader
    replica.failed = "fsync failed"
    assert not replica.is_leader
