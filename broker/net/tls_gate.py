"""TLS gate: the handshakes in progress of a node, their bounds, and the principals of those that end.

Built and called by `net.listener`, which gets back each connection whose handshake has succeeded.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog

from tierlog.broker.handlers.context import Connection
from tierlog.broker.net.core.bounds import HANDSHAKE_GRACE_S, HANDSHAKES_MAX
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.tls_handshake import Handshake, handshake_threads
from tierlog.broker.net.tls_socket import TlsSocket

FAILURES_LOGGED_EVERY_S = 10.0
CERTIFICATE, ALERT = "CERTIFICATE", "_ALERT_"
"""In OpenSSL's names of failures: about a certificate, and reported by the client. With both, the client does
not accept the broker's certificate."""

_log = structlog.get_logger("tierlog")


class Certificate(Protocol):
    """A client's certificate."""

    @property
    def principal(self) -> str: ...
    @property
    def expires_ms(self) -> int: ...


class Tls(Protocol):
    """TLS of one listener (security.tls_files)."""

    @property
    def context(self) -> ssl.SSLContext: ...
    def certificate(self, session: ssl.SSLObject) -> Certificate | None:
        """Raises ValueError if the client's certificate has expired or has no principal."""


OnOpen = Callable[[Connection, TlsSocket], None]
OnEnd = Callable[[Connection, CloseReason, str], None]


class TlsGate:
    """`on_open` gets each connection after its handshake, `on_end` each connection whose handshake failed."""

    def __init__(self, listeners: Mapping[str, Tls], on_open: OnOpen, on_end: OnEnd) -> None:
        self._listeners = listeners
        self._on_open, self._on_end = on_open, on_end
        self._pending: dict[str, dict[Connection, Handshake]] = {name: {} for name in listeners}
        self._threads: ThreadPoolExecutor | None = None
        self._quiet_until = 0.0
        self.on_refused: Callable[[Connection, str], None] | None = None
        """Called with the reason when a client has no certificate that is accepted."""
        self.handshakes = 0
        """Handshakes that succeeded."""

    @property
    def pending(self) -> int:
        """Handshakes in progress."""
        return sum(map(len, self._pending.values()))

    def has(self, listener: str) -> bool:
        return listener in self._listeners

    def has_room(self, listener: str) -> bool:
        """Whether another handshake may begin. At the limit: whether the oldest one has had its time."""
        pending = self._pending[listener]
        if len(pending) < HANDSHAKES_MAX:
            return True
        oldest = next(iter(pending.values()))
        return oldest.loop.time() - oldest.begun_at >= HANDSHAKE_GRACE_S

    def begin(self, connection: Connection, sock: socket.socket) -> None:
        """Begin the handshake of a connection of a listener with TLS. At the limit, the oldest one ends."""
        pending = self._pending[connection.listener]
        if len(pending) >= HANDSHAKES_MAX:
            oldest = next(iter(pending))
            self._end(oldest, CloseReason.TLS_HANDSHAKE, "too many handshakes in progress")
        if self._threads is None:
            self._threads = handshake_threads()

        def done(handshake: Handshake, opened: TlsSocket) -> None:
            self._done(connection, handshake, opened)

        def failed(_: Handshake, why: CloseReason, detail: str) -> None:
            if CERTIFICATE in detail and ALERT not in detail:
                self._refuse(connection, detail)
            self._end(connection, why, detail)

        context = self._listeners[connection.listener].context
        pending[connection] = Handshake(sock, context, self._threads, done, failed)

    def oldest(self) -> Connection | None:
        """The connection whose handshake has been in progress for longest."""
        oldest = (next(iter(pending)) for pending in self._pending.values() if pending)
        return min(oldest, key=lambda connection: connection.id, default=None)

    def give_up(self, connection: Connection) -> None:
        """End a handshake in progress, since max.connections is reached."""
        self._end(connection, CloseReason.TLS_HANDSHAKE, "max.connections is reached")

    def sweep(self, now: float, timeout_s: float) -> None:
        """End the handshakes that take too long."""
        for pending in self._pending.values():
            for connection, handshake in [*pending.items()]:
                if now - handshake.begun_at < timeout_s:
                    break  # the following ones began later
                detail = f"no TLS handshake in {timeout_s:.0f} s"
                self._end(connection, CloseReason.TLS_HANDSHAKE, detail)

    def close(self) -> None:
        for pending in self._pending.values():
            for connection in [*pending]:
                self._end(connection, CloseReason.STOPPING, "")
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _done(self, connection: Connection, handshake: Handshake, opened: TlsSocket) -> None:
        try:
            certificate = self._listeners[connection.listener].certificate(handshake.session)
        except ValueError as failure:
            opened.close()
            self._refuse(connection, str(failure))
            return self._end(connection, CloseReason.TLS_HANDSHAKE, str(failure))
        del self._pending[connection.listener][connection]
        self.handshakes += 1
        if certificate is not None:
            connection.principal = certificate.principal
            connection.certificate_expires_ms = certificate.expires_ms
        return self._on_open(connection, opened)

    def _refuse(self, connection: Connection, why: str) -> None:
        if self.on_refused is not None:
            self.on_refused(connection, why)

    def _end(self, connection: Connection, why: CloseReason, detail: str) -> None:
        self._pending[connection.listener].pop(connection).close()
        now = asyncio.get_running_loop().time()
        if why is CloseReason.TLS_HANDSHAKE and now >= self._quiet_until:
            self._quiet_until = now + FAILURES_LOGGED_EVERY_S
            client = f"{connection.peer_host}:{connection.peer_port}"
            _log.warning("connection.tls.failed", why=detail, client=client, listener=connection.listener)
        self._on_end(connection, why, detail)
