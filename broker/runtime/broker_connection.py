"""A connection to another broker, over which followers fetch: a request out, its response in.

Responses are received into one buffer that is used again and again, and their records stay there: a follower
writes them from where they arrived. Hence the rule of the port: an answer's bytes are valid until the next
one comes. Used by the replica fetchers.
"""

import asyncio
import struct
from collections import deque
from typing import Any, NamedTuple

from tierlog.broker.ports.network import Unreachable
from tierlog.broker.wire.api import APIS, Api, decode_response, encode_request
from tierlog.broker.wire.primitives import MalformedFrame

CONNECT_TIMEOUT_S = 5.0
BUFFER_BYTES = 64 << 10
"""At first; it grows to the largest response."""

KEPT_BUFFER_BYTES = 16 << 20
"""A buffer that one response made larger is given back after it."""

FRAME_BYTES_MAX = 1 << 30
"""No broker answers with more: it is no broker."""

_SIZE = struct.Struct(">i").unpack_from


class _Call(NamedTuple):
    api: Api
    version: int
    correlation_id: int
    answer: "asyncio.Future[Any]"
    deadline: float


class BrokerConnection(asyncio.BufferedProtocol):
    def __init__(self, peer: str, client_id: str) -> None:
        self._peer = peer
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._calls: deque[_Call] = deque()
        self._correlation_id = 0
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, api_key: int, version: int, request: Any, timeout_s: float) -> Any:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Unreachable(f"the connection to {self._peer} is closed")
        self._correlation_id = self._correlation_id + 1 & 0x7FFF_FFFF
        api = APIS[api_key]
        frame = encode_request(api, version, self._correlation_id, self._client_id, request)
        loop = asyncio.get_running_loop()
        answer, deadline = loop.create_future(), loop.time() + timeout_s
        self._calls.append(_Call(api, version, self._correlation_id, answer, deadline))
        if self._timer is None or deadline < self._timer.when():
            self._arm(deadline)
        transport.write(frame)
        try:
            return await answer
        except asyncio.CancelledError:
            self._give_up("the caller went away")  # its answer would be taken for that of the next call
            raise

    def close(self) -> None:
        self._give_up("closed")

    # --- time: a timer for each call would cost more than the call

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self._timer = None
        if not self._calls:
            return
        soonest = min(call.deadline for call in self._calls)
        if soonest > asyncio.get_running_loop().time():
            self._arm(soonest)
        else:
            self._give_up(f"{self._peer} did not answer in time")

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(f"the connection to {self._peer} broke: {exc or 'closed by the other end'}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at = 0
        while self._filled - at >= 4:
            (size,) = _SIZE(self._buffer, at)
            if not 0 <= size <= FRAME_BYTES_MAX:
                self._give_up(f"{self._peer} sent what is no response")
                return
            if self._filled - at < 4 + size:
                self._make_room(at, 4 + size)
                return
            self._take(at + 4, at + 4 + size)
            at += 4 + size
        self._keep(at)

    # --- frames

    def _take(self, start: int, end: int) -> None:
        if not self._calls:
            self._give_up(f"{self._peer} answered what was not asked")
            return
        call = self._calls.popleft()
        try:
            correlation_id, message = decode_response(
                call.api, call.version, memoryview(self._buffer), start, end
            )
        except MalformedFrame as fault:
            self._refuse(call, f"{self._peer}: {fault}")
            self._give_up(f"{self._peer} sent a malformed response")
            return
        if correlation_id != call.correlation_id:
            self._refuse(call, f"{self._peer} answered out of order")
            self._give_up(f"{self._peer} answered out of order")
        elif not call.answer.done():
            call.answer.set_result(message)

    def _make_room(self, at: int, needed: int) -> None:
        """For a frame that begins at `at` and is not whole yet."""
        if at + needed <= len(self._buffer) and at == 0:
            return
        size = needed if needed > len(self._buffer) else len(self._buffer)
        self._move(at, size)

    def _keep(self, at: int) -> None:
        """Bytes from `at` on are the beginning of the next frame. What was decoded before them stays where it
        is for those who still read it: a new buffer is taken only if they would be overwritten."""
        if self._filled > at:
            self._move(at, max(BUFFER_BYTES, self._filled - at))
            return
        self._filled = 0
        if len(self._buffer) > KEPT_BUFFER_BYTES:
            self._buffer = bytearray(BUFFER_BYTES)

    def _move(self, at: int, size: int) -> None:
        rest = self._buffer[at : self._filled]
        self._buffer = bytearray(size)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)

    def _give_up(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, deque()
        for call in calls:
            self._refuse(call, why)

    def _refuse(self, call: _Call, why: str) -> None:
        if not call.answer.done():
            call.answer.set_exception(Unreachable(why))


class TcpNetwork:
    """The network port over TCP."""

    async def connect(self, host: str, port: int, client_id: str) -> BrokerConnection:
        peer = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: BrokerConnection(peer, client_id), host, port
                )
        except (OSError, TimeoutError) as failure:
            raise Unreachable(f"{peer}: {failure or 'no answer'}") from failure
        return connection
