"""An HTTP server with the quorum's routes only, for metadata nodes without an admin server."""

import socket

from aiohttp import web

from tierlog.metadata.quorum.api import quorum_routes, raft_routes
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.tls import TlsFiles, require_certificate


class RaftServer:
    def __init__(self, node: MetadataNode, secret: bytes, tls: TlsFiles | None = None) -> None:
        """Raises OSError if the files of `tls` cannot be used."""
        self._tls = None if tls is None else tls.server()
        application = web.Application(middlewares=() if tls is None else (require_certificate,))
        application.add_routes([*raft_routes(node, secret), *quorum_routes(node)])
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def start(self, listener: socket.socket) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=self._tls).start()

    async def close(self) -> None:
        await self._runner.cleanup()
