"""An observer whose voter hangs: it neither answers nor refuses, and the next is asked.

One that refuses is read from on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pump import turns, until

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import Heartbeat, HeartbeatReply
from tierlog.metadata.quorum.log_pages import LogPage
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.peers import MetadataUnavailable, NoPeers
from tierlog.protocol.errors import ErrorCode

VOTERS = {1: "http://h:1", 2: "http://h:2", 3: "http://h:3"}
BEAT = Heartbeat(broker_id=9, broker_epoch=1, image_index=0)


class Voters(NoPeers):
    """Node 3 leads, and then hangs; from then on node 2 does."""

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
async def observed(voters: Voters) -> AsyncIterator[MetadataObserver]:
    """Once it reads from node 3, which leads."""
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    observer = MetadataObserver(9, {3: VOTERS[3]}, SystemClock(), tasks, "c", peers=voters, session_ms=3000)
    try:
        await observer.start()
        assert observer.leader == 3
        yield observer
    finally:
        await observer.stop()
        await tasks.close()
    assert failures == []


async def test_a_leader_that_leaves_a_heartbeat_unanswered_is_read_from_no_more() -> None:
    voters = Voters()
    async with observed(voters) as observer:
        voters.hung.add(3)
        reply = await observer.heartbeat(BEAT, timeout_s=30)
        assert (reply.error, reply.lease_ms) == (ErrorCode.NONE, 1000)
        assert observer.leader == 2 and voters.polled[0] == 3 and 3 not in voters.polled[2:]


class Refusing(Voters):
    """Node 3 says at once that it does not lead, before news of it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = asyncio.Event()

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        self.refused.set()
        raise MetadataUnavailable("does not lead", applied_unknown=False, refused=True)


async def test_a_leader_that_refuses_is_read_from_on() -> None:
    voters = Refusing()
    async with observed(voters) as observer:
        await until(lambda: len(voters.polled) == 2)
        asked = asyncio.ensure_future(observer.heartbeat(BEAT, timeout_s=30))
        await voters.refused.wait()
        await turns()
        assert voters.polled == [3, 3] and observer._reader._poll_timeout is not None
        asked.cancel()


class Late(Voters):
    """Node 3 tells that node 2 leads, while it leaves a heartbeat unanswered."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.news, self.gives_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        self.polled.append(voter)
        if voter == 3 and wait_ms and len(self.polled) == 2:
            await self.news.wait()
        elif wait_ms:
            await asyncio.Event().wait()
        return LogPage((), 2 if self.news.is_set() else 3, VOTERS)

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        if leader == 3:
            self.asked.set()
            await self.gives_up.wait()
            raise MetadataUnavailable("timed out", applied_unknown=False)
        return HeartbeatReply(lease_ms=1000)


async def test_who_was_asked_is_doubted_and_not_who_leads_by_then() -> None:
    voters = Late()
    async with observed(voters) as observer:
        asked = asyncio.ensure_future(observer.heartbeat(BEAT, timeout_s=30))
        await voters.asked.wait()
        voters.news.set()
        await until(lambda: voters.polled == [3, 3, 3])  # it reads on from node 3
        voters.gives_up.set()
        assert (await asked).lease_ms == 1000
        await until(lambda: len(voters.polled) > 3)
        assert voters.polled[3] != 3
