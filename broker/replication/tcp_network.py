"""The network port over TCP."""

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
                _, line = await loop.create_connection(
                    lambda: _Line(BrokerConnection(peer, client_id, loop)), host, port
                )
        except (OSError, TimeoutError) as failure:
            raise Unreachable(f"{peer}: {failure or 'no answer'}") from failure
        return line.connection


class _Line(asyncio.BufferedProtocol):
    """What the loop calls: a class that may be compiled inherits from none of asyncio's."""

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
