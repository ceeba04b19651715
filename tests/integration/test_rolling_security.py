"""An open cluster is closed node by node while a producer writes: docs/howto/secure-a-cluster.md."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from rolling_load import Load
from secured_cluster import allow, create_users, login, login_of_broker
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.cluster_files import free_ports
from tierlog.cli.local_cluster import LocalCluster
from tierlog.config.authorization import STANDARD_AUTHORIZER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 3
PASSWORDS = {"broker": "canary-of-broker", "admin": "canary-of-admin", "billing": "canary-of-billing"}


class Nodes:
    """Three nodes with a port for each of two listeners: PLAINTEXT and SASL_PLAINTEXT."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        ports = free_ports(2 * len(cluster.nodes))
        self._ports = {node_id: (ports.pop(), ports.pop()) for node_id in cluster.nodes}
        for node_id in cluster.nodes:
            self.listen(node_id, "PLAINTEXT")

    def listen(self, node_id: int, *names: str) -> None:
        """Set the listeners for the next start."""
        ports = dict(zip(("PLAINTEXT", "SASL_PLAINTEXT"), self._ports[node_id], strict=True))
        addresses = [f"{name}://127.0.0.1:{ports[name]}" for name in names]
        self.cluster.nodes[node_id].settings["listeners"] = ",".join(addresses)

    def client(self, user: str | None = None) -> dict[str, object]:
        """Client settings of the open listener, or with a user those of the other one."""
        ports = [ports[0 if user is None else 1] for ports in self._ports.values()]
        bootstrap: dict[str, object] = {"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports)}
        if user is None:
            return bootstrap
        return bootstrap | {"security.protocol": "SASL_PLAINTEXT", **login(user, PASSWORDS[user])}

    def roll(self, load: Load, change: Mapping[str, object], *listeners: str) -> None:
        """Restart one node after the other with changed settings. A value of None removes one."""
        for node_id, node in self.cluster.nodes.items():
            node.stop()
            load.wait_for_progress()
            node.settings.update(change)
            node.settings = {name: value for name, value in node.settings.items() if value is not None}
            if listeners:
                self.listen(node_id, *listeners)
            node.start()
            until(self.in_sync, f"all replicas are in sync after {change} of node {node_id}")
            load.wait_for_progress()

    def in_sync(self) -> bool:
        """Whether each node reports all replicas of the topic in sync."""
        return all(
            set(row["in_sync"]) == set(self.cluster.nodes)
            for node in self.cluster
            for row in AdminApi(node.admin_url).get("/v1/partitions", topic="orders")["partitions"]
        )


@pytest.mark.parametrize("is_closed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_open_cluster_is_closed_without_downtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """`is_closed` False: only until clients and brokers use the listener with logins."""
    nodes = Nodes(LocalCluster(tmp_path))
    with nodes.cluster:
        admin = AdminClient(nodes.client())
        admin.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(60)
        until(nodes.in_sync, "a new cluster is in sync")
        create_users(admin, PASSWORDS)
        load = Load(nodes.client(), "orders", PARTITIONS)
        try:
            nodes.roll(load, {}, "PLAINTEXT", "SASL_PLAINTEXT")
        finally:
            load.stop()
        acknowledged = check(load)

        load = Load(nodes.client("billing"), "orders", PARTITIONS)
        try:
            between = {
                "inter.broker.listener.name": "SASL_PLAINTEXT",
                "sasl.jaas.config": login_of_broker(PASSWORDS["broker"]),
            }
            nodes.roll(load, between)
            if is_closed:
                close(nodes, load, monkeypatch)
        finally:
            load.stop()
        acknowledged += check(load)

        assert count(nodes.client("admin")) == acknowledged
        if is_closed:
            billing = AdminClient(nodes.client("billing"))
            denied = billing.create_topics([NewTopic("others", 1, 3)])["others"]
            assert denied.exception(30).args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def close(nodes: Nodes, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the open listener, and allow only what an ACL allows."""
    nodes.roll(load, {}, "SASL_PLAINTEXT")
    authorizer = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:broker;User:admin",
        "allow.everyone.if.no.acl.found": "true",
        "admin.authentication": "basic",
        "admin.admins": "User:admin",
    }
    monkeypatch.setenv("TIERLOG_ADMIN_USER", "admin")
    monkeypatch.setenv("TIERLOG_ADMIN_PASSWORD", PASSWORDS["admin"])
    nodes.roll(load, authorizer)
    allow(AdminClient(nodes.client("admin")), "billing", AclOperation.WRITE, "orders")
    nodes.roll(load, {"allow.everyone.if.no.acl.found": None})


def check(load: Load) -> int:
    """How many records a producer wrote, none of which failed."""
    assert not load.deliveries.failures
    assert load.sent == len(load.deliveries.acknowledged)
    return load.sent


def count(settings: Mapping[str, object]) -> int:
    """How many records the topic has."""
    consumer = Consumer({**settings, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(PARTITIONS)])
    found = ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            found += 1
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return found
