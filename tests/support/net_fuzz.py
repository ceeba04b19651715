"""Drives hostile streams into the network layer of a complete broker in this process, many per turn of the
loop.

Each stream goes through a socket pair to a real connection, the real dispatcher and handlers, replicas on
disk and the metadata quorum. The clients check each response, while an ordinary client on the broker's own
listener produces and fetches. Nothing here depends on time: bounds are counts of calls and bytes.
"""

import asyncio
import itertools
import socket
import struct
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mutation import Mutator
from structlog.testing import capture_logs
from traffic import Traffic

from tierlog.broker.app import Broker
from tierlog.broker.handlers.context import Connection
from tierlog.broker.handlers.table import SERVED
from tierlog.broker.net.connection import Channel
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.listener import Listener
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.protocol.api import APIS, decode_request_header, decode_response
from tierlog.protocol.codec import reader, writer
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.primitives import MalformedFrame

IN_ROUND = 64
TURNS = 6
"""Turns of the loop after which a request without a response counts as waiting (for bytes, for a group, …).
"""

WAITING_MAX = 192
REUSED_MAX = 32
CALLS_EVERY = 122
MEMORY_EVERY = 5
"""One of this many cases runs alone, and its work or memory is measured."""

MEASURED_MAX = 3
CALLS_MAX = 20_000
CALLS_PER_BYTE = 40
MEMORY_MAX = 8 << 20
MEMORY_PER_BYTE = 100
"""GUARANTEES.md says twice the frame and 8 MiB; a frame of 60 KB has 3,000 elements at most here."""

FETCH_BYTES = 1 << 20
MESSAGE_BYTES = 100 << 20
"""Far more than a frame here holds, so that a batch's claims cannot pass unnoticed."""

RESPONSE_BYTES_MAX = 2 * FETCH_BYTES
KEEP_TOPICS_EVERY = 32
"""Rounds after which topics deleted by cases are created again, and topics created by cases are deleted."""

BYSTANDER = "the-bystander"

REPORTS = (
    "node.task.failed",
    "node.failing",
    "coordinator.rebuilt",
    "coordinator.load_failed",
)


class Unsound(AssertionError):
    """An invariant is violated."""


@dataclass(slots=True)
class SentRequest:
    """A frame of a stream to which a response may come."""

    correlation_id: int
    api: int
    version: int


@dataclass(eq=False, slots=True)
class Client:
    """The near end of a socket pair; `number` is the last case sent on it."""

    socket: socket.socket
    number: int = -1
    requested: deque[SentRequest] = field(default_factory=deque)
    received: bytearray = field(default_factory=bytearray)
    open: bool = True

    def send(self, number: int, stream: bytes) -> None:
        self.number = number
        self.requested.extend(_requests_in(stream))
        try:
            if self.socket.send(stream) < len(stream):
                raise Unsound("the stream does not fit the socket's buffer")
        except (BrokenPipeError, ConnectionResetError):
            self.open = False

    def collect(self) -> None:
        """Receive what has arrived and check each response."""
        while self.open:
            try:
                data = self.socket.recv(1 << 18)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            self.received += data
            self.open = bool(data)
        while len(self.received) >= 4:
            (size,) = struct.unpack_from(">i", self.received)
            if not 0 < size <= RESPONSE_BYTES_MAX:
                raise Unsound(f"a response of {size} bytes")
            if len(self.received) < 4 + size:
                break
            self._check(bytes(self.received[4 : 4 + size]))
            del self.received[: 4 + size]

    @property
    def is_answered(self) -> bool:
        return not self.requested and not self.received

    def close(self) -> None:
        self.open = False
        self.socket.close()

    def _check(self, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        while self.requested:
            requested = self.requested.popleft()
            if requested.correlation_id != correlation_id:
                continue  # a Produce with acks=0 has no response
            api = APIS[requested.api]
            try:
                _, message = decode_response(api, requested.version, frame)
            except MalformedFrame as fault:
                raise Unsound(
                    f"a response of {api} v{requested.version} that cannot be read: {fault}"
                ) from None
            if _has_unknown_error(message):
                raise Unsound(f"UNKNOWN_SERVER_ERROR: {message}")
            return
        raise Unsound(f"a response to nothing that was asked: {frame[:40].hex()}")


class Arena(Listener):
    """The broker's ends of the socket pairs: connections, owned as a listener owns those that it accepted."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({}, broker.tasks, _unused)
        self.dispatcher = broker.listener.dispatcher
        self.loop = asyncio.get_running_loop()
        self.channels: set[Channel] = set()
        self._ids = itertools.count(1 << 40)

    def connect(self) -> Client:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        connection = Connection(next(self._ids), "127.0.0.1", 1)
        self.channels.add(Channel(self, far, connection))
        return Client(near)

    def forget(self, channel: Channel, why: CloseReason, detail: str) -> None:
        self.channels.discard(channel)
        self.closed[why] += 1


def _unused(what: str, failure: BaseException) -> None:
    """Not called: the broker's own dispatcher reports to its log."""


class NetFuzz:
    """`run` drives cases; after a failure `current` names those that were in progress."""

    def __init__(
        self,
        traffic: Traffic,
        seed: int,
        directory: Path,
        case: Callable[[int], bytes] | None = None,
        sampled_every: int = 0,
    ) -> None:
        """`case` gives the stream of a number, by default mutated traffic. One of `sampled_every` cases is
        measured: its memory under `traced`, its calls otherwise."""
        self._case = case or Mutator(traffic, seed).case
        self._sampled_every = sampled_every or (MEMORY_EVERY if tracemalloc.is_tracing() else CALLS_EVERY)
        self._traffic = traffic
        self._ids: list[tuple[bytes, bytes]] = []
        self._reusable: list[Client] = []
        self._waiting: deque[Client] = deque()
        self.settings = settings_from(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "admin.listener": "127.0.0.1:0",
                "log.dirs": str(directory),
                "offsets.topic.num.partitions": "4",
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
                "fetch.max.bytes": str(FETCH_BYTES),
                "log.segment.bytes": "65536",
                "message.max.bytes": str(MESSAGE_BYTES),
                "log.segment.delete.delay.ms": "0",
            }
        )
        self.current: range = range(0)
        self.most_calls = self.most_memory = 0
        self.cases = 0

    async def start(self) -> None:
        _compile_all()
        self._log = capture_logs()
        self.logged = self._log.__enter__()
        self.broker = Broker(self.settings)
        await self.broker.start()
        await self._keep_topics()
        self.arena = Arena(self.broker)

    async def stop(self) -> None:
        await self.broker.stop()
        self._log.__exit__(None, None, None)

    # -- cases --

    async def run(self, first: int, count: int, *, probe: Any, probe_every: int) -> None:
        """Raises Unsound; `current` is then the range of cases in question."""
        begin, rounds = first, 0
        while begin < first + count:
            self.current = range(begin, min(begin + IN_ROUND, first + count))
            await self._round()
            begin = self.current.stop
            self.cases += len(self.current)
            rounds += 1
            if rounds % probe_every == 0:
                await probe()
            if rounds % KEEP_TOPICS_EVERY == 0:
                await self._keep_topics()
        await self._close_clients()
        await probe()

    async def _round(self) -> None:
        sent = []
        for number in self.current:
            stream = self._stream(number)
            client = self._reusable.pop() if self._reusable and number % 2 else self.arena.connect()
            if number % self._sampled_every == 0:
                sent += await self._measured(client, number, stream, [*sent, *self._waiting])
            else:
                client.send(number, stream)
                sent.append(client)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._look_at_log()
        for client in [*sent, *self._waiting]:
            client.collect()
        self._waiting = deque(client for client in self._waiting if self._keeps(client))
        self._waiting += [client for client in sent if self._keeps(client)]
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft().close()

    def _keeps(self, client: Client) -> bool:
        """Whether the client still waits; the others are closed, or used again."""
        if client.open and not client.is_answered:
            return True
        if not client.open or len(self._reusable) >= REUSED_MAX:
            client.close()
        else:
            self._reusable.append(client)
        return False

    def _stream(self, number: int) -> bytes:
        stream = self._case(number)
        for recorded, here in self._ids:
            stream = stream.replace(recorded, here)
        return stream

    def _look_at_log(self) -> None:
        for entry in self.logged:
            if entry["event"] in REPORTS:
                failure = entry.get("exc_info")
                raise Unsound(f"reported: {entry}") from (
                    failure if isinstance(failure, BaseException) else None
                )
        self.logged.clear()

    async def _measured(
        self, client: Client, number: int, stream: bytes, others: list[Client]
    ) -> list[Client]:
        """Run one case alone; return its number of calls or its peak of allocated bytes.

        The broker's timers, and responses that a thread prepared for an earlier case, count too if they come
        in between. Therefore a value above the bound is measured again, up to MEASURED_MAX times.
        """
        traced = tracemalloc.is_tracing()
        if traced:
            measure, what, most = _memory_of, "bytes of memory", MEMORY_MAX + MEMORY_PER_BYTE * len(stream)
        else:
            measure, what, most = _calls_of, "calls", CALLS_MAX + CALLS_PER_BYTE * len(stream)
        clients = [client]
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)  # earlier work does not count
            for other in others:
                other.collect()
            cost = await measure(clients[-1], number, stream)
            if cost <= most:
                break
            if len(clients) == MEASURED_MAX:
                raise Unsound(f"case {number}: {cost} {what} for {len(stream)} bytes")
            clients.append(self.arena.connect())
        if traced:
            self.most_memory = max(self.most_memory, cost)
        else:
            self.most_calls = max(self.most_calls, cost)
        return clients

    # -- surroundings --

    async def _keep_topics(self) -> None:
        """Keep the topics of the recording, and few others."""
        metadata = self.broker.metadata
        kept = {*self._traffic.topics, BYSTANDER}
        others = [topic for topic in metadata.image.topics.values() if topic.name not in kept]
        if others:
            refs = tuple(c.TopicRef(topic_id=topic.topic_id) for topic in others)
            await metadata.submit(c.DeleteTopics(topics=refs))
        have = {topic.name for topic in metadata.image.topics.values()}
        missing = [name for name in kept if name not in have and not name.startswith("__")]
        if missing:
            topics = tuple(c.NewTopic(name=name, partitions=3) for name in sorted(missing))
            await metadata.submit(c.CreateTopics(topics=topics))
        ids = metadata.image.topic_ids
        self._ids = [
            (recorded.bytes, ids[name].bytes)
            for name, recorded in self._traffic.topics.items()
            if name in ids
        ]

    def held_resources(self) -> dict[str, int]:
        """Resources that cases may hold for a while and must release."""
        return {
            "channels": len(self.arena.channels),
            "bytes of requests": self.arena.buffers.memory_pool.used + self.arena.buffers.memory_pool.held,
            "bytes of answers": self.arena.kept_bytes,
            "waiting in the purgatory": len(self.broker.purgatory),
            "background tasks": len(self.broker.tasks),
        }

    async def wait_until_released(self, before: dict[str, int]) -> None:
        """Wait until all resources are released. A leak ends in a timeout whose message is the difference."""
        while (now := self.held_resources()) != before:
            self.left = now
            await asyncio.sleep(0.01)

    def summary(self) -> str:
        ended = ", ".join(f"{count} {why}" for why, count in self.arena.closed.most_common())
        return (
            f"{self.cases} cases; connections ended: {ended}; at most "
            f"{self.most_calls} calls and {self.most_memory >> 10} KiB of memory for one case"
        )

    async def _close_clients(self) -> None:
        """Close all clients."""
        for client in [*self._waiting, *self._reusable]:
            client.collect()
            client.close()
        self._waiting.clear()
        self._reusable.clear()
        self._look_at_log()


async def _calls_of(client: Client, number: int, stream: bytes) -> int:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        client.send(number, stream)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    return calls


async def _memory_of(client: Client, number: int, stream: bytes) -> int:
    """The peak, in bytes."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    client.send(number, stream)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tracemalloc.get_traced_memory()[1] - before


@contextmanager
def traced() -> Iterator[None]:
    """Allocations are traced, from before the first thread of a broker until after its last.

    zlib allocates without the interpreter's lock. If tracing stops while a thread waits for that lock in the
    tracer, the interpreter crashes (CPython's issue 128679).
    """
    others = {*threading.enumerate()}
    tracemalloc.start()
    try:
        yield
    finally:
        for thread in {*threading.enumerate()} - others:
            thread.join()
        tracemalloc.stop()


def _compile_all() -> None:
    """Compile all codecs. They compile at first use, which is not to be charged to a case."""
    for api in APIS.values():
        if api.name in SERVED:
            for version in range(api.min_version, api.max_version + 1):
                reader(api.request, version)
                writer(api.response, version)


def _requests_in(stream: bytes) -> Iterator[SentRequest]:
    """The requests that the broker can see in a stream."""
    at = 0
    while at + 4 <= len(stream):
        (size,) = struct.unpack_from(">i", stream, at)
        at += 4
        if size <= 0 or at + size > len(stream):
            return
        try:
            header = decode_request_header(stream, at, at + size)
        except MalformedFrame:
            return
        if header.body_at >= 0:
            yield SentRequest(header.correlation_id, header.api_key, header.api_version)
        elif header.api_key in APIS:
            yield SentRequest(header.correlation_id, header.api_key, 0)  # ApiVersions responds in version 0
        at += size


def _has_unknown_error(message: Any) -> bool:
    if getattr(message, "error_code", 0) == ErrorCode.UNKNOWN_SERVER_ERROR:
        return True
    for each in message.FIELDS:
        if each.type == "struct":
            value = getattr(message, each.name)
            if value is None:
                continue
            for nested in islice(value, 50) if each.array else (value,):
                if nested is not None and _has_unknown_error(nested):
                    return True
    return False
