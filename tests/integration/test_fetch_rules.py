"""Fetch and Produce in detail: waiting, size limits, fetch sessions and each field of the responses."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import create_topics, delete_records, delete_topics, fetch, metadata, produce
from tierlog.protocol.schema import ZERO_UUID
from tierlog.records.batch import iter_batches
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

MIB = 1 << 20
BATCH = bytes(encode_batch([NewRecord(int(time.time() * 1000), None, bytes(900))]))
FOREVER_MS = 60_000


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


@pytest.fixture
def other(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def topic_id(client: Client, name: str) -> uuid.UUID:
    requested = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name)])
    found: uuid.UUID = client.send("Metadata", 12, requested).topics[0].topic_id
    return found


def partitions(count: int, offset: int = 0, **fields: Any) -> list[fetch.FetchPartition]:
    return [
        fetch.FetchPartition(**{"partition": n, "fetch_offset": offset, "partition_max_bytes": MIB, **fields})
        for n in range(count)
    ]


def request(
    topic: str | uuid.UUID, requested: list[fetch.FetchPartition], **fields: Any
) -> fetch.FetchRequest:
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    topics = [fetch.FetchTopic(**named, partitions=requested)]
    return fetch.FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": topics, **fields})


def only(response: fetch.FetchResponse) -> fetch.PartitionData:
    [topic] = response.responses
    [partition] = topic.partitions
    return partition


def fill(client: Client, topic: str, partition: int, batches: int) -> None:
    for _ in range(batches):
        data = produce.PartitionProduceData(index=partition, records=BATCH)
        topics = [produce.TopicProduceData(name=topic, partition_data=[data])]
        requested = produce.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics)
        answer = client.send("Produce", 9, requested).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NONE


def sizes(response: fetch.FetchResponse) -> dict[int, int]:
    return {
        partition.partition_index: len(partition.records or b"")
        for topic in response.responses
        for partition in topic.partitions
    }


# ---- waiting --------------------------------------------------------------------------------------


def test_min_bytes_counts_all_partitions_of_a_request(client: Client, other: Client) -> None:
    topic = client.create(2)
    client.post("Fetch", 12, request(topic, partitions(2), min_bytes=2 * len(BATCH), max_wait_ms=FOREVER_MS))
    fill(other, topic, 0, 1)  # not enough alone; the response has the data of both partitions
    fill(other, topic, 1, 1)
    assert sizes(client.receive("Fetch", 12)) == {0: len(BATCH), 1: len(BATCH)}


def test_fetch_returns_available_data_when_its_wait_ends(client: Client) -> None:
    topic = client.create()
    fill(client, topic, 0, 1)
    answer = client.send("Fetch", 12, request(topic, partitions(1), min_bytes=MIB, max_wait_ms=50))
    assert sizes(answer) == {0: len(BATCH)}


def test_error_in_one_partition_ends_the_wait_of_the_request(client: Client) -> None:
    topic = client.create()
    answer = client.send("Fetch", 12, request(topic, partitions(2), max_wait_ms=FOREVER_MS))
    assert [each.error_code for each in answer.responses[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_topic_deletion_ends_the_wait(client: Client, other: Client) -> None:
    topic = client.create()
    client.post("Fetch", 12, request(topic, partitions(1), max_wait_ms=FOREVER_MS))
    other.send("DeleteTopics", 5, delete_topics.DeleteTopicsRequest(topic_names=[topic], timeout_ms=5_000))
    assert only(client.receive("Fetch", 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ---- size limits ----------------------------------------------------------------------------------


def test_partitions_share_max_bytes(client: Client) -> None:
    topic = client.create(4)
    for partition in range(4):
        fill(client, topic, partition, 4)
    answer = client.send("Fetch", 12, request(topic, partitions(4), max_bytes=6 * len(BATCH)))
    assert sizes(answer) == {0: 4 * len(BATCH), 1: 2 * len(BATCH), 2: 0, 3: 0}


def test_partition_max_bytes_limits_each_partition(client: Client) -> None:
    topic = client.create(2)
    for partition in range(2):
        fill(client, topic, partition, 4)
    requested = partitions(2, partition_max_bytes=3 * len(BATCH) - 1)
    assert sizes(client.send("Fetch", 12, request(topic, requested))) == {
        0: 2 * len(BATCH),
        1: 2 * len(BATCH),
    }


def test_session_serves_partitions_without_data_first(client: Client) -> None:
    topic = client.create(3)
    for partition in range(3):
        fill(client, topic, partition, 3)
    opened = client.send("Fetch", 12, request(topic, partitions(3), max_bytes=1, session_epoch=0))
    seen: list[int] = []
    for epoch in (1, 2, 3):
        more = fetch.FetchRequest(
            max_wait_ms=0, max_bytes=1, session_id=opened.session_id, session_epoch=epoch
        )
        answer = client.send("Fetch", 12, more)
        seen += [number for number, size in sizes(answer).items() if size]
    assert seen == [0, 1, 2], "each got its batch in turn"


# ---- sessions with topic ids ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [13, 15, 17, 18])
def test_session_by_topic_id_adds_and_forgets_partitions(client: Client, version: int) -> None:
    names = client.create(2), client.create()
    ids = [topic_id(client, name) for name in names]
    opened = client.send("Fetch", version, request(ids[0], partitions(2), session_epoch=0))
    assert opened.session_id > 0

    def step(epoch: int, **fields: Any) -> dict[tuple[uuid.UUID, int], int]:
        requested = fetch.FetchRequest(
            max_wait_ms=0, session_id=opened.session_id, session_epoch=epoch, **fields
        )
        answer = client.send("Fetch", version, requested)
        assert (answer.error_code, answer.session_id) == (0, opened.session_id)
        return {
            (topic.topic_id, partition.partition_index): len(partition.records or b"")
            for topic in answer.responses
            for partition in topic.partitions
        }

    assert step(1) == {}
    fill(client, names[0], 1, 1)
    assert step(2) == {(ids[0], 1): len(BATCH)}
    added = [fetch.FetchTopic(topic_id=ids[1], partitions=partitions(1))]
    gone = [fetch.ForgottenTopic(topic_id=ids[0], partitions=[1])]
    assert step(3, topics=added, forgotten_topics_data=gone) == {(ids[1], 0): 0}, (
        "the new partition is returned once"
    )
    fill(client, names[1], 0, 1)
    assert step(4) == {(ids[1], 0): len(BATCH)}, "the forgotten partition is no longer read"
    closing = fetch.FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=-1)
    assert client.send("Fetch", version, closing).session_id == 0
    after = fetch.FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=5)
    assert client.send("Fetch", version, after).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_by_topic_id_rejects_topic_names(client: Client) -> None:
    topic = client.create()
    opened = client.send("Fetch", 13, request(topic_id(client, topic), partitions(1), session_epoch=0))
    by_name = fetch.FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=1)
    assert client.send("Fetch", 12, by_name).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_topic_id_does_not_match_a_new_topic_of_the_same_name(client: Client) -> None:
    topic = client.create()
    old = topic_id(client, topic)
    opened = client.send("Fetch", 13, request(old, partitions(1), session_epoch=0))
    client.send("DeleteTopics", 5, delete_topics.DeleteTopicsRequest(topic_names=[topic], timeout_ms=5_000))
    again = create_topics.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    client.send("CreateTopics", 7, create_topics.CreateTopicsRequest(topics=[again]))
    fill(client, topic, 0, 1)
    more = fetch.FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=1)
    answer = only(client.send("Fetch", 13, more))
    assert (answer.error_code, answer.records or b"") == (ErrorCode.UNKNOWN_TOPIC_ID, b"")
    data = produce.PartitionProduceData(index=0, records=BATCH)
    by_id = produce.ProduceRequest(
        acks=1, timeout_ms=5_000, topic_data=[produce.TopicProduceData(topic_id=old, partition_data=[data])]
    )
    refused = client.send("Produce", 13, by_id).responses[0]
    assert (refused.topic_id, refused.partition_responses[0].error_code) == (old, ErrorCode.UNKNOWN_TOPIC_ID)


# ---- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_returns_produced_data_in_every_version(client: Client, version: int) -> None:
    topic = client.create()
    fill(client, topic, 0, 2)
    answer = client.send(
        "Fetch", version, request(topic if version < 13 else topic_id(client, topic), partitions(1))
    )
    reported = only(answer)
    assert [header.base_offset for _, header in iter_batches(memoryview(reported.records))] == [0, 1]
    assert (reported.high_watermark, reported.last_stable_offset) == (2, 2)
    assert reported.log_start_offset == (0 if version >= 5 else -1)
    assert reported.preferred_read_replica == -1
    assert answer.responses[0].topic_id != ZERO_UUID or version < 13


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_response_in_every_version(client: Client, version: int) -> None:
    topic = client.create(message_timestamp_type="LogAppendTime")
    by_id = topic_id(client, topic)
    data = produce.PartitionProduceData(index=0, records=BATCH)
    named = produce.TopicProduceData(name=topic, topic_id=by_id, partition_data=[data])
    requested = produce.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[named])
    for offset in range(2):
        answer = client.send("Produce", version, requested)
        [reported] = answer.responses[0].partition_responses
        assert (reported.error_code, reported.base_offset, answer.throttle_time_ms) == (0, offset, 0)
        assert reported.log_append_time_ms > 1_600_000_000_000
        assert reported.log_start_offset == (0 if version >= 5 else -1)
        assert (reported.record_errors, reported.error_message) == ([], None)
        assert (reported.current_leader.leader_id, answer.node_endpoints) == (-1, [])
    assert answer.responses[0].topic_id == (by_id if version >= 13 else ZERO_UUID)


def test_aborted_transactions_are_null_or_empty(client: Client) -> None:
    """Null for read_uncommitted and for errors; empty if there are no aborted transactions."""
    topic = client.create()
    fill(client, topic, 0, 1)
    assert only(client.send("Fetch", 12, request(topic, partitions(1)))).aborted_transactions is None
    committed = only(client.send("Fetch", 12, request(topic, partitions(1), isolation_level=1)))
    assert committed.aborted_transactions == []
    outside = only(client.send("Fetch", 12, request(topic, partitions(1, offset=9), isolation_level=1)))
    assert (outside.error_code, outside.aborted_transactions) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)


def test_fetch_beyond_the_end_of_its_epoch_gets_the_diverging_epoch(client: Client) -> None:
    topic = client.create()
    fill(client, topic, 0, 2)
    requested = partitions(1, offset=5, last_fetched_epoch=0)
    reported = only(client.send("Fetch", 12, request(topic, requested, max_wait_ms=FOREVER_MS)))
    assert reported.error_code == ErrorCode.NONE
    assert (reported.diverging_epoch.epoch, reported.diverging_epoch.end_offset) == (0, 2)
    assert (reported.high_watermark, reported.records or b"") == (2, b"")
    agreed = only(client.send("Fetch", 12, request(topic, partitions(1, offset=1, last_fetched_epoch=0))))
    assert (agreed.diverging_epoch.end_offset, len(agreed.records)) == (-1, len(BATCH))
    unknown = only(client.send("Fetch", 12, request(topic, partitions(1, last_fetched_epoch=7))))
    assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_divergence_below_the_log_start_is_out_of_range(client: Client) -> None:
    topic = client.create()
    fill(client, topic, 0, 3)
    before_2 = [delete_records.DeleteRecordsPartition(partition_index=0, offset=2)]
    named = delete_records.DeleteRecordsTopic(name=topic, partitions=before_2)
    client.send("DeleteRecords", 2, delete_records.DeleteRecordsRequest(topics=[named], timeout_ms=5_000))
    requested = partitions(1, offset=0, last_fetched_epoch=0)
    assert (
        only(client.send("Fetch", 12, request(topic, requested))).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    )


def test_leader_epochs_in_fetches_are_checked(client: Client) -> None:
    topic = client.create()
    newer = only(client.send("Fetch", 12, request(topic, partitions(1, current_leader_epoch=9))))
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    same = only(client.send("Fetch", 12, request(topic, partitions(1, current_leader_epoch=0))))
    assert same.error_code == ErrorCode.NONE


# ---- acks=0 ---------------------------------------------------------------------------------------


def test_acks_0_gets_no_response(client: Client) -> None:
    topic = client.create()
    data = produce.PartitionProduceData(index=0, records=BATCH)
    quiet = produce.ProduceRequest(
        acks=0, timeout_ms=5_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])]
    )
    for _ in range(5):
        client.post("Produce", 9, quiet)
    assert client.produce(topic, BATCH).base_offset == 5


def test_acks_0_error_closes_the_connection(client: Client, other: Client) -> None:
    topic = client.create()
    bad = bytearray(BATCH)
    bad[-1] ^= 1
    data = produce.PartitionProduceData(index=0, records=bytes(bad))
    quiet = produce.ProduceRequest(
        acks=0, timeout_ms=5_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])]
    )
    client.post("Produce", 9, quiet)
    with pytest.raises(ConnectionError):
        client.receive("Produce", 9)
    assert other.produce(topic, BATCH).base_offset == 0
