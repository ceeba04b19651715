"""Transport: sends requests to the other members over HTTP, with one connection and one bounded queue each.

A slow peer does not delay the others. Raft tolerates loss: a message that does not fit or cannot be sent is
dropped, and the core is asked to probe. Messages that queue up during a request travel together in the next
one. Immediate replies to a peer's request travel in the response, unless they would overtake a request to
that peer. The loss of such a response is not reported; the core recovers from it at the next heartbeat.
Responses are trusted only if they are signed (`auth`), except the public status.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TypeVar, cast
from uuid import UUID

import aiohttp
import msgspec
import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import (
    Command,
    Heartbeat,
    HeartbeatReply,
    Reply,
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
    UNREADABLE_STATUS,
    Unavailable,
    at_version,
)
from tierlog.metadata.quorum.auth import (
    INDEX,
    RESPONSE_SIGNATURE,
    SIGNATURE,
    VERSIONS,
    Envelope,
    SignedRequest,
    is_signed_response,
)
from tierlog.metadata.quorum.failure_watch import Address, FailureWatch, address_of
from tierlog.metadata.quorum.log_pages import LogPage, decode_page
from tierlog.metadata.quorum.peer_versions import PeerVersions
from tierlog.metadata.quorum.peers import IncompatibleNode, MetadataUnavailable, Peers
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.quorum.tls import TlsFiles, reload_on_change
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage, Append, SnapshotChunk, decode_messages, encode_messages
from tierlog.metadata.versions import NodeVersions

QUEUE_BYTES = 32 << 20  # per peer
REQUEST_BYTES = 4 << 20  # maximum size of messages that travel together
MESSAGE_OVERHEAD = 128
STEP_TIMEOUT_S = 5.0
SUBMIT_TIMEOUT_S = 30.0
POLL_GRACE_S = 1.0  # in addition to the requested wait; short, as a node that hangs delays the next metadata
RESPONSE_BYTES_MAX = 64 << 20  # more than any entry, chunk or reply
NONCE_BYTES = 16

R = TypeVar("R", bound=Reply)
_log = structlog.get_logger("tierlog.metadata")


class HttpPeers(Peers):
    def __init__(
        self, node_id: int, cluster_id: str, secret: bytes, tasks: TaskGroup, tls: TlsFiles | None = None
    ) -> None:
        """`configure` sets the peers. `tls`: for https URLs. Raises OSError if its files cannot be used."""
        self._node_id, self._cluster_id, self._secret, self._tasks = node_id, cluster_id, secret, tasks
        self._files, self._tls = tls, None if tls is None else tls.client()
        self._directory: UUID | None = None
        self._queues: dict[int, _Queue] = {}
        self._log_sources: dict[int, str] = {}  # nodes that are only read from -> URL
        self._versions = PeerVersions()
        self._untrusted: set[int] = set()  # nodes that sent responses without a valid signature
        self._session: aiohttp.ClientSession | None = None
        self._senders: set[asyncio.Task[None]] = set()
        self._on_unreachable: Callable[[int], None] = lambda peer: None
        self._on_messages: Callable[[tuple[AnyMessage, ...]], None] = lambda messages: None
        self._watch = FailureWatch(f"metadata {node_id}", tasks, tls=self._tls)
        self._others_to_watch: dict[int, Address] = {}  # nodes that are not members

    def start(
        self,
        on_unreachable: Callable[[int], None],
        on_death: Callable[[int], None],
        on_connected: Callable[[int], None],
        on_messages: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        self._on_unreachable, self._on_messages = on_unreachable, on_messages
        self._watch.on_death, self._watch.on_connected = on_death, on_connected
        if self._files is not None and self._tls is not None:
            name = f"metadata {self._node_id} certificates"
            self._tasks.spawn(name, reload_on_change(self._files, self._tls))

    def configure(self, members: Mapping[int, Member], others: Mapping[int, str]) -> None:
        """A removed peer still receives the messages queued for it: its own removal may be among them."""
        self._directory = members[self._node_id].directory
        self._log_sources = {node: url.rstrip("/") for node, url in others.items() if self._may_call(url)}
        self._configure_queues(members)
        self._watch_all()

    def _configure_queues(self, members: Mapping[int, Member]) -> None:
        peers = {
            peer: member
            for peer, member in members.items()
            if peer != self._node_id and self._may_call(member.url)
        }
        for peer, queue in list(self._queues.items()):
            if peer not in peers or peers[peer].url.rstrip("/") != queue.url:
                queue.close()
                del self._queues[peer]
        for peer, member in peers.items():
            if peer not in self._queues:
                queue = self._queues[peer] = _Queue(member.url.rstrip("/"))
                sender = self._tasks.spawn(f"metadata {self._node_id} to {peer}", self._send_all(peer, queue))
                self._senders.add(sender)
                sender.add_done_callback(self._senders.discard)
            self._queues[peer].directory = member.directory

    def _may_call(self, url: str) -> bool:
        """Whether the URL may be used: with TLS only https, whatever URL a member was added with."""
        return bool(url) and (self._tls is None or url.startswith("https:"))

    async def close(self) -> None:
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

    async def replies_for(self, peer: int) -> tuple[AnyMessage, ...]:
        """Wait one turn of the event loop for this node's replies to the peer. Replies that need an fsync
        first are sent later, in a request."""
        queue = self._queues.get(peer)
        if queue is None:
            return ()
        queue.hold()
        try:
            await asyncio.sleep(0)
            return () if queue.is_busy else queue.take()
        finally:
            queue.release()

    def watch(self, urls: Mapping[int, str]) -> None:
        self._others_to_watch = {node: address_of(url) for node, url in urls.items() if url}
        self._watch_all()

    def sign_requests(self, path: str, body: bytes) -> list[SignedRequest]:
        """One request per other member, for another process to send. No signed response is expected."""
        requests = []
        for peer, queue in sorted(self._queues.items()):
            at = at_version(path, self._versions.wire_version(peer))
            headers = self._envelope(peer, queue.directory).headers(self._secret, at, body)
            requests.append(SignedRequest(queue.url, at, headers))
        return requests

    async def submit(self, leader: int, command: Command[R]) -> tuple[R, int]:
        response, headers = await self._post(leader, SUBMIT_PATH, encode_command(command), SUBMIT_TIMEOUT_S)
        try:
            return cast(R, decode_reply(response)), int(headers[INDEX])
        except (msgspec.DecodeError, KeyError, ValueError) as failure:
            raise MetadataUnavailable(f"node {leader}: {failure}", applied_unknown=True) from failure

    async def heartbeat(self, leader: int, heartbeat: Heartbeat, timeout_s: float) -> HeartbeatReply:
        try:
            response, _ = await self._post(
                leader, HEARTBEAT_PATH, msgspec.msgpack.encode(heartbeat), timeout_s
            )
            return msgspec.msgpack.decode(response, type=HeartbeatReply)
        except (MetadataUnavailable, msgspec.DecodeError) as failure:
            refused = isinstance(failure, MetadataUnavailable) and failure.refused
            message = f"node {leader}: {failure}"
            raise MetadataUnavailable(message, applied_unknown=False, refused=refused) from failure

    async def log_page(self, voter: int, after: int, wait_ms: int) -> LogPage:
        path, read_timeout_s = f"{LOG_PATH}?after={after}&wait_ms={wait_ms}", wait_ms / 1000 + POLL_GRACE_S
        response = await self._get(voter, path, SUBMIT_TIMEOUT_S, read_timeout_s=read_timeout_s)
        try:
            return decode_page(response)
        except msgspec.DecodeError as failure:
            raise MetadataUnavailable(f"node {voter}: {failure}", applied_unknown=False) from failure

    async def snapshot_chunk(self, voter: int, index: int, offset: int) -> bytes:
        return await self._get(voter, f"{SNAPSHOT_PATH}?index={index}&offset={offset}", SUBMIT_TIMEOUT_S)

    async def status(self, leader: int) -> NodeStatus:
        response = await self._get(leader, STATUS_PATH, STEP_TIMEOUT_S)
        try:
            status = msgspec.json.decode(response, type=NodeStatus)
        except msgspec.DecodeError as failure:
            raise MetadataUnavailable(f"node {leader}: {failure}", applied_unknown=False) from failure
        if not status.is_leader:
            raise MetadataUnavailable(f"node {leader} is not the leader of the quorum", applied_unknown=False)
        return status

    async def _post(
        self, peer: int, path: str, body: bytes, timeout_s: float
    ) -> tuple[bytes, Mapping[str, str]]:
        queue = self._queues.get(peer)
        if queue is None:
            raise _no_address(peer)
        signature, request = self._signed_post(peer, queue, path, body)
        try:
            async with asyncio.timeout(timeout_s), request as response:
                return await self._body(peer, signature, response), response.headers
        except aiohttp.ClientConnectorError as failure:
            raise MetadataUnavailable(f"node {peer}: {failure}", applied_unknown=False) from failure
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise MetadataUnavailable(f"node {peer}: {_text(failure)}", applied_unknown=True) from failure

    def _signed_post(
        self, peer: int, queue: "_Queue", path: str, body: bytes
    ) -> tuple[str, AbstractAsyncContextManager[aiohttp.ClientResponse]]:
        """The signature of the request, and the request, without a timeout. The receiver is the member with
        its known directory."""
        path = self._versions.path(peer, path)
        envelope = self._envelope(peer, queue.directory, secrets.token_hex(NONCE_BYTES))
        headers = envelope.headers(self._secret, path, body)
        return headers[SIGNATURE], self._client().post(
            queue.url + path,
            data=body,
            headers=headers,
            allow_redirects=False,
        )

    async def _get(
        self, peer: int, path: str, timeout_s: float, *, read_timeout_s: float | None = None
    ) -> bytes:
        """Does not check the peer's directory, which matters for votes only."""
        url = self._queues[peer].url if peer in self._queues else self._log_sources.get(peer)
        if url is None:
            raise _no_address(peer)
        path = self._versions.path(peer, path)
        headers = self._envelope(peer, None, secrets.token_hex(NONCE_BYTES)).headers(self._secret, path, b"")
        timeout = aiohttp.ClientTimeout(None, sock_connect=read_timeout_s, sock_read=read_timeout_s)
        request = self._client().get(url + path, headers=headers, timeout=timeout, allow_redirects=False)
        try:
            async with asyncio.timeout(timeout_s), request as response:
                return await self._body(peer, headers[SIGNATURE], response)
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise MetadataUnavailable(f"node {peer}: {_text(failure)}", applied_unknown=False) from failure

    async def _body(self, peer: int, signature: str, response: aiohttp.ClientResponse) -> bytes:
        """The response's body. `signature`: of the request."""
        body, status = await _read(response), response.status
        if is_signed_response(response.headers, self._secret, signature, status, body):
            self._versions.on_response(peer, response.headers.get(VERSIONS))
            if status == UNREADABLE_STATUS:
                raise self._incompatible(peer, str(_unavailable(peer, status, body)))
            if status not in (200, 204):
                raise _unavailable(peer, status, body)
            return body
        if RESPONSE_SIGNATURE not in response.headers and status >= 300:  # the peer rejected this node
            if self._versions.on_refusal(peer, status, response.headers.get(VERSIONS)):
                raise IncompatibleNode(self._versions.problems[peer])
            text = body[:200].decode(errors="replace")
            message = f"node {peer} responded with HTTP {status}: {text}"
            if self._versions.is_refusal(response.url.path, status, response.headers.get(VERSIONS)):
                raise IncompatibleNode(message)  # the next request has a version that both know
            raise MetadataUnavailable(message, applied_unknown=status >= 500)
        why = "its responses are not signed with the quorum's secret (does it run an older version?)"
        if peer not in self._untrusted:
            self._untrusted.add(peer)
            _log.error("quorum.response.rejected", node=peer, url=str(response.url), why=why)
        raise MetadataUnavailable(f"rejected the response of node {peer}: {why}", applied_unknown=True)

    def _incompatible(self, peer: int, why: str) -> IncompatibleNode:
        self._versions.on_problem(peer, why)
        return IncompatibleNode(why)

    def versions_of(self, peer: int) -> NodeVersions | None:
        return self._versions.of(peer)

    def responds(self, peer: int) -> bool:
        return self._versions.responds(peer)

    @property
    def problems(self) -> Mapping[int, str]:
        return self._versions.problems

    def on_problem(self, peer: int, why: str) -> None:
        self._versions.on_problem(peer, why)

    async def _send_all(self, peer: int, queue: "_Queue") -> None:
        while not queue.is_drained:
            await queue.filled.wait()
            batch = queue.take()
            queue.is_busy = True
            arrived = not batch or await self._step(peer, queue, encode_messages(batch))
            queue.is_busy = False
            if not arrived or queue.overflowed:
                queue.clear()
                self._on_unreachable(peer)

    async def _step(self, peer: int, queue: "_Queue", body: bytes) -> bool:
        messages: tuple[AnyMessage, ...] = ()
        signature, request = self._signed_post(peer, queue, STEP_PATH, body)
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S), request as response:
                replies = await self._body(peer, signature, response)
                messages = decode_messages(replies) if replies else ()
        except (aiohttp.ClientError, TimeoutError, MetadataUnavailable):
            return False
        except msgspec.DecodeError as failure:
            self._versions.on_problem(peer, f"this node cannot read messages of node {peer}: {failure}")
            return False
        self._watch.retry_now(peer)
        if own := tuple(message for message in messages if message.sender == peer):
            self._on_messages(own)
        return True

    @property
    def connected(self) -> frozenset[int]:
        """Nodes with an open connection, so that their death is detected at once."""
        return self._watch.connected

    @property
    def suspects(self) -> frozenset[int]:
        return self._watch.suspects

    def _watch_all(self) -> None:
        members = {peer: address_of(queue.url) for peer, queue in self._queues.items()}
        self._watch.watch({**self._others_to_watch, **members})

    def _client(self) -> aiohttp.ClientSession:
        """Created on first use, since a quorum of one needs none.

        Callers limit the time with `asyncio.timeout`: a total timeout of aiohttp takes a cancellation that
        comes at the same moment for its own, and the cancelled task continues (aiohttp issue 5979).
        """
        if self._session is None:
            tls = True if self._tls is None else self._tls
            connector = aiohttp.TCPConnector(ssl=tls, resolver=MemberResolver())
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None))
        return self._session

    def _envelope(self, peer: int, directory: UUID | None, nonce: str = "") -> Envelope:
        return Envelope(self._cluster_id, self._node_id, peer, self._directory, directory, nonce)


class _Queue:
    """Messages to one peer, bounded by QUEUE_BYTES. A task sends them (`HttpPeers._send_all`)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.directory: UUID | None = None
        self.filled = asyncio.Event()
        self.overflowed = False
        self.is_busy = False  # a request is in flight, which messages in a response would overtake
        self._holds = 0
        self._closing = False
        self._messages: deque[AnyMessage] = deque()
        self._bytes = 0

    @property
    def is_drained(self) -> bool:
        """Closed, and everything is sent."""
        return self._closing and not self._messages

    def close(self) -> None:
        self._closing = True
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
        """Do not wake the sender until `release`: the messages may travel in a response."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if self._messages and not self._holds:
            self.filled.set()

    def take(self) -> tuple[AnyMessage, ...]:
        """Remove and return as many messages as fit into one request."""
        taken: list[AnyMessage] = []
        size = 0
        while self._messages and (not taken or size + _size(self._messages[0]) <= REQUEST_BYTES):
            message = self._messages.popleft()
            size += _size(message)
            taken.append(message)
        self._bytes -= size
        if not self._messages and not self._closing:
            self.filled.clear()
        return tuple(taken)

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0
        self.overflowed = False
        if not self._closing:
            self.filled.clear()


def _size(message: AnyMessage) -> int:
    """Approximate size in memory and on the wire."""
    if isinstance(message, Append):
        return MESSAGE_OVERHEAD + sum(len(entry.payload) + 16 for entry in message.entries)
    return MESSAGE_OVERHEAD + (len(message.data) if isinstance(message, SnapshotChunk) else 0)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, bounded whatever its Content-Length. Raises aiohttp.ClientError."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > RESPONSE_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"the response is longer than {RESPONSE_BYTES_MAX} bytes")
    return bytes(body)


def _text(failure: Exception) -> str:
    """A timeout has none of its own."""
    return str(failure) or "no response in time"


def _no_address(peer: int) -> MetadataUnavailable:
    return MetadataUnavailable(f"the address of node {peer} is not known", applied_unknown=False)


def _unavailable(peer: int, status: int, body: bytes) -> MetadataUnavailable:
    try:
        error = msgspec.json.decode(body, type=Unavailable)
    except msgspec.DecodeError:
        return MetadataUnavailable(f"node {peer} responded with HTTP {status}", applied_unknown=status >= 500)
    unknown = error.applied_unknown
    return MetadataUnavailable(error.message, applied_unknown=unknown, refused=not unknown)
