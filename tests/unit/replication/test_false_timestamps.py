"""Batches whose header contradicts their records: what is stored, rejected, found and deleted.

The expected answers are those of Apache Kafka 4.3.1 (`tests/clients/test_like_kafka.py` compares some).
"""

import struct
from pathlib import Path
from typing import Any

import pytest
from opened_replica import led_replica

from tierlog.base.files import FileSlice
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.batch_validation import (
    PLAUSIBLE_AGE_MS,
    PLAUSIBLE_LEAD_MS,
    WALKED_RECORDS,
    RecordChecks,
    required_checks,
)
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader, check_batch, read_header, seal
from tierlog.records.codecs import Codec
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
DAY = 86_400_000
HOUR = 3_600_000
ATTRIBUTES_AT, BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT = 21, 27, 35
CODECS = [Codec.NONE, Codec.LZ4]
MANY = WALKED_RECORDS + 4


def open_replica(directory: Path, config: TopicConfig | None = None) -> Replica:
    return led_replica(directory, NOW, config)


def batch(
    *times: int, said: int | None = None, attributes: int = 0, codec: Codec = Codec.NONE, **fields: Any
) -> memoryview:
    """Records of these times; `said` is the header's maximum."""
    data = encode_batch([NewRecord(time, b"k", b"v") for time in times], codec=codec, **fields)
    if said is not None:
        struct.pack_into(">q", data, MAX_TIMESTAMP_AT, said)
    struct.pack_into(">h", data, ATTRIBUTES_AT, (codec | attributes) - (1 << 16 if attributes >> 15 else 0))
    seal(data, 0, len(data))
    return memoryview(data)


def stored(replica: Replica) -> BatchHeader:
    found = replica.read(0, 1 << 20).slice
    assert found is not None
    part = found.parts[0]
    assert isinstance(part, FileSlice)
    return check_batch(part.read())


def newest(replica: Replica) -> tuple[int, int] | None:
    found = run_all_steps(replica.log.max_timestamp())
    return None if found is None else (found.offset, found.timestamp)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("times", "said", "largest"),
    [
        ((-1, -1, -1), 0, (0, -1)),  # as librdkafka writes records without a time
        ((-1, NOW, -1), 0, (1, NOW)),
        ((NOW, NOW + 1, NOW + 2), 0, (2, NOW + 2)),
        ((NOW, NOW + 1), NOW + 30 * DAY, (1, NOW + 1)),
        ((NOW, NOW + 1), NOW - 30 * DAY, (1, NOW + 1)),
        ((NOW, NOW + 1), NOW + 1000, (1, NOW + 1)),
        ((NOW, NOW + 2000), NOW, (1, NOW + 2000)),
        ((NOW, NOW - 5, NOW - 9), NOW, (0, NOW)),
        ((NOW - DAY, *[NOW - DAY] * MANY, NOW - 1), NOW - DAY, (MANY + 1, NOW - 1)),
        ((NOW - 5, NOW - 9), NOW, (0, NOW - 5)),
    ],
)
def test_max_timestamp_is_that_of_the_records(
    tmp_path: Path, codec: Codec, times: tuple[int, ...], said: int, largest: tuple[int, int]
) -> None:
    replica = open_replica(tmp_path)
    assert replica.as_leader.append(batch(*times, said=said, codec=codec), NOW).error is ErrorCode.NONE
    assert stored(replica).max_timestamp == max(times)
    assert newest(replica) == largest


def test_header_timestamp_of_1970_deletes_no_record_early(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(segment_bytes=1, retention_ms=7 * DAY))
    for said in (0, 1, -1, NOW - 30 * DAY):
        for times in ((-1,) * 3, (NOW,) * MANY):
            assert replica.as_leader.append(batch(*times, said=said), NOW).error is ErrorCode.NONE
    replica.apply_retention(NOW + 6 * DAY)
    assert replica.log_start_offset == 0
    replica.apply_retention(NOW + 8 * DAY)
    assert replica.log_start_offset == replica.log_end_offset, "nor is any kept forever"


@pytest.mark.parametrize("said", [NOW + PLAUSIBLE_LEAD_MS, NOW + 30 * DAY, 2**62])
def test_header_timestamp_in_the_future_keeps_no_record_forever(tmp_path: Path, said: int) -> None:
    replica = open_replica(tmp_path, TopicConfig(retention_ms=DAY))
    assert replica.as_leader.append(batch(*[NOW] * MANY, said=said), NOW).error is ErrorCode.NONE
    replica.apply_retention(NOW + DAY + PLAUSIBLE_LEAD_MS + 1)
    assert replica.log_start_offset == replica.log_end_offset


@pytest.mark.parametrize("retention_ms", [1000, HOUR, 7 * DAY, -1])
def test_header_timestamp_is_trusted_within_a_minute_or_a_tenth_of_retention(retention_ms: int) -> None:
    config = TopicConfig(retention_ms=retention_ms)
    age = min(PLAUSIBLE_AGE_MS, retention_ms // 10) if retention_ms >= 0 else PLAUSIBLE_AGE_MS
    for said, believed in ((NOW - age, True), (NOW - age - 1, False), (NOW + PLAUSIBLE_LEAD_MS + 1, False)):
        header = read_header(batch(said))
        assert (required_checks(header, config, NOW) is RecordChecks.FIRST_RECORDS) is believed


def test_trusted_header_deletes_a_record_at_most_a_minute_early(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(retention_ms=DAY))
    times = [NOW - PLAUSIBLE_AGE_MS] * MANY + [NOW]
    assert replica.as_leader.append(batch(*times, said=times[0]), NOW).error is ErrorCode.NONE
    replica.apply_retention(NOW + DAY - PLAUSIBLE_AGE_MS)
    assert replica.log_start_offset == 0


@pytest.mark.parametrize("codec", CODECS)
def test_timestamp_bounds_apply_to_records_and_not_to_headers(tmp_path: Path, codec: Codec) -> None:
    short = TopicConfig(message_timestamp_after_max_ms=1000)
    replica = open_replica(tmp_path, short)
    refused = replica.as_leader.append(batch(*[NOW] * MANY, NOW + 50_000, said=NOW, codec=codec), NOW)
    assert refused.error is ErrorCode.INVALID_TIMESTAMP
    assert [bad.number for bad in refused.bad_records] == [MANY]
    assert (
        replica.as_leader.append(batch(NOW, NOW, said=NOW + 50_000, codec=codec), NOW).error is ErrorCode.NONE
    )
    assert stored(replica).max_timestamp == NOW
    replica.update_config(TopicConfig(message_timestamp_before_max_ms=1000))
    refused = replica.as_leader.append(batch(NOW - 50_000, NOW, said=NOW, codec=codec), NOW)
    assert [bad.number for bad in refused.bad_records] == [0]


def test_first_records_are_checked_against_the_default_bound(tmp_path: Path) -> None:
    replica = open_replica(tmp_path)
    refused = replica.as_leader.append(batch(NOW, NOW + 2 * DAY, *[NOW] * MANY, said=NOW), NOW)
    assert refused.error is ErrorCode.INVALID_TIMESTAMP
    assert [bad.number for bad in refused.bad_records] == [1]
    assert replica.as_leader.append(batch(NOW, said=NOW + 2 * DAY), NOW).error is ErrorCode.NONE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("attributes", "kept"),
    [(0x08, 0), (0x40, 0), (0x80, 0x80), (0x100, 0x100), (0x8000, 0x8000 - (1 << 16))],
)
def test_broker_attributes_are_cleared_and_unknown_ones_kept(
    tmp_path: Path, codec: Codec, attributes: int, kept: int
) -> None:
    replica = open_replica(tmp_path)
    given = batch(NOW, NOW + 1, attributes=attributes, codec=codec)
    assert replica.as_leader.append(given, NOW).error is ErrorCode.NONE
    assert stored(replica).attributes == codec | kept
    assert stored(replica).max_timestamp == NOW + 1


def test_client_cannot_set_log_append_time(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(message_timestamp_type="LogAppendTime"))
    refused = replica.as_leader.append(batch(NOW, NOW, attributes=0x08), NOW)
    assert refused.error is ErrorCode.INVALID_TIMESTAMP
    assert [bad.number for bad in refused.bad_records] == [0, 1]
    assert replica.as_leader.append(batch(NOW + 9 * DAY, 5, said=0), NOW).error is ErrorCode.NONE
    assert stored(replica).max_timestamp == NOW


def test_max_timestamp_is_found_despite_too_high_headers_on_disk(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(segment_bytes=300))
    for number in range(MANY):
        times = [NOW + number] * MANY
        said = NOW + 1000 - number
        assert replica.as_leader.append(batch(*times, said=said), NOW).error is ErrorCode.NONE
    assert newest(replica) == (MANY * (MANY - 1), NOW + MANY - 1)


def test_max_timestamp_zero_in_a_segment_of_an_earlier_version_means_unknown(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(retention_ms=DAY))
    old = batch(-1, -1, said=0)
    assert replica.as_leader.append(old, NOW, from_client=False).error is ErrorCode.NONE
    assert stored(replica).max_timestamp == 0
    replica.apply_retention(NOW + DAY - 1)
    assert replica.log_start_offset == 0
