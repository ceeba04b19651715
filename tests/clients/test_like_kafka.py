"""Sends the same requests to Apache Kafka and to tierlog and compares the responses field by field.

Each case is one request against a topic of two partitions, with nine records in the first, and a group that
committed an offset; topic and group are both called `$t`. Left out of the comparison are addresses, ids, the
wording of messages, and the append time, in which Kafka answers a retried batch with its records' time. No
case depends on how soon a change that was answered takes effect: in Kafka that is later; quotas are waited
for. The records are years old, so the topic keeps them forever: else a look at what is past retention may
fall into a case.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from config_cases import CONFIG_CASES, wait_for_configs
from kafka_comparison import UNKNOWN_ID, plain
from kafka_process import KafkaProcess
from wire_client import Client, message

from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

BASE_TIME_MS = 1_700_000_000_000
TOPIC = 2  # resource type
QUESTIONS = 1_000  # to Kafka, until its metadata show a change
Entity = list[tuple[str, str | None]]


def batch(count: int = 3, key: bytes = b"k", **fields: Any) -> bytes:
    records = [NewRecord(BASE_TIME_MS + n, key, b"v%d" % n, ()) for n in range(count)]
    return bytes(encode_batch(records, **fields))


def produce(records: bytes, partition: int = 0, topic: str = "$t", acks: int = -1) -> dict[str, Any]:
    data = [{"index": partition, "records": records}]
    return {"acks": acks, "timeout_ms": 5000, "topic_data": [{"name": topic, "partition_data": data}]}


def fetch(
    offset: int, partition: int = 0, topic: str = "$t", most: int = 1 << 20, **more: Any
) -> dict[str, Any]:
    requested = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": most}
    return {
        "max_wait_ms": 0,
        "max_bytes": most,
        "topics": [{"topic": topic, "partitions": [requested]}],
        **more,
    }


def list_offsets(*times: int, partition: int = 0, topic: str = "$t") -> dict[str, Any]:
    requested = [{"partition_index": partition, "timestamp": time} for time in times]
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": requested}]}


def epoch_end(epoch: int, partition: int = 0) -> dict[str, Any]:
    requested = [{"partition": partition, "leader_epoch": epoch}]
    return {"replica_id": -1, "topics": [{"topic": "$t", "partitions": requested}]}


def create(name: str = "$t-new", count: int = 1, copies: int = 1, **configs: str | None) -> dict[str, Any]:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": count, "replication_factor": copies, "configs": settings}
    return {"topics": [topic], "timeout_ms": 5000}


def grow(name: str, count: int) -> dict[str, Any]:
    return {"topics": [{"name": name, "count": count, "assignments": None}], "timeout_ms": 5000}


def alter(name: str, value: str | None, operation: int = 0, resource: str = "$t") -> dict[str, Any]:
    changes = [{"name": name, "config_operation": operation, "value": value}]
    return {"resources": [{"resource_type": TOPIC, "resource_name": resource, "configs": changes}]}


def describe(*keys: str, resource: str = "$t") -> dict[str, Any]:
    requested = {"resource_type": TOPIC, "resource_name": resource, "configuration_keys": list(keys)}
    return {"resources": [requested], "include_synonyms": True}


def commit(partition: int = 0, group: str = "$t", metadata: str = "", **more: Any) -> dict[str, Any]:
    requested = {"partition_index": partition, "committed_offset": 5, "committed_metadata": metadata}
    return {"group_id": group, "topics": [{"name": "$t", "partitions": [requested]}], **more}


def delete_offsets(partition: int, group: str = "$t") -> dict[str, Any]:
    return {"group_id": group, "topics": [{"name": "$t", "partitions": [{"partition_index": partition}]}]}


def join(**more: Any) -> dict[str, Any]:
    protocols = [{"name": "range", "metadata": b"m"}]
    fields = {"group_id": "$t", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    return {**fields, "protocol_type": "consumer", "protocols": protocols, **more}


def delete_records(offset: int, partition: int = 0, topic: str = "$t") -> dict[str, Any]:
    requested = [{"partition_index": partition, "offset": offset}]
    return {"topics": [{"name": topic, "partitions": requested}], "timeout_ms": 5000}


def quota(*entities: Entity, check: bool = False, **values: float | None) -> dict[str, Any]:
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    entries = [{"entity": [entity_part(*part) for part in entity], "ops": ops} for entity in entities]
    return {"entries": entries, "validate_only": check}


def entity_part(kind: str, name: str | None) -> dict[str, str | None]:
    return {"entity_type": kind, "entity_name": name}


def quotas_of(*components: tuple[str, int, str | None], strict: bool = False) -> dict[str, Any]:
    requested = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return {"components": requested, "strict": strict}


def describe_partitions(
    *names: str, most: int = 2000, cursor: tuple[str, int] | None = None
) -> dict[str, Any]:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return {"topics": [{"name": name} for name in names], "response_partition_limit": most, "cursor": at}


def elect(partitions: list[int] | None, topic: str = "$t", **more: Any) -> dict[str, Any]:
    requested = None if partitions is None else [{"topic": topic, "partitions": partitions}]
    return {"topic_partitions": requested, **more}


def move(replicas: list[int] | None, partition: int = 0, topic: str = "$t", **more: Any) -> dict[str, Any]:
    requested = [{"partition_index": partition, "replicas": replicas}]
    return {"topics": [{"name": topic, "partitions": requested}], **more}


ADA, APP, HOST = [("user", "$t")], [("client-id", "$t")], [("ip", "127.0.0.9")]
ANYONE, ANY_PAIR = [("user", None)], [("user", None), ("client-id", None)]

IDEMPOTENT = {"producer_id": 4000, "producer_epoch": 0}

CASES: dict[str, list[tuple[str, int, dict[str, Any]]]] = {
    "produce": [("Produce", 9, produce(batch())), ("Produce", 3, produce(batch(codec=Codec.LZ4), acks=1))],
    "produce to nowhere": [("Produce", 9, produce(batch(), 7)), ("Produce", 9, produce(batch(), topic="no"))],
    "produce nothing": [("Produce", 9, produce(b"")), ("Produce", 9, produce(b"\0" * 11))],
    "produce with odd acks": [("Produce", 9, produce(batch(), acks=2))],
    "produce from an offset": [("Produce", 9, produce(batch(base_offset=5)))],
    "produce two batches": [("Produce", 9, produce(batch() + batch()))],
    "produce zstd": [("Produce", version, produce(batch(codec=Codec.ZSTD))) for version in (6, 7)],
    "produce too much": [("Produce", 9, produce(batch(1_000, b"k" * 2_000)))],
    "produce control": [("Produce", 9, produce(batch(control=True)))],
    "produce again": [("Produce", 9, produce(batch(base_sequence=n, **IDEMPOTENT))) for n in (0, 3, 0, 9, 6)],
    "fetch": [("Fetch", 12, fetch(0)), ("Fetch", 4, fetch(4)), ("Fetch", 12, fetch(0, most=1))],
    "fetch the end": [("Fetch", 12, fetch(offset)) for offset in (9, 10, -1)],
    "fetch from a session unknown": [("Fetch", 12, fetch(0, session_id=5, session_epoch=1))],
    "fetch a partition unknown": [("Fetch", 12, fetch(0, 7)), ("Fetch", 12, fetch(0, topic="no"))],
    "list offsets": [
        ("ListOffsets", 8, list_offsets(time)) for time in (-1, -2, -3, -4, BASE_TIME_MS + 1, 1 << 60)
    ],
    "list offsets twice": [("ListOffsets", 7, list_offsets(-1, -2))],
    "list offsets of nothing": [("ListOffsets", 7, list_offsets(-1, partition=n)) for n in (1, 7)],
    "epoch ends": [("OffsetForLeaderEpoch", 4, epoch_end(epoch)) for epoch in (0, 1, 9)],
    "delete records": [("DeleteRecords", 2, delete_records(offset)) for offset in (3, 1, 99, -1)],
    "delete records nowhere": [
        ("DeleteRecords", 2, delete_records(1, 7)),
        ("DeleteRecords", 2, delete_records(1, topic="no")),
    ],
    "metadata": [("Metadata", version, {"topics": [{"name": "$t"}] * 2}) for version in (1, 9, 12)],
    "metadata of the unknown": [
        ("Metadata", 12, {"topics": [{"name": "$t-no"}], "allow_auto_topic_creation": False}),
        ("Metadata", 12, {"topics": [{"name": None, "topic_id": UNKNOWN_ID}]}),
        ("Metadata", 12, {"topics": [{"name": "a b"}]}),
        ("Metadata", 11, {"topics": [{"name": "$t", "topic_id": UNKNOWN_ID}]}),
    ],
    "metadata that create": [
        ("Metadata", version, {"topics": [{"name": name}]})
        for version in (0, 1, 3, 4, 9, 12)
        for name in (f"$t-{version}", "a b")
    ],
    "create": [("CreateTopics", 4, create()), ("CreateTopics", 7, create())],
    "create what cannot be": [
        ("CreateTopics", 7, request)
        for request in (
            create("a b"),
            create(count=0),
            create(copies=0),
            create(copies=3),
            create(nothing="1"),
            create(retention_ms="soon"),
            create(retention_ms=None),
        )
    ],
    "create partitions": [
        ("CreatePartitions", 3, grow(name, count))
        for name, count in (("$t", 3), ("$t", 3), ("$t", 1), ("no", 3))
    ],
    "delete topics": [
        ("DeleteTopics", 6, {"topics": [state], "timeout_ms": 5000})
        for state in (
            {"name": "$t"},
            {"name": "$t-no"},
            {"name": None, "topic_id": UNKNOWN_ID},
            {"name": None},
        )
    ],
    "describe settings": [("DescribeConfigs", 4, describe("max.message.bytes", "cleanup.policy"))],
    "describe settings of nothing": [
        ("DescribeConfigs", 4, describe("x", resource=name)) for name in ("$t-no", "a b")
    ],
    "alter settings": [
        ("IncrementalAlterConfigs", 1, alter("retention.ms", "5")),
        ("IncrementalAlterConfigs", 1, alter("cleanup.policy", "compact", 2)),
        ("IncrementalAlterConfigs", 1, alter("retention.ms", None)),
        ("IncrementalAlterConfigs", 1, alter("retention.ms", "soon")),
        ("IncrementalAlterConfigs", 1, alter("nothing", "1")),
        ("IncrementalAlterConfigs", 1, alter("retention.ms", "5", resource="$t-no")),
        ("IncrementalAlterConfigs", 1, alter("retention.ms", "5", resource="")),
    ],
    "join": [
        ("JoinGroup", 5, join(session_timeout_ms=1)),
        ("JoinGroup", 5, join(member_id="unknown")),
        ("JoinGroup", 5, join(group_id="")),
        ("JoinGroup", 5, join(protocols=[])),
    ],
    "heartbeat and leave": [
        ("Heartbeat", 4, {"group_id": "$t", "generation_id": 1, "member_id": "unknown"}),
        ("LeaveGroup", 5, {"group_id": "", "members": [{"member_id": "unknown"}]}),
        ("LeaveGroup", 5, {"group_id": "$t", "members": [{"member_id": "unknown"}]}),
    ],
    "commit": [
        ("OffsetCommit", 8, commit()),
        ("OffsetCommit", 8, commit(7)),
        ("OffsetCommit", 8, commit(metadata="x" * 5000)),
        ("OffsetCommit", 8, commit(generation_id_or_member_epoch=3, member_id="unknown")),
        ("OffsetCommit", 8, commit(group="")),
    ],
    "committed": [
        ("OffsetFetch", 5, {"group_id": "$t", "topics": [{"name": "$t", "partition_indexes": [0]}]}),
        ("OffsetFetch", 8, {"groups": [{"group_id": name, "topics": None} for name in ("$t", "$t-no")]}),
    ],
    "delete offsets": [
        ("OffsetDelete", 0, delete_offsets(0)),
        ("OffsetDelete", 0, delete_offsets(7)),
        ("OffsetDelete", 0, delete_offsets(0, group="$t-no")),
    ],
    "describe groups": [
        ("DescribeGroups", 6, {"groups": ["$t", "$t-no"], "include_authorized_operations": True})
    ],
    "delete groups": [("DeleteGroups", 2, {"groups_names": [name] * 2}) for name in ("$t-no", "$t")],
    "set quotas": [
        *[
            ("AlterClientQuotas", version, request)
            for version, request in (
                (1, quota(ADA, producer_byte_rate=1e6, request_percentage=0.5)),
                (0, quota(APP + ADA, ANY_PAIR, consumer_byte_rate=2e6, controller_mutation_rate=1.5)),
                (1, quota(ADA, producer_byte_rate=3e6, check=True)),
                (1, quota(HOST, connection_creation_rate=1e6)),
                (1, quota(ADA, consumer_byte_rate=None, nothing=None)),
                (1, quota([*ADA, ("user", "$t-2")], request_percentage=float("inf"))),
                (1, quota(APP)),
                (1, quota()),
            )
        ],
        *[
            ("DescribeClientQuotas", version, quotas_of(*requested, strict=strict))
            for version, strict in ((0, False), (1, True))
            for requested in (
                [],
                [("user", 0, "$t")],
                [("user", 1, None)],
                [("user", 2, None)],
                [("client-id", 2, None)],
                [("user", 2, None), ("client-id", 2, None)],
                [("client-id", 0, "$t"), ("user", 0, "$t")],
                [("ip", 0, "127.0.0.9")],
                [("user", 0, "")],
            )
        ],
        ("AlterClientQuotas", 1, quota(ADA, producer_byte_rate=None, request_percentage=None)),
        ("AlterClientQuotas", 1, quota([("user", "$t-2")], request_percentage=None)),
        (
            "AlterClientQuotas",
            1,
            quota(ADA + APP, ANY_PAIR, consumer_byte_rate=None, controller_mutation_rate=None),
        ),
        ("AlterClientQuotas", 1, quota(HOST, connection_creation_rate=None)),
        ("DescribeClientQuotas", 1, quotas_of()),
    ],
    "quotas that cannot be": [
        ("AlterClientQuotas", 1, request)
        for request in (
            quota(ADA, producer_byte_rate=-1.0),
            quota(ADA, consumer_byte_rate=0.5),
            quota(ADA, consumer_byte_rate=1e30),
            quota(ADA, request_percentage=-0.5),
            quota(ADA, nothing=1.0, consumer_byte_rate=5.0),
            quota(ADA, HOST, connection_creation_rate=1.5),
            quota(HOST, producer_byte_rate=1.0),
            quota([("ip", "no such host!")], connection_creation_rate=1.0),
            quota(HOST + ADA, connection_creation_rate=1.0),
            quota([], request_percentage=1.0),
            quota([("user", "")], request_percentage=1.0),
            quota([("group", "$t")], request_percentage=1.0),
            quota(ADA, ADA, nothing=None),
        )
    ],
    "quotas that cannot be asked for": [
        ("DescribeClientQuotas", 1, quotas_of(*requested))
        for requested in (
            [("user", 0, None)],
            [("user", 1, "$t")],
            [("user", 2, "$t")],
            [("user", 3, None)],
            [("", 0, "$t")],
            [("group", 0, "$t")],
            [("user", 0, "$t"), ("user", 1, None)],
            [("ip", 2, None), ("user", 2, None)],
        )
    ],
    "describe partitions": [
        ("DescribeTopicPartitions", 0, request)
        for request in (
            describe_partitions("$t"),
            describe_partitions("$t", "$t", most=1),
            describe_partitions("$t", most=0),
            describe_partitions("$t", "a", most=1, cursor=("$t", 1)),
            describe_partitions("$t", cursor=("$t", 9)),
            describe_partitions("$t", "$t-no", "a b", most=2),
            describe_partitions("$t", "$t-no", most=3),
            describe_partitions("$t", cursor=("$t-no", 0)),
            describe_partitions("$t", cursor=("$t", -1)),
        )
    ],
    "elect leaders": [
        *[("ElectLeaders", version, elect([0, 7])) for version in (0, 1, 2)],
        ("ElectLeaders", 2, elect([0], election_type=1)),
        ("ElectLeaders", 2, elect([0], election_type=5)),
        ("ElectLeaders", 2, elect([0], topic="$t-no")),
        ("ElectLeaders", 2, {"topic_partitions": []}),
    ],
    "move partitions": [
        *[("AlterPartitionReassignments", version, move([1])) for version in (0, 1)],
        *[
            ("AlterPartitionReassignments", 1, request)
            for request in (
                move([1], 7),
                move([1], topic="$t-no"),
                move([]),
                move([1, 1]),
                move([1, 9]),
                move([9], allow_replication_factor_change=False),
                move([1], allow_replication_factor_change=False),
                move(None),
                {"topics": []},
            )
        ],
    ],
    "list moves": [
        ("ListPartitionReassignments", 0, {"topics": topics})
        for topics in (None, [], [{"name": "$t", "partition_indexes": [0, 7]}])
    ],
    "unregister an unknown broker": [("UnregisterBroker", 0, {"broker_id": 4711})],
    "a quorum of nothing": [
        (
            "DescribeQuorum",
            version,
            {"topics": [{"topic_name": name, "partitions": [{"partition_index": n}]}]},
        )
        for version in (0, 2)
        for name, n in (("$t", 0), ("__cluster_metadata", 1))
    ],
    **CONFIG_CASES,
    "half a producer id": [
        ("InitProducerId", 4, {"transactional_id": None, "producer_id": 5, "producer_epoch": -1})
    ],
}


SHOWN = ("Metadata", 12, {"topics": [{"name": "$t"}], "allow_auto_topic_creation": False})
MADE = ("Metadata", 12, {"topics": [{"name": "$t-new"}], "allow_auto_topic_creation": False})
COMMITTED = ("OffsetFetch", 5, {"group_id": "$t", "topics": [{"name": "$t", "partition_indexes": [0]}]})

TOGETHER: dict[str, list[tuple[str, int, dict[str, Any]]]] = {
    "records deleted": [("DeleteRecords", 2, delete_records(3)), ("ListOffsets", 8, list_offsets(-2))],
    "records": [("Produce", 9, produce(batch())), ("ListOffsets", 8, list_offsets(-1))],
    "records and their deletion": [
        ("Produce", 9, produce(batch())),
        ("DeleteRecords", 2, delete_records(-1)),
        ("ListOffsets", 8, list_offsets(-2)),
    ],
    "settings": [
        ("IncrementalAlterConfigs", 1, alter("retention.ms", "77777")),
        ("DescribeConfigs", 4, describe("retention.ms") | {"include_synonyms": False}),
    ],
    "a new topic": [("CreateTopics", 4, create()), MADE],
    "new partitions": [("CreatePartitions", 3, grow("$t", 4)), SHOWN],
    "a topic deleted": [("DeleteTopics", 6, {"topics": [{"name": "$t"}], "timeout_ms": 5000}), SHOWN],
    "a quota": [
        ("AlterClientQuotas", 1, quota(ADA, producer_byte_rate=1e6)),
        ("DescribeClientQuotas", 1, quotas_of(("user", 0, "$t"))),
    ],
    "a group deleted": [
        ("DeleteGroups", 2, {"groups_names": ["$t"]}),
        ("DescribeGroups", 6, {"groups": ["$t"]}),
    ],
    "a commit": [("OffsetCommit", 8, commit(metadata="later")), COMMITTED],
    "an offset deleted": [("OffsetDelete", 0, delete_offsets(0)), COMMITTED],
    "a new group": [
        ("OffsetCommit", 8, commit(group="$t-new")),
        ("DescribeGroups", 6, {"groups": ["$t-new"]}),
    ],
}
"""Changes, each with a question that shows it, sent by one system call."""


@pytest.fixture(scope="module")
def both(kafka: KafkaProcess, tierlog_session_broker: TierlogBroker) -> Iterator[tuple[Client, Client]]:
    clients = Client(kafka.bootstrap), Client(tierlog_session_broker.bootstrap)
    yield clients
    for client in clients:
        client.close()


@pytest.mark.parametrize("case", CASES)
def test_responses_equal_kafkas(both: tuple[Client, Client], case: str) -> None:
    by_kafka, by_tierlog = (list(conversation(client, case)) for client in both)
    assert by_tierlog == by_kafka


@pytest.mark.parametrize("case", TOGETHER)
def test_pipelined_read_sees_the_change_before_it(both: tuple[Client, Client], case: str) -> None:
    """In Kafka metadata follow a little later than the answer to the change; here they never do."""
    of_kafka, of_tierlog = both
    topic = prepared(of_tierlog)
    sent = [(api, version, message(api, request, t=topic)) for api, version, request in TOGETHER[case]]
    shown = [plain(answer, topic) for answer in of_tierlog.send_together(*sent)]

    topic = prepared(of_kafka)
    sent = [(api, version, message(api, request, t=topic)) for api, version, request in TOGETHER[case]]
    expected = [plain(answer, topic) for answer in of_kafka.send_together(*sent)]
    for _ in range(QUESTIONS):
        if expected[-1] == shown[-1]:
            break
        expected[-1] = plain(of_kafka.send(*sent[-1]), topic)
    assert shown == expected


def prepared(client: Client) -> str:
    """A topic of two partitions with nine records, and a group that committed an offset."""
    topic = client.create(partitions=2, retention_ms="-1")
    client.wait_for_leaders(topic, partitions=2)
    for _ in range(3):
        client.send("Produce", 9, message("Produce", produce(batch()), t=topic))
    client.coordinator(topic)
    client.send("OffsetCommit", 8, message("OffsetCommit", commit(), t=topic))
    return topic


def conversation(client: Client, case: str) -> Iterator[Any]:
    topic = prepared(client)
    for api, version, request in CASES[case]:
        sent = message(api, request, t=topic)
        answer = client.send(api, version, sent)
        if api == "AlterClientQuotas" and not sent.validate_only:
            wait_for_quotas(client, sent, answer)
        if api == "IncrementalAlterConfigs" and not sent.validate_only:
            wait_for_configs(client, sent, answer)
        yield api, plain(answer, topic)


def wait_for_quotas(client: Client, sent: Any, answer: Any) -> None:
    """Until what was altered is described so."""
    for entry, reported in zip(sent.entries, answer.entries, strict=False):
        names = {part.entity_type: part.entity_name for part in entry.entity}
        requested = [(kind, 0 if name is not None else 1, name) for kind, name in names.items()]
        request = message("DescribeClientQuotas", quotas_of(*requested, strict=True))
        wanted = {change.key: not change.remove for change in entry.ops}
        while not reported.error_code and wanted != {
            key: key in described(client, request) for key in wanted
        }:
            pass


def described(client: Client, request: Any) -> set[str]:
    entries = client.send("DescribeClientQuotas", 1, request).entries
    return {value.key for entry in entries for value in entry.values}


def test_throttled_responses_equal_kafkas(kafka: KafkaProcess, tierlog_session_broker: TierlogBroker) -> None:
    """Each request over a connection of its own, as the one before is muted."""
    by_kafka, by_tierlog = (list(throttled(each.bootstrap)) for each in (kafka, tierlog_session_broker))
    assert by_tierlog == by_kafka


ME: Entity = [("client-id", "test")]


def throttled(bootstrap: str) -> Iterator[Any]:
    topic = once(bootstrap, lambda client: client.create(retention_ms="-1"))
    once(bootstrap, lambda client: client.wait_for_leaders(topic))

    def ask(api: str, version: int, request: dict[str, Any]) -> tuple[Any, bool]:
        answer = once(bootstrap, lambda client: client.send(api, version, message(api, request, t=topic)))
        return plain(answer, topic), answer.throttle_time_ms > 0

    def until_throttled(api: str, version: int, request: dict[str, Any]) -> Any:
        while not (answer := ask(api, version, request))[1]:
            pass
        return answer[0]

    once(bootstrap, lambda client: client.send("Produce", 9, message("Produce", produce(batch()), t=topic)))
    ask("AlterClientQuotas", 1, quota(ME, producer_byte_rate=1.0, consumer_byte_rate=1.0))
    appended = until_throttled("Produce", 9, produce(batch()))
    yield appended["responses"][0]["partition_responses"][0]["error_code"]
    for version, session in ((4, {}), (12, {}), (12, {"session_epoch": 0}), (12, {"session_epoch": -1})):
        yield until_throttled("Fetch", version, fetch(0, **session))
    ask("AlterClientQuotas", 1, quota(ME, producer_byte_rate=None, consumer_byte_rate=None))

    ask("AlterClientQuotas", 1, quota(ME, controller_mutation_rate=1.0))
    many = create("$t-many", 40)
    yield until_throttled("CreateTopics", 7, {**many, "validate_only": True})
    yield ask("CreateTopics", 6, create("$t-one"))
    yield ask("CreateTopics", 7, create("a b"))
    yield ask("CreateTopics", 4, create("$t-two"))
    yield ask("CreatePartitions", 3, grow("$t", 3))
    yield ask("CreatePartitions", 3, grow("$t", 1))
    yield ask("CreatePartitions", 2, grow("$t-two", 3))
    yield ask("DeleteTopics", 6, {"topics": [{"name": "$t-two"}], "timeout_ms": 5000})
    yield ask("DeleteTopics", 6, {"topics": [{"name": "$t-no"}], "timeout_ms": 5000})
    yield ask("DeleteTopics", 4, {"topic_names": ["$t-two"], "timeout_ms": 5000})
    ask("AlterClientQuotas", 1, quota(ME, controller_mutation_rate=None))


def once(bootstrap: str, use: Callable[[Client], Any]) -> Any:
    client = Client(bootstrap)
    try:
        return use(client)
    finally:
        client.close()
