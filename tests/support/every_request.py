"""A valid request of every API, and its topic, group and producer."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wire_client import Client, message

from tierlog.protocol.errors import ErrorCode as E
from tierlog.records.writer import NewRecord, encode_batch

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
                "configs": [{"name": "segment.bytes", "value": "2000000"}],
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
                "configs": [{"name": "segment.bytes", "config_operation": 0, "value": "2000000"}],
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
        "feature_updates": [{"feature": "tierlog.format", "max_version_level": 4}],
        "validate_only": True,
    },
    "UnregisterBroker": lambda p: {"broker_id": 4711},
    "DescribeTopicPartitions": lambda p: {"topics": [{"name": p.topic}]},
    "SaslHandshake": lambda p: {"mechanism": "SCRAM-SHA-256"},
    "SaslAuthenticate": lambda p: {"auth_bytes": b"x"},
    "DescribeUserScramCredentials": lambda p: {"users": None},
    "AlterUserScramCredentials": lambda p: {
        "upsertions": [
            {
                "name": p.topic,
                "mechanism": 1,
                "iterations": 4096,
                "salt": b"salt",
                "salted_password": b"x" * 32,
            }
        ]
    },
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
