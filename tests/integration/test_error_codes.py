"""Invalid input over a raw socket gets an error code (GUARANTEES, "Answer with the code")."""

import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import create_topics, fetch, metadata, produce
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

CRC_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, COUNT_AT, LENGTH_AT = 17, 16, 21, 23, 57, 8


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def batch(count: int = 2, **fields: Any) -> bytearray:
    return encode_batch(
        [NewRecord(int(time.time() * 1000), b"k", b"v%d" % n, ()) for n in range(count)], **fields
    )


def with_crc(data: bytearray) -> bytes:
    """The batch with a recomputed CRC, so that only the fault under test remains."""
    import crc32c

    struct.pack_into(">I", data, CRC_AT, crc32c.crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


def patched(at: int, layout: str, value: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = batch()
        struct.pack_into(layout, data, at, value)
        return with_crc(data)

    return make


def bad_crc() -> bytes:
    data = batch()
    data[-1] ^= 0xFF
    return bytes(data)


def compressed(body: bytes, count: int = 2) -> bytes:
    """A zstd batch with this body as its compressed records."""
    data = batch(count)[:61]
    data += body
    struct.pack_into(">i", data, LENGTH_AT, len(data) - 12)
    struct.pack_into(">h", data, ATTRIBUTES_AT, int(Codec.ZSTD))
    return with_crc(data)


def bomb() -> bytes:
    record = NewRecord(int(time.time() * 1000), b"k", bytes(64 << 20), ())
    return bytes(encode_batch([record], codec=Codec.ZSTD))


REFUSED_BATCHES = {
    "bad CRC": (bad_crc, ErrorCode.CORRUPT_MESSAGE),
    "length too large": (patched(LENGTH_AT, ">i", 100_000), ErrorCode.CORRUPT_MESSAGE),
    "length too small": (patched(LENGTH_AT, ">i", 20), ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (patched(MAGIC_AT, ">b", 0), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 1": (patched(MAGIC_AT, ">b", 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "unknown magic": (patched(MAGIC_AT, ">b", 3), ErrorCode.INVALID_RECORD),
    "record count": (patched(COUNT_AT, ">i", 5), ErrorCode.INVALID_RECORD),
    "offset delta": (patched(LAST_DELTA_AT, ">i", 7), ErrorCode.INVALID_RECORD),
    "control batch": (lambda: bytes(batch(control=True)), ErrorCode.INVALID_RECORD),
    "no batch": (lambda: b"", ErrorCode.INVALID_RECORD),
    "less than a batch": (lambda: b"\0" * 11, ErrorCode.INVALID_RECORD),
    "base offset": (lambda: bytes(batch(base_offset=5)), ErrorCode.INVALID_RECORD),
    "several batches": (lambda: bytes(batch()) + bytes(batch()), ErrorCode.INVALID_RECORD),
    "unknown codec": (patched(ATTRIBUTES_AT, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "corrupt compression": (
        lambda: compressed(b"\x28\xb5\x2f\xfd" + b"\xff" * 40),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "decompression bomb": (bomb, ErrorCode.MESSAGE_TOO_LARGE),
    "batch over the limit": (lambda: bytes(batch(200_000)), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("fault", REFUSED_BATCHES)
def test_rejected_batch_gets_its_error_code_and_is_not_written(client: Client, fault: str) -> None:
    make, code = REFUSED_BATCHES[fault]
    topic = client.create()
    answer = client.produce(topic, make())
    assert ErrorCode(answer.error_code) is code
    assert answer.base_offset == -1
    assert client.produce(topic, bytes(batch())).base_offset == 0


def test_response_names_the_invalid_records_of_a_batch(client: Client) -> None:
    topic = client.create(cleanup_policy="compact")
    keyless = encode_batch([NewRecord(int(time.time() * 1000), key, b"v", ()) for key in (b"k", None)])
    answer = client.produce(topic, bytes(keyless))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [bad.batch_index for bad in answer.record_errors] == [1]


def test_zstd_needs_a_recent_produce_version(client: Client) -> None:
    topic, data = client.create(), bytes(batch(codec=Codec.ZSTD))
    assert client.produce(topic, data, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, data, version=7).base_offset == 0


@pytest.mark.parametrize("acks", [2, -2])
def test_other_values_of_acks_are_rejected(client: Client, acks: int) -> None:
    answer = client.produce(client.create(), bytes(batch()), acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_unknown_topic_and_partition_are_reported(client: Client) -> None:
    answer = client.produce("no-such-topic", bytes(batch()))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_sequences_and_producer_epochs_are_checked(client: Client) -> None:
    topic, producer = client.create(), client.producer_id()

    def send(sequence: int, epoch: int = 0) -> produce.PartitionProduceResponse:
        fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        return client.produce(topic, bytes(batch(2, **fields)))

    assert [send(sequence).base_offset for sequence in (0, 2, 4, 6, 8)] == [0, 2, 4, 6, 8]
    retried = send(2)
    assert (retried.error_code, retried.base_offset) == (0, 2), "one of the last five: its first offset"
    assert send(14).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, epoch=1).error_code == ErrorCode.NONE
    stale = send(10, epoch=0).error_code
    assert stale in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)


def test_fetch_outside_the_log_is_out_of_range(client: Client) -> None:
    topic = client.create()
    client.produce(topic, bytes(batch()))
    for offset in (3, -5):
        partition = client.fetch(topic, offset).responses[0].partitions[0]
        assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 2).responses[0].partitions[0].error_code == ErrorCode.NONE


def test_invalid_fetch_sessions_are_reported(client: Client) -> None:
    topic = client.create()
    session = client.fetch(topic, 0, session_id=0, session_epoch=0).session_id
    assert session > 0
    unknown = client.fetch(topic, 0, session_id=session ^ 1, session_epoch=1)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    skipped = client.fetch(topic, 0, session_id=session, session_epoch=2)
    assert skipped.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert client.fetch(topic, 0, session_id=session, session_epoch=1).error_code == ErrorCode.NONE


def test_incremental_fetch_returns_only_changes(client: Client) -> None:
    topic = client.create()
    session = client.fetch(topic, 0, session_id=0, session_epoch=0).session_id
    nothing = fetch.FetchRequest(max_wait_ms=0, session_id=session, session_epoch=1)
    assert client.send("Fetch", 12, nothing).responses == []
    client.produce(topic, bytes(batch()))
    more = fetch.FetchRequest(max_wait_ms=0, session_id=session, session_epoch=2)
    reported = client.send("Fetch", 12, more).responses[0].partitions[0]
    assert reported.high_watermark == 2
    assert reported.records


def test_fetch_with_a_replica_id_is_rejected(client: Client) -> None:
    response = client.fetch(client.create(), 0, replica_id=1)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_produce_completes_a_waiting_fetch(client: Client, tierlog_session_broker: TierlogBroker) -> None:
    topic = client.create()
    requested = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    waiting = fetch.FetchRequest(
        max_wait_ms=60_000, min_bytes=1, topics=[fetch.FetchTopic(topic=topic, partitions=[requested])]
    )
    other = Client(tierlog_session_broker.bootstrap)
    client.post("Fetch", 12, waiting)
    other.produce(topic, bytes(batch()))
    other.close()
    response = client.receive("Fetch", 12)
    assert response.responses[0].partitions[0].high_watermark == 2


@pytest.mark.parametrize("name", ["../x", ".", "..", "", "a" * 250, "a b"])
def test_invalid_topic_names_are_rejected(client: Client, name: str) -> None:
    topic = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = client.send("CreateTopics", 7, create_topics.CreateTopicsRequest(topics=[topic]))
    assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    if name:
        request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name)])
        reported = client.send("Metadata", 12, request).topics[0]
        assert reported.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_unknown_topic_id_is_reported(client: Client) -> None:
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=None, topic_id=uuid.UUID(int=5))]
    )
    assert client.send("Metadata", 12, request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    requested = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    by_id = fetch.FetchRequest(
        max_wait_ms=0, topics=[fetch.FetchTopic(topic_id=uuid.UUID(int=5), partitions=[requested])]
    )
    partition = client.send("Fetch", 16, by_id).responses[0].partitions[0]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_first_batch_is_returned_complete_once_per_request(client: Client) -> None:
    topics = [client.create(), client.create()]
    for topic in topics:
        for _ in range(2):
            client.produce(topic, bytes(batch(50)))
    size = len(batch(50))
    requested = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10)
    request = fetch.FetchRequest(
        max_wait_ms=0,
        max_bytes=10,
        topics=[fetch.FetchTopic(topic=topic, partitions=[requested]) for topic in topics],
    )
    response = client.send("Fetch", 12, request)
    sizes = [len(topic.partitions[0].records or b"") for topic in response.responses]
    assert sorted(sizes) == [0, size]
