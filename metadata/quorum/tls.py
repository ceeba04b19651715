"""Mutual TLS between nodes: what a node shows the others, and whom it believes.

Beside the shared secret (`auth`), which says who speaks: a certificate says only that whoever speaks was let
into the cluster, hides what is said, and ends the replay of recorded requests. Both sides must show one that
the cluster's own CA signed; a client also checks that the server's names the host it called. Files that are
replaced are taken up by the connections to come. Used by the quorum's client (`transport`) and by the servers
that carry its routes.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

_log = structlog.get_logger("tierlog.metadata")
LOOK_S = 10.0  # between two looks at the files

Stamp = tuple[tuple[int, int, int], ...]

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""For load balancers and scrapers, which have no certificate: they say nothing of what is stored, and change
nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: this node's certificate (and what leads from it to the CA), its key, and the CA's
    certificate, which should sign nothing but nodes and operators of this cluster."""

    certificate: Path
    key: Path
    ca: Path

    def server(self) -> ssl.SSLContext:
        """Raises OSError. A foreign certificate ends the handshake; none at all `certified` refuses."""
        context = self._context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client(self) -> ssl.SSLContext:
        """Raises OSError."""
        return self._context(ssl.Purpose.SERVER_AUTH)

    def renew(self, context: ssl.SSLContext) -> None:
        """Handshakes to come use what the files hold now; a CA that was believed before still is. Raises
        OSError, and changes nothing then: a key that does not fit would leave the context with neither."""
        self._context(ssl.Purpose.SERVER_AUTH)
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.certificate, self.key)

    def stamp(self) -> Stamp:
        """Another one if a file was replaced or written to. Raises OSError."""
        found = (path.stat() for path in (self.certificate, self.key, self.ca))
        return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in found)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(purpose, cafile=self.ca)
            context.load_cert_chain(self.certificate, self.key)
        except OSError as failure:  # ssl.SSLError is one, and names no file
            names = f"{self.certificate}, {self.key}, {self.ca}"
            raise OSError(f"cannot use the certificate, key and CA ({names}): {failure}") from failure
        return context


async def reload_on_change(files: TlsFiles, context: ssl.SSLContext, look_s: float = LOOK_S) -> None:
    """Has the context take up files that were replaced, for as long as it runs. While they do not fit
    together, or are not there, all stays as it was."""
    used: Stamp | None = None  # of the first look: they may have been replaced since they were read
    told = ""
    while True:
        try:
            stamp = files.stamp()
            if stamp != used:
                files.renew(context)
                if used is not None:
                    _log.info(
                        "certificates were replaced, and are used from now on", file=str(files.certificate)
                    )
                used, told = stamp, ""
        except OSError as failure:
            if str(failure) != told:
                told = str(failure)
                _log.error("certificates that were replaced are not used", error=told)
        await asyncio.sleep(look_s)


@web.middleware
async def require_certificate(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuses who showed no certificate; one that was shown has been verified in the handshake."""
    if request.path not in OPEN_PATHS and not request.get_extra_info("peercert"):
        raise web.HTTPForbidden(text="a certificate that the cluster's CA signed is needed")
    return await handler(request)
