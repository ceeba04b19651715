"""Clusters whose brokers and clients use TLS, with real clients."""

import asyncio
import os
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tierlog.cli.admin import AdminApi
from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker

DAYS = 30


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    authority = LocalAuthority(tmp_path_factory.mktemp("certificates"), int(time.time()), DAYS)
    authority.issue("broker", ("localhost", "127.0.0.1"))
    authority.issue("ada")
    return authority


def mutual(authority: LocalAuthority) -> dict[str, object]:
    directory = authority.directory
    return {
        "ssl.keystore.location": directory / "broker.pem",
        "ssl.truststore.location": directory / "ca.pem",
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
    }


def client_settings(authority: LocalAuthority, bootstrap: str) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.directory / "ca.pem"),
        "ssl.certificate.location": str(authority.directory / "ada.pem"),
        "ssl.key.location": str(authority.directory / "ada.pem"),
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: LocalAuthority) -> Iterator[TierlogBroker]:
    settings = {"listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", **mutual(authority)}
    with TierlogBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


def test_librdkafka_with_a_client_certificate(broker: TierlogBroker, authority: LocalAuthority) -> None:
    settings = client_settings(authority, broker.bootstrap)
    values = [os.urandom(1 << 20) for _ in range(100)]
    producer = Producer({**settings, "message.max.bytes": 2 << 20, "linger.ms": 0})
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("large", 1, config={"max.message.bytes": str(2 << 20)})])["large"].result(
        30
    )
    for value in values:
        producer.produce("large", value)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": "g", "fetch.message.max.bytes": 64 << 20})
    consumer.assign([TopicPartition("large", 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < len(values) and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(10, 0.1)]
    consumer.close()
    assert found == values


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_kafka_python_over_both_versions(
    broker: TierlogBroker, authority: LocalAuthority, version: str
) -> None:
    context = context_of(authority)
    number = ssl.TLSVersion[f"TLSv{version.replace('.', '_')}"]
    context.minimum_version = context.maximum_version = number
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap, "security_protocol": "SSL", "ssl_context": context
    }  # fmt: skip
    topic = f"python-{version}"
    producer = KafkaProducer(**settings)
    assert producer.send(topic, b"value").get(30).offset == 0
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    assert next(iter(consumer)).value == b"value"
    consumer.close()


async def test_aiokafka(broker: TierlogBroker, authority: LocalAuthority) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_context": context_of(authority),
    }
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("aio", b"value")
    async with AIOKafkaConsumer("aio", auto_offset_reset="earliest", **settings) as consumer:
        async with asyncio.timeout(30):
            assert (await consumer.getone()).value == b"value"


def test_expiry_is_a_metric_and_in_the_admin_api(broker: TierlogBroker) -> None:
    [row] = AdminApi(broker.admin_url, timeout_s=60).get("/v1/certificates")["certificates"]
    assert (row["listener"], row["reload_error"]) == ("SSL", None)
    assert row["days_left"] in (DAYS - 1, DAYS)
    text = urllib.request.urlopen(f"{broker.admin_url}/metrics").read().decode()
    seconds = row["expires_at_ms"] // 1000
    assert f'tierlog_certificate_expiry_timestamp_seconds{{listener="SSL"}} {seconds}' in text


def test_replaced_certificate_is_used_under_load(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Connections of the old certificate continue; new ones get the new one."""
    authority = LocalAuthority(tmp_path_factory.mktemp("replaced"), int(time.time()), DAYS)
    keystore = authority.issue("broker", ("localhost", "127.0.0.1"))
    authority.issue("ada")
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": keystore}
    with TierlogBroker(tmp_path, settings) as broker:
        failures: list[object] = []
        producer = Producer(client_settings(authority, broker.bootstrap))
        before = serial_number(broker, authority)
        authority.issue("broker", ("localhost", "127.0.0.1"))
        sent = 0
        while serial_number(broker, authority) == before:
            producer.produce("loaded", b"x" * 1000, on_delivery=lambda error, _: failures.append(error))
            producer.poll(0.01)
            sent += 1
        assert producer.flush(60) == 0
        assert failures == [None] * sent


def serial_number(broker: TierlogBroker, authority: LocalAuthority) -> object:
    context = ssl.create_default_context(cafile=authority.directory / "ca.pem")
    with (
        socket.create_connection((broker.host, broker.port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return (connection.getpeercert() or {})["serialNumber"]


def context_of(authority: LocalAuthority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.directory / "ca.pem")
    context.load_cert_chain(authority.directory / "ada.pem")
    return context


@pytest.mark.slow
def test_three_nodes_replicate_over_tls(tmp_path: Path, authority: LocalAuthority) -> None:
    """Clients use one listener, and brokers another one with certificates of both sides."""
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL",
        "inter.broker.listener.name": "BROKERS",
        **{f"listener.name.brokers.{name}": value for name, value in mutual(authority).items()},
        "listener.name.clients.ssl.keystore.location": authority.directory / "broker.pem",
    }
    with LocalCluster(tmp_path, settings=settings) as cluster:
        bootstrap = ",".join(node.bootstrap for node in cluster)
        clients = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.directory / "ca.pem"),
        }
        admin = AdminClient(clients)
        topic = NewTopic("replicated", 3, 3, config={"min.insync.replicas": "3"})
        admin.create_topics([topic])["replicated"].result(60)
        failures: list[object] = []
        producer = Producer({**clients, "acks": "all"})
        for number in range(3_000):
            producer.produce(
                "replicated", b"x" * 1000, str(number), on_delivery=lambda error, _: failures.append(error)
            )
        assert producer.flush(60) == 0
        assert failures == [None] * 3_000
