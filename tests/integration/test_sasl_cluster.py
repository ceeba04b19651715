"""A cluster whose brokers log in to each other, and whose first user exists before its first start."""

from pathlib import Path

from cli_inline import call
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tierlog.cli.local_cluster import LocalCluster

RECORDS = 1_000


def test_brokers_replicate_over_sasl(tmp_path: Path) -> None:
    settings = {
        "listeners": "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,CLIENTS:PLAINTEXT",
        "sasl.jaas.config": 'ScramLoginModule required username="broker" password="canary-of-broker";',
        "connections.max.reauth.ms": 3_600_000,
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
    for node in cluster:
        assert "canary" not in node.log_path.read_text()
        assert not (node.data_dir / "first-users.json").exists()
