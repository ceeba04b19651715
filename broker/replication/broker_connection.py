"""A connection to another broker, over which followers fetch: a request out, its response in.

Responses are received into one buffer that is used again and again, and their records stay there: a follower
writes them from where they arrived. Hence the rule of the port: an answer's bytes are valid until the next
one comes. Who goes on with the next request as soon as it has an answer does so within the very turn of the
loop that received it. Used by the replica fetchers.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from tierlog.base.network import Unreachable
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import APIS, FETCH_KEY, decode_response, encode_request
from tierlog.protocol.primitives import MalformedFrame

BUFFER_BYTES = 64 << 10
"""At first; it grows to the largest response."""

KEPT_BUFFER_BYTES = 16 << 20
"""A buffer that one response made larger is given back after it."""

FRAME_BYTES_MAX = 1 << 30
"""No broker answers with more: it is no broker."""

_log = structlog.get_logger("tierlog.fetchers")

_SIZE = struct.Struct(">i").unpack_from


class _Call:
    """What waits for an answer; the last one of several, if `again` has the next request."""

    def __init__(
        self,
        api_key: int,
        version: int,
        timeout_s: float,
        again: Callable[[Any], Any] | None,
        answer: "asyncio.Future[Any]",
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.timeout_s = timeout_s
        self.again = again
        self.answer = answer
        self.correlation_id = 0
        self.deadline = 0.0


class BrokerConnection:
    def __init__(self, peer: str, client_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._client_id = client_id
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._calls: deque[_Call] = deque()
        self._correlation_id = 0
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def call(
        self,
        api_key: int,
        version: int,
        request: Any,
        timeout_s: float,
        again: Callable[[Any], Any] | None = None,
    ) -> Any:
        call = _Call(api_key, version, timeout_s, again, self._loop.create_future())
        self._ask(call, request)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._give_up("the caller went away")  # its answer would be taken for that of the next call
            raise

    def close(self) -> None:
        self._give_up("closed")

    def _ask(self, call: _Call, request: Any) -> None:
        """Raises Unreachable."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Unreachable(f"the connection to {self._peer} is closed")
        correlation_id = self._correlation_id = self._correlation_id + 1 & 0x7FFF_FFFF
        if call.api_key == FETCH_KEY and call.version == replica_fetch.VERSION:
            frame = replica_fetch.encode_fetch_request(correlation_id, self._client_id, request)
        else:
            api = APIS[call.api_key]
            frame = encode_request(api, call.version, correlation_id, self._client_id, request)
        call.correlation_id = correlation_id
        call.deadline = self._loop.time() + call.timeout_s
        self._calls.append(call)
        if self._timer is None or call.deadline < self._timer.when():
            self._arm(call.deadline)
        transport.write(frame)

    # --- time: a timer for each call would cost more than the call

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self._timer = None
        if not self._calls:
            return
        soonest = min([call.deadline for call in self._calls])
        if soonest > self._loop.time():
            self._arm(soonest)
        else:
            self._give_up(f"{self._peer} did not answer in time")

    # --- what the transport calls, by way of `_Line`

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(f"the connection to {self._peer} broke: {exc or 'closed by the other end'}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :] if self._filled else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at = 0
        while self._filled - at >= 4:
            size: int = _SIZE(self._buffer, at)[0]
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
            if call.api_key == FETCH_KEY and call.version == replica_fetch.VERSION:
                correlation_id, message = replica_fetch.decode_fetch_response(self._buffer, start, end)
            else:
                api = APIS[call.api_key]
                correlation_id, message = decode_response(api, call.version, self._buffer, start, end)
        except MalformedFrame as fault:
            self._refuse(call, f"{self._peer}: {fault}")
            self._give_up(f"{self._peer} sent a malformed response")
            return
        except Exception as failure:  # a fault of ours; who called must not wait for ever
            _log.error("a response cannot be read", peer=self._peer, exc_info=failure)
            self._refuse(call, f"{self._peer}: a response cannot be read")
            self._give_up(f"{self._peer} sent a response that cannot be read")
            return
        if correlation_id != call.correlation_id:
            self._refuse(call, f"{self._peer} answered out of order")
            self._give_up(f"{self._peer} answered out of order")
        elif not call.answer.done():
            self._answered(call, message)

    def _answered(self, call: _Call, message: Any) -> None:
        try:
            following = None if call.again is None else call.again(message)
            if following is not None:
                self._ask(call, following)
                return
        except Exception as failure:
            call.answer.set_exception(failure)
        else:
            call.answer.set_result(message)

    def _make_room(self, at: int, needed: int) -> None:
        """For a frame that begins at `at` and is not whole yet. Its size is only what the peer says: memory
        is taken as its bytes come, twice as much each time."""
        size = len(self._buffer)
        if at:
            self._move(at, size)
        elif self._filled == size:
            self._move(at, min(needed, 2 * size))

    def _keep(self, at: int) -> None:
        """Bytes from `at` on are the beginning of the next frame. What was decoded before them stays where it
        is for those who still read it: a new buffer is taken only if they would be overwritten."""
        if self._filled > at:
            self._move(at, max(BUFFER_BYTES, self._filled - at))
            return
        self._filled = 0
        if len(self._buffer) > KEPT_BUFFER_BYTES:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def _move(self, at: int, size: int) -> None:
        moved = memoryview(bytearray(size))
        rest = self._filled - at
        moved[:rest] = self._buffer[at : self._filled]
        self._buffer, self._filled = moved, rest

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
