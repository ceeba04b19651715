"""An observer whose voter hangs: it neither answers nor refuses, and the next is asked."""

import asyncio

from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata.controller.commands import Heartbeat, HeartbeatReply
from tierlog.metadata.observer import MetadataObserver
from tierlog.metadata.pages import LogPage
from tierlog.metadata.peers import MetadataUnavailable, NoPeers

VOTERS = {1: "http://h:1", 2: "http://h:2", 3: "http://h:3"}
BEAT = Heartbeat(broker_id=9, broker_epoch=1, image_index=0)


class Voters(NoPeers):
    """Node 3 leads, and then hangs; from then on node 2 does."""

    def __init__(self) -> None:
        self.hung: set[int] = set()
        self.polled: list[int] = []

    async def log(self, voter: int, after: int, wait_ms: int) -> LogPage:
        self.polled.append(voter)
        if voter in self.hung or wait_ms:
            await asyncio.Event().wait()
        return LogPage((), 2 if 3 in self.hung else 3, VOTERS)

    async def heartbeat(self, leader: int, heartbeat: Heartbeat) -> HeartbeatReply:
        if leader in self.hung:
            raise MetadataUnavailable("timed out", applied_unknown=False)
        return HeartbeatReply(lease_ms=1000)


async def test_a_leader_that_leaves_a_heartbeat_unanswered_is_read_from_no_more() -> None:
    voters, failures = Voters(), []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    observer = MetadataObserver(9, {3: VOTERS[3]}, tasks, "c", peers=voters)  # it reads from the leader
    try:
        await observer.start()
        assert observer.leader == 3
        voters.hung.add(3)
        reply = await observer.heartbeat(BEAT, timeout_s=30)
        assert (reply.error, reply.lease_ms) == (ErrorCode.NONE, 1000)
        assert observer.leader == 2 and voters.polled[0] == 3 and 3 not in voters.polled[2:]
    finally:
        await observer.stop()
        await tasks.close()
    assert failures == []
