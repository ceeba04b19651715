"""The other members over HTTP: one connection and one bounded queue each; a slow peer delays nobody else.

Raft tolerates loss: what does not fit or cannot be sent is dropped, and the core is told to probe. Messages
that queued up while a request was under way travel together in the next. What there is for a peer that has
just called travels in the response, unless that would overtake a request; that a response is lost nobody
tells the core, which finds it out by the next heartbeat. What is asked for besides is believed only if the
answer is signed (`auth`).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import aiohttp
import msgspec
import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import (
    AnyCommand,
    AnyReply,
    Heartbeat,
    HeartbeatReply,
    decode_reply,
    encode_command,
)
from tierlog.metadata.member_address import MemberResolver
from tierlog.metadata.quorum.api import (
    HEARTBEAT_PATH,
    LOG_PATH,
    SNAPSHOT_PATH,
    STATUS_PATH,
    STEP_PATH,
    SUBMIT_PATH,
    Unavailable,
)
from tierlog.metadata.quorum.auth import (
    INDEX,
    RESPONSE_SIGNATURE,
    SIGNATURE,
    Envelope,
    SignedRequest,
    is_signed_response,
)
from tierlog.metadata.quorum.failure_watch import Address, FailureWatch, address_of
from tierlog.metadata.quorum.log_pages import LogPage, decode_page
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.quorum.tls import TlsFiles, reload_on_change
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage, Append, SnapshotChunk, decode_messages, encode_messages

QUEUE_BYTES = 32 << 20  # per peer
REQUEST_BYTES = 4 << 20  # of messages that travel together
MESSAGE_OVERHEAD = 128
STEP_TIMEOUT_S = 5.0
SUBMIT_TIMEOUT_S = 30.0
POLL_SILENCE_S = 1.0  # beyond the wait that was asked for: brokers know nothing new as long as it lasts
ANSWER_BYTES = 64 << 20  # more than any entry, chunk or reply
NONCE_BYTES = 16

_log = structlog.get_logger("tierlog.metadata")


class HttpPeers:
    def __init__(
        self, node_id: int, cluster_id: str, secret: bytes, tasks: TaskGroup, tls: TlsFiles | None = None
    ) -> None:
        """Whom to talk to, `configure` says. `tls`: for addresses that begin with https. Raises OSError."""
        self._node_id, self._cluster_id, self._secret, self._tasks = node_id, cluster_id, secret, tasks
        self._files, self._tls = tls, None if tls is None else tls.client()
        self._directory: UUID | None = None
        self._queues: dict[int, _Queue] = {}
        self._others: dict[int, str] = {}  # who is only asked -> URL
        self._distrusted: set[int] = set()  # who gave answers that were not signed as they should be
        self._session: aiohttp.ClientSession | None = None
        self._senders: set[asyncio.Task[None]] = set()
        self._unreachable: Callable[[int], None] = lambda peer: None
        self._answered: Callable[[tuple[AnyMessage, ...]], None] = lambda messages: None
        self._watch: FailureWatch | None = None
        self._watched: dict[int, Address] = {}  # besides the members

    def start(
        self,
        unreachable: Callable[[int], None],
        died: Callable[[int], None],
        met: Callable[[int], None],
        answered: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        self._unreachable, self._answered = unreachable, answered
        self._watch = FailureWatch(f"metadata {self._node_id}", self._tasks, died, met, tls=self._tls)
        if self._files is not None and self._tls is not None:
            name = f"metadata {self._node_id} certificates"
            self._tasks.spawn(name, reload_on_change(self._files, self._tls))

    def configure(self, members: Mapping[int, Member], others: Mapping[int, str]) -> None:
        """A peer that is dropped still gets what waits for it: it may be its own removal."""
        self._directory = members[self._node_id].directory
        self._others = {node: url.rstrip("/") for node, url in others.items() if self._may_call(url)}
        self._configure_queues(members)
        self._watch_all()

    def _configure_queues(self, members: Mapping[int, Member]) -> None:
        others = {
            peer: member
            for peer, member in members.items()
            if peer != self._node_id and self._may_call(member.url)
        }
        for peer, queue in list(self._queues.items()):
            if peer not in others or others[peer].url.rstrip("/") != queue.url:
                queue.leave()
                del self._queues[peer]
        for peer, member in others.items():
            if peer not in self._queues:
                queue = self._queues[peer] = _Queue(member.url.rstrip("/"))
                sender = self._tasks.spawn(f"metadata {self._node_id} to {peer}", self._send_all(peer, queue))
                self._senders.add(sender)
                sender.add_done_callback(self._senders.discard)
            self._queues[peer].directory = member.directory

    def _may_call(self, url: str) -> bool:
        """With certificates nothing is said in the clear, whatever address a member was added with."""
        return bool(url) and (self._tls is None or url.startswith("https:"))

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        senders = list(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def send(self, message: AnyMessage) -> None:
        if queue := self._queues.get(message.to):
            queue.put(message)

    async def answers(self, peer: int) -> tuple[AnyMessage, ...]:
        """The node's loop has its turn before the caller's next one; what has to be synced first comes later,
        in a request of its own."""
        queue = self._queues.get(peer)
        if queue is None:
            return ()
        queue.hold()
        try:
            await asyncio.sleep(0)
            return () if queue.is_busy else queue.take()
        finally:
            queue.let_go()

    def watch(self, urls: Mapping[int, str]) -> None:
        self._watched = {node: address_of(url) for node, url in urls.items() if url}
        self._watch_all()

    def signed(self, path: str, body: bytes) -> list[SignedRequest]:
        """For each other member, to be sent by another process: no signed answer is expected."""
        return [
            SignedRequest(
                queue.url, path, self._envelope(peer, queue.directory).headers(self._secret, path, body)
            )
            for peer, queue in sorted(self._queues.items())
        ]

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        answer, headers = await self._post(leader, SUBMIT_PATH, encode_command(command), SUBMIT_TIMEOUT_S)
        try:
            return decode_reply(answer), int(headers[INDEX])
        except (msgspec.DecodeError, KeyError, ValueError) as failure:
            raise MetadataUnavailable(f"node {leader}: {failure}", applied_unknown=True) from failure

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        try:
            answer, _ = await self._post(leader, HEARTBEAT_PATH, msgspec.msgpack.encode(heartbeat), timeout_s)
            return msgspec.msgpack.decode(answer, type=HeartbeatReply)
        except (MetadataUnavailable, msgspec.DecodeError) as failure:
            refused = isinstance(failure, MetadataUnavailable) and failure.refused
            message = f"node {leader}: {failure}"
            raise MetadataUnavailable(message, applied_unknown=False, refused=refused) from failure

    async def log(self, voter: int, after: int, wait_ms: int) -> LogPage:
        path, silence_s = f"{LOG_PATH}?after={after}&wait_ms={wait_ms}", wait_ms / 1000 + POLL_SILENCE_S
        answer = await self._get(voter, path, SUBMIT_TIMEOUT_S, silence_s=silence_s)
        try:
            return decode_page(answer)
        except msgspec.DecodeError as failure:
            raise MetadataUnavailable(f"node {voter}: {failure}", applied_unknown=False) from failure

    async def snapshot(self, voter: int, index: int, offset: int) -> bytes:
        return await self._get(voter, f"{SNAPSHOT_PATH}?index={index}&offset={offset}", SUBMIT_TIMEOUT_S)

    async def status(self, leader: int) -> NodeStatus:
        answer = await self._get(leader, STATUS_PATH, STEP_TIMEOUT_S, is_signed=False)
        try:
            status = msgspec.json.decode(answer, type=NodeStatus)
        except msgspec.DecodeError as failure:
            raise MetadataUnavailable(f"node {leader}: {failure}", applied_unknown=False) from failure
        if not status.leads:
            raise MetadataUnavailable(f"node {leader} does not lead", applied_unknown=False)
        return status

    async def _post(
        self, peer: int, path: str, body: bytes, timeout_s: float
    ) -> tuple[bytes, Mapping[str, str]]:
        queue = self._queues.get(peer)
        if queue is None:
            raise _no_address(peer)
        question, posting = self._posting(peer, queue, path, body, timeout_s)
        try:
            async with posting as response:
                return await self._answer(peer, question, response), response.headers
        except aiohttp.ClientConnectorError as failure:
            raise MetadataUnavailable(f"node {peer}: {failure}", applied_unknown=False) from failure
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise MetadataUnavailable(f"node {peer}: {failure}", applied_unknown=True) from failure

    def _posting(
        self, peer: int, queue: "_Queue", path: str, body: bytes, timeout_s: float
    ) -> tuple[str, AbstractAsyncContextManager[aiohttp.ClientResponse]]:
        """Its signature, and the request itself: of the very directory that the member is known with."""
        envelope = self._envelope(peer, queue.directory, secrets.token_hex(NONCE_BYTES))
        headers = envelope.headers(self._secret, path, body)
        return headers[SIGNATURE], self._client().post(
            queue.url + path,
            data=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(timeout_s),
            allow_redirects=False,
        )

    async def _get(
        self,
        peer: int,
        path: str,
        timeout_s: float,
        *,
        is_signed: bool = True,
        silence_s: float | None = None,
    ) -> bytes:
        """Whatever directory it has: what it promised matters to who votes, not to who reads."""
        url = self._queues[peer].url if peer in self._queues else self._others.get(peer)
        if url is None:
            raise _no_address(peer)
        headers = self._envelope(peer, None, secrets.token_hex(NONCE_BYTES)).headers(self._secret, path, b"")
        question = headers[SIGNATURE] if is_signed else None
        try:
            async with self._client().get(
                url + path,
                headers=headers,
                timeout=aiohttp.ClientTimeout(timeout_s, sock_connect=silence_s, sock_read=silence_s),
                allow_redirects=False,
            ) as response:
                return await self._answer(peer, question, response)
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise MetadataUnavailable(f"node {peer}: {failure}", applied_unknown=False) from failure

    async def _answer(self, peer: int, question: str | None, response: aiohttp.ClientResponse) -> bytes:
        """Its body. `question`: the signature of what was asked; None: no signed answer is expected."""
        body, status = await _read(response), response.status
        if question is None or is_signed_response(response.headers, self._secret, question, status, body):
            if status != 200:
                raise _refusal(peer, status, body)
            return body
        if RESPONSE_SIGNATURE not in response.headers and status != 200:  # it did not let this node in
            told = body[:200].decode(errors="replace")
            raise MetadataUnavailable(f"node {peer} answered {status}: {told}", applied_unknown=status >= 500)
        why = "its answers are not signed with the secret of the quorum (is it of an older version?)"
        if peer not in self._distrusted:
            self._distrusted.add(peer)
            _log.error("a node of the quorum is not believed", node=peer, url=str(response.url), why=why)
        raise MetadataUnavailable(f"node {peer} is not believed: {why}", applied_unknown=True)

    async def _send_all(self, peer: int, queue: "_Queue") -> None:
        while not queue.left:
            await queue.filled.wait()
            batch = queue.take()
            queue.is_busy = True
            arrived = not batch or await self._step(peer, queue, encode_messages(batch))
            queue.is_busy = False
            if not arrived or queue.overflowed:
                queue.clear()
                self._unreachable(peer)

    async def _step(self, peer: int, queue: "_Queue", body: bytes) -> bool:
        answers: tuple[AnyMessage, ...] = ()
        question, posting = self._posting(peer, queue, STEP_PATH, body, STEP_TIMEOUT_S)
        try:
            async with posting as response:
                if response.status != 204:
                    answers = decode_messages(await self._answer(peer, question, response))
        except (aiohttp.ClientError, TimeoutError, MetadataUnavailable, msgspec.DecodeError):
            return False
        if self._watch is not None:
            self._watch.is_up(peer)
        if told := tuple(message for message in answers if message.sender == peer):
            self._answered(told)
        return True

    @property
    def watched(self) -> frozenset[int]:
        """Nodes whose death would be noticed at once now."""
        return self._watch.connected if self._watch is not None else frozenset()

    @property
    def suspects(self) -> frozenset[int]:
        return self._watch.suspects if self._watch is not None else frozenset()

    def _watch_all(self) -> None:
        if self._watch is not None:
            members = {peer: address_of(queue.url) for peer, queue in self._queues.items()}
            self._watch.watch({**self._watched, **members})

    def _client(self) -> aiohttp.ClientSession:
        """Made when it is first needed: a quorum of one may have peers one day."""
        if self._session is None:
            tls = True if self._tls is None else self._tls
            connector = aiohttp.TCPConnector(ssl=tls, resolver=MemberResolver())
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    def _envelope(self, peer: int, directory: UUID | None, nonce: str = "") -> Envelope:
        return Envelope(self._cluster_id, self._node_id, peer, self._directory, directory, nonce)


class _Queue:
    def __init__(self, url: str) -> None:
        self.url = url
        self.directory: UUID | None = None
        self.filled = asyncio.Event()
        self.overflowed = False
        self.is_busy = False  # a request is under way: what is taken now would overtake it
        self._holds = 0
        self._leaving = False
        self._messages: deque[AnyMessage] = deque()
        self._bytes = 0

    @property
    def left(self) -> bool:
        """Nothing more will be sent."""
        return self._leaving and not self._messages

    def leave(self) -> None:
        self._leaving = True
        self.filled.set()

    def put(self, message: AnyMessage) -> None:
        size = _size(message)
        if self._bytes + size > QUEUE_BYTES:
            self.overflowed = True
            return
        self._messages.append(message)
        self._bytes += size
        if not self._holds:
            self.filled.set()

    def hold(self) -> None:
        """What is put from now on may leave by another way, until `let_go`."""
        self._holds += 1

    def let_go(self) -> None:
        self._holds -= 1
        if self._messages and not self._holds:
            self.filled.set()

    def take(self) -> tuple[AnyMessage, ...]:
        """As many as may travel together."""
        taken: list[AnyMessage] = []
        size = 0
        while self._messages and (not taken or size + _size(self._messages[0]) <= REQUEST_BYTES):
            message = self._messages.popleft()
            size += _size(message)
            taken.append(message)
        self._bytes -= size
        if not self._messages and not self._leaving:
            self.filled.clear()
        return tuple(taken)

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0
        self.overflowed = False
        if not self._leaving:
            self.filled.clear()


def _size(message: AnyMessage) -> int:
    """About what it takes in memory and on the wire."""
    if isinstance(message, Append):
        return MESSAGE_OVERHEAD + sum(len(entry.payload) + 16 for entry in message.entries)
    return MESSAGE_OVERHEAD + (len(message.data) if isinstance(message, SnapshotChunk) else 0)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Bounded, whatever length it says it has. Raises aiohttp.ClientError."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {ANSWER_BYTES} bytes")
    return bytes(body)


def _no_address(peer: int) -> MetadataUnavailable:
    return MetadataUnavailable(f"no address of node {peer}", applied_unknown=False)


def _refusal(leader: int, status: int, answer: bytes) -> MetadataUnavailable:
    try:
        told = msgspec.json.decode(answer, type=Unavailable)
    except msgspec.DecodeError:
        return MetadataUnavailable(f"node {leader} answered {status}", applied_unknown=status >= 500)
    unknown = told.applied_unknown
    return MetadataUnavailable(told.message, applied_unknown=unknown, refused=not unknown)
