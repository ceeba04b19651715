"""Attacks of a client on the group coordinator of others: long strings, and records in the offsets topic."""

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from wire_client import Client

from tierlog.broker.groups.core.formats import GroupKey, encode_key
from tierlog.protocol.api import BY_NAME, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    delete_records,
    join_group,
    list_groups,
    metadata,
    offset_commit,
    produce,
)
from tierlog.protocol.messages import incremental_alter_configs as alter
from tierlog.protocol.primitives import uvarint
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

OFFSETS_TOPIC = "__consumer_offsets"
LONGEST = 32_767
GROUP = "hostile-groups"


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    connection.coordinator(GROUP)
    yield connection
    connection.close()


def commit(topic: str, group: str, offset: int = 1) -> offset_commit.OffsetCommitRequest:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    return offset_commit.OffsetCommitRequest(group_id=group, topics=topics)


def join(group: str, instance: str | None = None) -> join_group.JoinGroupRequest:
    return join_group.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def commits(client: Client, topic: str, group: str) -> ErrorCode:
    answer = client.send("OffsetCommit", 7, commit(topic, group))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_overlong_group_id_closes_only_its_own_connection(
    client: Client, tierlog_session_broker: TierlogBroker
) -> None:
    topic, stand_in = client.create(), "stand-in"
    frame = encode_request(BY_NAME["OffsetCommit"], 9, 1, "test", commit(topic, stand_in))[4:]
    short, long = uvarint(len(stand_in) + 1) + stand_in.encode(), uvarint(LONGEST + 2) + b"x" * (LONGEST + 1)
    frame = frame.replace(short, long)
    hostile = Client(tierlog_session_broker.bootstrap)
    hostile._socket.sendall(len(frame).to_bytes(4, "big") + frame)
    with pytest.raises(ConnectionError):
        hostile.receive("OffsetCommit", 9)
    hostile.close()
    partition_of_its = "x" * LONGEST
    for group in (GROUP, partition_of_its):
        assert commits(client, topic, group) == ErrorCode.NONE
    listed = client.send("ListGroups", 2, list_groups.ListGroupsRequest())
    assert partition_of_its in {group.group_id for group in listed.groups}


@pytest.mark.parametrize("version", [3, 5, 9])
def test_longest_client_id_joins_a_group(client: Client, version: int) -> None:
    group = f"long-{random.Random().getrandbits(32)}"
    request = join(group, instance="i" * LONGEST if version >= 5 else None)
    answer = client.send("JoinGroup", version, request, client_id="c" * LONGEST)
    assert answer.error_code == ErrorCode.NONE
    assert len(answer.member_id) <= LONGEST


@pytest.mark.parametrize("client_id", ["test", "__admin_client"])
@pytest.mark.parametrize("version", [3, 9, 13])
def test_no_client_produces_into_the_offsets_topic(client: Client, version: int, client_id: str) -> None:
    topic_id = next(each.topic_id for each in topics(client) if each.name == OFFSETS_TOPIC)
    record = NewRecord(int(time.time() * 1000), encode_key(GroupKey(GROUP)), b"\x00\x03")
    data = [produce.PartitionProduceData(index=0, records=bytes(encode_batch([record])))]
    topic = produce.TopicProduceData(name=OFFSETS_TOPIC, topic_id=topic_id, partition_data=data)
    request = produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    answer = client.send("Produce", version, request, client_id=client_id)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("client_id", ["test", "__admin_client"])
def test_no_client_deletes_records_of_the_offsets_topic(client: Client, client_id: str) -> None:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)
    topic = delete_records.DeleteRecordsTopic(name=OFFSETS_TOPIC, partitions=[partition])
    request = delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
    answer = client.send("DeleteRecords", 2, request, client_id=client_id)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_no_client_tiers_the_offsets_topic(client: Client) -> None:
    """Its coordinator could not load what only the object store has."""
    client.coordinator("readers")
    change = alter.AlterableConfig(name="remote.storage.enable", config_operation=0, value="true")
    resource = alter.AlterConfigsResource(resource_type=2, resource_name=OFFSETS_TOPIC, configs=[change])
    request = alter.IncrementalAlterConfigsRequest(resources=[resource])
    answer = client.send("IncrementalAlterConfigs", 1, request)
    assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG


def topics(client: Client) -> list[Any]:
    answer = client.send("Metadata", 12, metadata.MetadataRequest(topics=None))
    return list(answer.topics)
