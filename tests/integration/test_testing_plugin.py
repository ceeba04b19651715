"""The pytest plugin as another project uses it: its fixtures and its failure reports."""

import asyncio
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from cli_process import run
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from kafka import KafkaProducer
from secured_cluster import allow, error_of_record
from waiting import until

from tierlog.testing import BrokerFailed, TierlogBroker, TierlogBrokerFactory


def connects(broker: TierlogBroker) -> bool:
    try:
        socket.create_connection((broker.host, broker.port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def produce(broker: TierlogBroker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def consume(broker: TierlogBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def test_broker_keeps_its_data_over_a_restart(tierlog_broker: TierlogBroker) -> None:
    produce(tierlog_broker, "t", [b"before"])
    where = tierlog_broker.bootstrap, tierlog_broker.admin_url
    tierlog_broker.restart()
    assert (tierlog_broker.bootstrap, tierlog_broker.admin_url) == where
    produce(tierlog_broker, "t", [b"after"])
    assert sorted(consume(tierlog_broker, "t", 2)) == [b"after", b"before"]


def test_settings_in_the_environment_are_ignored(
    tierlog_broker_factory: TierlogBrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_LISTENERS", "PLAINTEXT://127.0.0.1:1")
    assert connects(tierlog_broker_factory())


def test_kill_stops_at_once_and_start_recovers(tierlog_broker: TierlogBroker) -> None:
    produce(tierlog_broker, "t", [b"one", b"two"])
    tierlog_broker.kill()
    assert not tierlog_broker.running
    assert not connects(tierlog_broker)
    with pytest.raises(BrokerFailed):
        _ = tierlog_broker.pid
    tierlog_broker.start()
    assert sorted(consume(tierlog_broker, "t", 2)) == [b"one", b"two"]


def test_stop_is_clean_and_data_remains(tierlog_broker: TierlogBroker) -> None:
    tierlog_broker.stop()
    assert not tierlog_broker.running
    assert any(tierlog_broker.data_dir.iterdir())


def test_brokers_of_a_factory_share_nothing(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    first, second = tierlog_broker_factory({"num.partitions": 3}), tierlog_broker_factory()
    assert first.pid != second.pid
    assert first.port != second.port
    assert first.data_dir != second.data_dir


def test_wrong_setting_fails_with_the_brokers_message(
    tierlog_broker_factory: TierlogBrokerFactory,
) -> None:
    with pytest.raises(BrokerFailed, match=r"did you mean \'num\.partitions\'"):
        tierlog_broker_factory({"num.partition": 3})


def test_secure_broker_serves_its_users_alone(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory(secure=True, users=["ada"])
    admin = AdminClient(broker.client_settings())
    admin.create_topics([NewTopic("t", 1)])["t"].result(60)
    for directory in (broker.data_dir, broker.object_dir):
        assert stat.filemode(directory.stat().st_mode) == "drwx------"
    assert error_of_record(broker.client_settings(), "t") is None
    ada = broker.client_settings("ada")
    assert error_of_record(ada, "t") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(admin, "ada", AclOperation.WRITE, "t")
    until(lambda: error_of_record(ada, "t") is None, "the broker applies the ACL")
    stranger = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        stranger.list_topics(timeout=5)
    broker.restart()
    assert error_of_record(broker.client_settings("ada"), "t") is None
    file = broker.client_file
    assert file is not None
    listed = run("topic", "list", "--client-config", file)
    assert listed.returncode == 0 and "t" in listed.stdout.split()


async def test_python_clients_log_in_to_a_secure_broker(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"auto.create.topics.enable": True}, secure=True)
    settings = broker.python_client_settings()
    assert await asyncio.to_thread(send, settings) == 0
    async with AIOKafkaProducer(**settings) as producer:
        assert (await producer.send_and_wait("t", b"two")).offset == 1


def send(settings: dict[str, Any]) -> int:
    """Offset of a record that kafka-python sends."""
    producer = KafkaProducer(**settings)
    try:
        return int(producer.send("t", b"one").get(30).offset)
    finally:
        producer.close()


def test_settings_of_an_open_broker_are_its_address(tierlog_session_broker: TierlogBroker) -> None:
    address = tierlog_session_broker.bootstrap
    assert tierlog_session_broker.client_settings() == {"bootstrap.servers": address}
    assert tierlog_session_broker.python_client_settings() == {"bootstrap_servers": address}
    assert tierlog_session_broker.client_file is None


def test_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = "import os, pathlib, sys; from tierlog.testing import TierlogBroker; "
    script += "broker = TierlogBroker(pathlib.Path(sys.argv[1])).start(); "
    script += "print(broker.pid, flush=True); os._exit(1)"
    ended = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    pidfd = open_pidfd(int(ended.stdout))
    assert pidfd is None or ends(pidfd)


def open_pidfd(pid: int) -> int | None:
    import os

    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def ends(pidfd: int) -> bool:
    import select

    return bool(select.select([pidfd], [], [], 30)[0])


FAILING_SUITE = """
def test_fails(tierlog_broker):
    assert tierlog_broker.port == 0

def test_session(tierlog_session_broker):
    assert tierlog_session_broker.port > 0
"""


@pytest.mark.slow
def test_failing_test_of_another_project_shows_the_broker_log(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(FAILING_SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_other.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 failed, 1 passed" in ended.stdout
    assert "tierlog broker 127.0.0.1:" in ended.stdout
