"""What a handler gets beside the request, and what it may answer with. Built by net, read by handlers.

Responses leave in the order of the requests, whichever is ready first. The bytes of a request: Produce
records are views into net's receive buffer, writable and valid until the handler returns; one that needs
them later calls `context.keep_frame()` before, and net takes another buffer; or it copies them, and says so
with `context.hold_bytes()`. A coroutine has not begun to
run when its handler returns, so net keeps its frame without being asked. Every other request is decoded
from a copy of its own, whose views stay valid.

Requests of a connection are handled in the order in which they came, the next one as soon as the handler of
the one before has returned. A handler that has not done by then what must be done in that order says so with
`context.hold_others()`.
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
    client_id: str | None = None  # as quotas know it; of its latest request, while there are any

    @property
    def user(self) -> str:
        """The principal's name, as quotas know it."""
        return self.principal.partition(":")[2]


class Meter(Protocol):
    """The quotas of a request's client (net.throttling)."""

    def fetched(self, size: int) -> int:
        """Milliseconds to throttle for instead of answering with so many bytes; 0: they are counted."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """The header of one request and the connection that it came over."""

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
        """Views into this request's frame stay valid after the handler has returned."""
        self.frame_kept = True

    def hold_bytes(self, count: int) -> None:
        """So many bytes of the request, copied, are in memory after the handler has returned."""
        self.held_bytes += count

    def hold_others(self) -> "asyncio.Future[None]":
        """Later requests of the connection are handled once this is done, or the answer is there; for
        handlers that return a future. By then no byte of this one is held any more.
        """
        self.others_wait = asyncio.get_running_loop().create_future()
        return self.others_wait


@dataclass(frozen=True, slots=True)
class RawReply:
    """A response body that is already encoded: bytes and file slices in order; net adds size and header.
    `errors`: error code -> how often it is in it."""

    parts: list[Part]
    errors: Mapping[int, int] = field(default_factory=dict)


class Close(Enum):
    """Ends the connection without an answer, after the answers to earlier requests."""

    CLOSE = auto()


CLOSE = Close.CLOSE

Reply = Any
"""A response message of tierlog.protocol.messages, a RawReply, None (acks=0: send nothing) or CLOSE."""

Handler = Callable[[RequestContext, Any], "Reply | Awaitable[Reply]"]
"""Sync where nothing has to be waited for (no task); else a Future (a callback) or a coroutine (a task)."""

ErrorReply = Callable[[RequestContext, Any, ErrorCode, "str | None"], Reply]
"""(context, request, code, message) -> the error response, or None where the API has no room for one."""
