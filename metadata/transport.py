"""The other members over HTTP: one connection and one bounded queue each; a slow peer delays nobody else.

Raft tolerates loss: what does not fit or cannot be sent is dropped, and the core is told to probe. Messages
that queued up while a request was under way travel together in the next.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from uuid import UUID

import aiohttp
import msgspec

from tierlog.broker.ports.tasks import TaskGroup
from tierlog.metadata.api import INDEX_HEADER, STEP_PATH, SUBMIT_PATH, Unavailable
from tierlog.metadata.auth import Envelope
from tierlog.metadata.controller.commands import AnyCommand, AnyReply, decode_reply, encode_command
from tierlog.metadata.peers import MetadataUnavailable
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import AnyMessage, Append, SnapshotChunk, encode_messages
from tierlog.metadata.watch import DeathWatch, address_of

QUEUE_BYTES = 32 << 20  # per peer
REQUEST_BYTES = 4 << 20  # of messages that travel together
MESSAGE_OVERHEAD = 128
STEP_TIMEOUT_S = 5.0
SUBMIT_TIMEOUT_S = 30.0


class HttpPeers:
    def __init__(self, node_id: int, cluster_id: str, secret: bytes, tasks: TaskGroup) -> None:
        """Whom to talk to, `configure` says."""
        self._node_id, self._cluster_id, self._secret, self._tasks = node_id, cluster_id, secret, tasks
        self._directory: UUID | None = None
        self._queues: dict[int, _Queue] = {}
        self._session: aiohttp.ClientSession | None = None
        self._senders: set[asyncio.Task[None]] = set()
        self._unreachable: Callable[[int], None] = lambda peer: None
        self._watch: DeathWatch | None = None

    def start(self, unreachable: Callable[[int], None], died: Callable[[int], None]) -> None:
        self._unreachable = unreachable
        self._watch = DeathWatch(f"metadata {self._node_id}", self._tasks, died)

    def configure(self, members: Mapping[int, Member]) -> None:
        """A peer that is dropped still gets what waits for it: it may be its own removal."""
        self._directory = members[self._node_id].directory
        others = {peer: member for peer, member in members.items() if peer != self._node_id and member.url}
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
        if self._watch is not None:
            self._watch.watch({peer: address_of(member.url) for peer, member in others.items()})

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

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        queue = self._queues.get(leader)
        if queue is None:
            raise MetadataUnavailable(f"no address of node {leader}", applied_unknown=False)
        body = encode_command(command)
        try:
            async with self._client().post(
                queue.url + SUBMIT_PATH,
                data=body,
                headers=self._headers(leader, queue, SUBMIT_PATH, body),
                timeout=aiohttp.ClientTimeout(SUBMIT_TIMEOUT_S),
            ) as response:
                answer = await response.read()
                if response.status == 200:
                    return decode_reply(answer), int(response.headers[INDEX_HEADER])
                raise _refusal(leader, response.status, answer)
        except aiohttp.ClientConnectorError as failure:
            raise MetadataUnavailable(f"node {leader}: {failure}", applied_unknown=False) from failure
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, KeyError) as failure:
            raise MetadataUnavailable(f"node {leader}: {failure}", applied_unknown=True) from failure

    async def _send_all(self, peer: int, queue: "_Queue") -> None:
        while not queue.left:
            await queue.filled.wait()
            batch = queue.take()
            if (batch and not await self._step(peer, queue, encode_messages(batch))) or queue.overflowed:
                queue.clear()
                self._unreachable(peer)

    async def _step(self, peer: int, queue: "_Queue", body: bytes) -> bool:
        try:
            async with self._client().post(
                queue.url + STEP_PATH,
                data=body,
                headers=self._headers(peer, queue, STEP_PATH, body),
                timeout=aiohttp.ClientTimeout(STEP_TIMEOUT_S),
            ) as response:
                return response.status == 204
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _client(self) -> aiohttp.ClientSession:
        """Made when it is first needed: a quorum of one may have peers one day."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    def _headers(self, peer: int, queue: "_Queue", path: str, body: bytes) -> dict[str, str]:
        envelope = Envelope(self._cluster_id, self._node_id, peer, self._directory, queue.directory)
        return envelope.headers(self._secret, path, body)


class _Queue:
    def __init__(self, url: str) -> None:
        self.url = url
        self.directory: UUID | None = None
        self.filled = asyncio.Event()
        self.overflowed = False
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


def _refusal(leader: int, status: int, answer: bytes) -> MetadataUnavailable:
    try:
        told = msgspec.json.decode(answer, type=Unavailable)
    except msgspec.DecodeError:
        return MetadataUnavailable(f"node {leader} answered {status}", applied_unknown=status >= 500)
    return MetadataUnavailable(told.message, applied_unknown=told.applied_unknown)
