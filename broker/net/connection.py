"""Channel: one client connection on a raw non-blocking socket, as Kafka's KafkaChannel.

Drives `net.core.protocol`, which decides what is received, which requests start, and in which order responses
leave. A readable socket costs one receive, however many frames arrive, and one send for all responses that
are ready. A handler that returns its reply at once needs no task.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tierlog.broker.handlers.context import Connection, Pending
from tierlog.broker.net.core.bounds import Bounds
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.core.protocol import (
    HALT_CLOSED,
    HALT_YIELDED,
    SASL_AUTHENTICATE_KEY,
    ConnectionCore,
    Event,
    Request,
)
from tierlog.broker.net.core.receive import Buffers
from tierlog.broker.net.dispatch import Dispatcher
from tierlog.broker.net.outbox import Outbox
from tierlog.broker.net.tls_socket import TlsOutbox, TlsSocket
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.primitives import MalformedFrame

_LOGIN_APIS = (BY_NAME["SaslHandshake"].key, SASL_AUTHENTICATE_KEY)


class Stopwatch(Protocol):
    """Runs a callback and charges its time to the connection's client."""

    def __call__(self, connection: Connection, callback: Callable[..., None], *arguments: Any) -> None: ...


class Owner(Protocol):
    """The listener, which its connections share."""

    loop: asyncio.AbstractEventLoop
    bounds: Bounds
    buffers: Buffers
    dispatcher: Dispatcher
    received_bytes: int
    sent_bytes: int
    stopwatch: "Stopwatch | None"

    def forget(self, channel: "Channel", why: CloseReason, detail: str) -> None:
        """Called when the connection is closed."""

    def count_kept(self, count: int) -> None:
        """Add to the bytes of responses in memory that clients have not accepted; negative: subtract."""

    def limit_held(self) -> None:
        """Called when the bytes that were received and cannot be handled yet exceed the memory pool's
        limit."""


class Channel:
    """Reads frames, calls handlers and sends responses until either side closes."""

    def __init__(self, owner: Owner, sock: socket.socket | TlsSocket, connection: Connection) -> None:
        self.connection = connection
        self._owner = owner
        self._socket: Any = sock
        self._fd = sock.fileno()
        self.core = ConnectionCore(
            connection, owner.buffers, owner.bounds, self._memory_granted, owner.loop.time()
        )
        queue = self.core.out
        self._outbox = Outbox(sock.raw if isinstance(sock, TlsSocket) else sock, queue)
        self._tls_outbox = TlsOutbox(sock, queue) if isinstance(sock, TlsSocket) else None
        self._reading = self._writing = self._has_turn = False
        self.kept_bytes = 0  # bytes of responses in memory that the client has not accepted
        self._muted_until = 0.0
        self._unmute_timer: asyncio.Handle | None = None
        self._update_reading()

    def close(self, why: CloseReason, detail: str = "") -> None:
        """Close at once. Pending futures are cancelled; responses of running tasks are dropped."""
        core = self.core
        if core.halts & HALT_CLOSED:
            return
        self._stop_reading()
        if self._writing:
            self._owner.loop.remove_writer(self._fd)
        self._socket.close()
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        unanswered = [*core.unanswered()]
        core.close()
        self._owner.count_kept(-self.kept_bytes)
        self.kept_bytes = 0
        for pending in unanswered:
            if not pending.outlives_connection and isinstance(pending.work, asyncio.Future):
                pending.work.cancel()
        self._owner.forget(self, why, detail)

    def close_if_overdue(self, now: float) -> None:
        """Close a connection that is slow, blocked or idle for too long, or whose client has left."""
        core = self.core
        overdue = core.overdue(now, self._reading)
        if overdue is not None:
            return self.close(*overdue)
        authentication = self.connection.authentication
        if authentication is not None and authentication.is_overdue:
            return self.close(CloseReason.AUTHENTICATION, "the login took too long")
        if authentication is not None and authentication.closes:
            first = core.next_to_answer  # a failed login is answered first, after its delay
            if first is not None and first.context.api not in _LOGIN_APIS:
                return self.close(CloseReason.AUTHENTICATION, "not logged in, and earlier requests wait")
        if not self._reading and self._client_has_left():
            if core.client_left(now):
                return self.close(CloseReason.CLIENT)
            self._timed(self._flush)()
        return None

    def _client_has_left(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    # ---- muting -----------------------------------------------------------------------------------

    def mute(self, seconds: float) -> None:
        """Stop reading the connection for this time. A longer mute that is in progress stays."""
        core, loop = self.core, self._owner.loop
        if core.halts & HALT_CLOSED:
            return
        core.on(Event.MUTED)
        if core.client_left_at is not None:
            loop.call_soon(self.close, CloseReason.CLIENT)
            return
        until = loop.time() + seconds
        if self._unmute_timer is not None:
            if until <= self._muted_until:
                return
            self._unmute_timer.cancel()
        self._muted_until = until
        self._unmute_timer = loop.call_at(until, self._timed(self._unmute))
        if not core.receives:
            self._stop_reading()

    def unmute(self) -> None:
        """End the mute early, but not within this call."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = self._owner.loop.call_soon(self._timed(self._unmute))
            self._muted_until = 0.0  # so that a later mute takes effect, however short

    def _unmute(self) -> None:
        self._unmute_timer = None
        self.core.on(Event.UNMUTED)
        self.core.active_at = self._owner.loop.time()  # the time in which it was not read is no idle time
        self._flush()

    # ---- receiving --------------------------------------------------------------------------------

    def read_early(self) -> None:
        """Read what arrived before: data behind the TLS handshake, or the end of the stream behind data."""
        if self._reading:
            self._timed(self._on_readable)()

    def _on_readable(self) -> None:
        owner, core = self._owner, self.core
        try:
            if core.has_partial_frame:
                count = self._socket.recvmsg_into(core.buffers_to_fill())[0]
            else:
                count = self._socket.recv_into(owner.buffers.shared)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as failure:
            return self.close(CloseReason.NETWORK, str(failure))
        if not count:
            return self.close(CloseReason.CLIENT)
        owner.received_bytes += count
        core.received(count, owner.loop.time())
        self._start_requests()
        return self._flush()

    def _start_requests(self) -> None:
        """Start the requests that were received, and queue the responses of those that need not wait."""
        core, dispatcher = self.core, self._owner.dispatcher
        try:
            while (request := core.next_request()) is not None:
                reply = dispatcher.start(request)
                if isinstance(reply, Pending):
                    core.wait(request, reply)
                    self._wait(request, reply)
                else:
                    core.respond(request, dispatcher.parts(request, reply))
        except MalformedFrame as fault:
            self._send()  # responses to earlier frames
            self.close(CloseReason.MALFORMED, str(fault))
        except Exception as failure:
            dispatcher.report(f"connection from {self.connection.peer_host}", failure)
            self.close(CloseReason.UNANSWERED, str(failure))

    def _wait(self, request: Request, pending: Pending) -> None:
        """Call back when the work is done, and when later requests may start."""
        if pending.blocks_later_until is not None:
            released = self._timed(partial(self._unblock_later, request))
            pending.blocks_later_until.add_done_callback(released)
        if isinstance(pending.work, asyncio.Future):
            pending.work.add_done_callback(self._timed(partial(self._completed, request, pending)))

    def _completed(self, request: Request, pending: Pending, work: "asyncio.Future[Any]") -> None:
        """The work is done: queue its response, and start requests that waited for it."""
        core, dispatcher = self.core, self._owner.dispatcher
        try:
            reply = dispatcher.chain.finish(request.context, request.message, pending)
            if core.halts & HALT_CLOSED:
                return None
            parts = dispatcher.parts(request, reply)
        except Exception as failure:
            dispatcher.report(f"a response to {self.connection.peer_host}", failure)
            return self.close(CloseReason.UNANSWERED, str(failure))
        if work.cancelled():
            return self.close(CloseReason.STOPPING, "the request was cancelled")
        core.respond(request, parts)
        authentication = self.connection.authentication
        following = core.next_to_answer
        if authentication is not None and authentication.closes:
            if following is not None and request.context.api in _LOGIN_APIS:
                return self.close(CloseReason.AUTHENTICATION, "a login failed while earlier requests wait")
            core.close_after_responses()
        if following is not None and following.pending is not None and _is_done(following.pending):
            return None  # its callback runs next, and sends both responses with one system call
        return self._flush()

    def _unblock_later(self, request: Request, _done: "asyncio.Future[None]") -> None:
        self.core.unblock_later(request)
        self._flush()

    def _memory_granted(self) -> None:
        self._owner.loop.call_soon(self._timed(self._got_memory))

    def _got_memory(self) -> None:
        if not self.core.halts & HALT_CLOSED:
            self.core.got_memory()
            self._flush()

    def _take_turn(self) -> None:
        self._has_turn = False
        if not self.core.halts & HALT_CLOSED:
            self.core.on(Event.TURN_STARTED)
            self._flush()

    # ---- sending ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send queued responses and start the requests that waited for them, until neither is possible.
        Called after each change of the queues."""
        core = self.core
        self._send()
        while core.resume():
            self._start_requests()
            self._send()
        if core.halts & HALT_CLOSED:
            return
        if core.held_bytes and self._owner.buffers.memory_pool.is_overheld:
            self._owner.loop.call_soon(self._owner.limit_held)
        if core.halts & HALT_YIELDED and not self._has_turn:
            self._has_turn = True
            self._owner.loop.call_soon(self._timed(self._take_turn))
        self._update_reading()

    def _send(self) -> None:
        """Send queued responses as far as the socket accepts them."""
        core, owner = self.core, self._owner
        if core.halts & HALT_CLOSED:
            return None
        out = core.out
        try:
            tls_outbox = self._tls_outbox
            owner.sent_bytes += self._outbox.send() if tls_outbox is None else tls_outbox.send()
        except OSError as failure:
            return self.close(CloseReason.NETWORK, str(failure))
        if not out.parts:
            if core.is_ready_to_close:
                authentication = self.connection.authentication
                is_login = authentication is not None and authentication.closes
                return self.close(CloseReason.AUTHENTICATION if is_login else CloseReason.UNANSWERED)
            if self._writing:
                owner.loop.remove_writer(self._fd)
                self._writing = core.is_sending = False
        elif not self._writing:
            owner.loop.add_writer(self._fd, self._timed(self._on_writable))
            self._writing = core.is_sending = True
            core.blocked_at = owner.loop.time()
        if out.bytes or self.kept_bytes:
            kept_bytes, self.kept_bytes = self.kept_bytes, out.memory_bytes
            owner.count_kept(self.kept_bytes - kept_bytes)
        return None

    def _on_writable(self) -> None:
        self.core.active_at = self.core.blocked_at = self._owner.loop.time()
        self._flush()

    # ---- start and stop reading ---------------------------------------------------------------------------

    def _update_reading(self) -> None:
        core = self.core
        if core.has_held_bytes or not core.receives:
            self._stop_reading()
        elif not self._reading:
            core.on_reading_resumed(self._owner.loop.time())
            self._owner.loop.add_reader(self._fd, self._timed(self._on_readable))
            self._reading = True
        if self._reading and self._tls_outbox is not None and self._socket.ended:
            self._owner.loop.call_soon(self.read_early)  # the end arrived together with data

    def _stop_reading(self) -> None:
        if self._reading:
            self._owner.loop.remove_reader(self._fd)
            self._reading = False

    def update_stopwatch(self) -> None:
        """Register the socket's callback again. Called when the owner's stopwatch changes."""
        if self._reading:
            self._stop_reading()
            self._flush()

    def _timed(self, callback: Callable[..., None]) -> Callable[..., None]:
        """The callback, measured by the owner's stopwatch if there is one."""
        stopwatch = self._owner.stopwatch
        return callback if stopwatch is None else partial(stopwatch, self.connection, callback)


def _is_done(pending: Pending) -> bool:
    return isinstance(pending.work, asyncio.Future) and pending.work.done()
