"""Several listeners of a broker: each client gets the addresses of the listener that it uses."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from controller_and_broker import controller_and_broker

from tierlog.broker.app import Broker, ControllerNode, NodeFailed
from tierlog.config.sources import settings_from

LISTENERS = {
    "listeners": "CLIENTS://127.0.0.1:0,REPLICATION://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,REPLICATION:PLAINTEXT",
    "inter.broker.listener.name": "REPLICATION",
}


def ports_of(bootstrap: str) -> list[int]:
    """Ports of the brokers and of the coordinator of a group, as a client of this address learns them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    brokers = {broker.port for broker in admin.list_topics(timeout=60).brokers.values()}
    [described] = admin.describe_consumer_groups(["g"]).values()
    cluster = admin.describe_cluster().result(60)
    return sorted(brokers | {node.port for node in cluster.nodes} | {described.result(60).coordinator.port})


@asynccontextmanager
async def running(*nodes: ControllerNode | Broker) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
        yield


async def test_clients_stay_on_their_listener(tmp_path: Path) -> None:
    controller, broker = controller_and_broker(tmp_path, LISTENERS)
    async with running(controller, broker):
        loop = broker.listener.loop
        clients, replication = broker.bound["CLIENTS"][1], broker.bound["REPLICATION"][1]
        assert broker.bootstrap == f"127.0.0.1:{clients}"
        registered = broker.metadata.image.brokers[2]
        assert registered.port == replication
        assert [(one.name, one.port) for one in registered.endpoints] == [
            ("CLIENTS", clients),
            ("REPLICATION", replication),
        ]
        for port in (clients, replication):
            assert await loop.run_in_executor(None, ports_of, f"127.0.0.1:{port}") == [port]
            await loop.run_in_executor(None, produce_and_consume, f"127.0.0.1:{port}", f"t{port}")


def produce_and_consume(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"value")
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    [message] = consumer.consume(1, timeout=30)
    assert message.value() == b"value"
    consumer.close()


async def test_an_address_that_is_taken_closes_the_others(tmp_path: Path) -> None:
    controller, broker = controller_and_broker(tmp_path / "first", LISTENERS)
    async with running(controller, broker):
        taken = broker.bound["CLIENTS"][1]
        both = {**LISTENERS, "listeners": f"REPLICATION://127.0.0.1:0,CLIENTS://127.0.0.1:{taken}"}
        others = controller_and_broker(tmp_path / "second", both)
        async with running(others[0]):
            with pytest.raises((OSError, NodeFailed)):
                await others[1].start()


def test_settings_of_listeners() -> None:
    settings = settings_from(
        {**LISTENERS, "advertised.listeners": "CLIENTS://kafka.example:443", "inter.broker.listener.name": ""}
    )
    assert settings.inter_broker_listener == "CLIENTS"
    assert [one.advertised for one in settings.client_listeners] == [("kafka.example", 443), None]
