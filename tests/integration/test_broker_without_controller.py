"""A broker that is no controller, beside one that is: it registers, and follows what the voter commits."""

import socket
from pathlib import Path

import aiohttp

from tierlog.broker.app import Broker
from tierlog.broker.settings.node import settings_from
from tierlog.metadata.api import QUORUM_PATH
from tierlog.metadata.controller import commands as c


async def test_it_follows_the_voter_and_sends_commands_to_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
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
                told = await (await session.get(other.admin_url + QUORUM_PATH)).json()
            assert (told["role"], told["leader"]) == ("observer", 1)
        finally:
            await other.stop()
    finally:
        await voter.stop()
