"""Mutual TLS between nodes: which certificate a node presents, and which it trusts.

TLS complements the shared secret (`auth`), which identifies the sender. A certificate only proves that its
holder was admitted to the cluster; TLS also encrypts, and prevents the replay of recorded requests. Both
sides must present a certificate signed by the cluster's own CA, and a client also verifies the server's host
name. Replaced files take effect for new connections. Used by the quorum's client (`transport`) and by the
servers that carry its routes.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from tierlog.base.clock import SystemClock

_log = structlog.get_logger("tierlog.metadata")
CHECK_INTERVAL_S = 10.0  # between two checks of the files

Stamp = tuple[tuple[int, int, int], ...]

SIGNED_PREFIXES = ("/raft/", "/metadata/")
"""Paths of requests between nodes (`auth`)."""

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""For load balancers and scrapers, which have no certificate. They are read-only and reveal no stored
data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: this node's certificate (with intermediates), its key, and the CA's certificate. The CA
    should sign only nodes and operators of this cluster."""

    certificate: Path
    key: Path
    ca: Path

    def server(self) -> ssl.SSLContext:
        """Raises OSError. An untrusted certificate fails the handshake; `require_certificate` rejects a
        client without one."""
        context = self._context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client(self) -> ssl.SSLContext:
        """Raises OSError."""
        return self._context(ssl.Purpose.SERVER_AUTH)

    def renew(self, context: ssl.SSLContext) -> None:
        """Load the files into the context for new handshakes. A CA that was trusted before remains trusted.
        Raises OSError without any change, since loading a mismatched key would break the context."""
        self._context(ssl.Purpose.SERVER_AUTH)
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.certificate, self.key)

    def stamp(self) -> Stamp:
        """Changes whenever a file is replaced or modified. Raises OSError."""
        stats = (path.stat() for path in (self.certificate, self.key, self.ca))
        return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in stats)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(purpose, cafile=self.ca)
            context.load_cert_chain(self.certificate, self.key)
        except OSError as failure:  # ssl.SSLError is an OSError that names no file
            names = f"{self.certificate}, {self.key}, {self.ca}"
            raise OSError(f"cannot use the certificate, key and CA ({names}): {failure}") from failure
        return context


async def reload_on_change(
    files: TlsFiles, context: ssl.SSLContext, check_interval_s: float = CHECK_INTERVAL_S
) -> None:
    """Reload replaced files into the context, until cancelled. While the files do not match each other or are
    missing, the context is unchanged."""
    used: Stamp | None = None  # None at first: the files may have been replaced since they were loaded
    logged = ""
    while True:
        try:
            stamp = files.stamp()
            if stamp != used:
                files.renew(context)
                if used is not None:
                    _log.info("certificate.cluster.reloaded", file=str(files.certificate))
                used, logged = stamp, ""
        except OSError as failure:
            if str(failure) != logged:
                logged = str(failure)
                _log.error("certificate.cluster.reload_failed", error=logged)
        await asyncio.sleep(check_interval_s)


@web.middleware
async def require_certificate(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Reject requests without a client certificate. The handshake has verified any that was presented.

    One that has expired since, or before an earlier session was resumed, is rejected too, except for requests
    between nodes: they are signed, and a cluster does not stop when its certificates expire.
    """
    if request.path in OPEN_PATHS:
        return await handler(request)
    if not request.get_extra_info("peercert"):
        raise web.HTTPForbidden(text="a client certificate signed by the cluster's CA is required")
    if certificate_has_expired(request) and not request.path.startswith(SIGNED_PREFIXES):
        raise web.HTTPForbidden(text="the client certificate has expired")
    return await handler(request)


def certificate_has_expired(request: web.Request) -> bool:
    """Whether the client has a certificate that was valid at its handshake, and no longer is."""
    certificate = request.get_extra_info("peercert")
    return bool(certificate) and (
        ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000 <= SystemClock().now_ms()
    )
