"""Observers, heartbeats and leases, over real HTTP on loopback; every wait is for an event."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from awaited_image import image_when
from metadata_quorum import CLUSTER_ID, SECRET, Quorum, has, register, topic

from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.api import END_PATH, LOG_PATH
from tierlog.metadata.quorum.auth import Envelope
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import wait_for_event
from tierlog.metadata.quorum.sentinel import ProcessEndNotice
from tierlog.metadata.raft.settings import RaftSettings
from tierlog.protocol.errors import ErrorCode

LONG_MS = 3_600_000


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    quorum = Quorum(tmp_path)
    try:
        yield quorum
    finally:
        await quorum.close()
    assert quorum.failures == []


async def start_all(quorum: Quorum) -> int:
    for node_id in quorum.voters:
        await quorum.start(node_id)
    return await quorum.leader()


def fenced(broker_id: int):
    def check(image: ClusterImage) -> bool:
        return broker_id in image.brokers and image.brokers[broker_id].fenced

    return check


def unfenced(broker_id: int):
    def check(image: ClusterImage) -> bool:
        return broker_id in image.brokers and not image.brokers[broker_id].fenced

    return check


async def registered_broker(client: MetadataClient, broker_id: int, admin_url: str = "") -> c.Heartbeat:
    """Register a fenced broker. Its first heartbeat unfences it."""
    registration = c.RegisterBroker(
        broker_id=broker_id,
        incarnation=register(broker_id).incarnation,
        host="h",
        port=1,
        admin_url=admin_url,
        start_fenced=True,
    )
    registered = await client.submit(registration)
    image = await image_when(client, lambda image: broker_id in image.brokers)
    heartbeat = c.Heartbeat(
        broker_id=broker_id, broker_epoch=registered.broker_epoch, image_index=image.index
    )
    reply = await client.heartbeat(heartbeat, timeout_s=10.0)
    assert (reply.error, reply.fenced) == (ErrorCode.NONE, False)
    assert reply.lease_ms > 0
    return heartbeat


async def test_observer_reads_the_log_and_submits_commands(quorum: Quorum) -> None:
    await start_all(quorum)
    observer = (await quorum.observe(9, 2)).client  # it knows one voter, which names the others
    await observer.submit(register())
    await observer.submit(topic("t"))
    assert has("t")(observer.image)
    await quorum.running[1].client.submit(topic("u"))
    image = await image_when(observer, has("u"))
    assert image == (await image_when(quorum.running[1].client, lambda other: other.index == image.index))


async def test_observer_survives_the_leader_and_the_voter_it_reads_from(quorum: Quorum) -> None:
    leader = await start_all(quorum)
    observing = await quorum.observe(9, 1, 2, 3)
    await observing.client.submit(register())
    await quorum.kill(leader)
    await observing.client.submit(topic("one"))
    await quorum.start(leader)
    await quorum.leader()
    await quorum.kill(next(n for n in quorum.running if n != leader))
    await observing.client.submit(topic("two"))
    assert has("one")(observing.client.image)
    assert has("two")(observing.client.image)


async def test_late_observer_reads_a_snapshot_and_then_the_log(quorum: Quorum) -> None:
    quorum.snapshot_entries = 5
    leader = await start_all(quorum)
    client = quorum.running[leader].client
    await client.submit(register())
    for number in range(20):
        await client.submit(topic(f"t{number}"))
    observer = (await quorum.observe(9, *quorum.voters)).client
    assert (await image_when(observer, has("t19"))).topics == client.image.topics
    await client.submit(topic("later"))
    await image_when(observer, has("later"))


async def test_log_is_served_to_nodes_of_this_cluster_only(quorum: Quorum) -> None:
    await start_all(quorum)
    path = f"{LOG_PATH}?after=0&wait_ms=0"
    async with aiohttp.ClientSession() as session:
        for secret, signed, status in (
            (SECRET, path, 200),
            (b"wrong", path, 401),
            (SECRET, f"{LOG_PATH}?after=5&wait_ms=0", 401),
        ):
            headers = Envelope(CLUSTER_ID, 9, 1).headers(secret, signed, b"")
            async with session.get(quorum.urls[1] + path, headers=headers) as response:
                assert response.status == status


async def test_end_notice_of_an_unknown_broker_is_to_be_retried(
    quorum: Quorum,
) -> None:
    await start_all(quorum)
    voter = quorum.running[1]

    async def notify(broker_epoch: int) -> int:
        body = msgspec.msgpack.encode(ProcessEndNotice(9, broker_epoch))
        headers = Envelope(CLUSTER_ID, 9, 1).headers(SECRET, END_PATH, body)
        async with session.post(quorum.urls[1] + END_PATH, data=body, headers=headers) as response:
            return response.status

    async with aiohttp.ClientSession() as session:
        assert await notify(5) == 503, "a sentinel retries after that"
        registered = await voter.client.submit(register(9))
        assert await notify(registered.broker_epoch) == 204


async def test_silent_broker_is_fenced(quorum: Quorum) -> None:
    quorum.session_ms = 200
    await start_all(quorum)
    observer = (await quorum.observe(9, *quorum.voters)).client
    heartbeat = await registered_broker(observer, 9)
    image = await image_when(observer, fenced(9))
    assert image.brokers[9].broker_epoch == heartbeat.broker_epoch
    again = c.Heartbeat(broker_id=9, broker_epoch=heartbeat.broker_epoch, image_index=image.index)
    assert not (await observer.heartbeat(again, timeout_s=10.0)).fenced  # unfenced again


async def test_refused_connections_do_not_fence_a_broker_but_a_signed_notice_does(
    quorum: Quorum,
) -> None:
    """A firewall can break its connections and refuse new ones while it serves under its lease."""
    quorum.session_ms = LONG_MS
    await start_all(quorum)
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda reader, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    observer = (await quorum.observe(9, *quorum.voters)).client
    heartbeat = await registered_broker(observer, 9, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    connections = [await accepted.get() for _ in quorum.voters]
    for member in quorum.running.values():
        await image_when(member.client, unfenced(9))
    server.close()
    for watcher in connections:
        watcher.close()
    voters = [member.node for member in quorum.running.values() if member.node.node_id in quorum.voters]
    while any(9 not in voter.dead_brokers for voter in voters):
        await wait_for_event(asyncio.Event(), 0.01)
    await observer.heartbeat(heartbeat, timeout_s=10.0)
    assert not observer.image.brokers[9].fenced
    for voter in voters:  # any of them may be the next leader
        voter.process_ended(9, heartbeat.broker_epoch)
    await image_when(observer, fenced(9))


async def test_suspicion_of_an_unreachable_broker_ends_after_one_session(
    quorum: Quorum,
) -> None:
    """Its host always refuses the connections of others, but its own heartbeats arrive."""
    quorum.session_ms = 1000
    await start_all(quorum)
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda reader, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    await quorum.observe(9, *quorum.voters)
    observer = quorum.observers[0]
    heartbeat = await registered_broker(
        observer.client, 8, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    )
    connections = [await accepted.get() for _ in (*quorum.voters, 9)]
    for member in quorum.running.values():
        await image_when(member.client, unfenced(8))
    server.close()
    for watcher in connections:
        watcher.close()
    trackers = [observer.observer._dead_brokers]
    trackers += [member.node._heartbeats._dead_brokers for member in quorum.running.values()]
    while any(8 not in dead._suspicions for dead in trackers):
        await observer.client.heartbeat(heartbeat, timeout_s=10.0)
        await wait_for_event(asyncio.Event(), 0.01)
    while any(dead.brokers for dead in trackers):
        await observer.client.heartbeat(heartbeat, timeout_s=10.0)
        await wait_for_event(asyncio.Event(), 0.01)


async def test_observer_detects_a_dead_broker_without_a_quorum(quorum: Quorum) -> None:
    quorum.session_ms = LONG_MS
    await start_all(quorum)
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda reader, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    observer = (await quorum.observe(9, *quorum.voters)).client
    await registered_broker(observer, 8, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    connections = [await accepted.get() for _ in (*quorum.voters, 9)]
    assert observer.dead_brokers == frozenset()
    for voter in quorum.voters:
        await quorum.kill(voter)
    server.close()
    for watcher in connections:
        watcher.close()
    while observer.dead_brokers != {8}:
        await wait_for_event(asyncio.Event(), 0.01)
    assert not observer.image.brokers[8].fenced


async def test_next_leader_fences_the_broker_of_a_killed_leader(quorum: Quorum) -> None:
    quorum.session_ms = LONG_MS
    leader = await start_all(quorum)
    await registered_broker(quorum.running[leader].client, leader, quorum.urls[leader])
    followers = [member for n, member in quorum.running.items() if n != leader]
    for follower in followers:
        await image_when(follower.client, unfenced(leader))
    broker_epoch = follower.client.image.brokers[leader].broker_epoch
    await quorum.kill(leader)
    for member in quorum.running.values():
        member.node.process_ended(leader, broker_epoch)
    await image_when(follower.client, fenced(leader))


async def test_partitioned_leader_serves_no_read_and_extends_no_lease(quorum: Quorum) -> None:
    """It still believes that it is the leader; the others have elected another, which commits more."""
    quorum.settings = RaftSettings(quorum_ticks=1_000_000)
    quorum.session_ms = LONG_MS
    old = await start_all(quorum)
    heartbeat = await registered_broker(quorum.running[old].client, old)
    quorum.cut_off = {old}
    others = {n: member for n, member in quorum.running.items() if n != old}
    for member in others.values():
        await member.node.membership.status_when(lambda status: status.leader not in (old, -1))
    await next(iter(others.values())).client.submit(topic("new"))
    assert quorum.running[old].node.is_leader
    nothing = c.ConfirmRemoteDeleted(uuids=())
    with pytest.raises(MetadataUnavailable):
        await quorum.running[old].client.submit(nothing, timeout_s=0.2)
    with pytest.raises(MetadataUnavailable):
        await quorum.running[old].client.heartbeat(heartbeat, timeout_s=0.2)
    waiting = asyncio.gather(quorum.running[old].client.submit(nothing))
    quorum.cut_off = set()
    await waiting
    assert has("new")(quorum.running[old].client.image)  # a read sees everything committed before it began


async def test_every_node_returns_the_leaders_view_of_the_quorum(quorum: Quorum) -> None:
    quorum.session_ms = LONG_MS
    leader = await start_all(quorum)
    observer = (await quorum.observe(9, 1, 2, 3)).client
    await registered_broker(observer, 9)
    for client in (*(running.client for running in quorum.running.values()), observer):
        status = await client.quorum()
        assert (status.node_id, status.leader, status.is_leader) == (leader, leader, True)
        assert [member.node_id for member in status.members if member.voter] == [1, 2, 3]
        last_heard = [member.last_heard_ms for member in status.members]
        assert all(last_heard)
        assert all((member.last_caught_up_ms or 0) <= max(map(int, last_heard)) for member in status.members)
        [reader] = status.observers
        assert (reader.node_id, reader.voter) == (9, False)
        assert 0 < reader.match_index <= status.last_index
        assert reader.last_heard_ms is not None


async def test_current_image_includes_commands_submitted_elsewhere(quorum: Quorum) -> None:
    await start_all(quorum)
    observer = (await quorum.observe(9, 1, 2, 3)).client
    await observer.submit(register())
    for number, running in enumerate(quorum.running.values()):
        await running.client.submit(topic(f"t{number}"))
        assert has(f"t{number}")(await observer.current())
