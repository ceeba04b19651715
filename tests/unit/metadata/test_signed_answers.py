"""Whose answers a node believes: those that are signed, with the secret, to this very question.

And how messages of Raft travel in such answers."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from aiohttp import web
from pump import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum import transport
from tierlog.metadata.quorum.auth import (
    INDEX,
    RESPONSE_SIGNATURE,
    SIGNATURE,
    is_signed_response,
    sign_response,
)
from tierlog.metadata.quorum.log_pages import LogPage, encode_page
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.transport import HttpPeers
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage, Heartbeat, decode_messages, encode_messages

SECRET = b"a secret of the test"
PAGE = LogPage((), leader=2, voters={2: "http://two"})
Answer = Callable[[web.Request], web.Response]


class Voter:
    """Node 2, whose answers the test decides; node 1 asks it."""

    def __init__(self) -> None:
        self.answer: Answer = signed(encode_page(PAGE))
        self.paths: list[str] = []
        self.bodies: list[bytes] = []
        self.answers = asyncio.Event()
        self.answers.set()

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
        self.answers.set()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.bodies.append(await request.read())
        await self.answers.wait()
        return self.answer(request)


def signed(
    body: bytes,
    *,
    secret: bytes = SECRET,
    status: int = 200,
    says: int = 200,
    index: str = "",
    told: str = "",
) -> Answer:
    """`says`: the status that is signed; `index`: the one that is, `told`: the one that is sent."""

    def answer(request: web.Request) -> web.Response:
        signature = sign_response(secret, request.headers[SIGNATURE], says, index, body)
        headers = {RESPONSE_SIGNATURE: signature, **({INDEX: told} if told else {})}
        return web.Response(body=body, status=status, headers=headers)

    return answer


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


async def test_what_is_signed_is_believed(voter: Voter, peers: HttpPeers) -> None:
    assert await peers.log_page(2, 0, 0) == PAGE
    voter.answer = signed(b"chunk")
    assert await peers.snapshot_chunk(2, 5, 0) == b"chunk"
    reply = c.Acknowledged()
    voter.answer = signed(c.encode_reply(reply), index="7", told="7")
    assert await peers.submit(2, c.ConfirmRemoteDeleted(uuids=())) == (reply, 7)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: web.Response(body=encode_page(PAGE)),
        signed(encode_page(PAGE), secret=b"another"),
        signed(encode_page(PAGE), says=503),
        signed(encode_page(PAGE), index="1", told="2"),
        lambda request: web.Response(
            body=encode_page(PAGE), headers=signed(b"another body")(request).headers.copy()
        ),
    ],
    ids=["unsigned", "another secret", "another status", "another index", "another body"],
)
async def test_what_is_not_signed_as_it_should_be_is_not(
    voter: Voter, peers: HttpPeers, answer: Answer
) -> None:
    voter.answer = answer
    with capture_logs() as told:
        for _ in range(2):
            with pytest.raises(
                MetadataUnavailable, match="rejected the response of node 2: its responses are not signed"
            ):
                await peers.log_page(2, 0, 0)
        with pytest.raises(MetadataUnavailable, match="rejected the response"):
            await peers.snapshot_chunk(2, 5, 0)
        with pytest.raises(MetadataUnavailable, match="rejected the response") as unknown:
            await peers.submit(2, c.ConfirmRemoteDeleted(uuids=()))
        assert unknown.value.applied_unknown
        with pytest.raises(MetadataUnavailable, match="rejected the response"):
            await peers.heartbeat(2, c.Heartbeat(broker_id=1, broker_epoch=1, image_index=1), 1.0)
    assert [line["event"] for line in told] == ["rejected a response of a quorum node"]


def test_headers_that_are_no_text_are_no_signature() -> None:
    headers = {RESPONSE_SIGNATURE: "\udcff", INDEX: "\udcff"}
    assert not is_signed_response(headers, SECRET, "question", 200, b"")


async def test_a_recorded_answer_is_not_one_to_the_same_question_asked_again(
    voter: Voter, peers: HttpPeers
) -> None:
    recorded: list[web.Response] = []

    def record(request: web.Request) -> web.Response:
        recorded.append(signed(encode_page(PAGE))(request))
        return recorded[0]

    voter.answer = record
    await peers.log_page(2, 0, 0)
    first = recorded[0]
    voter.answer = lambda _: web.Response(
        body=first.body, headers={RESPONSE_SIGNATURE: first.headers[RESPONSE_SIGNATURE]}
    )
    with pytest.raises(MetadataUnavailable, match="rejected the response"):
        await peers.log_page(2, 0, 0)


async def test_a_refusal_says_why_signed_or_not(voter: Voter, peers: HttpPeers) -> None:
    voter.answer = lambda _: web.Response(status=401, text="the signature is wrong")
    with pytest.raises(MetadataUnavailable, match="node 2 responded with HTTP 401: the signature is wrong"):
        await peers.log_page(2, 0, 0)
    told = {"message": "there is a newer snapshot", "applied_unknown": False}
    voter.answer = signed(msgspec.json.encode(told), status=503, says=503)
    with pytest.raises(MetadataUnavailable, match="there is a newer snapshot"):
        await peers.snapshot_chunk(2, 5, 0)
    with pytest.raises(MetadataUnavailable) as refusal:
        await peers.heartbeat(2, c.Heartbeat(broker_id=1, broker_epoch=1, image_index=1), 1.0)
    assert refusal.value.refused


async def test_an_answer_is_read_up_to_a_bound_and_from_nowhere_else(
    voter: Voter, peers: HttpPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RESPONSE_BYTES_MAX", 1000)
    voter.answer = signed(bytes(1001))
    with pytest.raises(MetadataUnavailable, match="longer than 1000 bytes"):
        await peers.snapshot_chunk(2, 5, 0)
    voter.paths.clear()
    voter.answer = lambda _: web.Response(status=307, headers={"Location": "/elsewhere"})
    with pytest.raises(MetadataUnavailable, match="HTTP 307"):
        await peers.log_page(2, 0, 0)
    assert voter.paths == ["/metadata/v1/log"]


async def test_who_is_no_member_is_read_from_at_its_address(voter: Voter, peers: HttpPeers) -> None:
    url = f"http://127.0.0.1:{voter._runner.addresses[0][1]}"
    peers.configure({1: Member()}, {2: url})
    assert await peers.log_page(2, 0, 0) == PAGE
    with pytest.raises(MetadataUnavailable, match="the address of node 2"):
        await peers.submit(2, c.ConfirmRemoteDeleted(uuids=()))


def beat(term: int, sender: int = 1, to: int = 2) -> AnyMessage:
    return Heartbeat(term=term, sender=sender, to=to, commit=0, read=0)


def told_to(peers: HttpPeers) -> tuple[list[AnyMessage], list[int]]:
    """What came in responses to messages, and who could not be reached."""
    answered: list[AnyMessage] = []
    lost: list[int] = []
    peers.start(lost.append, lambda peer: None, lambda peer: None, answered.extend)
    return answered, lost


async def test_messages_in_a_signed_answer_reach_the_node(voter: Voter, peers: HttpPeers) -> None:
    answered, lost = told_to(peers)
    voter.answer = signed(encode_messages((beat(3, 2, 1), beat(3, 7, 1))))
    peers.send(beat(3))
    await until(lambda: bool(answered))
    assert (answered, lost) == ([beat(3, 2, 1)], [])  # node 7 did not sign


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: web.Response(body=encode_messages((beat(3, 2, 1),))),
        signed(encode_messages((beat(3, 2, 1),)), secret=b"another"),
        lambda _: web.Response(status=307, headers={"Location": "/elsewhere"}),
    ],
    ids=["unsigned", "another secret", "elsewhere"],
)
async def test_messages_in_another_answer_do_not(voter: Voter, peers: HttpPeers, answer: Answer) -> None:
    answered, lost = told_to(peers)
    voter.answer = answer
    peers.send(beat(3))
    await until(lambda: lost == [2])
    assert (answered, voter.paths) == ([], ["/raft/v1/step"])


async def test_messages_for_who_calls_travel_in_the_answer(peers: HttpPeers, voter: Voter) -> None:
    asked = asyncio.ensure_future(peers.replies_for(2))
    await asyncio.sleep(0)
    peers.send(beat(3))
    assert await asked == (beat(3),)
    assert voter.paths == []


async def test_messages_in_an_answer_do_not_overtake_a_request(voter: Voter, peers: HttpPeers) -> None:
    voter.answers.clear()
    voter.answer = lambda _: web.Response(status=204)
    peers.send(beat(3))
    await until(lambda: bool(voter.bodies))
    peers.send(beat(4))
    assert await peers.replies_for(2) == ()
    voter.answers.set()
    await until(lambda: len(voter.bodies) == 2)
    assert [decode_messages(body) for body in voter.bodies] == [(beat(3),), (beat(4),)]
