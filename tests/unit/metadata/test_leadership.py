"""Metadata node as the leader: rejected commands, unknown outcomes, quorum time, and membership changes."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from opened_metadata import opened_metadata

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.commands import AlterConfigs, ConfigChange, ConfigOperation, ConfigResource
from tierlog.metadata.image_codec import encode_image
from tierlog.metadata.quorum.leadership import MAX_WAITING
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.peers import LeadershipLost, MetadataUnavailable, NotTheLeader, Peers
from tierlog.metadata.raft import messages as m
from tierlog.metadata.records import ConfigScope, encode_records
from tierlog.protocol.errors import ErrorCode


class ManualClock(SystemClock):
    """A wall clock that is set, and a monotonic one that begins again with each boot."""

    def __init__(self, wall_ms: int, monotonic_ms: int) -> None:
        self.wall_ms, self.ms = wall_ms, monotonic_ms

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.ms


PAGE = UUID(int=77)


@asynccontextmanager
async def controller(directory: Path, clock: ManualClock) -> AsyncIterator[MetadataNode]:
    tasks = TaskGroup(lambda name, failure: None)
    node = opened_metadata(1, {}, directory, OsFiles(), clock, random.Random(1), tasks, "c")
    await node.start()
    clock.ms += 10
    clock.wall_ms += 1_000_000_000
    yield node
    await node.stop()
    await tasks.close()


async def begin_page(node: MetadataNode) -> None:
    """Queue a deletion; its grace period begins only when the page could be abandoned."""
    registered = await node.submit(
        c.RegisterBroker(broker_id=1, incarnation=UUID(int=1), host="h", port=1, admin_url="")
    )
    await node.submit(c.FenceBroker(broker_id=1, broker_epoch=registered.broker_epoch, fenced=False))
    [topic] = (await node.submit(c.CreateTopics(topics=(c.NewTopic(name="t"),)))).topics
    started = await node.submit(
        c.StartSpill(
            topic_id=topic.topic_id, partition=0, leader_epoch=0, uuid=PAGE, base_offset=0, last_offset=9
        )
    )
    assert started.error is ErrorCode.NONE


async def test_quorum_time_continues_across_controllers_while_deletions_wait(tmp_path: Path) -> None:
    """The first controller's wall clock is the origin; later wall clocks do not matter. The time at which an
    unfinished page was started is known, though the time of its line is that of its expiry."""
    async with controller(tmp_path, ManualClock(5_000_000, 77)) as node:
        await begin_page(node)
    times = []
    for clock in (ManualClock(900_000_000, 3), ManualClock(1, 500)):
        async with controller(tmp_path, clock) as node:
            await node.submit(c.StartRemoteDeletes(grace_ms=0))
            assert not node.image.deleting
            times.append(node.image.time_ms)
    assert times == [5_000_020, 5_000_030]


async def test_quorum_time_restarts_when_the_delete_queue_is_empty(tmp_path: Path) -> None:
    """It is not stored then, and the snapshot uses the version without it."""
    async with controller(tmp_path, ManualClock(5_000_000, 77)) as node:
        await begin_page(node)
        await node.submit(c.StartRemoteDeletes(grace_ms=0))
        assert node.image.time_ms == 5_000_010
        await node.submit(c.ConfirmRemoteDeleted(uuids=(PAGE,)))
        assert (node.image.time_ms, snapshot_version(node)) == (0, 1)
        await node.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        assert not node.image.topics
        assert (node.image.time_ms, snapshot_version(node)) == (0, 1)
    async with controller(tmp_path, ManualClock(900_000_000, 3)) as node:
        await begin_page(node)
        await node.submit(c.StartRemoteDeletes(grace_ms=0))
        assert node.image.time_ms == 900_000_010


def snapshot_version(node: MetadataNode) -> int:
    version: int = msgspec.msgpack.decode(encode_image(node.image))[0]
    return version


async def test_too_many_waiting_commands_are_rejected_with_the_reason(tmp_path: Path) -> None:
    """The disk hangs, so nothing is committed."""
    tasks, gate = TaskGroup(lambda name, failure: None), threading.Event()
    with ThreadPoolExecutor(1) as worker:
        node = opened_metadata(
            1, {}, tmp_path, OsFiles(), SystemClock(), random.Random(1), tasks, "c", worker=worker
        )
        await node.start()
        worker.submit(gate.wait)
        waiting = [tasks.spawn("waits", node.submit(configure(number))) for number in range(MAX_WAITING)]
        await asyncio.sleep(0)
        try:
            with pytest.raises(MetadataUnavailable, match="wait for a majority of the metadata quorum"):
                await node.submit(configure(MAX_WAITING))
        finally:
            gate.set()
        await asyncio.gather(*waiting)
        await node.stop()
    await tasks.close()


def configure(number: int) -> AlterConfigs:
    change = ConfigChange(key="min.insync.replicas", operation=ConfigOperation.SET, value=str(number % 2 + 1))
    return AlterConfigs(resources=(ConfigResource(scope=ConfigScope.CLUSTER, name="", changes=(change,)),))


class SilentPeers(Peers):
    """The test sends their messages. Forwarded commands are recorded and have no effect."""

    def __init__(self) -> None:
        self.submitted: list[c.AnyCommand] = []

    def send(self, message: m.AnyMessage) -> None:
        return

    async def submit(self, leader: int, command: c.AnyCommand) -> tuple[c.AnyReply, int]:
        self.submitted.append(command)
        return c.Acknowledged(), 0


def vote(*, pre_vote: bool) -> m.VoteReply:
    return m.VoteReply(term=1, sender=2, to=1, granted=True, pre_vote=pre_vote)


def holds(sender: int, index: int) -> m.AppendReply:
    return m.AppendReply(term=1, sender=sender, to=1, accepted=True, match_index=index)


@asynccontextmanager
async def leader(directory: Path, seen: Mapping[int, UUID] | None = None) -> AsyncIterator[MetadataNode]:
    """Node 1 of three, leader of term 1 with its first entry committed; the clock does not tick. `seen`:
    directories that others named before."""
    tasks = TaskGroup(lambda name, failure: None)
    node = opened_metadata(
        1,
        {1: "", 2: "", 3: ""},
        directory,
        OsFiles(),
        SystemClock(),
        random.Random(1),
        tasks,
        "c",
        peers=SilentPeers(),
        url="http://one",
        tick_ms=3_600_000,
    )
    await node.start()
    for other, known in (seen or {}).items():
        assert node.membership.admits(other, known)
    try:
        node.core.campaign()
        node.receive((vote(pre_vote=True),))
        await node.membership.status_when(lambda status: status.term == 1)
        node.receive((vote(pre_vote=False),))
        await node.membership.status_when(lambda status: status.is_leader)
        node.receive((holds(2, 1),))
        await node.membership.status_when(lambda status: status.applied_index == 1)
        yield node
    finally:
        await node.stop()
        await tasks.close()


async def test_leader_that_loses_leadership_while_removing_itself_fails_the_removal(tmp_path: Path) -> None:
    """The next leader commits the removal, and sends nothing to a node that is not a member."""
    async with leader(tmp_path) as node:
        removal = asyncio.ensure_future(node.membership.remove_voter(1, timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 2)
        node.receive((m.HeartbeatReply(term=2, sender=3, to=1),))
        with pytest.raises(NotTheLeader, match="no leader is known"):
            await removal


async def test_command_after_the_leaders_own_removal_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with leader(tmp_path) as node:
        removal = asyncio.ensure_future(node.membership.remove_voter(1, timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 2)
        command = asyncio.ensure_future(node.submit(configure(1), timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 3)
        node.receive((holds(2, 2), holds(3, 2)))
        await removal
        with pytest.raises(MetadataUnavailable, match="took over") as error:
            await command
        assert error.value.applied_unknown


async def test_entries_that_a_newer_terms_shorter_log_lacks_are_known_to_be_lost(tmp_path: Path) -> None:
    """The new log is shorter, so no entry replaces them. The node forwards such commands to the next leader,
    which it must not do with a command that may have been applied."""
    async with leader(tmp_path) as node:
        command = asyncio.ensure_future(node.submit(configure(1), timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 2)
        behind = asyncio.ensure_future(node.submit(configure(2), timeout_s=10))
        forwarded = asyncio.ensure_future(node.submit(configure(3), timeout_s=10, forward=False))
        removal = asyncio.ensure_future(node.membership.remove_voter(3, timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 5)
        theirs = m.Entry(term=2, index=2, payload=encode_records(()))
        node.receive(
            (m.Append(term=2, sender=2, to=1, prev_index=1, prev_term=1, entries=(theirs,), commit=2),)
        )
        with pytest.raises(NotTheLeader):
            await removal
        assert node.status().applied_index == 2
        node.receive((m.Heartbeat(term=3, sender=3, to=1, commit=2),))
        with pytest.raises(NotTheLeader) as error:
            await forwarded
        assert (error.value.leader, error.value.applied_unknown) == (3, False)
        peers = node._peers
        assert isinstance(peers, SilentPeers)
        await asyncio.gather(command, behind)
        assert peers.submitted == [configure(1), configure(2)]


async def test_waiters_for_one_index_are_completed_by_the_term_of_their_proposal(tmp_path: Path) -> None:
    async with leader(tmp_path) as node:
        leadership = node._leadership
        assert leadership is not None
        old = leadership._applied(9)
        node.core.term = 2
        current = leadership._applied(9)
        leadership.applied((m.Entry(term=2, index=2, payload=encode_records(())),))
        with pytest.raises(LeadershipLost):
            await old
        assert not current.done()
        leadership.applied((m.Entry(term=2, index=9, payload=encode_records(())),))
        await current


async def test_repeated_removal_waits_for_the_first(tmp_path: Path) -> None:
    """As for a leader that finds the removal in its log."""
    async with leader(tmp_path) as node:
        with pytest.raises(MetadataUnavailable, match="not committed yet"):
            await node.membership.remove_voter(3, timeout_s=0)
        removal = asyncio.ensure_future(node.membership.remove_voter(3, timeout_s=10))
        with pytest.raises(MetadataUnavailable, match="not committed yet"):
            await node.membership.remove_voter(3, timeout_s=0)
        assert not removal.done()
        node.receive((holds(2, node.core.log.last_index),))
        await removal


async def test_leadership_transfer_does_not_wait_for_a_dead_target(tmp_path: Path) -> None:
    async with leader(tmp_path) as node:
        handing_over = asyncio.ensure_future(node.membership.hand_over(10))
        await asyncio.sleep(0)
        assert node.core.transfer_target == 2  # 3 has not responded yet
        node.receive((holds(3, 1),))
        node.core.on_peer_unreachable(2)
        node.receive((m.HeartbeatReply(term=1, sender=3, to=1),))
        await node.membership.status_when(lambda _: node.core.transfer_target == 3)
        node.core.on_peer_unreachable(3)
        node.receive((m.HeartbeatReply(term=1, sender=3, to=1),))
        assert not await handing_over


def directory_of(node: MetadataNode, member: int) -> UUID | None:
    return node.core.configuration.members[member].directory


async def test_directory_seen_before_becoming_leader_is_not_recorded(tmp_path: Path) -> None:
    """The previous leader may have removed the node, and added it again with another disk."""
    async with leader(tmp_path, seen={2: UUID(int=1)}) as node:
        membership = node.membership
        membership.tick()
        assert (directory_of(node, 1), directory_of(node, 2)) == (node.directory_id, None)
        node.receive((holds(2, node.core.log.last_index),))
        await node.membership.status_when(lambda status: status.commit_index == status.last_index)
        assert node.membership.admits(2, UUID(int=2))
        membership.tick()
        assert directory_of(node, 2) == UUID(int=2)


async def test_node_added_again_may_have_another_directory(tmp_path: Path) -> None:
    async with leader(tmp_path) as node:
        membership = node.membership
        assert node.membership.admits(2, UUID(int=1))
        removal = asyncio.ensure_future(node.membership.remove_voter(2, timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 2)
        node.receive((holds(3, 2),))
        await removal
        adding = asyncio.ensure_future(node.membership.add_voter(2, "http://two", timeout_s=10))
        await node.membership.status_when(lambda status: status.last_index == 3)
        node.receive((holds(3, 3),))
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await node.membership.status_when(lambda status: status.commit_index == 3)
        membership.tick()
        assert directory_of(node, 2) is None
        assert node.membership.admits(2, UUID(int=2))
