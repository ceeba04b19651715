"""Three broker processes with an authorizer: each decides by the ACLs that the quorum keeps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from access_cases import HOST, SETTINGS, Acls
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Deliveries
from every_request import errors_in
from waiting import until
from wire_client import Client, message

from tierlog.broker.handlers.access import CLUSTER
from tierlog.cli.admin import AdminApi
from tierlog.cli.local_cluster import LocalCluster
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.protocol.errors import ErrorCode

pytestmark = pytest.mark.slow
NODES = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, NODES, SETTINGS) as running:
        yield running


def code(client: Client, topic: str) -> ErrorCode:
    request = message("Metadata", {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    return ErrorCode(client.send("Metadata", 12, request).topics[0].error_code)


def test_every_broker_applies_changes_of_acls_and_replication_continues(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("orders", 1, NODES)])["orders"].result(60)
    addresses = [broker.bootstrap for broker in cluster]
    acls = Acls(Client(addresses[0]))
    clients = [Client(address, HOST) for address in addresses]
    denied, allowed = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
    until(lambda: {code(client, "orders") for client in clients} == {denied}, "all brokers deny")
    acls.add((AclOperation.DESCRIBE, ResourceType.TOPIC, "orders"))
    until(lambda: {code(client, "orders") for client in clients} == {allowed}, "all brokers allow")
    acls.revoke()
    until(lambda: {code(client, "orders") for client in clients} == {denied}, "all brokers deny again")
    deliveries = Deliveries()
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "transactional.id": "payments"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(100):
        producer.produce("orders", b"%d" % number, on_delivery=deliveries)
    producer.commit_transaction(60)
    assert not deliveries.failures and len(deliveries.acknowledged) == 100
    metadata = admin.list_topics("orders", timeout=60).topics["orders"]
    assert len(metadata.partitions[0].isrs) == NODES
    for client in clients:
        client.close()


def test_request_with_the_id_and_epoch_of_a_broker_needs_cluster_action(cluster: LocalCluster) -> None:
    leader, follower = cluster.nodes[1], 2
    admin = Client(leader.bootstrap)
    acls = Acls(admin)
    topic = {"name": "orders", "assignments": [{"partition_index": 0, "broker_ids": [1, follower]}]}
    topic |= {"num_partitions": -1, "replication_factor": -1}
    made = admin.send("CreateTopics", 7, message("CreateTopics", {"topics": [topic], "timeout_ms": 30_000}))
    assert made.topics[0].error_code == ErrorCode.NONE
    admin.wait_for_leaders("orders")
    brokers = AdminApi(leader.admin_url).get("/v1/brokers")["brokers"]
    [epoch] = [each["epoch"] for each in brokers if each["id"] == follower]
    client = Client(leader.bootstrap, HOST)

    def fetched(broker_epoch: int) -> list[int]:
        values = {
            "max_wait_ms": 0,
            "session_epoch": -1,
            "replica_state": {"replica_id": follower, "replica_epoch": broker_epoch},
            "topics": [{"topic_id": made.topics[0].topic_id, "partitions": [{"partition": 0}]}],
        }
        return errors_in(client.send("Fetch", 17, message("Fetch", values)))

    with acls.granted((AclOperation.READ, ResourceType.TOPIC, "*")):
        assert fetched(epoch) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with acls.granted((AclOperation.CLUSTER_ACTION, *CLUSTER)):
        assert fetched(epoch) == []
        assert fetched(epoch + 1) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    client.close()
    admin.close()


def test_restarted_broker_has_the_acls_of_the_quorum(cluster: LocalCluster) -> None:
    addresses = [broker.bootstrap for broker in cluster]
    acls = Acls(Client(addresses[0]))
    acls.add((AclOperation.READ, ResourceType.TOPIC, "*"))
    broker = next(iter(cluster))
    broker.kill()
    broker.start()
    client = Client(addresses[0], HOST)
    until(lambda: code(client, "nosuch") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the ACL is applied")
    client.close()
