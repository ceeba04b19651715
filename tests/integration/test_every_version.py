"""Every advertised API in every version: a valid request gets a response without an error.

The content of responses is tested elsewhere; this compares the table of versions with the handlers.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from wire_client import Client, message

from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode as E
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

ADVERTISED = {
    "Produce": (3, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "ListConfigResources": (0, 1),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 6),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (1, 5),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "OffsetDelete": (0, 0),
    "DescribeClientQuotas": (0, 1),
    "AlterClientQuotas": (0, 1),
    "DescribeCluster": (0, 2),
    "ElectLeaders": (0, 2),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "DescribeQuorum": (0, 2),
    "UpdateFeatures": (0, 2),
    "UnregisterBroker": (0, 0),
    "DescribeTopicPartitions": (0, 0),
    "DescribeAcls": (1, 3),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "CreateDelegationToken": (1, 3),
    "RenewDelegationToken": (1, 2),
    "ExpireDelegationToken": (1, 2),
    "DescribeDelegationToken": (1, 3),
}
NOT_ALLOWED = E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
OUTCOMES = {
    "AlterReplicaLogDirs": [E.LOG_DIR_NOT_FOUND],
    "ElectLeaders": [E.ELECTION_NOT_NEEDED],
    "UnregisterBroker": [E.BROKER_ID_NOT_REGISTERED],
    "DescribeAcls": [E.SECURITY_DISABLED],
    "CreateAcls": [E.SECURITY_DISABLED],
    "DeleteAcls": [E.SECURITY_DISABLED],
    "CreateDelegationToken": [NOT_ALLOWED],
    "RenewDelegationToken": [NOT_ALLOWED],
    "ExpireDelegationToken": [NOT_ALLOWED],
    "DescribeDelegationToken": [NOT_ALLOWED],
}
"""Errors of requests that a single node cannot carry out: it has no such log directory, its partitions have
leaders, there is no other broker, and it has neither an authorizer nor delegation tokens.
"""
VERSIONS = [(api, version) for api, (least, most) in ADVERTISED.items() for version in range(least, most + 1)]
TOPIC = 2  # a resource type
PROTOCOLS = {"protocol_type": "consumer", "protocol_name": "range"}


@dataclass(frozen=True)
class Place:
    """The subject of a request. `member` and `fresh` are created for one request; the producer has the
    transactional id `fresh`, and a transaction with the topic's partition if the API needs one."""

    topic: str
    topic_id: uuid.UUID
    group: str
    member: str = ""
    fresh: str = ""
    producer_id: int = -1
    producer_epoch: int = -1


def batch() -> bytes:
    return bytes(encode_batch([NewRecord(int(time.time() * 1000), b"k", b"v", ())]))


def named(place: Place, **fields: Any) -> list[dict[str, Any]]:
    """One topic by name and by id; the version decides which is encoded."""
    return [{"name": place.topic, "topic": place.topic, "topic_id": place.topic_id, **fields}]


def of_producer(place: Place) -> dict[str, int]:
    return {"producer_id": place.producer_id, "producer_epoch": place.producer_epoch}


def of_topic(place: Place, names: tuple[str, ...], **fields: Any) -> list[dict[str, Any]]:
    return [{name: each[name] for name in names} | fields for each in named(place)]


MAKE: dict[str, Callable[[Place], dict[str, Any]]] = {
    "Produce": lambda p: {
        "acks": -1,
        "timeout_ms": 5000,
        "topic_data": of_topic(p, ("name", "topic_id"), partition_data=[{"index": 0, "records": batch()}]),
    },
    "Fetch": lambda p: {
        "max_wait_ms": 0,
        "topics": of_topic(
            p,
            ("topic", "topic_id"),
            partitions=[{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
        ),
    },
    "ListOffsets": lambda p: {
        "replica_id": -1,
        "topics": of_topic(p, ("name",), partitions=[{"partition_index": 0, "timestamp": -1}]),
    },
    "Metadata": lambda p: {"topics": [{"name": p.topic}]},
    "OffsetCommit": lambda p: {
        "group_id": p.group,
        "topics": of_topic(
            p, ("name", "topic_id"), partitions=[{"partition_index": 0, "committed_offset": 1}]
        ),
    },
    "OffsetFetch": lambda p: {
        "group_id": p.group,
        "topics": of_topic(p, ("name",), partition_indexes=[0]),
        "groups": [{"group_id": p.group, "topics": of_topic(p, ("name", "topic_id"), partition_indexes=[0])}],
    },
    "DescribeClientQuotas": lambda p: {
        "components": [{"entity_type": "user", "match_type": 0, "match": p.topic}]
    },
    "AlterClientQuotas": lambda p: {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": p.topic}],
                "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
            }
        ],
        "validate_only": True,
    },
    "FindCoordinator": lambda p: {"key": p.group, "coordinator_keys": [p.group]},
    "JoinGroup": lambda p: {
        "group_id": p.fresh,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    },
    "Heartbeat": lambda p: {"group_id": p.fresh, "generation_id": 1, "member_id": p.member},
    "LeaveGroup": lambda p: {
        "group_id": p.fresh,
        "member_id": p.member,
        "members": [{"member_id": p.member}],
    },
    "SyncGroup": lambda p: {"group_id": p.fresh, "generation_id": 1, "member_id": p.member, **PROTOCOLS},
    "DescribeGroups": lambda p: {"groups": [p.group]},
    "ConsumerGroupHeartbeat": lambda p: {
        "group_id": p.group,
        "member_id": "a",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [p.topic],
        "topic_partitions": [],
    },
    "ConsumerGroupDescribe": lambda p: {"group_ids": [p.group]},
    "ListConfigResources": lambda p: {},
    "ListGroups": lambda p: {},
    "ApiVersions": lambda p: {"client_software_name": "test", "client_software_version": "1"},
    "CreateTopics": lambda p: {
        "topics": [{"name": p.fresh, "num_partitions": 1, "replication_factor": 1}],
        "timeout_ms": 5000,
    },
    "DeleteTopics": lambda p: {
        "topic_names": [p.topic],
        "topics": [{"name": p.topic}],
        "timeout_ms": 5000,
    },
    "DeleteRecords": lambda p: {
        "topics": of_topic(p, ("name",), partitions=[{"partition_index": 0, "offset": 1}]),
        "timeout_ms": 5000,
    },
    "InitProducerId": lambda p: {"transactional_id": None},
    "AddPartitionsToTxn": lambda p: {
        "transactions": [
            {
                **of_producer(p),
                "transactional_id": p.fresh,
                "topics": of_topic(p, ("name",), partitions=[0]),
            }
        ],
        "v3_and_below_transactional_id": p.fresh,
        "v3_and_below_producer_id": p.producer_id,
        "v3_and_below_producer_epoch": p.producer_epoch,
        "v3_and_below_topics": of_topic(p, ("name",), partitions=[0]),
    },
    "AddOffsetsToTxn": lambda p: {**of_producer(p), "transactional_id": p.fresh, "group_id": p.group},
    "EndTxn": lambda p: {**of_producer(p), "transactional_id": p.fresh, "committed": True},
    "WriteTxnMarkers": lambda p: {
        "markers": [{**of_producer(p), "topics": of_topic(p, ("name",), partition_indexes=[0])}]
    },
    "TxnOffsetCommit": lambda p: {
        **of_producer(p),
        "transactional_id": p.fresh,
        "group_id": p.group,
        "topics": of_topic(p, ("name",), partitions=[{"partition_index": 0, "committed_offset": 1}]),
    },
    "DescribeProducers": lambda p: {"topics": of_topic(p, ("name",), partition_indexes=[0])},
    "DescribeTransactions": lambda p: {"transactional_ids": [p.fresh]},
    "ListTransactions": lambda p: {"transactional_id_pattern": "fresh-.*"},
    "OffsetForLeaderEpoch": lambda p: {
        "replica_id": -1,
        "topics": of_topic(p, ("topic",), partitions=[{"partition": 0, "leader_epoch": 0}]),
    },
    "DescribeConfigs": lambda p: {
        "resources": [{"resource_type": TOPIC, "resource_name": p.topic, "configuration_keys": None}]
    },
    "AlterConfigs": lambda p: {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": p.topic,
                "configs": [{"name": "segment.bytes", "value": "100000"}],
            }
        ]
    },
    "AlterReplicaLogDirs": lambda p: {
        "dirs": [{"path": "/nowhere", "topics": of_topic(p, ("name",), partitions=[0])}]
    },
    "DescribeLogDirs": lambda p: {"topics": of_topic(p, ("topic",), partitions=[0])},
    "CreatePartitions": lambda p: {
        "topics": [{"name": p.topic, "count": 2, "assignments": None}],
        "timeout_ms": 5000,
    },
    "DeleteGroups": lambda p: {"groups_names": [p.group]},
    "IncrementalAlterConfigs": lambda p: {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": p.topic,
                "configs": [{"name": "segment.bytes", "config_operation": 0, "value": "100000"}],
            }
        ]
    },
    "OffsetDelete": lambda p: {
        "group_id": p.group,
        "topics": of_topic(p, ("name",), partitions=[{"partition_index": 0}]),
    },
    "DescribeCluster": lambda p: {},
    "ElectLeaders": lambda p: {"topic_partitions": of_topic(p, ("topic",), partitions=[0])},
    "AlterPartitionReassignments": lambda p: {
        "topics": of_topic(p, ("name",), partitions=[{"partition_index": 0, "replicas": [1]}])
    },
    "ListPartitionReassignments": lambda p: {"topics": of_topic(p, ("name",), partition_indexes=[0])},
    "DescribeQuorum": lambda p: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    "UpdateFeatures": lambda p: {
        "feature_updates": [{"feature": "tierlog.format", "max_version_level": 3}],
        "validate_only": True,
    },
    "UnregisterBroker": lambda p: {"broker_id": 4711},
    "DescribeTopicPartitions": lambda p: {"topics": [{"name": p.topic}]},
    "DescribeAcls": lambda p: {},
    "CreateAcls": lambda p: {"creations": [{"resource_type": TOPIC, "resource_name": p.topic}]},
    "DeleteAcls": lambda p: {"filters": [{"resource_type_filter": TOPIC}]},
    "CreateDelegationToken": lambda p: {},
    "RenewDelegationToken": lambda p: {"hmac": b"x"},
    "ExpireDelegationToken": lambda p: {"hmac": b"x"},
    "DescribeDelegationToken": lambda p: {},
}
JOINED = {"Heartbeat", "LeaveGroup", "SyncGroup"}
WITH_PRODUCER = {"AddPartitionsToTxn", "AddOffsetsToTxn", "DescribeTransactions"}
IN_TRANSACTION = {"EndTxn", "TxnOffsetCommit", "WriteTxnMarkers"}


@pytest.fixture(scope="module")
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def place_for(client: Client, api: str) -> Place:
    """A topic with a record and a group with an offset; a member of another group if the API needs it."""
    topic = client.create()
    assert client.produce(topic, batch()).error_code == E.NONE
    described = client.send("Metadata", 12, message("Metadata", {"topics": [{"name": topic}]}))
    place = Place(topic, described.topics[0].topic_id, f"g-{topic}", fresh=f"fresh-{topic}")
    client.coordinator(place.group)
    assert not errors_in(client.send("OffsetCommit", 8, message("OffsetCommit", MAKE["OffsetCommit"](place))))
    if api in WITH_PRODUCER | IN_TRANSACTION:
        return with_producer(client, place, in_transaction=api in IN_TRANSACTION)
    if api == "ConsumerGroupDescribe":
        join = message("ConsumerGroupHeartbeat", MAKE["ConsumerGroupHeartbeat"](place))
        assert not errors_in(client.send("ConsumerGroupHeartbeat", 1, join))
    if api in {"JoinGroup", *JOINED}:
        client.coordinator(place.fresh)
    if api not in JOINED:
        return place
    join = MAKE["JoinGroup"](place)
    joined = client.send("JoinGroup", 3, message("JoinGroup", join))
    assert joined.error_code == E.NONE
    place = Place(place.topic, place.topic_id, place.group, joined.member_id, place.fresh)
    if api != "SyncGroup":
        assert not errors_in(client.send("SyncGroup", 3, message("SyncGroup", MAKE["SyncGroup"](place))))
    return place


def with_producer(client: Client, place: Place, *, in_transaction: bool) -> Place:
    made = client.transactional_producer(place.fresh)
    place = replace(place, producer_id=made.producer_id, producer_epoch=made.producer_epoch)
    for api in ("AddPartitionsToTxn", "AddOffsetsToTxn") if in_transaction else ():
        assert not errors_in(client.send(api, 3, message(api, MAKE[api](place))))
    return place


def errors_in(answer: Any) -> list[int]:
    """Every non-zero error code in a response, at any depth."""
    if isinstance(answer, list | tuple):
        return [code for each in answer for code in errors_in(each)]
    fields = getattr(type(answer), "FIELDS", None)
    if fields is None:
        return []
    found = []
    for field in fields:
        value = getattr(answer, field.name)
        if field.name == "error_code":
            found += [value] if value else []
        else:
            found += errors_in(value)
    return found


def test_every_advertised_version_is_tested(client: Client) -> None:
    answer = client.send(
        "ApiVersions", 4, message("ApiVersions", MAKE["ApiVersions"](Place("", uuid.UUID(int=0), "")))
    )
    reported = {APIS[each.api_key].name: (each.min_version, each.max_version) for each in answer.api_keys}
    assert reported == ADVERTISED


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_valid_request_gets_no_error(client: Client, api: str, version: int) -> None:
    place = place_for(client, api)
    answer = client.send(api, version, message(api, MAKE[api](place)))
    if api == "JoinGroup" and version >= 4:
        assert answer.error_code == E.MEMBER_ID_REQUIRED, (
            "a member without an id is given one first (KIP-394)"
        )
        request = message(api, {**MAKE[api](place), "member_id": answer.member_id})
        answer = client.send(api, version, request)
    assert errors_in(answer) == OUTCOMES.get(api, [])
    if api == "Fetch":
        assert len(answer.responses[0].partitions[0].records) == len(batch())


@pytest.mark.parametrize("api", ["Produce", "Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch"])
def test_errors_in_responses_are_detected(client: Client, api: str) -> None:
    nowhere = Place("no-such-topic", uuid.UUID(int=7), "g")
    assert errors_in(client.send(api, ADVERTISED[api][1], message(api, MAKE[api](nowhere))))
