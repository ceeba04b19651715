"""Access of every API, in every version, decided by ACLs: the matrix of `handlers.access`."""

import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from access_cases import (
    AUTHORIZATION_ERRORS,
    FILTERED,
    HOST,
    SETTINGS,
    Acls,
    arrays_of,
    permissions_for,
    permissions_of,
    request_for_both,
    rows_of,
    send,
)
from every_request import MAKE, batch, errors_in, place_for
from waiting import until
from wire_client import TRANSACTION, Client, message

from tierlog.broker.handlers.access import CLUSTER, DENIED, Row, missing_rows
from tierlog.broker.handlers.configs import BROKER, CLIENT_METRICS, GROUP
from tierlog.broker.handlers.table import SERVED
from tierlog.metadata.acls import AclOperation, Permission, ResourceType
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode as E
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

NOT_ALLOWED = [E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED]
OUTCOMES = {
    "AlterReplicaLogDirs": [E.LOG_DIR_NOT_FOUND],
    "ElectLeaders": [E.ELECTION_NOT_NEEDED],
    "UnregisterBroker": [E.BROKER_ID_NOT_REGISTERED],
    "SaslAuthenticate": [E.ILLEGAL_SASL_STATE],  # the listener wants no login
    "SaslHandshake": [E.ILLEGAL_SASL_STATE],
    "CreateDelegationToken": NOT_ALLOWED,
    "RenewDelegationToken": NOT_ALLOWED,
    "ExpireDelegationToken": NOT_ALLOWED,
    "DescribeDelegationToken": NOT_ALLOWED,
}
"""Errors of allowed requests that a single node cannot carry out."""
WITHOUT_ERRORS = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""Versions of responses that cannot carry the error: they are empty."""
TWO_PHASE_COMMIT = {"transaction.two.phase.commit.enable": "true"}
TWO_PHASE_COMMIT_FROM = 6  # KIP-939
KEY_TYPES_FROM = 1  # KIP-98
CASES = [
    (name, version)
    for name in sorted(SERVED)
    for version in range(BY_NAME[name].min_version, BY_NAME[name].max_version + 1)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("node") / "node", SETTINGS | TWO_PHASE_COMMIT) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="module")
def acls(admin: Client) -> Acls:
    return Acls(admin)


@pytest.fixture(scope="module")
def client(broker: TierlogBroker) -> Iterator[Client]:
    client = Client(broker.bootstrap, HOST)
    yield client
    client.close()


def test_every_api_has_rows() -> None:
    assert missing_rows(SERVED) == []


@pytest.mark.parametrize(("api", "version"), CASES)
def test_request_needs_each_row_of_its_api(
    admin: Client, acls: Acls, client: Client, api: str, version: int
) -> None:
    place, rows = place_for(admin, api), rows_of(api, version)
    for missing in rows:
        others = [row for row in rows if row is not missing]
        with acls.granted(*permissions_of(others)):
            check_denied(api, version, missing, send(client, api, version, place))
    with acls.granted(*permissions_of(rows)):
        answer = send(client, api, version, place)
    expected = [E.MEMBER_ID_REQUIRED] if api == "JoinGroup" and version >= 4 else OUTCOMES.get(api, [])
    assert errors_in(answer) == expected
    if api in FILTERED:
        assert getattr(answer, FILTERED[api])


def check_denied(api: str, version: int, missing: Row, answer: Any) -> None:
    if api in FILTERED:
        assert not errors_in(answer)
        assert getattr(answer, FILTERED[api]) == []
        return
    if (api, version) in WITHOUT_ERRORS:
        assert answer.results == []
        return
    [(_, kind, _)] = permissions_of([missing])
    assert set(errors_in(answer)) - {E.OPERATION_NOT_ATTEMPTED} == {DENIED[kind]}


@pytest.mark.parametrize(("api", "version"), [case for case in CASES if not rows_of(*case)])
def test_request_without_rows_needs_no_access(
    admin: Client, acls: Acls, client: Client, api: str, version: int
) -> None:
    place = place_for(admin, api)
    with acls.granted():
        assert not AUTHORIZATION_ERRORS.intersection(errors_in(send(client, api, version, place)))


IN_PART = [(name, version) for name, version in CASES if arrays_of(name, version)]
"""APIs whose items are permitted or denied independently."""
ALL_OR_NONE = {("AddPartitionsToTxn", version) for version in range(4)}


@pytest.mark.parametrize(("api", "version"), IN_PART)
def test_denied_items_have_an_error_beside_permitted_ones(
    admin: Client, acls: Acls, client: Client, api: str, version: int
) -> None:
    permitted, denied = place_for(admin, api), place_for(admin, api)
    request = request_for_both(api, version, permitted, denied)
    rows = rows_of(api, version)
    with acls.granted(*permissions_for(rows, permitted)):
        answer = client.send(api, version, request)
    found = errors_in(answer)
    if (api, version) in ALL_OR_NONE:
        assert sorted(found) == sorted([E.TOPIC_AUTHORIZATION_FAILED, E.OPERATION_NOT_ATTEMPTED])
        return
    expected = OUTCOMES.get(api, [])
    assert len(found) == len(expected) + 1
    [code] = [error for error in found if error not in expected]
    assert code in AUTHORIZATION_ERRORS
    text = repr(answer)
    assert denied.topic in text or str(denied.topic_id) in text


UNKNOWN = uuid.UUID(int=7)
NAMED = {
    "AddPartitionsToTxn": 3,
    "AlterConfigs": 2,
    "ConsumerGroupHeartbeat": 1,
    "CreatePartitions": 3,
    "CreateTopics": 7,
    "DeleteRecords": 2,
    "DeleteTopics": 6,
    "DescribeConfigs": 4,
    "DescribeProducers": 0,
    "DescribeTopicPartitions": 0,
    "Fetch": 12,
    "IncrementalAlterConfigs": 1,
    "ListOffsets": 11,
    "Metadata": 13,
    "OffsetCommit": 9,
    "OffsetDelete": 0,
    "OffsetFetch": 9,
    "OffsetForLeaderEpoch": 4,
    "Produce": 12,
    "TxnOffsetCommit": 5,
}
"""The latest version in which the request names topics by name."""


@pytest.mark.parametrize(("api", "version"), NAMED.items())
def test_denied_topic_looks_like_one_that_does_not_exist(
    admin: Client, acls: Acls, client: Client, api: str, version: int
) -> None:
    place = place_for(admin, api)
    missing = replace(place, topic=f"missing-{place.topic}", topic_id=UNKNOWN)
    others = [entry for entry in permissions_of(rows_of(api, version)) if entry[1] != ResourceType.TOPIC]
    with acls.granted(*others):
        existing, absent = (shown(send(client, api, version, each)) for each in (place, missing))
    assert str(int(E.TOPIC_AUTHORIZATION_FAILED)) in existing
    assert existing == absent.replace(missing.topic, place.topic)


def shown(answer: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(answer))  # views of bytes


def test_lists_leave_out_what_may_not_be_described(admin: Client, acls: Acls, client: Client) -> None:
    place, other = place_for(admin, "EndTxn"), place_for(admin, "EndTxn")
    describe = AclOperation.DESCRIBE
    permitted = [(describe, ResourceType.TOPIC, place.topic), (describe, ResourceType.GROUP, place.group)]
    with acls.granted(*permitted, (describe, ResourceType.TRANSACTIONAL_ID, place.fresh)):
        metadata = client.send("Metadata", 12, message("Metadata", {"topics": None}))
        assert [topic.name for topic in metadata.topics] == [place.topic]
        page = client.send("DescribeTopicPartitions", 0, message("DescribeTopicPartitions", {}))
        assert [topic.name for topic in page.topics] == [place.topic]
        groups = client.send("ListGroups", 5, message("ListGroups", {})).groups
        assert [group.group_id for group in groups] == [place.group]
        listed = client.send("ListTransactions", 2, message("ListTransactions", {})).transaction_states
        assert [each.transactional_id for each in listed] == [place.fresh]
    with acls.granted((AclOperation.DESCRIBE, *CLUSTER)):
        groups = client.send("ListGroups", 5, message("ListGroups", {})).groups
        assert {place.group, other.group} <= {group.group_id for group in groups}


def test_topics_are_created_only_with_permission(admin: Client, acls: Acls, client: Client) -> None:
    created, described = (f"auto-{uuid.uuid4()}" for _ in range(2))
    create, describe = AclOperation.CREATE, AclOperation.DESCRIBE
    kind = ResourceType.TOPIC
    with acls.granted((create, kind, created), (describe, kind, created), (describe, kind, described)):
        request = message("Metadata", {"topics": [{"name": created}, {"name": described}]})
        codes = {each.name: each.error_code for each in client.send("Metadata", 12, request).topics}
        assert codes == {created: E.UNKNOWN_TOPIC_OR_PARTITION, described: E.TOPIC_AUTHORIZATION_FAILED}
        until(
            lambda: (
                not client.send("Metadata", 12, message("Metadata", {"topics": [{"name": created}]}))
                .topics[0]
                .error_code
            ),
            "the topic is created",
        )
    everything = admin.send("Metadata", 12, message("Metadata", {"topics": None})).topics
    assert described not in [topic.name for topic in everything]
    with acls.granted((create, kind, "mine")):
        topic = {"name": "mine", "num_partitions": 1, "replication_factor": 1}
        [made] = client.send(
            "CreateTopics", 7, message("CreateTopics", {"topics": [topic], "timeout_ms": 5000})
        ).topics
        assert (made.error_code, made.topic_config_error_code) == (E.NONE, E.TOPIC_AUTHORIZATION_FAILED)
        assert (made.num_partitions, made.configs) == (-1, None)


def test_authorized_operations_are_those_of_the_client(admin: Client, acls: Acls, client: Client) -> None:
    place = place_for(admin, "ConsumerGroupDescribe")
    wanted = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    request = message("Metadata", {"topics": [{"name": place.topic}], **wanted})
    bits = 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
    with acls.granted(
        (AclOperation.READ, ResourceType.TOPIC, "*"), (AclOperation.READ, ResourceType.GROUP, "*")
    ):
        metadata = client.send("Metadata", 10, request)
        assert metadata.topics[0].topic_authorized_operations == bits
        assert metadata.cluster_authorized_operations == 0
        for api, array in (("DescribeGroups", "groups"), ("ConsumerGroupDescribe", "group_ids")):
            wanted_groups = message(api, {array: [place.group], "include_authorized_operations": True})
            [group] = client.send(
                api, BY_NAME[api].max_version - (api == "DescribeGroups"), wanted_groups
            ).groups
            if not group.error_code:
                assert group.authorized_operations == bits
    with acls.granted((AclOperation.ALTER, *CLUSTER)):
        expected = 1 << AclOperation.ALTER | 1 << AclOperation.DESCRIBE
        about_cluster = message("DescribeCluster", {"include_cluster_authorized_operations": True})
        for found in (client.send("DescribeCluster", 2, about_cluster), client.send("Metadata", 10, request)):
            assert found.cluster_authorized_operations == expected


def test_idempotent_producer_needs_write_on_any_topic(acls: Acls, client: Client) -> None:
    request = message("InitProducerId", {"transactional_id": None})
    write = (AclOperation.WRITE, ResourceType.TOPIC, "some-topic")
    with acls.granted((AclOperation.READ, ResourceType.TOPIC, "*")):
        assert client.send("InitProducerId", 5, request).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    with acls.granted(write):
        assert client.send("InitProducerId", 5, request).error_code == E.NONE
        acls.add((AclOperation.WRITE, ResourceType.TOPIC, "*"), permission=Permission.DENY)
        assert client.send("InitProducerId", 5, request).error_code == E.CLUSTER_AUTHORIZATION_FAILED


def test_fetch_session_ends_with_its_acl(admin: Client, acls: Acls, client: Client) -> None:
    one, two = place_for(admin, "Fetch"), place_for(admin, "Fetch")
    request = request_for_both("Fetch", 12, one, two)
    request.session_epoch = 0
    read = [(AclOperation.READ, ResourceType.TOPIC, place.topic) for place in (one, two)]
    with acls.granted(*read):
        first = client.send("Fetch", 12, request)
        assert first.session_id and not errors_in(first)
        acls.revoke()
        acls.add(read[0])
        following = message("Fetch", {"session_id": first.session_id, "session_epoch": 1, "max_wait_ms": 0})
        second = client.send("Fetch", 12, following)
        codes = {topic.topic: topic.partitions[0].error_code for topic in second.responses}
        assert codes[two.topic] == E.TOPIC_AUTHORIZATION_FAILED
        assert codes.get(one.topic, E.NONE) == E.NONE


def test_waiting_fetch_is_refused_when_its_acl_is_gone(admin: Client, acls: Acls, client: Client) -> None:
    topic = admin.create()
    read = (AclOperation.READ, ResourceType.TOPIC, topic)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    waiting = {"max_wait_ms": 60_000, "min_bytes": 1, "topics": [{"topic": topic, "partitions": [partition]}]}
    with acls.granted(read):
        client.post("Fetch", 12, message("Fetch", waiting))
        acls.revoke()
        admin.produce(topic, batch())
        answer = client.receive("Fetch", 12)
    assert errors_in(answer) == [E.TOPIC_AUTHORIZATION_FAILED]


def test_transaction_and_membership_end_with_their_acls(admin: Client, acls: Acls, client: Client) -> None:
    rows = permissions_of(rows_of("EndTxn", 4))
    with acls.granted(*rows):
        place = place_for(admin, "EndTxn")
        acls.revoke()
        assert errors_in(send(client, "EndTxn", 4, place)) == [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        acls.add(*rows)
        assert errors_in(send(client, "EndTxn", 4, place)) == []
    rows = permissions_of(rows_of("Heartbeat", 4))
    with acls.granted(*rows):
        place = place_for(admin, "Heartbeat")
        assert errors_in(send(client, "Heartbeat", 4, place)) == []
        acls.revoke()
        assert errors_in(send(client, "Heartbeat", 4, place)) == [E.GROUP_AUTHORIZATION_FAILED]


def test_large_produce_requests_are_appended_in_their_order(
    broker: TierlogBroker, admin: Client, acls: Acls
) -> None:
    """They are checked in turns of the event loop, while later ones of the producer have arrived."""
    topic = admin.create()
    data = [{"index": 0, "records": batch()}]
    others = [{"name": f"denied-{number}", "partition_data": data} for number in range(1_000)]
    mine = {"name": topic, "partition_data": data}
    small = {"acks": -1, "timeout_ms": 10_000, "topic_data": [mine]}
    large = small | {"topic_data": [*others, mine]}
    with acls.granted((AclOperation.WRITE, ResourceType.TOPIC, topic)):
        producer = Client(broker.bootstrap, HOST)
        requests = [large, small, large, large, small]
        for request in requests:
            producer.post("Produce", 9, message("Produce", request))
        for number, request in enumerate(requests):
            answer = producer.receive("Produce", 9)
            results = {one.name: one.partition_responses[0] for one in answer.responses}
            assert (results[topic].error_code, results[topic].base_offset) == (0, number)
            codes = {one.error_code for name, one in results.items() if name != topic}
            assert codes == (set() if request is small else {E.TOPIC_AUTHORIZATION_FAILED})
        producer.close()


def versions_of(api: str, first: int = 0) -> list[int]:
    return list(range(max(first, BY_NAME[api].min_version), BY_NAME[api].max_version + 1))


WRITE_ID = (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "*")
WRITE_TOPIC = (AclOperation.WRITE, ResourceType.TOPIC, "*")
ID_DENIED = [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("version", versions_of("Produce"))
def test_transactional_batch_needs_write_on_its_id(
    admin: Client, acls: Acls, client: Client, version: int
) -> None:
    place = place_for(admin, "EndTxn")
    records = encode_batch(
        [NewRecord(int(time.time() * 1000), b"k", b"v")],
        producer_id=place.producer_id,
        producer_epoch=place.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    values = MAKE["Produce"](place)
    values["topic_data"][0]["partition_data"] = [{"index": 0, "records": bytes(records)}]
    with_id = message("Produce", values | {"transactional_id": place.fresh})
    with acls.granted(WRITE_TOPIC):
        assert errors_in(client.send("Produce", version, with_id)) == ID_DENIED
        assert errors_in(client.send("Produce", version, message("Produce", values))) == ID_DENIED
    with acls.granted(WRITE_ID):
        denied = errors_in(client.send("Produce", version, with_id))
        assert denied == [E.TOPIC_AUTHORIZATION_FAILED]
    with acls.granted(WRITE_ID, WRITE_TOPIC):
        assert errors_in(client.send("Produce", version, with_id)) == []


@pytest.mark.parametrize("version", versions_of("InitProducerId"))
def test_transactional_producer_needs_write_on_its_id(
    admin: Client, acls: Acls, client: Client, version: int
) -> None:
    name = f"init-{version}"
    admin.transactional_producer(name)
    request = message("InitProducerId", {"transactional_id": name, "transaction_timeout_ms": 60_000})
    with acls.granted(WRITE_TOPIC, (AclOperation.IDEMPOTENT_WRITE, *CLUSTER)):
        assert errors_in(client.send("InitProducerId", version, request)) == ID_DENIED
    with acls.granted(WRITE_ID):
        assert errors_in(client.send("InitProducerId", version, request)) == []


@pytest.mark.parametrize("version", versions_of("InitProducerId", TWO_PHASE_COMMIT_FROM))
def test_two_phase_commit_needs_an_operation_of_its_own(
    admin: Client, acls: Acls, client: Client, version: int
) -> None:
    name = f"two-phase-{version}"
    admin.transactional_producer(name)
    values = {"transactional_id": name, "transaction_timeout_ms": 60_000, "enable2_pc": True}
    request = message("InitProducerId", values)
    both = (WRITE_ID, (AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name))
    for missing in both:
        with acls.granted(*(each for each in both if each != missing)):
            assert errors_in(client.send("InitProducerId", version, request)) == ID_DENIED
    with acls.granted(*both):
        assert errors_in(client.send("InitProducerId", version, request)) == []


def test_described_transaction_has_only_permitted_topics(admin: Client, acls: Acls, client: Client) -> None:
    place = place_for(admin, "EndTxn")
    of_id = (AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, place.fresh)
    of_topic = (AclOperation.DESCRIBE, ResourceType.TOPIC, place.topic)

    def topics() -> list[str]:
        answer = send(client, "DescribeTransactions", 0, place)
        assert errors_in(answer) == []
        [found] = answer.transaction_states
        return [topic.topic for topic in found.topics]

    with acls.granted(of_id):
        assert topics() == []
    with acls.granted(of_id, of_topic):
        assert topics() == [place.topic]


OWNERS = [
    (BROKER, "", CLUSTER, {"name": "min.insync.replicas", "value": "1"}),
    (BROKER, "1", CLUSTER, {"name": "log.cleaner.backoff.ms", "value": "15000"}),
    (CLIENT_METRICS, "all", CLUSTER, {"name": "interval.ms", "value": "60000"}),
    (
        GROUP,
        "readers",
        (ResourceType.GROUP, "readers"),
        {"name": "consumer.session.timeout.ms", "value": "50000"},
    ),
]
"""Resources with settings: kind, name, the resource of their ACLs, and a setting."""


@pytest.mark.parametrize(("kind", "name", "resource", "setting"), OWNERS)
@pytest.mark.parametrize(
    ("api", "operation"),
    [
        ("DescribeConfigs", AclOperation.DESCRIBE_CONFIGS),
        ("AlterConfigs", AclOperation.ALTER_CONFIGS),
        ("IncrementalAlterConfigs", AclOperation.ALTER_CONFIGS),
    ],
)
def test_settings_need_access_to_their_owner(
    acls: Acls,
    client: Client,
    api: str,
    operation: AclOperation,
    kind: int,
    name: str,
    resource: tuple[ResourceType, str],
    setting: dict[str, str],
) -> None:
    owner = {"resource_type": kind, "resource_name": name}
    if api == "DescribeConfigs":
        values: dict[str, Any] = {"resources": [owner | {"configuration_keys": None}]}
    else:
        values = {"resources": [owner | {"configs": [setting]}], "validate_only": True}
    types = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
    everything = [(operation, each, CLUSTER.name if each == ResourceType.CLUSTER else "*") for each in types]
    for version in versions_of(api):
        with acls.granted(*(each for each in everything if each[1] != resource[0])):
            assert errors_in(client.send(api, version, message(api, values))) == [DENIED[resource[0]]]
        with acls.granted((operation, *resource)):
            assert errors_in(client.send(api, version, message(api, values))) == []


@pytest.mark.parametrize("version", versions_of("FindCoordinator", KEY_TYPES_FROM))
def test_coordinator_of_a_transactional_id_needs_describe_on_it(
    admin: Client, acls: Acls, client: Client, version: int
) -> None:
    admin.transactional_producer("found")
    values = {"key": "found", "coordinator_keys": ["found"], "key_type": TRANSACTION}
    request = message("FindCoordinator", values)
    with acls.granted((AclOperation.DESCRIBE, ResourceType.GROUP, "*")):
        assert errors_in(client.send("FindCoordinator", version, request)) == ID_DENIED
    with acls.granted((AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "found")):
        assert errors_in(client.send("FindCoordinator", version, request)) == []


def test_unacknowledged_produce_that_is_denied_closes_the_connection(
    broker: TierlogBroker, admin: Client, acls: Acls
) -> None:
    topic = admin.create()
    request = {
        "acks": 0,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch()}]}],
    }
    with acls.granted():
        producer = Client(broker.bootstrap, HOST)
        producer.post("Produce", 9, message("Produce", request))
        with pytest.raises(ConnectionError):
            producer.receive("Produce", 9)
        producer.close()
    assert not admin.fetch(topic, 0).responses[0].partitions[0].records


def test_regular_expressions_match_only_topics_that_may_be_described(
    admin: Client, acls: Acls, client: Client
) -> None:
    prefix = f"re{uuid.uuid4().hex}"
    topics = [{"name": f"{prefix}-{n}", "num_partitions": 1, "replication_factor": 1} for n in range(3)]
    made = admin.send("CreateTopics", 7, message("CreateTopics", {"topics": topics, "timeout_ms": 5000}))
    admin.coordinator(prefix)
    describe, kind = AclOperation.DESCRIBE, ResourceType.TOPIC
    heartbeat = {
        "group_id": prefix,
        "member_id": "m",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_regex": f"{prefix}.*",
        "topic_partitions": [],
    }
    assigned: list[uuid.UUID] = []

    def has_assignment() -> bool:
        answer = client.send("ConsumerGroupHeartbeat", 1, message("ConsumerGroupHeartbeat", heartbeat))
        assert answer.error_code == E.NONE
        heartbeat["member_epoch"] = answer.member_epoch
        if answer.assignment is not None:
            assigned[:] = [each.topic_id for each in answer.assignment.topic_partitions]
        return bool(assigned)

    with acls.granted((AclOperation.READ, ResourceType.GROUP, prefix), (describe, kind, f"{prefix}-1")):
        until(has_assignment, "the topics that match are assigned")
    assert assigned == [made.topics[1].topic_id]
