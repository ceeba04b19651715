"""Replica: appends, reads and results that a client sees."""

import random
import uuid
from pathlib import Path

import pytest
from opened_replica import opened_replica

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, iter_batches, read_header, seal
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.records.walk import BAD_RECORDS_REPORTED
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000


def open_replica(
    directory: Path,
    config: TopicConfig | None = None,
    *,
    clean: bool = False,
    epoch: int = 0,
    **options: object,
) -> Replica:
    replica = opened_replica(
        TopicPartition("t", 0),
        uuid.UUID(int=1),
        1,
        directory / "t-0",
        config or TopicConfig(),
        options.pop("files", OsFiles()),  # type: ignore[arg-type]
        NOW,
        clean=clean,
        rng=random.Random(1),
        **options,  # type: ignore[arg-type]
    )
    replica.become_leader(epoch, 0, [1])
    return replica


def batch(count: int = 3, *, at_ms: int = NOW, size: int = 10, **options: object) -> memoryview:
    records = [NewRecord(at_ms + i, b"k%d" % i, b"v" * size, ()) for i in range(count)]
    return memoryview(encode_batch(records, **options))  # type: ignore[arg-type]


def content(result_slice: object) -> bytes:
    return b"".join(
        part.read() if isinstance(part, FileSlice) else bytes(part) for part in result_slice.parts
    )  # type: ignore[attr-defined]


def offsets(data: bytes) -> list[int]:
    return [
        record.offset for at, _ in iter_batches(data) for record in iter_records(data, at, max_bytes=1 << 20)
    ]


def test_appended_batches_are_read_back_with_offsets_and_epoch_assigned(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    first, second = replica.as_leader.append(batch(3), NOW), replica.as_leader.append(batch(2), NOW)
    assert (first.error, first.base_offset, first.last_offset) == (ErrorCode.NONE, 0, 2)
    assert (second.base_offset, second.last_offset) == (3, 4)
    assert replica.high_watermark == replica.log_end_offset == 5
    found = replica.read(0, 1 << 20).slice
    assert found is not None
    assert offsets(content(found)) == [0, 1, 2, 3, 4]
    assert read_header(content(found)).leader_epoch == 0
    assert (found.base_offset, found.end_offset) == (0, 5)


def test_read_starts_at_the_batch_with_the_offset(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    for _ in range(3):
        replica.as_leader.append(batch(3), NOW)
    found = replica.read(4, 1 << 20).slice
    assert found is not None and found.base_offset == 3
    assert offsets(content(found)) == [3, 4, 5, 6, 7, 8]


def test_first_batch_is_complete_even_if_larger_than_max_bytes(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    replica.as_leader.append(batch(3), NOW)
    replica.as_leader.append(batch(3), NOW)
    found = replica.read(0, 1).slice
    assert found is not None and offsets(content(found)) == [0, 1, 2] and found.end_offset == 3
    nothing = replica.read(0, 1, min_one=False).slice
    assert nothing is not None and nothing.size == 0


@pytest.mark.parametrize(("offset", "error"), [(5, ErrorCode.NONE), (6, ErrorCode.OFFSET_OUT_OF_RANGE)])
def test_log_end_is_the_last_offset_in_range(tmp_path: Path, offset: int, error: ErrorCode) -> None:
    replica = open_replica(tmp_path)
    replica.as_leader.append(batch(5), NOW)
    assert replica.read(offset, 100).error == error


def test_retry_of_one_of_the_last_five_batches_gets_its_original_offsets(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    for sequence in range(0, 18, 3):
        replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=sequence), NOW)
    again = replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=3), NOW)
    assert (again.error, again.base_offset, again.last_offset) == (ErrorCode.NONE, 3, 5)
    forgotten = replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=0), NOW)
    assert forgotten.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert replica.log_end_offset == 18


@pytest.mark.parametrize("clean", [True, False])
def test_retry_after_a_restart_makes_no_duplicate(tmp_path: Path, clean: bool) -> None:
    replica = open_replica(tmp_path)
    for sequence in range(0, 15, 3):
        replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=sequence), NOW)
    replica.close(clean=clean)
    replica = open_replica(tmp_path, clean=clean)
    for sequence in range(0, 15, 3):
        again = replica.as_leader.append(
            batch(3, producer_id=7, producer_epoch=0, base_sequence=sequence), NOW
        )
        assert (again.error, again.base_offset) == (ErrorCode.NONE, sequence)
    following = replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=15), NOW)
    assert (following.error, following.base_offset) == (ErrorCode.NONE, 15)


def resealed(data: memoryview) -> memoryview:
    seal(data, 0, len(data))  # type: ignore[arg-type]
    return data


def changed(at: int, value: bytes, *, seal_it: bool = True, **options: object) -> memoryview:
    data = batch(3, **options)
    data[at : at + len(value)] = value
    return resealed(data) if seal_it else data


BOMB = [NewRecord(NOW, None, bytes(40 << 20), ())]

BAD_BATCHES = {
    "bad CRC": (lambda: changed(HEADER_SIZE, b"\xff", seal_it=False), ErrorCode.CORRUPT_MESSAGE),
    "too short": (lambda: batch(3)[:30], ErrorCode.CORRUPT_MESSAGE),
    "length too long": (lambda: changed(8, b"\x00\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (lambda: changed(16, b"\x00"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 1": (lambda: changed(16, b"\x01"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 3": (lambda: changed(16, b"\x03"), ErrorCode.INVALID_RECORD),
    "record count": (lambda: changed(57, b"\x00\x00\x00\x02"), ErrorCode.INVALID_RECORD),
    "count and delta of a fourth record": (
        lambda: changed(57, b"\x00\x00\x00\x04") and resealed(_four(batch(3))),
        ErrorCode.INVALID_RECORD,
    ),
    "offset delta of the second record": (lambda: resealed(_delta(batch(3))), ErrorCode.INVALID_RECORD),
    "control": (lambda: batch(3, control=True), ErrorCode.INVALID_RECORD),
    "two batches": (lambda: memoryview(bytearray(bytes(batch()) + bytes(batch()))), ErrorCode.INVALID_RECORD),
    "unknown codec": (lambda: changed(22, b"\x07"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "corrupt zstd": (lambda: changed(HEADER_SIZE, bytes(8), codec=Codec.ZSTD), ErrorCode.CORRUPT_MESSAGE),
    "corrupt gzip": (lambda: changed(HEADER_SIZE, bytes(8), codec=Codec.GZIP), ErrorCode.CORRUPT_MESSAGE),
    "bomb": (lambda: memoryview(encode_batch(BOMB, codec=Codec.ZSTD)), ErrorCode.MESSAGE_TOO_LARGE),
    "too large": (lambda: batch(1, size=1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
    "unknown transaction": (
        lambda: batch(3, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
        ErrorCode.INVALID_TXN_STATE,
    ),
    "nothing": (lambda: memoryview(bytearray()), ErrorCode.INVALID_RECORD),
}


def _four(data: memoryview) -> memoryview:
    """A header with a count of four, before three records."""
    data[57:61] = b"\x00\x00\x00\x04"
    data[23:27] = b"\x00\x00\x00\x03"
    return data


def _delta(data: memoryview) -> memoryview:
    length = data[HEADER_SIZE] >> 1
    data[HEADER_SIZE + 1 + length + 3] = 8
    return data


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_invalid_batch_is_rejected_with_its_error_code(tmp_path: Path, name: str) -> None:
    make, error = BAD_BATCHES[name]
    replica = open_replica(tmp_path)
    result = replica.as_leader.append(make(), NOW)
    assert result.error == error, result
    assert result.message and result.base_offset == -1
    assert replica.log_end_offset == 0
    assert replica.as_leader.append(batch(1), NOW).base_offset == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_accepted(tmp_path: Path, codec: Codec) -> None:
    replica = open_replica(tmp_path)
    assert replica.as_leader.append(batch(100, codec=codec), NOW).error == ErrorCode.NONE
    found = replica.read(0, 1 << 20).slice
    assert found is not None and offsets(content(found)) == list(range(100))


def test_log_append_time_is_the_brokers_time(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(message_timestamp_type="LogAppendTime"))
    result = replica.as_leader.append(batch(3, at_ms=5), NOW)
    assert result.log_append_time_ms == NOW
    found = replica.read(0, 1 << 20).slice
    assert found is not None
    assert {record.timestamp for record in iter_records(content(found), max_bytes=1 << 20)} == {NOW}
    located = run_all_steps(replica.offset_for_timestamp(NOW))
    assert located is not None and located.offset == 0


def test_compression_type_recompresses(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(compression_type="zstd"))
    replica.as_leader.append(
        batch(50, codec=Codec.GZIP, producer_id=4, producer_epoch=0, base_sequence=0), NOW
    )
    found = replica.read(0, 1 << 20).slice
    assert found is not None
    header = read_header(content(found))
    assert (header.codec, header.producer_id, header.record_count) == (Codec.ZSTD, 4, 50)
    assert offsets(content(found)) == list(range(50))


@pytest.mark.parametrize(
    ("config", "at_ms"),
    [
        (TopicConfig(message_timestamp_after_max_ms=1000), NOW + 5000),
        (TopicConfig(message_timestamp_before_max_ms=1000), NOW - 5000),
    ],
)
def test_timestamps_out_of_bounds_are_rejected(tmp_path: Path, config: TopicConfig, at_ms: int) -> None:
    replica = open_replica(tmp_path, config)
    assert replica.as_leader.append(batch(3, at_ms=at_ms), NOW).error == ErrorCode.INVALID_TIMESTAMP
    assert replica.as_leader.append(batch(3, at_ms=NOW), NOW).error == ErrorCode.NONE


def test_compacted_topic_rejects_records_without_keys(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(cleanup_policy=("compact",)))
    result = replica.as_leader.append(keys(None, b"k", None), NOW)
    assert result.error == ErrorCode.INVALID_RECORD
    assert [bad.number for bad in result.bad_records] == [0, 2]
    assert result.message == result.bad_records[0].message
    assert replica.as_leader.append(keys(b"k"), NOW).bad_records == ()


def test_number_of_reported_invalid_records_is_bounded(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(cleanup_policy=("compact",)))
    assert len(replica.as_leader.append(keys(*[None] * 500), NOW).bad_records) == BAD_RECORDS_REPORTED


def keys(*each: bytes | None) -> memoryview:
    return memoryview(encode_batch([NewRecord(NOW, key, b"v", ()) for key in each]))


def test_acks_all_needs_min_insync_replicas(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(min_insync_replicas=2))
    assert replica.as_leader.append(batch(1), NOW, acks=-1).error == ErrorCode.NONE, (
        "the only replica is enough"
    )
    replica.become_leader(replica.leader_epoch, 1, [1], [1, 2])
    assert replica.as_leader.append(batch(1), NOW, acks=-1).error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert replica.as_leader.append(batch(1), NOW, acks=1).error == ErrorCode.NONE


def test_listeners_are_called_after_each_append(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    heard: list[int] = []
    replica.listeners.append(lambda r: heard.append(r.high_watermark))
    replica.as_leader.append(batch(2), NOW)
    replica.as_leader.append(batch(2), NOW)
    assert heard == [2, 4]


def test_timestamp_lookup_finds_the_first_record_at_or_after(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(index_interval_bytes=0, segment_bytes=400))
    for at in range(0, 100, 10):
        replica.as_leader.append(batch(3, at_ms=NOW + at), NOW)
    for target in range(-1, 93):
        found = run_all_steps(replica.offset_for_timestamp(NOW + target))
        expected = next(
            (3 * (at // 10) + i, NOW + at + i)
            for at in range(0, 100, 10)
            for i in range(3)
            if at + i >= target
        )
        assert found is not None and (found.offset, found.timestamp) == expected
    assert run_all_steps(replica.offset_for_timestamp(NOW + 93)) is None
    newest = run_all_steps(replica.log.max_timestamp())
    assert newest is not None and newest.offset == 29


def test_delete_records_moves_the_log_start(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(segment_bytes=300))
    for _ in range(10):
        replica.as_leader.append(batch(3), NOW)
    replica.raise_log_start(10)
    assert replica.log_start_offset == 10
    assert replica.read(9, 100).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica.apply_retention(NOW) > 0
    assert replica.log_start_offset == 10
    found = replica.read(10, 1 << 20).slice
    assert found is not None and offsets(content(found))[-1] == 29


def test_retention_by_time_and_size(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(segment_bytes=300, retention_ms=1000))
    for at in range(6):
        replica.as_leader.append(batch(3, at_ms=NOW + at * 500), NOW)
    assert replica.apply_retention(NOW + 2200) > 0
    assert 0 < replica.log_start_offset < 18
    assert replica.apply_retention(NOW + 100_000) > 0
    assert replica.log_start_offset == replica.log_end_offset == 18
    assert replica.as_leader.append(batch(1), NOW).base_offset == 18
    due = replica.log.take_due(NOW + 200_000)
    assert due and all(path.name.endswith(".deleted") for path in due)


def test_read_below_the_local_log_start_is_remote(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=300, remote_storage_enable=True)
    replica = open_replica(tmp_path, config)
    for _ in range(10):
        replica.as_leader.append(batch(3), NOW)
    assert replica.apply_retention(NOW * 2) == 0  # the tiering planner's affair
    before = replica.segments
    export = replica.log.export_segment(before[0].base_offset)
    assert export is not None
    assert offsets(export.descriptor.path_log.read_bytes()) == list(range(before[0].end_offset))
    assert export.leader_epochs == ((0, 0),)
    assert replica.delete_local_before(before[1].end_offset, NOW) == 2
    assert (replica.log_start_offset, replica.local_log_start_offset) == (0, before[2].base_offset)
    assert replica.read(0, 100).remote
    replica.close(clean=True)
    again = open_replica(tmp_path, config, clean=True)
    assert (again.log_start_offset, again.local_log_start_offset) == (0, before[2].base_offset)
    assert again.read(0, 100).remote


def test_end_offset_for_leader_epoch(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    replica.as_leader.append(batch(3), NOW)
    replica.become_leader(4, 1, [1])
    replica.as_leader.append(batch(2), NOW)
    assert replica.end_offset_for_epoch(0) == (0, 3)
    assert replica.end_offset_for_epoch(3) == (0, 3)
    assert replica.end_offset_for_epoch(4) == (4, 5)
    assert replica.end_offset_for_epoch(5) == (-1, -1)
    replica.close(clean=False)
    assert open_replica(tmp_path, epoch=4).end_offset_for_epoch(3) == (0, 3)


def test_consumer_at_the_log_end_continues_after_a_roll(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    replica.as_leader.append(batch(3), NOW)
    caught_up = replica.read(0, 1 << 20).slice
    assert caught_up is not None and caught_up.end_offset == 3
    replica.log.roll(NOW)
    replica.as_leader.append(batch(2), NOW)
    found = replica.read(3, 1 << 20).slice
    assert found is not None and offsets(content(found)) == [3, 4]


class FullDisk(OsFiles):
    """While `full`, writes half of a batch and then fails with ENOSPC."""

    full = False

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        if self.full:
            data = b"".join(buffers)
            super().writev_at(fd, [data[: len(data) // 2]], position)
            raise OSError(28, "No space left on device")
        return super().writev_at(fd, buffers, position)


@pytest.mark.parametrize("clean", [True, False])
def test_full_disk_rejects_appends_and_recovers_by_itself(tmp_path: Path, clean: bool) -> None:
    files = FullDisk()
    replica = open_replica(tmp_path, files=files)
    replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=0), NOW)
    files.full = True
    refused = replica.as_leader.append(batch(3, producer_id=7, producer_epoch=0, base_sequence=3), NOW)
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    found = replica.read(0, 1 << 20).slice
    assert found is not None and offsets(content(found)) == [0, 1, 2]
    files.full = False
    if clean:
        assert (
            replica.as_leader.append(
                batch(3, producer_id=7, producer_epoch=0, base_sequence=3), NOW
            ).base_offset
            == 3
        )
    replica.close(clean=clean)
    again = open_replica(tmp_path, clean=clean)
    assert again.log_end_offset == (6 if clean else 3)
    again.check()


class BrokenSync(OsFiles):
    broken = False

    def sync(self, fd):  # type: ignore[no-untyped-def]
        if self.broken:
            raise OSError(5, "Input/output error")
        super().sync(fd)


def test_retry_after_a_failed_fsync_is_never_acknowledged(tmp_path: Path) -> None:
    files = BrokenSync()
    replica = open_replica(tmp_path, TopicConfig(flush_messages=1), files=files)
    assert replica.as_leader.append(batch(1), NOW).error == ErrorCode.NONE
    assert replica.log.recovery_point == 1
    files.broken = True
    produced = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert replica.as_leader.append(batch(1, **produced), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.high_watermark == 1
    files.broken = False
    assert replica.as_leader.append(batch(1, **produced), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.read(0, 100).error == ErrorCode.KAFKA_STORAGE_ERROR


class NoNewFiles(OsFiles):
    """A disk without space for new content while `full`."""

    full = False

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        if self.full and position == 0:
            raise OSError(28, "No space left on device")
        return super().writev_at(fd, buffers, position)


def test_failed_roll_leaves_one_active_segment(tmp_path: Path) -> None:
    files = NoNewFiles()
    replica = open_replica(tmp_path, TopicConfig(segment_bytes=300), files=files)
    replica.as_leader.append(batch(3), NOW)
    replica.as_leader.append(batch(3), NOW)
    files.full = True
    assert replica.as_leader.append(batch(5), NOW).error == ErrorCode.KAFKA_STORAGE_ERROR
    files.full = False
    replica.update_config(TopicConfig())
    assert replica.as_leader.append(batch(5), NOW).base_offset == 6
    replica.close(clean=True)
    assert open_replica(tmp_path, clean=True).log_end_offset == 11
