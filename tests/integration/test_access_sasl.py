"""A cluster whose brokers and clients log in with SCRAM, and whose ACLs name real users."""

from collections.abc import Iterator
from typing import Any

import pytest
from cli_inline import Ended, call
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from waiting import until

from tierlog.cli.local_cluster import LocalCluster
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.metadata.acls import OPERATIONS_OF, ResourceType

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PASSWORD = "canary-of-access"
NODES = 3
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.jaas.config": f'ScramLoginModule required username="broker" password="{PASSWORD}";',
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:broker;User:admin",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "password").write_text(f"{PASSWORD}\n")
    cluster = LocalCluster(directory / "nodes", NODES, SETTINGS)
    users = [
        f"SCRAM-SHA-512=[name={name},password-file={directory / 'password'}]" for name in ("broker", "admin")
    ]
    for node in cluster:
        words = [word for user in users for word in ("--add-scram", user)]
        ended = call("storage", "format", "--set", f"log.dirs={node.data_dir}", *words)
        assert ended.code == 0, ended
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> AdminClient:
    client = AdminClient(login(cluster, "admin"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for user in ("ada", "bob", "eve"):
        change = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
        client.alter_user_scram_credentials([change])[user].result(60)
    topics = [NewTopic(name, 3, NODES) for name in ("flights-in", "flights-out", "secret")]
    for created in client.create_topics(topics).values():
        created.result(60)
    return client


def login(cluster: LocalCluster, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": ",".join(node.bootstrap for node in cluster),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }


def acl(cluster: LocalCluster, *words: str) -> Ended:
    file, settings = cluster.directory / "admin.properties", login(cluster, "admin")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file.write_text(
        f"bootstrap.servers={settings['bootstrap.servers']}\n"
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="admin" password="{PASSWORD}";\n'
    )
    ended = call("acl", *words, "--client-config", str(file))
    assert ended.code == 0, ended.stderr
    return ended


def error_of_produce(cluster: LocalCluster, user: str, topic: str) -> int | None:
    errors: list[KafkaError | None] = []
    producer = Producer(login(cluster, user) | {"enable.idempotence": False})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    return None if errors[0] is None else errors[0].code()


def test_users_may_do_what_their_acls_allow(cluster: LocalCluster, admin: AdminClient) -> None:
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert error_of_produce(cluster, "ada", "flights-in") == denied
    prefixed = ("--resource-pattern-type", "prefixed")
    acl(
        cluster,
        "create",
        "--allow-principal",
        "ada",
        "--operation",
        "write",
        "--topic",
        "flights-",
        *prefixed,
    )
    until(lambda: error_of_produce(cluster, "ada", "flights-in") is None, "ada may write")
    assert error_of_produce(cluster, "ada", "flights-out") is None
    assert error_of_produce(cluster, "ada", "secret") == denied
    assert error_of_produce(cluster, "eve", "flights-in") == denied
    read = ("--operation", "read", "--topic", "flights-in", "--group", "readers")
    acl(cluster, "create", "--allow-principal", "bob", *read)
    consumer = Consumer(login(cluster, "bob") | {"group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["flights-in"])
    found = consumer.consume(1, 60)
    assert [message.error() for message in found] == [None]
    acl(cluster, "delete", "--allow-principal", "bob", "--yes")
    codes: set[int] = set()

    def is_refused() -> bool:
        assert error_of_produce(cluster, "ada", "flights-in") is None
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            codes.add(message.error().code())
        return bool(codes)

    until(is_refused, "bob's next requests are refused")
    consumer.close()
    assert codes <= {denied, KafkaError.GROUP_AUTHORIZATION_FAILED}


def test_clients_see_only_what_they_may_describe(cluster: LocalCluster, admin: AdminClient) -> None:
    everything = admin.list_topics(timeout=60).topics
    assert {"flights-in", "flights-out", "secret"} <= set(everything)
    eve = AdminClient(login(cluster, "eve"))
    assert eve.list_topics(timeout=60).topics == {}
    with pytest.raises(KafkaException) as refused:
        eve.create_topics([NewTopic("mine", 1, 1)])["mine"].result(60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as refused:
        eve.describe_cluster(include_authorized_operations=True).result(60)
        eve.delete_topics(["secret"])["secret"].result(60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    described = admin.describe_cluster(include_authorized_operations=True).result(60)
    assert {each.value for each in described.authorized_operations} == {
        int(each) for each in OPERATIONS_OF[ResourceType.CLUSTER]
    }
