"""Three metadata nodes in one process, over real HTTP on loopback; every wait is for an event."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from awaited_image import image_when
from metadata_quorum import CLUSTER_ID, SECRET, Quorum, has, register, topic

from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum import api
from tierlog.metadata.quorum.api import (
    BODIES_OF_ADDRESS_MAX_BYTES,
    SMALL_BODY_BYTES,
    STATUS_PATH,
    STEP_PATH,
    SUBMIT_PATH,
)
from tierlog.metadata.quorum.auth import MAX_BODY_BYTES, SIGNATURE, Envelope, is_signed_response
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.raft.messages import (
    NO_NODE,
    Heartbeat,
    VoteReply,
    VoteRequest,
    decode_messages,
    encode_messages,
)
from tierlog.protocol.errors import ErrorCode


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    quorum = Quorum(tmp_path)
    try:
        yield quorum
    finally:
        await quorum.close()
    assert quorum.failures == []


async def test_quorum_elects_replicates_and_forwards(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    leader = await quorum.leader()
    follower = next(member for n, member in quorum.running.items() if n != leader)
    await follower.client.submit(register())
    created = await follower.client.submit(topic("t"))
    assert created.topics[0].error == ErrorCode.NONE
    assert has("t")(follower.client.image)  # the reply waits until this node's image includes it
    for member in quorum.running.values():
        image = await image_when(member.client, has("t"))
        assert image.topic("t") == follower.client.image.topic("t")


async def test_quorum_survives_its_leader_which_then_catches_up(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    first = await quorum.leader()
    await quorum.running[first].client.submit(register())
    await quorum.running[first].client.submit(topic("before"))
    await quorum.kill(first)
    survivor = next(iter(quorum.running.values()))
    created = await survivor.client.submit(topic("after"))
    assert created.topics[0].error == ErrorCode.NONE
    assert has("before")(survivor.client.image)
    assert await quorum.leader() != first
    back = await quorum.start(first)
    image = await image_when(back.client, has("after"))
    assert has("before")(image)


async def test_leader_with_a_hung_disk_is_replaced_and_later_follows(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    hung = await quorum.leader()
    member = quorum.running[hung]
    broker = await member.client.submit(register())
    observing = await quorum.observe(4, hung)
    may_continue = threading.Event()
    member.disk.submit(may_continue.wait)
    try:
        lost = asyncio.gather(member.client.submit(topic("lost")), return_exceptions=True)
        others = [other for n, other in quorum.running.items() if n != hung]
        await others[0].node.membership.status_when(lambda status: status.leader not in (hung, NO_NODE))
        (unknown,) = await lost
        assert isinstance(unknown, MetadataUnavailable) and unknown.applied_unknown
        await others[0].client.submit(topic("after"))
        await image_when(observing.client, has("after"))  # the observer has left the node that hangs
        heartbeat = c.Heartbeat(broker_id=1, broker_epoch=broker.broker_epoch, image_index=1)
        assert (await member.client.heartbeat(heartbeat)).error is ErrorCode.NONE  # from the new leader
    finally:
        may_continue.set()
    await image_when(member.client, has("after"))


async def test_node_that_lags_too_far_gets_a_snapshot(quorum: Quorum) -> None:
    quorum.snapshot_entries = 5
    for n in (1, 2, 3):
        await quorum.start(n)
    leader = await quorum.leader()
    absent = next(n for n in quorum.running if n != leader)
    await quorum.kill(absent)
    client = quorum.running[leader].client
    await client.submit(register())
    for number in range(20):
        await client.submit(topic(f"t{number}"))
    back = await quorum.start(absent)
    image = await image_when(back.client, has("t19"))
    assert back.node.core.log.snapshot.index > 5
    assert image.topics == client.image.topics
    await quorum.kill(absent)
    again = await quorum.start(absent)  # from its own disk, which has the snapshot
    assert again.node.core.log.snapshot.index > 5
    await image_when(again.client, has("t19"))


async def test_minority_commits_no_command(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    leader = await quorum.leader()
    client = quorum.running[leader].client
    for n in [n for n in quorum.running if n != leader]:
        await quorum.kill(n)
    with pytest.raises(MetadataUnavailable):
        await client.submit(topic("t"), timeout_s=0.2)
    assert not has("t")(client.image)


async def test_concurrent_commands_of_all_nodes_are_evaluated_exactly_once(quorum: Quorum) -> None:
    for n in (1, 2, 3):
        await quorum.start(n)
    await quorum.running[1].client.submit(register())
    clients = [member.client for member in quorum.running.values()]
    replies = await asyncio.gather(*[clients[n % 3].submit(topic(f"t{n // 3}")) for n in range(30)])
    errors = [reply.topics[0].error for reply in replies]
    assert errors.count(ErrorCode.NONE) == 10
    assert errors.count(ErrorCode.TOPIC_ALREADY_EXISTS) == 20


@pytest.mark.parametrize(
    ("envelope", "secret", "status"),
    [
        (Envelope(CLUSTER_ID, 2, 1), b"wrong", 401),
        (Envelope("another", 2, 1), SECRET, 403),
        (Envelope(CLUSTER_ID, 2, 3), SECRET, 403),
        (Envelope(CLUSTER_ID, 9, 1), SECRET, 403),
        (Envelope(CLUSTER_ID, 3, 1), SECRET, 403),  # signs a message whose sender is another voter
        (Envelope(CLUSTER_ID, 2, 1), SECRET, 204),
    ],
)
async def test_only_signed_messages_of_this_cluster_are_accepted(
    quorum: Quorum, envelope: Envelope, secret: bytes, status: int
) -> None:
    await quorum.start(1)
    body = encode_messages((Heartbeat(term=0, sender=2, to=1, commit=0),))
    headers = envelope.headers(secret, STEP_PATH, body)
    async with (
        aiohttp.ClientSession() as session,
        session.post(quorum.urls[1] + STEP_PATH, data=body, headers=headers) as response,
    ):
        assert response.status == status


async def test_immediate_replies_come_in_the_signed_response(quorum: Quorum) -> None:
    await quorum.start(1)
    body = encode_messages((VoteRequest(term=1, sender=2, to=1, last_index=0, last_term=0, pre_vote=True),))
    headers = Envelope(CLUSTER_ID, 2, 1, nonce="once").headers(SECRET, STEP_PATH, body)
    async with (
        aiohttp.ClientSession() as session,
        session.post(quorum.urls[1] + STEP_PATH, data=body, headers=headers) as response,
    ):
        body_of_response = await response.read()
    assert is_signed_response(response.headers, SECRET, headers[SIGNATURE], 200, body_of_response)
    granted = VoteReply(term=1, sender=1, to=2, granted=True, pre_vote=True)
    assert granted in decode_messages(body_of_response)  # node 1 may also request votes itself


async def test_large_bodies_of_strangers_have_a_budget_for_each_address(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 60.0)
    await quorum.start(1)
    small, large = encode_messages([]), bytes(SMALL_BODY_BYTES + 1)

    async def status_from(address: str, body: bytes, secret: bytes = SECRET) -> int:
        headers = Envelope(CLUSTER_ID, 2, 1).headers(secret, STEP_PATH, body)
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(quorum.urls[1] + STEP_PATH, data=body, headers=headers) as response,
        ):
            return response.status

    strangers = []
    for _ in range(BODIES_OF_ADDRESS_MAX_BYTES // MAX_BODY_BYTES):
        _, writer = await asyncio.open_connection("127.0.0.1", quorum.ports[1])
        head = f"POST {STEP_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n"
        writer.write(head.encode())
        strangers.append(writer)
    while await status_from("127.0.0.1", large, b"another secret") != 503:
        """The node has not begun to receive them all."""
    assert await status_from("127.0.0.2", large) == 400  # received, and no messages
    monkeypatch.setattr(api, "BODIES_MAX_BYTES", BODIES_OF_ADDRESS_MAX_BYTES)  # strangers have used it up
    assert await status_from("127.0.0.3", large) == 503
    assert await status_from("127.0.0.2", large) == 400  # a node has sent a request from there
    assert await status_from("127.0.0.1", small) == 204
    for writer in strangers:
        writer.close()
    while await status_from("127.0.0.1", large) != 400:
        """The node has not noticed that they are gone."""


async def test_strangers_at_the_address_of_a_node_leave_the_budget_of_its_connections(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 60.0)
    await quorum.start(1)
    url, large = quorum.urls[1] + STEP_PATH, bytes(SMALL_BODY_BYTES + 1)

    async def status(session: aiohttp.ClientSession, body: bytes, secret: bytes = SECRET) -> int:
        headers = Envelope(CLUSTER_ID, 2, 1).headers(secret, STEP_PATH, body)
        async with session.post(url, data=body, headers=headers) as response:
            await response.read()
            return response.status

    kept = aiohttp.TCPConnector(keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=kept) as node, aiohttp.ClientSession() as new:
        assert await status(node, encode_messages([])) == 204
        count = BODIES_OF_ADDRESS_MAX_BYTES // MAX_BODY_BYTES
        strangers = [await asyncio.open_connection("127.0.0.1", quorum.ports[1]) for _ in range(count)]
        for _, writer in strangers:
            head = f"POST {STEP_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n"
            writer.write(head.encode())
        while await status(new, large, b"another secret") != 503:
            """The node has not begun to receive them all."""
        assert await status(node, large) == 400  # received, and no messages
        for _, writer in strangers:
            writer.close()


@pytest.mark.parametrize("path", [STEP_PATH, SUBMIT_PATH])
async def test_oversized_and_malformed_bodies_are_rejected(quorum: Quorum, path: str) -> None:
    await quorum.start(1)
    async with aiohttp.ClientSession() as session:
        headers = {"Content-Length": str(MAX_BODY_BYTES + 1)}
        reader, writer = await asyncio.open_connection("127.0.0.1", quorum.ports[1])
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {headers['Content-Length']}\r\n\r\n"
        writer.write(head.encode())
        assert b" 413 " in await reader.readline()  # before any of the body is sent
        writer.close()
        junk = b"\xc1 not msgpack"
        signed = Envelope(CLUSTER_ID, 2, 1).headers(SECRET, path, junk)
        async with session.post(quorum.urls[1] + path, data=junk, headers=signed) as response:
            assert response.status == 400
            assert is_signed_response(
                response.headers, SECRET, signed[SIGNATURE], 400, body := await response.read()
            )
            assert "node 1 (tierlog" in json.loads(body)["message"]
        assert "cannot read the request" in quorum.running[1].client.version_problems[2]
        signed = Envelope(CLUSTER_ID, 2, 1).headers(SECRET, STATUS_PATH, b"")
        async with session.get(quorum.urls[1] + STATUS_PATH, headers=signed) as response:
            assert json.loads(await response.read())["node_id"] == 1
