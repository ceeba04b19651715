"""Metadata node as a follower: forwarded commands, snapshots, and failures."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from awaited_image import image_when
from crc32c import crc32c
from opened_metadata import opened_metadata

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import InvariantViolation
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import encode_image
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.peers import MetadataUnavailable, Peers
from tierlog.metadata.raft import messages as m
from tierlog.metadata.records import NoOp, encode_records

LEADER, FOLLOWER = 1, 2
Failures = asyncio.Queue[BaseException]
COMMAND = c.CreateTopics(topics=(c.NewTopic(name="t", partitions=1),))


class SilentPeers(Peers):
    """Drops messages, and never replies to a forwarded command. Tests report a dead peer with `on_death`."""

    def __init__(self) -> None:
        self.request_received = asyncio.Event()
        self.on_death: Callable[[int], None] = lambda peer: None

    def start(
        self,
        on_unreachable: Callable[[int], None],
        on_death: Callable[[int], None],
        on_connected: Callable[[int], None],
        on_messages: Callable[[tuple[m.AnyMessage, ...]], None],
    ) -> None:
        self.on_death = on_death

    def send(self, message: m.AnyMessage) -> None:
        return

    async def submit(self, leader: int, command: c.AnyCommand) -> tuple[c.AnyReply, int]:
        self.request_received.set()
        await asyncio.Event().wait()
        raise AssertionError


class GatedFiles(OsFiles):
    """Snapshots are not renamed to their final names until the gate opens."""

    def __init__(self) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        if target.suffix == ".snapshot":
            self.reached.set()
            self.gate.wait(30)
        super().rename(source, target)


@asynccontextmanager
async def follower(
    directory: Path, failures: Failures, files: OsFiles | None = None, **options: Any
) -> AsyncIterator[MetadataNode]:
    tasks = TaskGroup(lambda name, failure: failures.put_nowait(failure))
    node = opened_metadata(
        FOLLOWER,
        {1: "", 2: "", 3: ""},
        directory,
        files or OsFiles(),
        SystemClock(),
        random.Random(7),
        tasks,
        "c1",
        **{"tick_ms": 3_600_000, "peers": SilentPeers(), **options},
    )
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await tasks.close()


def append(first: int, last: int, prev_index: int = 0, prev_term: int = 0) -> m.Append:
    entries = tuple(m.Entry(1, index, encode_records((NoOp(),))) for index in range(first, last + 1))
    return m.Append(
        term=1,
        sender=LEADER,
        to=FOLLOWER,
        prev_index=prev_index,
        prev_term=prev_term,
        entries=entries,
        commit=last,
    )


async def test_outcome_of_a_forwarded_command_without_a_reply_is_unknown(tmp_path: Path) -> None:
    async with follower(tmp_path, Failures()) as node:
        node.receive((m.Heartbeat(term=1, sender=LEADER, to=FOLLOWER, commit=0),))
        with pytest.raises(MetadataUnavailable) as error:
            await node.submit(COMMAND, timeout_s=0.05)
        assert error.value.applied_unknown


async def test_command_is_forwarded_once_the_leader_responds_again(tmp_path: Path) -> None:
    """The leader is reported dead and then sends a heartbeat, both while the node waits for an fsync."""
    heartbeat = m.Heartbeat(term=1, sender=LEADER, to=FOLLOWER, commit=0)
    peers, gate = SilentPeers(), threading.Event()
    with ThreadPoolExecutor(1) as worker:
        async with follower(tmp_path, Failures(), peers=peers, worker=worker) as node:
            node.receive((append(1, 1),))
            await image_when(node, lambda image: image.index == 1)
            worker.submit(gate.wait)
            try:
                node.receive((append(2, 2, 1, 1),))
                await asyncio.sleep(0)
                peers.on_death(LEADER)
                submission = asyncio.ensure_future(node.submit(COMMAND))
                await asyncio.sleep(0)
                node.receive((heartbeat,))
            finally:
                gate.set()
            requested = asyncio.ensure_future(peers.request_received.wait())
            await asyncio.wait({submission, requested}, return_when=asyncio.FIRST_COMPLETED)
            assert peers.request_received.is_set()
            for task in (submission, requested):
                task.cancel()


async def test_command_that_found_no_leader_is_known_not_to_be_applied(tmp_path: Path) -> None:
    async with follower(tmp_path, Failures()) as node:
        with pytest.raises(MetadataUnavailable) as error:
            await node.submit(COMMAND, timeout_s=0.05)
        assert not error.value.applied_unknown


async def test_snapshot_from_the_leader_may_arrive_while_the_node_writes_its_own(tmp_path: Path) -> None:
    files, failures = GatedFiles(), Failures()
    async with follower(tmp_path, failures, files, snapshot_entries=3) as node:
        node.receive((append(1, 3),))
        assert await asyncio.to_thread(files.reached.wait, 30)
        data = encode_image(ClusterImage(cluster_id="c1", index=10))
        node.receive(
            (
                m.SnapshotChunk(
                    term=1,
                    sender=LEADER,
                    to=FOLLOWER,
                    index=10,
                    snapshot_term=1,
                    size=len(data),
                    crc32c=crc32c(data),
                    offset=0,
                    data=data,
                ),
            )
        )
        files.gate.set()
        await image_when(node, lambda image: image.index == 10)
        node.receive((append(11, 12, 10, 1),))
        await image_when(node, lambda image: image.index == 12)
    assert failures.empty()
    async with follower(tmp_path, failures) as node:
        assert node.core.log.last_index == 12


async def test_failed_node_neither_accepts_nor_serves_log_pages(tmp_path: Path) -> None:
    """Otherwise a reader would get the same page forever, because its position would not advance."""
    failures = Failures()
    async with follower(tmp_path, failures) as node:
        requested = asyncio.ensure_future(node.log_page(0, 1))
        await asyncio.sleep(0)
        with pytest.raises(InvariantViolation):
            node.receive((append(7, 7),))
        await failures.get()
        with pytest.raises(MetadataUnavailable, match="failed"):
            await requested
        page = LogPage(append(1, 2).entries, leader=LEADER, voters={}, term=1, after_term=0)
        with pytest.raises(MetadataUnavailable, match="failed"):
            node._accept_page(page, b"")
        with pytest.raises(MetadataUnavailable, match="failed"):
            await node.log_page(0, 0)
        assert node.core.log.last_index == 0


async def test_failed_node_stops_ticking(tmp_path: Path) -> None:
    """A failed leader that still sent heartbeats would remain leader until its process ended."""
    async with follower(tmp_path, Failures(), tick_ms=1) as node:
        with pytest.raises(InvariantViolation):
            node.receive((append(7, 7),))
        assert len(node._running) == 2
        await asyncio.wait(node._running)


async def test_message_that_breaks_an_invariant_stops_the_node(tmp_path: Path) -> None:
    failures = Failures()
    async with follower(tmp_path, failures) as node:
        with pytest.raises(InvariantViolation):
            node.receive((append(7, 7),))  # entry 7 does not follow an empty log
        with pytest.raises(MetadataUnavailable, match="failed"):
            await node.submit(COMMAND)
        assert isinstance(await failures.get(), InvariantViolation)
