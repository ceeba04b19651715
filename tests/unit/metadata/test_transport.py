"""Transport: responses are accepted only if they are signed for this very request.

Also: Raft messages that travel in responses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web
from connection_harness import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.metadata import versions
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum import transport
from tierlog.metadata.quorum.auth import (
    INDEX,
    RESPONSE_SIGNATURE,
    SIGNATURE,
    VERSIONS,
    is_signed_response,
    sign_response,
)
from tierlog.metadata.quorum.log_pages import LogPage, encode_page
from tierlog.metadata.quorum.peers import IncompatibleNode, MetadataUnavailable
from tierlog.metadata.quorum.transport import HttpPeers
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage, Heartbeat, decode_messages, encode_messages
from tierlog.metadata.versions import WIRE_VERSIONS, announced, own_versions

SECRET = b"a secret of the test"
TIMEOUT_S = 4.0  # aiohttp rounds longer ones to whole seconds
PAGE = LogPage((), leader=2, voters={2: "http://two"})
Response = Callable[[web.Request], web.Response]


class Voter:
    """Node 2, whose responses the test sets; node 1 sends the requests."""

    def __init__(self) -> None:
        self.response: Response = signed_response(encode_page(PAGE))
        self.paths: list[str] = []
        self.bodies: list[bytes] = []
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def start(self, tasks: TaskGroup) -> HttpPeers:
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", self._serve)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        peers = HttpPeers(1, "c", SECRET, tasks)
        peers.configure({1: Member(), 2: Member(f"http://{host}:{port}")}, {})
        return peers

    async def stop(self) -> None:
        self.may_respond.set()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.bodies.append(await request.read())
        await self.may_respond.wait()
        return self.response(request)


def signed_response(
    body: bytes,
    *,
    secret: bytes = SECRET,
    status: int = 200,
    signed_status: int = 200,
    index: str = "",
    sent_index: str = "",
) -> Response:
    """`signed_status`, `index`: covered by the signature; `status`, `sent_index`: sent."""

    def response(request: web.Request) -> web.Response:
        signature = sign_response(secret, request.headers[SIGNATURE], signed_status, index, body)
        headers = {RESPONSE_SIGNATURE: signature, **({INDEX: sent_index} if sent_index else {})}
        return web.Response(body=body, status=status, headers=headers)

    return response


@pytest.fixture
async def voter() -> AsyncIterator[Voter]:
    voter = Voter()
    yield voter
    await voter.stop()


@pytest.fixture
async def peers(voter: Voter) -> AsyncIterator[HttpPeers]:
    failures: list[BaseException] = []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    peers = await voter.start(tasks)
    yield peers
    await peers.close()
    await tasks.close()
    assert failures == []


async def test_signed_responses_are_accepted(voter: Voter, peers: HttpPeers) -> None:
    assert await peers.log_page(2, 0, 0) == PAGE
    voter.response = signed_response(b"chunk")
    assert await peers.snapshot_chunk(2, 5, 0) == b"chunk"
    reply = c.Acknowledged()
    voter.response = signed_response(c.encode_reply(reply), index="7", sent_index="7")
    assert await peers.submit(2, c.ConfirmRemoteDeleted(uuids=())) == (reply, 7)


@pytest.mark.parametrize(
    "response",
    [
        lambda _: web.Response(body=encode_page(PAGE)),
        signed_response(encode_page(PAGE), secret=b"another"),
        signed_response(encode_page(PAGE), signed_status=503),
        signed_response(encode_page(PAGE), index="1", sent_index="2"),
        lambda request: web.Response(
            body=encode_page(PAGE), headers=signed_response(b"another body")(request).headers.copy()
        ),
    ],
    ids=["unsigned", "another secret", "another status", "another index", "another body"],
)
async def test_responses_without_a_valid_signature_are_rejected(
    voter: Voter, peers: HttpPeers, response: Response
) -> None:
    voter.response = response
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(
                MetadataUnavailable,
                match="rejected the response of node 2: its responses are not signed",
            ):
                await peers.log_page(2, 0, 0)
        with pytest.raises(MetadataUnavailable, match="rejected the response"):
            await peers.snapshot_chunk(2, 5, 0)
        with pytest.raises(MetadataUnavailable, match="rejected the response") as unknown:
            await peers.submit(2, c.ConfirmRemoteDeleted(uuids=()))
        assert unknown.value.applied_unknown
        with pytest.raises(MetadataUnavailable, match="rejected the response"):
            await peers.heartbeat(2, c.Heartbeat(broker_id=1, broker_epoch=1, image_index=1), 1.0)
        with pytest.raises(MetadataUnavailable, match="rejected the response"):
            await peers.status(2)
    assert [line["event"] for line in logs] == ["quorum.response.rejected"]


def test_headers_that_are_not_utf8_are_not_a_valid_signature() -> None:
    headers = {RESPONSE_SIGNATURE: "\udcff", INDEX: "\udcff"}
    assert not is_signed_response(headers, SECRET, "question", 200, b"")


async def test_recorded_response_is_rejected_for_a_repeated_request(voter: Voter, peers: HttpPeers) -> None:
    recorded: list[web.Response] = []

    def record(request: web.Request) -> web.Response:
        recorded.append(signed_response(encode_page(PAGE))(request))
        return recorded[0]

    voter.response = record
    await peers.log_page(2, 0, 0)
    first = recorded[0]
    voter.response = lambda _: web.Response(
        body=first.body, headers={RESPONSE_SIGNATURE: first.headers[RESPONSE_SIGNATURE]}
    )
    with pytest.raises(MetadataUnavailable, match="rejected the response"):
        await peers.log_page(2, 0, 0)


async def test_error_responses_give_the_reason_signed_or_not(voter: Voter, peers: HttpPeers) -> None:
    voter.response = lambda _: web.Response(status=401, text="the signature is wrong")
    with pytest.raises(MetadataUnavailable, match="node 2 responded with HTTP 401: the signature is wrong"):
        await peers.log_page(2, 0, 0)
    error = {"message": "a newer snapshot has replaced this one", "applied_unknown": False}
    voter.response = signed_response(msgspec.json.encode(error), status=503, signed_status=503)
    with pytest.raises(MetadataUnavailable, match="a newer snapshot"):
        await peers.snapshot_chunk(2, 5, 0)
    with pytest.raises(MetadataUnavailable) as refusal:
        await peers.heartbeat(2, c.Heartbeat(broker_id=1, broker_epoch=1, image_index=1), 1.0)
    assert refusal.value.refused


async def test_responses_are_bounded_and_redirects_are_not_followed(
    voter: Voter, peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RESPONSE_BYTES_MAX", 1000)
    voter.response = signed_response(bytes(1001))
    with pytest.raises(MetadataUnavailable, match="longer than 1000 bytes"):
        await peers.snapshot_chunk(2, 5, 0)
    voter.paths.clear()
    voter.response = lambda _: web.Response(status=307, headers={"Location": "/elsewhere"})
    with pytest.raises(MetadataUnavailable, match="HTTP 307"):
        await peers.log_page(2, 0, 0)
    assert voter.paths == ["/metadata/v1/log"]


async def test_log_is_read_from_a_node_that_is_not_a_member(voter: Voter, peers: HttpPeers) -> None:
    url = f"http://127.0.0.1:{voter._runner.addresses[0][1]}"
    peers.configure({1: Member()}, {2: url})
    assert await peers.log_page(2, 0, 0) == PAGE
    with pytest.raises(MetadataUnavailable, match="the address of node 2"):
        await peers.submit(2, c.ConfirmRemoteDeleted(uuids=()))


def heartbeat(term: int, sender: int = 1, to: int = 2) -> AnyMessage:
    return Heartbeat(term=term, sender=sender, to=to, commit=0, read=0)


def start_peers(peers: HttpPeers) -> tuple[list[AnyMessage], list[int]]:
    """Start the peers. Returns lists that collect received messages, and unreachable peers."""
    received: list[AnyMessage] = []
    lost: list[int] = []
    peers.start(lost.append, lambda peer: None, lambda peer: None, received.extend)
    return received, lost


async def test_messages_in_a_signed_response_reach_the_node(voter: Voter, peers: HttpPeers) -> None:
    received, lost = start_peers(peers)
    voter.response = signed_response(encode_messages((heartbeat(3, 2, 1), heartbeat(3, 7, 1))))
    peers.send(heartbeat(3))
    await until(lambda: bool(received))
    assert (received, lost) == ([heartbeat(3, 2, 1)], [])  # node 7 did not sign


@pytest.mark.parametrize(
    "response",
    [
        lambda _: web.Response(body=encode_messages((heartbeat(3, 2, 1),))),
        signed_response(encode_messages((heartbeat(3, 2, 1),)), secret=b"another"),
        lambda _: web.Response(status=307, headers={"Location": "/elsewhere"}),
        lambda _: web.Response(status=204),
    ],
    ids=["unsigned", "another secret", "elsewhere", "an unsigned receipt"],
)
async def test_messages_in_other_responses_are_dropped(
    voter: Voter, peers: HttpPeers, response: Response
) -> None:
    received, lost = start_peers(peers)
    voter.response = response
    peers.send(heartbeat(3))
    await until(lambda: lost == [2])
    assert (received, voter.paths) == ([], ["/raft/v1/step"])


async def test_replies_to_a_peers_request_travel_in_the_response(peers: HttpPeers, voter: Voter) -> None:
    replies = asyncio.ensure_future(peers.replies_for(2))
    await asyncio.sleep(0)
    peers.send(heartbeat(3))
    assert await replies == (heartbeat(3),)
    assert voter.paths == []


async def test_replies_in_a_response_do_not_overtake_a_request(voter: Voter, peers: HttpPeers) -> None:
    voter.may_respond.clear()
    voter.response = signed_response(b"", status=204, signed_status=204)
    peers.send(heartbeat(3))
    await until(lambda: bool(voter.bodies))
    peers.send(heartbeat(4))
    assert await peers.replies_for(2) == ()
    voter.may_respond.set()
    await until(lambda: len(voter.bodies) == 2)
    assert [decode_messages(body) for body in voter.bodies] == [(heartbeat(3),), (heartbeat(4),)]


async def test_signed_responses_announce_the_versions_of_a_node(voter: Voter, peers: HttpPeers) -> None:
    newer = own_versions()._replace(version="9.9", wire=(1, 7))

    def announcing(request: web.Request, signed: str, sent: str) -> web.Response:
        assert announced(request.query_string) == own_versions()
        body = encode_page(PAGE)
        signature = sign_response(SECRET, request.headers[SIGNATURE], 200, "", body, signed)
        return web.Response(body=body, headers={RESPONSE_SIGNATURE: signature, VERSIONS: sent})

    voter.response = lambda request: announcing(request, newer.announcement(), newer.announcement())
    await peers.log_page(2, 0, 0)
    assert peers.versions_of(2) == newer
    voter.response = lambda request: announcing(request, "", newer.announcement())
    with pytest.raises(MetadataUnavailable, match="not signed"):
        await peers.log_page(2, 0, 0)
    voter.response = signed_response(encode_page(PAGE))  # as before 0.1.0
    await peers.log_page(2, 0, 0)
    assert peers.versions_of(2) is None


async def test_a_node_without_a_common_wire_version_is_named(voter: Voter, peers: HttpPeers) -> None:
    later = WIRE_VERSIONS[1] + 1
    header = own_versions()._replace(version="9.9", wire=(later, later)).announcement()
    voter.response = lambda request: web.Response(status=505, text="no", headers={VERSIONS: header})
    with pytest.raises(IncompatibleNode, match=f"node 2 .tierlog 9.9. speaks wire version {later}"):
        await peers.log_page(2, 0, 0)
    assert list(peers.problems) == [2]


@pytest.mark.parametrize("headers", [{}, {VERSIONS: "x"}, {VERSIONS: own_versions().announcement()}])
async def test_status_505_of_a_proxy_proves_nothing(
    voter: Voter, peers: HttpPeers, headers: dict[str, str]
) -> None:
    """The command may have reached the node behind it, which knows this wire version."""
    voter.response = lambda request: web.Response(status=505, headers=headers)
    with pytest.raises(MetadataUnavailable) as failed:
        await peers.submit(2, c.CreateTopics(topics=()))
    assert failed.value.applied_unknown


async def test_a_request_that_the_other_node_cannot_read_is_a_problem(voter: Voter, peers: HttpPeers) -> None:
    why = "node 2 (tierlog 0.1.0) cannot read the request: Invalid value 'Fly'"
    body = msgspec.json.encode({"message": why, "applied_unknown": False})
    voter.response = signed_response(body, status=400, signed_status=400)
    with pytest.raises(IncompatibleNode, match="Invalid value 'Fly'") as refused:
        await peers.submit(2, c.CreateTopics(topics=()))
    assert not refused.value.applied_unknown
    assert peers.problems == {2: why}


async def test_messages_that_cannot_be_read_are_logged(voter: Voter, peers: HttpPeers) -> None:
    voter.response = signed_response(b"\xc1")
    with capture_logs() as logs:
        peers.send(Heartbeat(term=1, sender=1, to=2, commit=0))
        await until(lambda: 2 in peers.problems)
    assert "cannot read messages of node 2" in peers.problems[2]
    assert logs[0]["log_level"] == "error"


async def test_a_command_is_repeated_to_a_node_that_was_rolled_back(
    voter: Voter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal of its newer wire version had no effect, and names the version for the next request."""
    older = own_versions()
    monkeypatch.setattr(versions, "WIRE_VERSIONS", (1, 2))
    newer, tasks = own_versions(), TaskGroup(lambda name, failure: None)
    peers = await voter.start(tasks)

    def announcing(request: web.Request) -> web.Response:
        signature = sign_response(SECRET, request.headers[SIGNATURE], 200, "", b"", newer.announcement())
        return web.Response(headers={RESPONSE_SIGNATURE: signature, VERSIONS: newer.announcement()})

    voter.response = announcing
    await peers.snapshot_chunk(2, 5, 0)
    voter.response = lambda request: web.Response(status=505, headers={VERSIONS: older.announcement()})
    with pytest.raises(MetadataUnavailable) as refused:
        await peers.submit(2, c.CreateTopics(topics=()))
    assert not refused.value.applied_unknown and peers.problems == {}
    voter.response = signed_response(c.encode_reply(c.Acknowledged()), index="7", sent_index="7")
    await peers.submit(2, c.CreateTopics(topics=()))
    assert voter.paths == ["/metadata/v1/snapshot", "/raft/v2/submit", "/raft/v1/submit"]
    await peers.close()
    await tasks.close()


async def test_a_request_that_times_out_says_so(
    voter: Voter, peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "STEP_TIMEOUT_S", 0.1)
    voter.may_respond.clear()
    with pytest.raises(MetadataUnavailable, match="node 2: no response in time"):
        await peers.status(2)
    beat = c.Heartbeat(broker_id=1, broker_epoch=1, image_index=0)
    with pytest.raises(MetadataUnavailable, match="node 2: no response in time"):
        await peers.heartbeat(2, beat, 0.1)


@pytest.mark.parametrize("what", ["heartbeat", "status"])
async def test_a_cancellation_at_the_moment_of_a_timeout_is_not_lost(
    what: str, voter: Voter, peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy event loop runs both in one turn. A node that stops waits for the tasks that it cancelled."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(transport, "STEP_TIMEOUT_S", TIMEOUT_S)
    beat = c.Heartbeat(broker_id=1, broker_epoch=1, image_index=0)
    voter.may_respond.clear()
    request = peers.heartbeat(2, beat, TIMEOUT_S) if what == "heartbeat" else peers.status(2)
    requesting = asyncio.create_task(_unanswered(request))
    await until(lambda: bool(voter.paths))
    both_due = loop.call_later(TIMEOUT_S, requesting.cancel)  # just after the request's timeout
    monkeypatch.setattr(loop, "time", both_due.when)
    await asyncio.wait([requesting])
    assert requesting.cancelled()


async def _unanswered(request: Awaitable[object]) -> None:
    with pytest.raises(MetadataUnavailable):
        await request


async def test_requests_for_another_process_have_the_wire_version_of_the_node(
    peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (signed,) = peers.sign_requests("/metadata/v1/end", b"x")
    assert signed.path == "/metadata/v1/end"
    monkeypatch.setattr(versions, "WIRE_VERSIONS", (2, 3))  # as a release without version 1
    tasks = TaskGroup(lambda name, failure: None)
    later = HttpPeers(1, "c", SECRET, tasks)
    later.configure({1: Member(), 2: Member("http://two")}, {})
    assert [one.path for one in later.sign_requests("/metadata/v1/end", b"x")] == ["/metadata/v2/end"]
    await later.close()
    await tasks.close()
