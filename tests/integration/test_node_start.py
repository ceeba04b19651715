"""Nodes that never start to serve: stopped while they wait for a quorum, or with failed disks."""

import asyncio
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import run
from waiting import until

from tierlog.base.files import OsFiles
from tierlog.broker.app import Broker, ControllerNode
from tierlog.broker.node_base import NodeFailed
from tierlog.broker.platform import production_platform
from tierlog.cli.errors import ExitCode
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.raft.messages import VoteRequest


@pytest.fixture
def ports() -> list[int]:
    """Two free ports."""
    with ExitStack() as held:
        return [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]


@pytest.fixture
def waiting_node(tmp_path: Path, ports: list[int]) -> Iterator["subprocess.Popen[str]"]:
    """One of two voters; the other never starts."""
    own, other = ports
    command = [sys.executable, "-m", "tierlog.cli.main", "dev", "--json", "--port", "0"]
    command += ["--admin-port", str(own), "--data-dir", str(tmp_path)]
    for setting in (
        "node.id=1",
        "cluster.id=of-two",
        f"controller.quorum.voters=1@127.0.0.1:{own},2@127.0.0.1:{other}",
        "controller.quorum.secret=s",
    ):
        command += ["--set", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: answers(own), "its admin server answers")
            yield process
        finally:
            process.kill()


def test_node_continues_without_a_writable_log(tmp_path: Path) -> None:
    """A closed pipe ended the metadata node, and a full disk the fetchers."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tierlog.cli.main", "dev", "--json", "--port", "0", "--admin-port", "0"]
    command += ["--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True) as process:
        try:
            os.close(writing)
            assert process.stdout is not None
            bootstrap = json.loads(process.stdout.readline())["bootstrap"]
            os.close(reading)
            for change in ("log.retention.ms=5000000", "log.retention.ms=6000000"):
                ended = run("broker", "alter", "--config", change, "-b", bootstrap)
                assert ended.returncode == 0, ended.stdout + ended.stderr
            assert run("topic", "create", "t", "-b", bootstrap).returncode == 0
        finally:
            process.kill()


def answers(port: int) -> bool:
    """Checks over HTTP, since the kernel may have connected the port to itself."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
    except urllib.error.HTTPError:
        return True  # it says that it does not serve yet
    except (OSError, http.client.HTTPException):
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_node_waiting_for_a_quorum_stops_on_request(
    waiting_node: "subprocess.Popen[str]", tmp_path: Path, number: signal.Signals
) -> None:
    waiting_node.send_signal(number)
    reported, log = waiting_node.communicate(timeout=30)
    assert (waiting_node.returncode, reported) == (ExitCode.OK, ""), log
    assert "node.start.stopped" in log
    assert "Traceback" not in log


class Failing(OsFiles):
    """Every read and write below `broken` fails with an I/O error."""

    def __init__(self) -> None:
        self.broken: Path | None = None
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        self._check(path)
        fd = super().open(path, create=create, exclusive=exclusive)
        self._paths[fd] = path
        return fd

    def read_whole(self, path: Path) -> bytes:
        self._check(path)
        return super().read_whole(path)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        self._check(self._paths[fd])
        os.fdatasync(fd)

    def _check(self, path: Path) -> None:
        if self.broken is not None and path.is_relative_to(self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def settings(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "admin.listener": "127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "metadata.log.dir": str(tmp_path / "metadata"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


async def test_node_whose_only_disk_fails_at_startup_does_not_serve(tmp_path: Path) -> None:
    files = Failing()
    node_settings = settings_from(settings(tmp_path))
    broker = Broker(node_settings, replace(production_platform(node_settings), files=files))
    await broker.start()
    await broker.metadata.submit(c.CreateTopics(topics=(c.NewTopic(name="t"),)))
    await broker.stop(clean=False)
    files.broken = tmp_path / "data" / "t-0"
    node_settings = settings_from(settings(tmp_path))
    broker = Broker(node_settings, replace(production_platform(node_settings), files=files))
    with pytest.raises(NodeFailed, match=r"the last log directory: .*Input/output error"):
        await broker.start()


@pytest.mark.parametrize("kind", [Broker, ControllerNode])
async def test_voter_whose_metadata_disk_fails_stops(
    tmp_path: Path, ports: list[int], kind: type[Broker | ControllerNode]
) -> None:
    files = Failing()
    more = {
        "cluster_id": "of-two",
        "controller_quorum_voters": f"1@127.0.0.1:{ports[0]},2@127.0.0.1:{ports[1]}",
        "controller_quorum_secret": "s",
        "admin_listener": f"127.0.0.1:{ports[0]}",
        "process_roles": "controller" if kind is ControllerNode else "broker,controller",
    }
    node_settings = settings_from(settings(tmp_path, **more))
    broker = kind(node_settings, replace(production_platform(node_settings), files=files))
    starting = asyncio.ensure_future(broker.start())
    async with asyncio.timeout(30):
        node = await waiting(broker)
        files.broken = tmp_path / "metadata"
        requested = VoteRequest(term=7, sender=2, to=1, last_index=0, last_term=0)
        node.receive((requested,))  # its vote must be on disk before it responds
        with pytest.raises(NodeFailed, match="Input/output error"):
            await starting


async def waiting(broker: Broker | ControllerNode) -> MetadataNode:
    """Once its files are open; it has no quorum."""
    while True:
        node = getattr(broker, "metadata", None)
        if isinstance(node, MetadataNode) and node.started:
            return node
        await asyncio.sleep(0)
