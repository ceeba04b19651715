"""A cluster whose brokers log in to each other, and whose first user exists before its first start."""

from pathlib import Path

from cli_inline import call
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from scraping import wait_for_metric
from secured_cluster import allow, create_users, error_of_record, login, login_of_broker
from waiting import until

from tierlog.cli.local_cluster import LocalCluster

RECORDS = 1_000


def test_brokers_replicate_over_sasl(tmp_path: Path) -> None:
    settings = {
        "listeners": "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,CLIENTS:PLAINTEXT",
        "sasl.jaas.config": login_of_broker("canary-of-broker"),
        "connections.max.reauth.ms": 2_000,
    }
    (tmp_path / "password").write_text("canary-of-broker\n")
    first_user = f"SCRAM-SHA-512=[name=broker,password-file={tmp_path / 'password'}]"
    cluster = LocalCluster(tmp_path / "cluster", settings=settings)
    for node in cluster:
        ended = call("storage", "format", "--set", f"log.dirs={node.data_dir}", "--add-scram", first_user)
        assert ended.code == 0, ended
    with cluster:
        client = {
            "bootstrap.servers": ",".join(node.bootstrap for node in cluster),
            "security.protocol": "SASL_PLAINTEXT",
            **login("broker", "canary-of-broker"),
        }
        admin = AdminClient(client)
        topic = NewTopic("replicated", 3, 3, config={"min.insync.replicas": "3"})
        admin.create_topics([topic])["replicated"].result(60)
        failures: list[object] = []
        producer = Producer({**client, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(
                "replicated", b"x", str(number), on_delivery=lambda error, _: failures.append(error)
            )
        assert producer.flush(60) == 0
        assert failures == [None] * RECORDS
        consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["replicated"])
        found = 0
        while found < RECORDS:
            found += len(consumer.consume(RECORDS - found, 10))
        consumer.close()
        for node in cluster:  # followers log in again on their connections, which stay open
            name = "kafka_server_socket_server_metrics_successful_reauthentication_total"
            wait_for_metric(node, 5, name, listener="BROKERS")
    for node in cluster:
        assert "canary" not in node.log_path.read_text()
        assert not (node.data_dir / "first-users.json").exists()


def test_closed_cluster_with_tls_users_and_acls(tmp_path: Path) -> None:
    """Brokers connect to each other over SASL_SSL as a super user; a user needs ACLs."""
    with LocalCluster(tmp_path / "cluster", secure=True) as cluster:
        assert cluster.security is not None
        root = cluster.security.librdkafka_settings(cluster.bootstrap)
        admin = AdminClient(root)
        topic = NewTopic("closed", 1, 3, config={"min.insync.replicas": "3"})
        admin.create_topics([topic])["closed"].result(60)
        create_users(admin, {"ada": "lovelace"})
        ada = {**root, **login("ada", "lovelace"), "acks": "all"}
        assert error_of_record(ada, "closed") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        allow(admin, "ada", AclOperation.WRITE, "closed")
        until(lambda: error_of_record(ada, "closed") is None, "the ACL reaches the leader")
