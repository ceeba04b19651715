"""Real clients that log in, on SASL_PLAINTEXT and SASL_SSL listeners of one broker."""

import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from cli_inline import call
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from issuer import AUDIENCE, ISSUER, key_set, token
from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.cluster_files import free_ports
from tierlog.cli.process import TierlogBroker

ADMIN, PASSWORD = "admin", "canary-of-admin"
LOGINS = {
    "SCRAM-SHA-256": (ADMIN, PASSWORD),
    "SCRAM-SHA-512": (ADMIN, PASSWORD),
    "PLAIN": ("ada", "canary-of-ada"),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    authority = LocalAuthority(tmp_path_factory.mktemp("certificates"), int(time.time()), 30)
    authority.issue("broker", ("localhost", "127.0.0.1"))
    return authority


@pytest.fixture(scope="module")
def secure_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: LocalAuthority, secure_port: int
) -> Iterator[TierlogBroker]:
    """Its first listener is SASL_PLAINTEXT, its second one SASL_SSL."""
    directory = tmp_path_factory.mktemp("broker")
    (directory / "keys.json").write_bytes(key_set())
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:{secure_port}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "plain.sasl.jaas.config": 'PlainLoginModule required user_ada="canary-of-ada";',
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "ssl.keystore.location": authority.directory / "broker.pem",
    }
    running = TierlogBroker(directory, settings)
    (directory / "password").write_text(f"{PASSWORD}\n")
    credentials = [
        f"--add-scram={mechanism}=[name={ADMIN},password-file={directory / 'password'}]"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    ended = call("storage", "format", "--set", f"log.dirs={running.data_dir}", *credentials)
    assert ended.code == 0, ended
    with running:
        yield running
    assert "canary" not in running.log_path.read_text()


def settings_for(bootstrap: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", LOGINS)
def test_librdkafka_logs_in(broker: TierlogBroker, mechanism: str) -> None:
    settings = settings_for(broker.bootstrap, mechanism, *LOGINS[mechanism])
    producer, failures = Producer(settings), []
    producer.produce("rdkafka", b"x", on_delivery=lambda failure, _: failures.append(failure))
    producer.flush(60)
    assert failures == [None]
    consumer = Consumer({**settings, "group.id": f"g-{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rdkafka"])
    found = consumer.poll(60)
    assert found is not None and found.value() == b"x"
    consumer.close()


@pytest.mark.parametrize("mechanism", LOGINS)
def test_kafka_python_logs_in(broker: TierlogBroker, mechanism: str) -> None:
    user, password = LOGINS[mechanism]
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    assert producer.send("kafka-python", b"x").get(30).topic == "kafka-python"
    producer.close()


@pytest.mark.parametrize("mechanism", LOGINS)
async def test_aiokafka_logs_in(broker: TierlogBroker, mechanism: str) -> None:
    user, password = LOGINS[mechanism]
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    await producer.start()
    assert (await producer.send_and_wait("aiokafka", b"x")).topic == "aiokafka"
    await producer.stop()


def test_librdkafka_logs_in_with_a_token(broker: TierlogBroker) -> None:
    def fresh(_config: str) -> tuple[str, float]:
        return token(time.time()), time.time() + 300

    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": fresh,
    }
    producer, failures = Producer(settings), []
    producer.produce("tokens", b"x", on_delivery=lambda failure, _: failures.append(failure))
    producer.flush(60)
    assert failures == [None]


def test_wrong_password_is_reported_and_counted(broker: TierlogBroker) -> None:
    before = count(broker, "failed_authentication")
    failures: list[Any] = []
    producer = Producer(
        {
            **settings_for(broker.bootstrap, "SCRAM-SHA-512", ADMIN, "canary-wrong"),
            "error_cb": failures.append,
            "logger": None,
        }
    )
    while not failures:
        producer.poll(1)
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in str(failures[0])
    assert count(broker, "failed_authentication") > before


def test_librdkafka_logs_in_again_while_it_produces(tmp_path: Path) -> None:
    broker = TierlogBroker(
        tmp_path,
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "connections.max.reauth.ms": 1500},
    )
    first_user = f"SCRAM-SHA-512=[name={ADMIN},password={PASSWORD}]"
    ended = call("storage", "format", "--set", f"log.dirs={broker.data_dir}", "--add-scram", first_user)
    assert ended.code == 0, ended
    failures: list[Any] = []
    with broker:
        producer = Producer(settings_for(broker.bootstrap, "SCRAM-SHA-512", ADMIN, PASSWORD))
        while count(broker, "successful_reauthentication") < 3:
            producer.produce("again", b"x", on_delivery=lambda failure, _: failures.append(failure))
            producer.poll(0.1)
        producer.flush(60)
        assert count(broker, "failed_reauthentication") == 0
    assert set(failures) == {None}


def count(broker: TierlogBroker, what: str) -> float:
    with urllib.request.urlopen(f"{broker.admin_url}/metrics") as response:
        text = response.read().decode()
    name = f"kafka_server_socket_server_metrics_{what}"
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        if family.name == name
        for sample in family.samples
    )


def test_admin_client_manages_users(broker: TierlogBroker) -> None:
    admin = AdminClient(settings_for(broker.bootstrap, "SCRAM-SHA-512", ADMIN, PASSWORD))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    changes = [
        UserScramCredentialUpsertion("bob", info, b"canary-of-bob"),
        UserScramCredentialDeletion("eve", ScramMechanism.SCRAM_SHA_256),
    ]
    answers = admin.alter_user_scram_credentials(changes)
    assert answers["bob"].result(60) is None
    with pytest.raises(KafkaException, match="does not exist"):
        answers["eve"].result(60)
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(60)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8192)
    ]
    bob = AdminClient(settings_for(broker.bootstrap, "SCRAM-SHA-256", "bob", "canary-of-bob"))
    assert bob.list_topics(timeout=60).brokers


def test_commands_manage_users(broker: TierlogBroker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "# a comment\n"
        f"bootstrap.servers={broker.bootstrap}\n"
        "security.protocol = SASL_PLAINTEXT\n"
        "sasl.mechanism: SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'    username="{ADMIN}" password="{PASSWORD}";\n'
    )
    password = tmp_path / "password"
    password.write_text("canary-of-carol\n")
    of_admin = ("--client-config", str(config))
    assert call("user", "create", "carol", "--password-file", str(password), *of_admin).code == 0
    assert call("user", "create", "carol", "--password-file", str(password), *of_admin).code == 1
    listed = call("user", "list", "--json", *of_admin)
    assert "carol" in [row["user"] for row in json.loads(listed.stdout)]
    config.write_text(config.read_text().replace(ADMIN, "carol").replace(PASSWORD, "canary-of-carol"))
    assert call("topic", "list", *of_admin).code == 0
    password.write_text("canary-new\n")
    assert call("user", "alter", "carol", "--password-file", str(password), *of_admin).code == 0
    refused = call("topic", "list", *of_admin)
    assert refused.code == 1
    assert "invalid credentials" in refused.stderr
    config.write_text(config.read_text().replace("canary-of-carol", "canary-new"))
    assert call("user", "delete", "carol", "--yes", *of_admin).code == 0
    assert call("user", "list", *of_admin).code == 1
    everything = "".join((listed.stdout, listed.stderr, refused.stdout, refused.stderr))
    assert "canary" not in everything


@pytest.mark.usefixtures("broker")
def test_login_over_tls(secure_port: int, authority: LocalAuthority, tmp_path: Path) -> None:
    bootstrap = f"127.0.0.1:{secure_port}"
    ca = str(authority.directory / "ca.pem")
    settings = {**settings_for(bootstrap, "SCRAM-SHA-512", ADMIN, PASSWORD), "security.protocol": "SASL_SSL"}
    admin = AdminClient({**settings, "ssl.ca.location": ca})
    assert admin.list_topics(timeout=60).brokers
    python = KafkaProducer(
        bootstrap_servers=bootstrap,
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=ca),
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username=ADMIN,
        sasl_plain_password=PASSWORD,
    )
    assert python.send("tls", b"x").get(30).topic == "tls"
    python.close()
    config = tmp_path / "client.properties"
    config.write_text(
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={ADMIN}\nsasl.password={PASSWORD}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
    )
    assert call("topic", "list", "--client-config", str(config)).code == 0
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        login = ("--user", ADMIN, "--password", f"file:{password}", "--ca", str(ca))
        assert call("profile", "create", "tls", "--bootstrap", bootstrap, *login).code == 0
        assert call("topic", "list", "--profile", "tls").code == 0
    config.write_text(config.read_text().replace("ssl.truststore.", "# "))
    refused = call("topic", "list", "--client-config", str(config))
    assert refused.code != 0
    assert "certificate verify failed" in refused.stderr


def test_settings_show_no_secret(broker: TierlogBroker) -> None:
    admin = AdminClient(settings_for(broker.bootstrap, "SCRAM-SHA-512", ADMIN, PASSWORD))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    found = admin.describe_configs([resource])[resource].result(60)
    assert found["plain.sasl.jaas.config"].is_sensitive
    assert "canary" not in str({name: entry.value for name, entry in found.items()})
