"""TCP network: connects the fetchers to other brokers. Implements `base.network`."""

import asyncio

from tierlog.base.network import Unreachable
from tierlog.broker.replication.broker_connection import BrokerConnection

CONNECT_TIMEOUT_S = 5.0


class TcpNetwork:
    async def connect(self, host: str, port: int, client_id: str) -> BrokerConnection:
        peer = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, adapter = await loop.create_connection(
                    lambda: _ProtocolAdapter(BrokerConnection(peer, client_id, loop)), host, port
                )
        except (OSError, TimeoutError) as failure:
            raise Unreachable(f"{peer}: {failure or 'no response'}") from failure
        return adapter.connection


class _ProtocolAdapter(asyncio.BufferedProtocol):
    """Passes the event loop's calls on. A class that may be compiled cannot inherit from asyncio's."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.buffer_updated(nbytes)
