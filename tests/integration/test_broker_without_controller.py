"""A broker that is no controller, or none any more, beside a voter, itself a broker or not: it follows what
the voter commits.
"""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import aiohttp
from confluent_kafka import Producer
from controller_and_broker import controller_and_broker
from deliveries import Deliveries

from tierlog.broker.app import Broker
from tierlog.broker.node_base import NodeBase
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.api import QUORUM_PATH


async def test_observer_follows_the_voter_and_sends_commands_to_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {
        "cluster.id": "of-two-brokers",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "controller.quorum.secret": "s",
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }
    voter = Broker(
        settings_from(
            {
                **shared,
                "node.id": "1",
                "admin.listener": f"127.0.0.1:{port}",
                "log.dirs": str(tmp_path / "1"),
            }
        )
    )
    other = Broker(
        settings_from(
            {
                **shared,
                "node.id": "2",
                "process.roles": "broker",
                "admin.listener": "127.0.0.1:0",
                "log.dirs": str(tmp_path / "2"),
            }
        )
    )
    await voter.start()
    try:
        await other.start()
        try:
            assert set(other.metadata.image.brokers) == {1, 2}
            await other.metadata.submit(c.CreateTopics(topics=(c.NewTopic(name="t", partitions=1),)))
            assert voter.metadata.image.topic("t") is not None
            assert other.metadata.image.topic("t") == voter.metadata.image.topic("t")
            async with aiohttp.ClientSession() as session:
                reported = await (await session.get(other.admin_url + QUORUM_PATH)).json()
            assert (reported["role"], reported["leader"]) == ("observer", 1)
        finally:
            await other.stop()
    finally:
        await voter.stop()


async def test_controller_node_serves_brokers_and_is_not_one(tmp_path: Path) -> None:
    voter, broker = controller_and_broker(tmp_path)
    async with contextlib.AsyncExitStack() as stack, aiohttp.ClientSession() as session:

        async def ask(node: NodeBase, path: str) -> tuple[int, Any]:
            answer = await session.get(node.admin_url + path)
            return answer.status, await answer.json()

        await voter.start()
        stack.push_async_callback(voter.stop)
        assert await ask(voter, "/health") == (200, {"status": "serving"})
        await broker.start()
        stack.push_async_callback(broker.stop)
        await broker.metadata.submit(c.CreateTopics(topics=(c.NewTopic(name="t", partitions=2),)))
        deliveries = Deliveries()
        client = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        client.produce("t", b"0 served", on_delivery=deliveries)
        assert await asyncio.to_thread(client.flush, 30) == 0
        assert list(deliveries.acknowledged) == [0]

        _, reported = await ask(voter, "/v1/brokers")
        assert [(row["id"], row["leads"]) for row in reported["brokers"]] == [(2, 2)]
        _, reported = await ask(voter, QUORUM_PATH)
        assert (reported["role"], [one["node_id"] for one in reported["observers"]]) == ("leader", [2])
        for path in ("/v1/tier/status", "/v1/directories"):
            status, reported = await ask(voter, path)
            assert status == 409 and "not a broker" in reported["error"]
        metrics = await (await session.get(voter.admin_url + "/metrics")).text()
        assert "tierlog_loop_lag_seconds" in metrics


async def test_voter_removed_while_running_continues_as_a_broker(tmp_path: Path) -> None:
    with contextlib.ExitStack() as listeners:
        ports = {n: listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for n in (1, 2)}
        addresses = {n: f"127.0.0.1:{listener.getsockname()[1]}" for n, listener in ports.items()}
    stays, goes = (
        Broker(
            settings_from(
                {
                    "cluster.id": "of-two-voters",
                    "node.id": str(number),
                    "controller.quorum.voters": ",".join(f"{n}@{place}" for n, place in addresses.items()),
                    "controller.quorum.secret": "s",
                    "broker.session.timeout.ms": "1000",
                    "broker.heartbeat.interval.ms": "100",
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "admin.listener": addresses[number],
                    "log.dirs": str(tmp_path / str(number)),
                }
            )
        )
        for number in (1, 2)
    )
    await asyncio.gather(stays.start(), goes.start())
    try:
        async with aiohttp.ClientSession() as session:
            removed = await session.delete(f"{stays.admin_url}{QUORUM_PATH}/voters/2", json={})
            assert removed.status == 200
            longest_ms = goes.clock.monotonic_ms() + goes.settings.broker_session_timeout_ms
            while (
                goes.clock.monotonic_ms() <= longest_ms
            ):  # until the leases from before the removal have expired
                await goes.metadata.current()
            topic = c.NewTopic(name="t", assignments=((0, (2,)),))
            await stays.metadata.submit(c.CreateTopics(topics=(topic,)))
            deliveries = Deliveries()
            client = Producer({"bootstrap.servers": goes.bootstrap, "acks": "all"})
            client.produce("t", b"0 served", on_delivery=deliveries)
            assert await asyncio.to_thread(client.flush, 30) == 0
            assert list(deliveries.acknowledged) == [0]
            reported = await (await session.get(goes.admin_url + QUORUM_PATH)).json()
            assert (reported["role"], list(reported["voters"])) == ("no member", ["1"])
    finally:
        await goes.stop()
        await stays.stop()
