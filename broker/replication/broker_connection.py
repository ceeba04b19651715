"""Broker connection: sends requests to another broker and receives its responses.

Responses are received into one buffer, which is reused, and a follower appends their records from it.
Therefore a response's bytes are valid only until the next response is received, as `Caller` says. A caller
that passes `follow_up` sends its next request in the turn of the event loop that received the response. Used
by the replica fetchers.

A login that expires is renewed between two calls (KIP-368), so that the peer does not close the connection.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from tierlog.base.network import Unreachable
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import APIS, BY_NAME, FETCH_KEY, decode_response, encode_request
from tierlog.protocol.primitives import MalformedFrame

BUFFER_BYTES = 64 << 10
"""Initial size; the buffer grows to the largest response."""

KEPT_BUFFER_BYTES = 16 << 20
"""A buffer that a response made larger than this is freed after it."""

FRAME_BYTES_MAX = 1 << 30
"""No broker sends a larger response: the peer is not a broker."""

LOGIN_KEYS = (BY_NAME["SaslHandshake"].key, BY_NAME["SaslAuthenticate"].key)

_log = structlog.get_logger("tierlog.fetchers")

_SIZE = struct.Struct(">i").unpack_from


class _Call:
    """A call in progress: one request, or several in succession if `follow_up` returns the next one."""

    def __init__(
        self,
        api_key: int,
        version: int,
        timeout_s: float,
        follow_up: Callable[[Any], Any] | None,
        response: "asyncio.Future[Any]",
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.timeout_s = timeout_s
        self.follow_up = follow_up
        self.response = response
        self.correlation_id = 0
        self.deadline = 0.0


class _Postponed:
    """The result of a call whose next request waits until the login is renewed."""

    def __init__(self, request: Any) -> None:
        self.request = request


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
        self._renew_at: float | None = None
        self._renew: Callable[[], Awaitable[None]] | None = None
        self._renewed: asyncio.Future[None] | None = None  # while the login is renewed

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def call(
        self,
        api_key: int,
        version: int,
        request: Any,
        timeout_s: float,
        follow_up: Callable[[Any], Any] | None = None,
    ) -> Any:
        while True:
            if self._renew_at is not None and api_key not in LOGIN_KEYS:
                await self._renew_if_due()
            call = _Call(api_key, version, timeout_s, follow_up, self._loop.create_future())
            self._send(call, request)
            try:
                result = await call.response
            except asyncio.CancelledError:
                # else its response would be taken for the next call's
                self._abort("the caller was cancelled")
                raise
            if not isinstance(result, _Postponed):
                return result
            request = result.request

    def close(self) -> None:
        self._abort("closed")

    # --- logins that expire

    def renew_after(self, delay_s: float, renew: Callable[[], Awaitable[None]]) -> None:
        """Have the login renewed before the first call that is made after this time. `renew` makes calls of
        LOGIN_KEYS, for which no other call is in the way. It raises Unreachable if the login fails."""
        self._renew_at, self._renew = self._loop.time() + delay_s, renew

    def _is_login_due(self) -> bool:
        return self._renew_at is not None and self._loop.time() >= self._renew_at

    async def _renew_if_due(self) -> None:
        """Calls that are in progress get their responses first. New ones wait."""
        while self._renewed is not None:
            await asyncio.shield(self._renewed)
        due, renew = self._renew_at, self._renew
        if renew is None or not self._is_login_due():
            return
        renewed = self._renewed = self._loop.create_future()
        try:
            await renew()
            if self._renew_at == due:
                self._renew_at = None  # this login does not expire
        finally:
            self._renewed = None
            renewed.set_result(None)  # if it failed, those that wait find the connection closed

    def _send(self, call: _Call, request: Any) -> None:
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
            self._start_timer(call.deadline)
        transport.write(frame)

    # --- timeouts: one timer for all calls, as a timer for each would cost more than the call

    def _start_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._calls:
            return
        earliest = min([call.deadline for call in self._calls])
        if earliest > self._loop.time():
            self._start_timer(earliest)
        else:
            self._abort(f"{self._peer} did not respond in time")

    # --- events of the transport, which `broker.platform` passes on

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._abort(f"the connection to {self._peer} broke: {exc or 'closed by the other end'}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :] if self._filled else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at = 0
        while self._filled - at >= 4:
            size: int = _SIZE(self._buffer, at)[0]
            if not 0 <= size <= FRAME_BYTES_MAX:
                self._abort(f"{self._peer} sent a response of invalid size {size}")
                return
            if self._filled - at < 4 + size:
                self._reserve(at, 4 + size)
                return
            self._handle_frame(at + 4, at + 4 + size)
            at += 4 + size
        self._keep(at)

    # --- frames

    def _handle_frame(self, start: int, end: int) -> None:
        if not self._calls:
            self._abort(f"{self._peer} sent a response without a request")
            return
        call = self._calls.popleft()
        try:
            if call.api_key == FETCH_KEY and call.version == replica_fetch.VERSION:
                correlation_id, message = replica_fetch.decode_fetch_response(self._buffer, start, end)
            else:
                api = APIS[call.api_key]
                correlation_id, message = decode_response(api, call.version, self._buffer, start, end)
        except MalformedFrame as fault:
            self._fail(call, f"{self._peer}: {fault}")
            self._abort(f"{self._peer} sent a malformed response")
            return
        except Exception as failure:  # a bug of ours; the caller must not wait forever
            _log.error("fetch.decode_failed", peer=self._peer, exc_info=failure)
            self._fail(call, f"{self._peer}: cannot decode a response")
            self._abort(f"{self._peer} sent a response that cannot be decoded")
            return
        if correlation_id != call.correlation_id:
            self._fail(call, f"{self._peer} responded out of order")
            self._abort(f"{self._peer} responded out of order")
        elif not call.response.done():
            self._complete(call, message)

    def _complete(self, call: _Call, message: Any) -> None:
        try:
            next_request = None if call.follow_up is None else call.follow_up(message)
            if next_request is not None:
                if self._is_login_due():
                    call.response.set_result(_Postponed(next_request))
                else:
                    self._send(call, next_request)
                return
        except Exception as failure:
            call.response.set_exception(failure)
        else:
            call.response.set_result(message)

    def _reserve(self, at: int, needed: int) -> None:
        """Make space for the incomplete frame at `at`. The size that the peer claims may be false, so the
        buffer only doubles each time that it is full."""
        size = len(self._buffer)
        if at:
            self._move(at, size)
        elif self._filled == size:
            self._move(at, min(needed, 2 * size))

    def _keep(self, at: int) -> None:
        """Keep the bytes from `at` on, which begin the next frame. They move to a new buffer, since the
        caller may still read the records before them."""
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

    def _abort(self, why: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._renew_at = self._renew = None
        calls, self._calls = self._calls, deque()
        for call in calls:
            self._fail(call, why)

    def _fail(self, call: _Call, why: str) -> None:
        if not call.response.done():
            call.response.set_exception(Unreachable(why))
