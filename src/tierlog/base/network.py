"""Network port: requests from one broker to another. Implemented by broker/platform.py, and replaced by the
simulator.
"""

from collections.abc import Callable
from typing import Any, Protocol


class Unreachable(ConnectionError):
    """No connection, or it broke; the request may have been carried out or not."""


class Caller(Protocol):
    """A connection to one broker. Responses arrive in the order of the calls."""

    @property
    def is_open(self) -> bool: ...

    async def call(
        self,
        api_key: int,
        version: int,
        request: Any,
        timeout_s: float,
        follow_up: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Send a request and return the decoded response. Its records are valid until the next response.

        `follow_up` is called with each response. If it returns another request, that is sent at once, with
        the same timeout; otherwise the call returns the response. An exception of `follow_up` is raised to
        the caller. Raises Unreachable, also after a timeout; the connection is unusable then.
        """

    def close(self) -> None: ...


class Peer(Protocol):
    """A registered broker. `host` and `port` are those of its own inter.broker.listener.name."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def address_of(self, listener: str) -> tuple[str, int] | None:
        """Host and port of the listener of this name; None if the peer has none."""


class Network(Protocol):
    async def connect(self, peer: Peer, client_id: str) -> Caller:
        """Raises Unreachable."""
