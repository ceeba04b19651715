"""The other voters over HTTP: one connection and one bounded queue each; a slow peer delays nobody else.

Raft tolerates loss: what does not fit or cannot be sent is dropped, and the core is told to probe. Messages
that queued up while a request was under way travel together in the next.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

import aiohttp
import msgspec

from tierlog.broker.ports.tasks import TaskGroup
from tierlog.metadata.api import INDEX_HEADER, STEP_PATH, SUBMIT_PATH, Unavailable
from tierlog.metadata.auth import Envelope
from tierlog.metadata.controller.commands import AnyCommand, AnyReply, decode_reply, encode_command
from tierlog.metadata.node import MetadataUnavailable
from tierlog.metadata.raft.messages import AnyMessage, Append, SnapshotChunk, encode_messages

QUEUE_BYTES = 32 << 20  # per peer
REQUEST_BYTES = 4 << 20  # of messages that travel together
MESSAGE_OVERHEAD = 128
STEP_TIMEOUT_S = 5.0
SUBMIT_TIMEOUT_S = 30.0


class HttpPeers:
    def __init__(
        self, node_id: int, cluster_id: str, voters: Mapping[int, str], secret: bytes, tasks: TaskGroup
    ) -> None:
        self._node_id, self._cluster_id, self._secret, self._tasks = node_id, cluster_id, secret, tasks
        self._queues = {peer: _Queue(url.rstrip("/")) for peer, url in voters.items() if peer != node_id}
        self._session: aiohttp.ClientSession | None = None
        self._senders: list[asyncio.Task[None]] = []

    def start(self, unreachable: Callable[[int], None]) -> None:
        self._session = aiohttp.ClientSession()
        self._senders = [
            self._tasks.spawn(f"metadata {self._node_id} to {peer}", self._send_all(peer, queue, unreachable))
            for peer, queue in self._queues.items()
        ]

    async def close(self) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def send(self, message: AnyMessage) -> None:
        if queue := self._queues.get(message.to):
            queue.put(message)

    async def submit(self, leader: int, command: AnyCommand) -> tuple[AnyReply, int]:
        queue = self._queues.get(leader)
        if queue is None or self._session is None:
            raise MetadataUnavailable(f"no address of node {leader}", applied_unknown=False)
        body = encode_command(command)
        try:
            async with self._session.post(
                queue.url + SUBMIT_PATH,
                data=body,
                headers=self._headers(leader, SUBMIT_PATH, body),
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

    async def _send_all(self, peer: int, queue: "_Queue", unreachable: Callable[[int], None]) -> None:
        while True:
            await queue.filled.wait()
            if not await self._step(peer, queue.url, encode_messages(queue.take())) or queue.overflowed:
                queue.clear()
                unreachable(peer)

    async def _step(self, peer: int, url: str, body: bytes) -> bool:
        if self._session is None:
            return False
        try:
            async with self._session.post(
                url + STEP_PATH,
                data=body,
                headers=self._headers(peer, STEP_PATH, body),
                timeout=aiohttp.ClientTimeout(STEP_TIMEOUT_S),
            ) as response:
                return response.status == 204
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _headers(self, peer: int, path: str, body: bytes) -> dict[str, str]:
        return Envelope(self._cluster_id, self._node_id, peer).headers(self._secret, path, body)


class _Queue:
    def __init__(self, url: str) -> None:
        self.url = url
        self.filled = asyncio.Event()
        self.overflowed = False
        self._messages: deque[AnyMessage] = deque()
        self._bytes = 0

    def put(self, message: AnyMessage) -> None:
        size = _size(message)
        if self._bytes + size > QUEUE_BYTES:
            self.overflowed = True
            return
        self._messages.append(message)
        self._bytes += size
        self.filled.set()

    def take(self) -> tuple[AnyMessage, ...]:
        """At least one; as many as may travel together."""
        taken: list[AnyMessage] = []
        size = 0
        while self._messages and (not taken or size + _size(self._messages[0]) <= REQUEST_BYTES):
            message = self._messages.popleft()
            size += _size(message)
            taken.append(message)
        self._bytes -= size
        if not self._messages:
            self.filled.clear()
        return tuple(taken)

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0
        self.overflowed = False
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
