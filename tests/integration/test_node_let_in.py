"""A broker that stays fenced after it has opened its logs stops on request, and ends if its disk fails."""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.app import Broker
from tierlog.broker.node_base import NodeFailed
from tierlog.broker.platform import production_platform
from tierlog.broker.storage.checkpoints import CLEAN_SHUTDOWN
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c

TIMEOUT_S = 90.0


class Gate(OsFiles):
    """Holds the recovery of the partition t-0 until the test lets it continue."""

    def __init__(self) -> None:
        self.reached, self.passed = threading.Event(), threading.Event()

    def list_directory(self, path: Path) -> list[str]:
        if path.name == "t-0":
            self.reached.set()
            self.passed.wait(TIMEOUT_S)
        return super().list_directory(path)


def broker_settings(tmp_path: Path, number: int, port: int) -> dict[str, str]:
    return {
        "node.id": str(number),
        "process.roles": "broker,controller" if number == 1 else "broker",
        "cluster.id": "of-two-brokers",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "controller.quorum.secret": "s",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "admin.listener": f"127.0.0.1:{port if number == 1 else 0}",
        "log.dirs": str(tmp_path / str(number)),
    }


@pytest.fixture
async def waiting(tmp_path: Path) -> AsyncIterator[tuple[Broker, "asyncio.Task[None]"]]:
    """Broker 2, registered and with its log open, while the only controller is away for good."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    voter = Broker(settings_from(broker_settings(tmp_path, 1, port)))
    await voter.start()
    other = Broker(settings_from(broker_settings(tmp_path, 2, port)))
    await other.start()
    await other.metadata.submit(c.CreateTopics(topics=(c.NewTopic(name="t", assignments=((0, (2,)),)),)))
    await other.stop()
    gate = Gate()
    again = settings_from(broker_settings(tmp_path, 2, port))
    other = Broker(again, replace(production_platform(again), files=gate))
    starting = asyncio.ensure_future(other.start())
    assert await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)
    await voter.stop(clean=False)
    gate.passed.set()
    async with asyncio.timeout(TIMEOUT_S):
        await logs_open(other)
    yield other, starting
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def logs_open(broker: Broker) -> None:
    while True:
        if broker.logs_are_open:
            return
        await asyncio.sleep(0)


async def test_stop_before_unfencing_closes_logs_clean(
    waiting: tuple[Broker, "asyncio.Task[None]"], tmp_path: Path
) -> None:
    broker, starting = waiting
    assert broker.lifecycle.fenced
    starting.cancel()
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert (tmp_path / "2" / CLEAN_SHUTDOWN).exists()


async def test_broker_stops_when_its_last_directory_fails(
    waiting: tuple[Broker, "asyncio.Task[None]"], tmp_path: Path
) -> None:
    broker, starting = waiting
    broker.directories.all[0].on_error(OSError(errno.EIO, os.strerror(errno.EIO)))
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(NodeFailed, match=r"the last log directory: .*Input/output error"):
            await starting
    assert not (tmp_path / "2" / CLEAN_SHUTDOWN).exists()
