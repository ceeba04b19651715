"""Batches whose header contradicts their records: tierlog's results equal those of Apache Kafka.

Texts of errors and the attribute of a delete horizon are left out: Kafka keeps the latter (ADR 0004).
"""

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka_process import KafkaProcess
from wire_client import Client, message

from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches, seal
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

BASE_MS = 1_700_000_000_000
NONE = -BASE_MS - 1
ATTRIBUTES_AT, MAX_TIMESTAMP_AT = 21, 35
CLAIMS = {
    "without timestamps": (-BASE_MS, (NONE, NONE, NONE)),  # as librdkafka writes it
    "one timestamp": (-BASE_MS, (NONE, 10, NONE)),
    "0": (-BASE_MS, (10, 11, 12)),
    "too low": (10, (10, *range(20), 12)),
    "too high": (10**10, (10, 11, 12)),
    "too high by little": (13, (10, 11, 12)),
    "that of no record": (11, (10, 9)),
    "ahead of the clock": (12, (10, 11, 10**13, 12)),
    "ahead of the clock, and the records are not": (10**13, (10, 11)),
}
CLAIMS_NEAR_THE_CLOCK = {
    "right": (12, (10, 11, 12)),
    "right, of many": (30, tuple(range(31))),
    "too low": (10, (10, 11, 12)),
    "too high": (13, (10, 11, 12)),
    "0": (-BASE_MS, (10, 11, 12)),
    "that of no record": (11, (10, 9)),
}
BITS = (0x08, 0x40, 0x80, 0x100, 0x4000)
LOOKED_UP = (-3, 0, BASE_MS + 11, 1 << 60)


def batch(
    said: int, *times: int, attributes: int = 0, codec: Codec = Codec.NONE, base_ms: int = BASE_MS
) -> bytes:
    """Records of these times after the base, under a header with another maximum and more attributes."""
    data = encode_batch([NewRecord(base_ms + after, b"k", b"v") for after in times], codec=codec)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, base_ms + said)
    struct.pack_into(">h", data, ATTRIBUTES_AT, codec | attributes)
    seal(data, 0, len(data))
    return bytes(data)


@pytest.fixture(scope="module")
def both(kafka: KafkaProcess, tierlog_session_broker: TierlogBroker) -> Iterator[tuple[Client, Client]]:
    clients = Client(kafka.bootstrap), Client(tierlog_session_broker.bootstrap)
    yield clients
    for client in clients:
        client.close()


def observed(client: Client, *batches: bytes, **configs: str) -> Iterator[Any]:
    """Send the batches to a new topic. Yields the responses, the stored records, and lookups by timestamp."""
    topic = client.create(retention_ms="-1", **configs)
    client.wait_for_leaders(topic)
    for records in batches:
        answer = client.produce(topic, records)
        yield ErrorCode(answer.error_code).name, [bad.batch_index for bad in answer.record_errors]
    data = bytes(client.fetch(topic, 0).responses[0].partitions[0].records or b"")
    for at, header in iter_batches(data):
        times = [record.timestamp for record in iter_records(data, at, max_bytes=1 << 20)]
        by_broker = header.log_append_time
        yield header.attributes & ~0x40, header.base_timestamp, by_broker or (header.max_timestamp, times)
    for moment in LOOKED_UP if not configs else ():
        requested = {"partition_index": 0, "timestamp": moment}
        request = {"replica_id": -1, "topics": [{"name": topic, "partitions": [requested]}]}
        found = client.send("ListOffsets", 8, message("ListOffsets", request)).topics[0].partitions[0]
        yield moment, found.error_code, found.offset, found.timestamp


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_wrong_maximum_timestamps(both: tuple[Client, Client], codec: Codec) -> None:
    for what, (said, times) in CLAIMS.items():
        by_kafka, by_tierlog = (list(observed(client, batch(said, *times, codec=codec))) for client in both)
        assert by_tierlog == by_kafka, what


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_wrong_maximum_timestamps_near_the_clock(both: tuple[Client, Client], codec: Codec) -> None:
    """Headers that tierlog believes if no record among the first eight contradicts them (ADR 0004)."""
    now_ms = int(time.time() * 1000)
    for what, (said, times) in CLAIMS_NEAR_THE_CLOCK.items():
        data = batch(said, *times, codec=codec, base_ms=now_ms)
        by_kafka, by_tierlog = (list(observed(client, data)) for client in both)
        assert by_tierlog == by_kafka, what


def test_ninth_record_that_contradicts_a_believed_header(both: tuple[Client, Client]) -> None:
    """The one documented difference: tierlog keeps the header, and its records as they are."""
    now_ms = int(time.time() * 1000)
    data = batch(12, *range(8), 20, base_ms=now_ms)
    by_kafka, by_tierlog = (list(observed(client, data)) for client in both)
    (sent, stored, newest, *lookups), (_, by_kafka_stored, by_kafka_newest, *by_kafka_lookups) = (
        by_tierlog,
        by_kafka,
    )
    assert sent == ("NONE", []) and lookups == by_kafka_lookups
    assert (stored[2][0] - now_ms, by_kafka_stored[2][0] - now_ms) == (12, 20)
    assert stored[2][1] == by_kafka_stored[2][1]
    assert (newest[2], by_kafka_newest[2]) == (8, 8)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_attributes(both: tuple[Client, Client], codec: Codec, kind: str) -> None:
    batches = [batch(11, 10, 11, attributes=bits, codec=codec) for bits in BITS]
    by_kafka, by_tierlog = (list(observed(client, *batches, message_timestamp_type=kind)) for client in both)
    assert by_tierlog == by_kafka


@pytest.mark.parametrize("name", ["before", "after"])
def test_bounds_on_timestamps(both: tuple[Client, Client], name: str) -> None:
    configs = {f"message_timestamp_{name}_max_ms": "1000"}
    batches = [batch(12, 10, 11), batch(-5, NONE, 10**13), batch(10**13, NONE, NONE)]
    by_kafka, by_tierlog = (list(observed(client, *batches, **configs)) for client in both)
    assert by_tierlog == by_kafka
