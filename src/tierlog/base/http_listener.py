"""Listener of an aiohttp server: accepts its connections within a bound, so that strangers cannot use up the
file descriptors of the process. A connection whose first request header has not arrived after
HEADER_TIMEOUT_S ends; the server's keep-alive timeout bounds the later ones.

Beyond the bound, one connection ends, the oldest of the first of these kinds: without any request; in its TLS
handshake; that no known sender has used; between two requests. Clients open another. Used by the admin HTTP
server (`broker.gateway.admin`) and the REST gateway (`rest.server`).
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Container

from aiohttp import web

HANDSHAKE_TIMEOUT_S = 10.0
HEADER_TIMEOUT_S = 30.0
"""From the end of the TLS handshake until the first request header is complete."""
SWEEP_S = 1.0
"""Between two looks for connections that are over this time, or closed: one with TLS keeps 256 KiB until
then."""

IDLE_TIMEOUT_S = 75.0
"""Between two requests of a connection, the header of the second included; longer than load balancers keep
theirs."""

ACCEPTED_PER_TURN = 100
RETRY_S = 1.0
"""Before another attempt when the process has no more file descriptors."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Usage:
    """`awaited`: connections without a request, and by which time of the event loop they need one. `used`:
    those that have had one. `known`: those with a request of a node or of a user with a login. `busy`: those
    with a request in progress, which a stranger may keep from ending."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.awaited: dict[asyncio.Transport, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.used: set[asyncio.BaseTransport] = set()
        self.known: set[asyncio.BaseTransport] = set()
        self.busy: set[asyncio.BaseTransport] = set()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:  # the client is gone
            return await handler(request)
        self.awaited.pop(transport, None)
        self.used.add(transport)
        self.busy.add(transport)
        try:
            return await handler(request)
        finally:
            self.busy.discard(transport)
            if len(self.used) > 2 * self.connections_max:  # most of them are closed
                self._forget_closed()

    def await_request(self, transport: asyncio.Transport) -> None:
        """End the connection if no request header is complete in time."""
        loop = asyncio.get_running_loop()
        if transport not in self.used:
            self.awaited[transport] = loop.time() + HEADER_TIMEOUT_S
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_S, self._end_and_forget)

    def _end_and_forget(self) -> None:
        loop = asyncio.get_running_loop()
        self._forget_closed()
        for transport, end_s in list(self.awaited.items()):
            if transport.is_closing():
                del self.awaited[transport]
            elif end_s <= loop.time():
                del self.awaited[transport]
                transport.abort()
        is_idle = not self.awaited and not self.used
        self._sweep = None if is_idle else loop.call_later(SWEEP_S, self._end_and_forget)

    def _forget_closed(self) -> None:
        self.used = {one for one in self.used if not one.is_closing()}
        self.known &= self.used

    def know(self, request: web.Request) -> None:
        """The sender of the request has logged in, or is a node."""
        if request.transport is not None:
            self.known.add(request.transport)


class HttpListener:
    """`server`: makes the protocol of each connection. `tls`: None for plain HTTP. `usage`: its middleware is
    the first one of the server."""

    def __init__(
        self, listening: socket.socket, server: web.Server, tls: ssl.SSLContext | None, usage: Usage
    ) -> None:
        self.over_limit = 0
        """Connections that came when there were too many: another one ended, or they did."""
        self._listening = listening
        self._server = server
        self._tls = tls
        self._usage = usage
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    @property
    def connections(self) -> int:
        return len(self._opening) + len(self._server.connections)

    def close(self) -> None:
        """Accept no more. The server ends the connections that are open."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for opening in self._opening:
            opening.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(RETRY_S, self._accept_again)
                return
            if self.connections >= self._usage.connections_max:
                self.over_limit += 1
                if not self._end_oldest():
                    accepted.close()
                    continue
            opening = self._loop.create_task(self._open(accepted))
            self._opening[opening] = None
            opening.add_done_callback(self._opening.pop)

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    async def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        limits = {} if self._tls is None else {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                self._server, accepted, ssl=self._tls, **limits
            )
            self._usage.await_request(transport)
        except OSError:
            accepted.close()  # the handshake has failed
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _end_oldest(self) -> bool:
        """End the oldest connection without any request, or in its handshake, or of an unknown sender, or
        without a request in progress. Returns whether there is one."""
        usage = self._usage
        if len(self._opening) > usage.connections_max // 2 and self._end_opening():
            return True
        silent = self._oldest_outside(usage.used)
        if silent is None and self._end_opening():
            return True
        ending = silent or self._oldest_outside(usage.known) or self._oldest_outside(usage.busy)
        if ending is not None:
            ending.abort()
        return ending is not None

    def _oldest_outside(self, kept: Container[asyncio.BaseTransport]) -> asyncio.Transport | None:
        """Usually among the first: each connection beyond the bound costs little, also in a flood of them."""
        for protocol in self._server.connections:
            transport = protocol.transport
            if transport is not None and not transport.is_closing() and transport not in kept:
                return transport
        return None

    def _end_opening(self) -> bool:
        return any(opening.cancel() for opening in self._opening if not opening.cancelling())
