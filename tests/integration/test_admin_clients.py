"""Admin calls of kafka-python and confluent-kafka about a cluster of one node."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicCollection
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    InvalidReplicationAssignmentError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)

from tierlog.protocol.errors import ErrorCode
from tierlog.testing import TierlogBroker

TIMEOUT_S = 90.0
TOPIC = "admin-clients"


@pytest.fixture(scope="module")
def confluent(tierlog_session_broker: TierlogBroker) -> AdminClient:
    client = AdminClient({"bootstrap.servers": tierlog_session_broker.bootstrap})
    client.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(TIMEOUT_S)
    return client


@pytest.fixture(scope="module")
def python(tierlog_session_broker: TierlogBroker, confluent: AdminClient) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=tierlog_session_broker.bootstrap)
    yield client
    client.close()


def test_moves(python: Any) -> None:
    first, second = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    assert python.alter_partition_reassignments({first: [1]}) == {first: None}
    outcomes = python.alter_partition_reassignments({first: [9], second: None})
    assert outcomes == {first: InvalidReplicationAssignmentError, second: NoReassignmentInProgressError}
    assert python.list_partition_reassignments() == {}
    assert python.list_partition_reassignments({TOPIC: [0]}) == {}


def test_elections(python: Any, confluent: AdminClient) -> None:
    assert f"{ErrorCode.ELECTION_NOT_NEEDED:d}" in str(python.elect_leaders(0, {TOPIC: [0]}))
    with pytest.raises(UnknownTopicOrPartitionError):
        python.elect_leaders(0, {TOPIC: [9]})
    requested = [ConfluentPartition(TOPIC, 0), ConfluentPartition(TOPIC, 9)]
    outcomes = confluent.elect_leaders(ElectionType.PREFERRED, requested).result(TIMEOUT_S)
    codes = {partition.partition: error and error.name() for partition, error in outcomes.items()}
    assert codes == {0: "ELECTION_NOT_NEEDED", 9: "UNKNOWN_TOPIC_OR_PART"}


def test_quorum_and_features_are_described(python: Any) -> None:
    reported = python.describe_metadata_quorum()
    assert "'leader_id': 1" in str(reported)
    features = python.describe_features()
    reported = {
        name: (each["supported"], each["finalized"]) for name, each in features.items() if "finalized" in each
    }
    assert reported == {
        "eligible.leader.replicas.version": ((1, 1), (1, 1)),
        "group.version": ((0, 1), (1, 1)),
        "metadata.version": ((30, 30), (30, 30)),
        "tierlog.format": ((1, 4), (4, 4)),
        "transaction.version": ((0, 2), (2, 2)),
    }
    python.update_features({"tierlog.format": 4}, validate_only=True)


def test_topics_are_described_page_by_page(python: Any) -> None:
    page = python.describe_topic_partitions([TOPIC], response_partition_limit=1)
    assert [one["partition_index"] for one in page["topics"][0]["partitions"]] == [0]
    page = python.describe_topic_partitions([TOPIC], cursor=page["next_cursor"])
    [last] = page["topics"][0]["partitions"]
    assert (last["partition_index"], last["leader_id"], page["next_cursor"]) == (1, 1, None)


def test_topics_and_cluster_are_described(confluent: AdminClient) -> None:
    [described] = confluent.describe_topics(TopicCollection([TOPIC])).values()
    assert [partition.leader.id for partition in described.result(TIMEOUT_S).partitions] == [1, 1]
    cluster = confluent.describe_cluster().result(TIMEOUT_S)
    assert (cluster.controller.id, [node.id for node in cluster.nodes]) == (1, [1])
