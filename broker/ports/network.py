"""The network port: how a broker asks another one. A simulation replaces it; runtime/broker_connection.py is
the real one.
"""

from typing import Any, Protocol


class Unreachable(ConnectionError):
    """No connection, or it broke: what was asked may have been carried out or not."""


class Caller(Protocol):
    """A connection to one broker. Answers come in the order of the calls."""

    @property
    def is_open(self) -> bool: ...

    async def call(self, api_key: int, version: int, request: Any, timeout_s: float) -> Any:
        """The decoded response. Bytes in it (records) are valid until the next one is received.

        Raises Unreachable, also when nothing came in time; the connection is of no use then.
        """

    def close(self) -> None: ...


class Network(Protocol):
    async def connect(self, host: str, port: int, client_id: str) -> Caller:
        """Raises Unreachable."""
