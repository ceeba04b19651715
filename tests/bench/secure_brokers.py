"""Brokers of the cases about security: Apache Kafka and tierlog with the same settings. Each has a plain
listener for the topics of the cases, one with TLS, and one with TLS and SCRAM."""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from report import KAFKA
from suite import HERE, Broker, fill, run_case, tierlog_broker

sys.path.insert(0, str(HERE.parent / "support"))
from kafka_process import KafkaProcess, free_ports

from tierlog.cli.certificates import LocalAuthority

LOCAL = "127.0.0.1"
SAME = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
OF_KAFKA = {
    "listener.security.protocol.map": SAME["listener.security.protocol.map"] + ",CONTROLLER:PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "socket.listen.backlog.size": "1024",  # tierlog's; Kafka's default refuses most of 1,000 at once
}
PACE = ("--seconds", "8", "--warm-s", "2", "--reps", "1", "--quiet-timeout", "1", "--retries", "0")
HEAT = (
    ("raw-produce", "--retain", "256m", "--batch", "64k", "--tls", "{tls}", "--ca", "{ca}"),
    (
        "raw-fetch",
        "--batch",
        "64k",
        "--topic",
        "{topic}",
        "--max-bytes",
        "64g",
        "--tls",
        "{tls}",
        "--ca",
        "{ca}",
    ),
    ("logins", "--at-once", "16", "--sasl", "{sasl}", "--ca", "{ca}"),
    ("login-storm", "--at-once", "200", "--sasl", "{sasl}", "--ca", "{ca}"),
    ("raw-produce", "--retain", "256m", "--batch", "16k"),
)
"""Load that compiles what the cases use."""


def certificates(directory: Path) -> dict[str, str]:
    """Settings with a certificate for this host, of a key of ECDSA P-256."""
    authority = LocalAuthority(directory, int(time.time()), 30)
    authority.issue("broker", ("localhost", LOCAL))
    return {"ssl.keystore.location": str(directory / "broker.pem")}


def placeholders(ports: Sequence[int], directory: Path) -> dict[str, str]:
    return {
        "tls": f"{LOCAL}:{ports[0]}",
        "sasl": f"{LOCAL}:{ports[1]}",
        "ca": str(directory / "ca.pem"),
    }


@contextmanager
def secure_kafka(classpath: str, java: Sequence[str], settings: Mapping[str, str]) -> Iterator[Broker]:
    """Heated."""
    with tempfile.TemporaryDirectory(prefix="kafka-bench-") as name:
        directory, (plain, controller, *ports) = Path(name), free_ports(4)
        served = f"PLAINTEXT://{LOCAL}:{plain},SSL://{LOCAL}:{ports[0]},SASL_SSL://{LOCAL}:{ports[1]}"
        more = {
            **settings,
            **SAME,
            **OF_KAFKA,
            **certificates(directory / "certificates"),
            "listeners": f"{served},CONTROLLER://{LOCAL}:{controller}",
            "advertised.listeners": served,
        }
        lines = "".join(f"{name}={value}\n" for name, value in more.items())
        kafka = KafkaProcess(classpath, directory, java, lines, ports=(plain, controller))
        try:
            broker = Broker(kafka.bootstrap, kafka.pid, KAFKA)
            broker = replace(broker, placeholders=placeholders(ports, directory / "certificates"))
            topic = fill(broker)
            for words in HEAT:
                case, *options = (word.format(topic=topic, **broker.placeholders) for word in words)
                run_case(broker, case, *PACE, *options)
            yield broker
        finally:
            kafka.stop()


@contextmanager
def secure_tierlog(label: str, compiled: Path | None, settings: Mapping[str, str]) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="tierlog-bench-") as name:
        directory, ports = Path(name), free_ports(2)
        more = {
            **settings,
            **SAME,
            **certificates(directory),
            "listeners": f"PLAINTEXT://{LOCAL}:0,SSL://{LOCAL}:{ports[0]},SASL_SSL://{LOCAL}:{ports[1]}",
        }
        with tierlog_broker(label, compiled, more) as broker:
            yield replace(broker, placeholders=placeholders(ports, directory))
