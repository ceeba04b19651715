"""Metadata observer: when it changes to another voter, and what it logs if the log diverges."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from connection_harness import turns, until
from structlog.testing import capture_logs

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import Heartbeat, HeartbeatReply
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.peers import MetadataUnavailable, Peers
from tierlog.metadata.raft.messages import Entry
from tierlog.protocol.errors import ErrorCode

VOTERS = {1: "http://h:1", 2: "http://h:2", 3: "http://h:3"}
HEARTBEAT = Heartbeat(broker_id=9, broker_epoch=1, image_index=0)


class Voters(Peers):
    """Node 3 is the leader and then hangs; then node 2 is."""

    def __init__(self) -> None:
        self.hung: set[int] = set()
        self.polled: list[int] = []

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        self.polled.append(voter)
        if voter in self.hung or wait_ms:
            await asyncio.Event().wait()
        return LogPage((), 2 if 3 in self.hung else 3, VOTERS)

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        if leader in self.hung:
            raise MetadataUnavailable("timed out", applied_unknown=False)
        return HeartbeatReply(lease_ms=1000)


@asynccontextmanager
async def observed(voters: Voters, node_id: int = 9, voter: int = 3) -> AsyncIterator[MetadataObserver]:
    """An observer that reads from a voter. Node 3 is the leader."""
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    observer = MetadataObserver(
        node_id, {voter: VOTERS[voter]}, SystemClock(), tasks, "c", peers=voters, session_ms=3000
    )
    try:
        await observer.start()
        assert observer.leader == 3
        yield observer
    finally:
        await observer.stop()
        await tasks.close()
    assert failures == []


async def test_observer_leaves_a_leader_that_does_not_answer_a_heartbeat() -> None:
    voters = Voters()
    async with observed(voters) as observer:
        voters.hung.add(3)
        reply = await observer.heartbeat(HEARTBEAT, timeout_s=30)
        assert (reply.error, reply.lease_ms) == (ErrorCode.NONE, 1000)
        assert observer.leader == 2 and voters.polled[0] == 3 and 3 not in voters.polled[2:]


class RestartingVoters(Voters):
    """Node 3 refuses the first heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.heartbeats = 0

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        self.heartbeats += 1
        if self.heartbeats == 1:
            raise MetadataUnavailable("not ready", applied_unknown=False, refused=True)
        return await super().heartbeat(leader, heartbeat, timeout_s)


async def test_observer_tries_again_if_the_leader_has_its_own_node_id() -> None:
    """Two processes have one node id, for example while a voter is replaced."""
    voters = RestartingVoters()
    async with observed(voters, node_id=3, voter=2) as observer:
        assert (await observer.heartbeat(HEARTBEAT, timeout_s=30)).error == ErrorCode.NONE
    assert voters.heartbeats == 2


class RefusingVoters(Voters):
    """Node 3 replies at once that it is not the leader, before the log shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = asyncio.Event()

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        self.refused.set()
        raise MetadataUnavailable("not the leader", applied_unknown=False, refused=True)


async def test_observer_keeps_reading_from_a_leader_that_refuses() -> None:
    voters = RefusingVoters()
    async with observed(voters) as observer:
        await until(lambda: len(voters.polled) == 2)
        reply = asyncio.ensure_future(observer.heartbeat(HEARTBEAT, timeout_s=30))
        await voters.refused.wait()
        await turns()
        assert voters.polled == [3, 3] and observer._reader._poll_timeout is not None
        reply.cancel()


class Late(Voters):
    """Node 3 reports that node 2 is the leader, and leaves a heartbeat unanswered."""

    def __init__(self) -> None:
        super().__init__()
        self.received, self.has_news, self.times_out = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        self.polled.append(voter)
        if voter == 3 and wait_ms and len(self.polled) == 2:
            await self.has_news.wait()
        elif wait_ms:
            await asyncio.Event().wait()
        return LogPage((), 2 if self.has_news.is_set() else 3, VOTERS)

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        if leader == 3:
            self.received.set()
            await self.times_out.wait()
            raise MetadataUnavailable("timed out", applied_unknown=False)
        return HeartbeatReply(lease_ms=1000)


async def test_observer_leaves_the_node_that_did_not_answer_and_not_the_new_leader() -> None:
    voters = Late()
    async with observed(voters) as observer:
        reply = asyncio.ensure_future(observer.heartbeat(HEARTBEAT, timeout_s=30))
        await voters.received.wait()
        voters.has_news.set()
        await until(lambda: voters.polled == [3, 3, 3])  # it still reads from node 3
        voters.times_out.set()
        assert (await reply).lease_ms == 1000
        await until(lambda: len(voters.polled) > 3)
        assert voters.polled[3] != 3


class Recreated(Peers):
    """Its second page is of another log than the first; no page follows."""

    def __init__(self) -> None:
        self.pages = [LogPage((), 2, {2: ""}), LogPage((Entry(5, 1, b""),), 2, {2: ""}, after_term=3)]

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        if not self.pages:
            await asyncio.Event().wait()
        return self.pages.pop(0)


async def test_diverging_log_asks_for_a_restart_of_the_observer() -> None:
    """It has no metadata directory to delete."""
    tasks = TaskGroup(lambda name, failure: None)
    observer = MetadataObserver(9, {2: ""}, SystemClock(), tasks, "c", peers=Recreated(), session_ms=3000)
    with capture_logs() as logs:
        await observer.start()
        await until(lambda: bool(logs))
    await observer.stop()
    await tasks.close()
    assert "Restart this broker" in logs[0]["why"] and "Delete" not in logs[0]["why"]
