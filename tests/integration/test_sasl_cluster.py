"""A cluster whose brokers log in to each other, and whose first user exists before its first start."""

import time
from pathlib import Path

from cli_inline import call
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from scraping import wait_for_metric

from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.local_cluster import LocalCluster

RECORDS = 1_000
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_brokers_replicate_over_sasl(tmp_path: Path) -> None:
    settings = {
        "listeners": "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,CLIENTS:PLAINTEXT",
        "sasl.jaas.config": 'ScramLoginModule required username="broker" password="canary-of-broker";',
        "connections.max.reauth.ms": 2_000,
    }
    (tmp_path / "password").write_text("canary-of-broker\n")
    first_user = f"SCRAM-SHA-512=[name=broker,password-file={tmp_path / 'password'}]"
    cluster = LocalCluster(tmp_path / "cluster", settings=settings)
    for node in cluster:
        ended = call("storage", "format", "--set", f"log.dirs={node.data_dir}", "--add-scram", first_user)
        assert ended.code == 0, ended
    with cluster:
        login = {
            "bootstrap.servers": ",".join(node.bootstrap for node in cluster),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "broker",
            "sasl.password": "canary-of-broker",
        }
        admin = AdminClient(login)
        topic = NewTopic("replicated", 3, 3, config={"min.insync.replicas": "3"})
        admin.create_topics([topic])["replicated"].result(30)
        started = {node.bootstrap: len(node.log_path.read_text()) for node in cluster}
        failures: list[object] = []
        producer = Producer({**login, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(
                "replicated", b"x", str(number), on_delivery=lambda error, _: failures.append(error)
            )
        assert producer.flush(60) == 0
        assert failures == [None] * RECORDS
        consumer = Consumer({**login, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["replicated"])
        found = 0
        while found < RECORDS:
            found += len(consumer.consume(RECORDS, 10))
        consumer.close()
        for node in cluster:  # followers log in again on their connections, which stay open
            name = "kafka_server_socket_server_metrics_successful_reauthentication_total"
            wait_for_metric(node, 5, name, listener="BROKERS")
            assert "cannot reach a leader" not in node.log_path.read_text()[started[node.bootstrap] :]
    for node in cluster:
        assert "canary" not in node.log_path.read_text()
        assert not (node.data_dir / "first-users.json").exists()


def test_closed_cluster_with_tls_users_and_acls(tmp_path: Path) -> None:
    """Brokers connect to each other over SASL_SSL as a super user; a user needs ACLs."""
    authority = LocalAuthority(tmp_path / "certificates", int(time.time()), 30)
    authority.issue("broker", ("localhost", "127.0.0.1"))
    ca = str(authority.directory / "ca.pem")
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.directory / "broker.pem",
        "ssl.truststore.location": ca,
        "sasl.jaas.config": 'ScramLoginModule required username="broker" password="canary-of-broker";',
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:broker",
    }
    (tmp_path / "password").write_text("canary-of-broker\n")
    first_user = f"SCRAM-SHA-512=[name=broker,password-file={tmp_path / 'password'}]"
    cluster = LocalCluster(tmp_path / "cluster", settings=settings)
    for node in cluster:
        assert (
            call("storage", "format", "--set", f"log.dirs={node.data_dir}", "--add-scram", first_user).code
            == 0
        )
    with cluster:
        login = {
            "bootstrap.servers": ",".join(node.bootstrap for node in cluster),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "broker",
            "sasl.password": "canary-of-broker",
        }
        admin = AdminClient(login)
        topic = NewTopic("closed", 1, 3, config={"min.insync.replicas": "3"})
        admin.create_topics([topic])["closed"].result(30)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("ada", info, b"lovelace")])[
            "ada"
        ].result(30)
        ada = {**login, "sasl.username": "ada", "sasl.password": "lovelace", "acks": "all"}
        assert produced(ada) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        may_write = AclBinding(
            ResourceType.TOPIC,
            "closed",
            ResourcePatternType.LITERAL,
            "User:ada",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([may_write])[may_write].result(30)
        deadline = time.monotonic() + 30
        while (code := produced(ada)) is not None:
            assert time.monotonic() < deadline, code


def produced(settings: dict[str, object]) -> int | None:
    """The error of one record."""
    errors: list[KafkaError | None] = []
    producer = Producer(settings)
    producer.produce("closed", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    (error,) = errors
    return None if error is None else error.code()
