"""The network port: how a broker asks another one. A simulation replaces it; replication/tcp_network.py is
the real one.
"""

from collections.abc import Callable
from typing import Any, Protocol


class Unreachable(ConnectionError):
    """No connection, or it broke: what was asked may have been carried out or not."""


class Caller(Protocol):
    """A connection to one broker. Answers come in the order of the calls."""

    @property
    def is_open(self) -> bool: ...

    async def call(
        self,
        api_key: int,
        version: int,
        request: Any,
        timeout_s: float,
        again: Callable[[Any], Any] | None = None,
    ) -> Any:
        """The decoded response. Bytes in it (records) are valid until the next one is received.

        `again` takes each response as it comes, and may return the next request, which has the same time and
        leaves at once; the response with which it returned none is that of the call, which raises what it
        raises. Raises Unreachable, also when nothing came in time; the connection is of no use then.
        """

    def close(self) -> None: ...


class Network(Protocol):
    async def connect(self, host: str, port: int, client_id: str) -> Caller:
        """Raises Unreachable."""
