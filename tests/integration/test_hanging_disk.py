"""A disk that hangs: the other directories are flushed and checkpointed, and the node can be stopped."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from wire_client import Client

from tierlog.base.files import OsFiles
from tierlog.broker.app import Broker
from tierlog.broker.platform import production_platform
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.checkpoints import CLEAN_SHUTDOWN, read_offsets
from tierlog.broker.storage.disk_threads import DISK_THREADS
from tierlog.broker.storage.unclean_restart import BOOT_FILE
from tierlog.config.sources import settings_from
from tierlog.records.writer import NewRecord, encode_batch

PARTITIONS = 4 * DISK_THREADS


class HangingDisk(OsFiles):
    """fsyncs below the directory `at` wait for `back`; `waiting` counts them. `renamed` is set by each rename
    in a thread.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.renamed = asyncio.Event()
        self.at: Path | None = None
        self.back = threading.Event()
        self.waiting = threading.Semaphore(0)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        if self.at is not None and self.at in Path(os.readlink(f"/proc/self/fd/{fd}")).parents:
            self.waiting.release()
            self.back.wait(60)
        OsFiles.sync(fd)

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        OsFiles.rename(source, target)
        self.loop.call_soon_threadsafe(self.renamed.set)


class Node:
    def __init__(self, path: Path) -> None:
        self.a, self.b = path / "a", path / "b"
        self.disk = HangingDisk()
        self.settings = settings_from(
            {
                "log.dirs": f"{self.a},{self.b}",
                "metadata.log.dir": str(path / "metadata"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "admin.listener": "127.0.0.1:0",
                "offsets.topic.num.partitions": "1",
                "log.flush.interval.messages": "1",
                "log.flush.offset.checkpoint.interval.ms": "50",
                "log.dirs.stop.timeout.ms": "2000",
            }
        )
        self.broker = Broker(self.settings, replace(production_platform(self.settings), files=self.disk))

    async def start(self) -> None:
        await self.broker.start()
        client = await asyncio.to_thread(Client, self.broker.bootstrap)
        try:
            name = await asyncio.to_thread(partial(client.create, partitions=PARTITIONS))
            await asyncio.to_thread(client.wait_for_leaders, name)
        finally:
            client.close()

    def replicas(self, directory: Path) -> list[Replica]:
        return [replica for replica in self.broker.replicas if replica.log.directory.parent == directory]


def append(replica: Replica) -> None:
    assert not replica.as_leader.append(memoryview(encode_batch([NewRecord(0, None, b"v")])), 0).error


async def all_synced(replica: Replica) -> None:
    """Wait until all appended records are durable, as an acknowledgement does."""
    changed = asyncio.Event()
    replica.listeners.append(lambda _: changed.set())
    while replica.flushed_offset < replica.log_end_offset:
        await changed.wait()
        changed.clear()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    await node.start()
    yield node
    node.disk.back.set()
    await node.broker.stop()


async def hang(node: Node) -> None:
    """Make more logs of directory `a` wait for an fsync than it has threads."""
    node.disk.at = node.a
    hanging = node.replicas(node.a)
    assert len(hanging) > DISK_THREADS
    for replica in hanging:
        append(replica)
    for _ in range(DISK_THREADS):
        await asyncio.to_thread(node.disk.waiting.acquire)


async def test_hung_directory_does_not_stop_flushes_of_the_other(node: Node) -> None:
    await hang(node)
    served = node.replicas(node.b)
    for replica in served:
        append(replica)
        await asyncio.wait_for(all_synced(replica), 30)
    path = node.b / "recovery-point-offset-checkpoint"
    rows = {replica.name: 1 for replica in served}
    node.disk.renamed = asyncio.Event()
    while not rows.items() <= read_offsets(node.disk, path).items():
        await asyncio.wait_for(node.disk.renamed.wait(), 30)
        node.disk.renamed.clear()
    assert all(replica.flushed_offset == 0 for replica in node.replicas(node.a))


async def test_stop_leaves_a_hung_directory_unclean(node: Node) -> None:
    await hang(node)
    for replica in node.replicas(node.b):
        append(replica)
    with capture_logs() as reported:
        await asyncio.wait_for(node.broker.stop(), 30)
    assert not node.disk.back.is_set()
    assert not (node.a / CLEAN_SHUTDOWN).exists()
    assert (node.b / CLEAN_SHUTDOWN).exists()
    (line,) = [line for line in reported if line.get("directory") == str(node.a)]
    assert line["why"].endswith("is offline: it hangs: no operation has ended for 2 s")


async def test_stop_continues_when_a_disk_hangs_at_log_close(node: Node) -> None:
    for replica in node.replicas(node.b):
        append(replica)
        await all_synced(replica)
    node.disk.at = node.a
    with capture_logs() as reported:
        await asyncio.wait_for(node.broker.stop(), 30)
    assert [(path / CLEAN_SHUTDOWN).exists() for path in (node.a, node.b)] == [False, True]
    assert "log_dir.close_hangs" in [line["event"] for line in reported]
    assert not node.broker.failed.done()


class FailingDisk(OsFiles):
    """Once `fails`, an fsync of a log fails, and one of the boot id waits."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.back = threading.Event()

    def sync(self, fd: int) -> None:  # type: ignore[override]
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        if self.fails and name.endswith(".log"):
            raise OSError(errno.EIO, "Input/output error")
        if self.fails and name.startswith(BOOT_FILE):
            self.back.wait(60)
        OsFiles.sync(fd)


async def test_stop_after_a_failed_fsync_waits_until_the_boot_id_is_cleared(tmp_path: Path) -> None:
    """Otherwise the next start would take it as proof that nothing was lost."""
    node = Node(tmp_path)
    disk = FailingDisk()
    node.broker = Broker(node.settings, replace(production_platform(node.settings), files=disk))
    await node.start()
    assert (node.a / BOOT_FILE).read_text().splitlines()[0]
    disk.fails = True
    for replica in node.broker.replicas:
        append(replica)
    await asyncio.wait_for(node.broker.failed, 30)
    stopping = asyncio.create_task(node.broker.stop())
    assert not (await asyncio.wait({stopping}, timeout=1))[0]
    disk.back.set()
    await stopping
    assert [(path / BOOT_FILE).read_text().splitlines()[0] for path in (node.a, node.b)] == ["", ""]
