"""Request context and reply types of handlers. Built by net, read by handlers.

Responses leave in the order of the requests. The records of a Produce are views into net's receive buffer,
writable and valid until the handler returns. A handler that needs them later calls `context.keep_frame()`, so
that net takes another buffer, or copies them and calls `context.hold_bytes()`. If the handler is a coroutine,
net keeps the frame by itself. All other requests are decoded from a copy, whose views stay valid.

Requests of a connection are handled in order, the next one as soon as the previous handler has returned. A
handler that must finish some of its work before the next request calls `context.hold_others()`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from tierlog.base.files import Part
from tierlog.protocol.errors import ErrorCode

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True, eq=False)
class Connection:
    """One client connection as handlers see it; `id` is unique within the process and never reused."""

    id: int
    peer_host: str
    peer_port: int
    listener_host: str
    listener_port: int
    principal: str = ANONYMOUS
    client_software: str = "unknown"
    client_software_version: str = "unknown"
    client_id: str | None = None  # of its latest request, as quotas count it; only while quotas are set

    @property
    def user(self) -> str:
        """The principal's name, as in quotas."""
        return self.principal.partition(":")[2]


class Meter(Protocol):
    """The quotas of a request's client (net.throttling)."""

    def fetched(self, size: int) -> int:
        """Throttle time in ms if sending `size` bytes exceeds the quota; 0: they are counted."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """The header of one request, and its connection."""

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: Connection
    frame_kept: bool = False
    held_bytes: int = 0
    meter: Meter | None = None  # only while quotas are set
    others_wait: "asyncio.Future[None] | None" = None

    def keep_frame(self) -> None:
        """Keep views into this request's frame valid after the handler has returned."""
        self.frame_kept = True

    def hold_bytes(self, count: int) -> None:
        """Count bytes of the request that were copied and stay in memory after the handler has returned."""
        self.held_bytes += count

    def hold_others(self) -> "asyncio.Future[None]":
        """Hold later requests of the connection until the returned future or the response is done. For
        handlers that return a future. By then they must hold no bytes of the request.
        """
        self.others_wait = asyncio.get_running_loop().create_future()
        return self.others_wait


@dataclass(frozen=True, slots=True)
class RawReply:
    """An encoded response body: bytes and file slices in order; net adds size and header. `errors`: error
    code -> number of occurrences."""

    parts: list[Part]
    errors: Mapping[int, int] = field(default_factory=dict)


class Close(Enum):
    """Close the connection without a response, after the responses to earlier requests."""

    CLOSE = auto()


CLOSE = Close.CLOSE

Reply = Any
"""A response message of tierlog.protocol.messages, a RawReply, None (acks=0: send nothing) or CLOSE."""

Handler = Callable[[RequestContext, Any], "Reply | Awaitable[Reply]"]
"""Synchronous if it does not wait (no task), else a Future (a callback) or a coroutine (a task)."""

ErrorReply = Callable[[RequestContext, Any, ErrorCode, "str | None"], Reply]
"""(context, request, code, message) -> the error response, or None if the API has none."""
