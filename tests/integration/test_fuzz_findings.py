"""Findings of the network fuzzer, one test each: requests whose responses were far too large, or that failed
inside the broker.
"""

import struct
import time
import uuid
from collections.abc import Iterator

import crc32c
import pytest
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    describe_configs,
    describe_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
)
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

TIMES = 500


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    client = Client(tierlog_session_broker.bootstrap)
    yield client
    client.close()


def unreadable_batch(first_timestamp: int) -> bytes:
    """Ten records, the last of which is longer than the batch, under a good CRC. A leader that believes the
    header's timestamps looks only at the first eight (ADR 0004).
    """
    batch = bytearray(encode_batch([NewRecord(first_timestamp + n, None, b"v", ()) for n in range(10)]))
    last_record = len(batch) - 8  # its length, attributes, two deltas, no key, one byte of value, no headers
    batch[last_record] = 0x7E
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


@pytest.mark.parametrize("by_max", [False, True])
def test_timestamp_lookup_in_an_unreadable_batch_is_an_error(client: Client, by_max: bool) -> None:
    topic = client.create(retention_ms="-1")
    first_timestamp = time.time_ns() // 1_000_000
    assert client.produce(topic, unreadable_batch(first_timestamp)).error_code == ErrorCode.NONE
    timestamp = -3 if by_max else first_timestamp + 9
    requested = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[requested])]
    )
    (answer,) = client.send("ListOffsets", 7, request).topics[0].partitions
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE


def test_repeated_resource_is_described_once(client: Client) -> None:
    topic = client.create()
    resource = describe_configs.DescribeConfigsResource(resource_type=2, resource_name=topic)
    request = describe_configs.DescribeConfigsRequest(resources=[resource] * TIMES)
    assert len(client.send("DescribeConfigs", 4, request).results) == 1


def test_repeated_group_is_described_once(client: Client) -> None:
    client.coordinator("g")
    request = describe_groups.DescribeGroupsRequest(groups=["g"] * TIMES)
    assert len(client.send("DescribeGroups", 5, request).groups) == 1


def test_topic_id_under_many_names_is_answered_once(client: Client) -> None:
    topic = client.create()
    found = client.send(
        "Metadata", 12, metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    )
    (topic_id,) = {each.topic_id for each in found.topics}
    assert isinstance(topic_id, uuid.UUID)
    requested = [metadata.MetadataRequestTopic(name=f"n{n}", topic_id=topic_id) for n in range(TIMES)]
    assert len(client.send("Metadata", 12, metadata.MetadataRequest(topics=requested)).topics) == 1


@pytest.mark.parametrize("version", [7, 9])
def test_repeated_partition_in_offset_fetch_is_answered_once(client: Client, version: int) -> None:
    topic, group = client.create(partitions=2), f"g-{uuid.uuid4().hex}"
    client.coordinator(group)
    commit = offset_commit.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    offset_commit.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=5, committed_metadata="m" * 4000
                    )
                ],
            )
        ],
    )
    (committed,) = client.send("OffsetCommit", 8, commit).topics[0].partitions
    assert committed.error_code == ErrorCode.NONE
    indexes = [0] * TIMES
    old = [offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)] * 2
    new = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[*indexes, 1])] * 2
    requested = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=new)
    request = offset_fetch.OffsetFetchRequest(group_id=group, topics=old, groups=[requested] * 3)
    answer = client.send("OffsetFetch", version, request)
    topics = answer.topics if version < 8 else [t for each in answer.groups for t in each.topics]
    places = [(p.partition_index, p.committed_offset) for t in topics for p in t.partitions]
    assert places == ([(0, 5)] if version < 8 else [(0, 5), (1, -1)])
