"""Arguments and results of handlers: a RequestContext, and a Reply or a Pending.

The records of a Produce are views into the receive buffer, writable and valid until the handler returns. A
handler that needs them later says so in its Pending. All other requests are decoded from a copy, whose views
stay valid. Responses leave in the order of the requests, and the next request of a connection starts as soon
as the handler of the previous one has returned, unless its Pending or `handlers.ordering` says otherwise.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol, TypeVar
from uuid import UUID

from tierlog.base.files import Part
from tierlog.broker.security.authorizer import Access
from tierlog.protocol.schema import Message

ANONYMOUS = "User:ANONYMOUS"
WHOLE_FRAME = -1
TIMEOUT_MAX_S = 30.0  # without a quorum a request to the controller occupies its connection for this long


Where = tuple[str | UUID, int]
"""A partition as a request names it: the topic's name or id, and the number."""


class Authentication(Protocol):
    """The login of a connection that is not done, or that expires (handlers.sasl)."""

    frame_bytes_max: int
    """A larger request closes the connection."""
    reads_raw: bool
    """Whether the next frame is a SASL message without a request header, as after SaslHandshake v0."""
    closes: bool
    """Whether the connection closes after the response to the current request."""

    def admits(self, api: int) -> bool:
        """Whether a request may be answered now. Otherwise the connection is closed."""

    @property
    def is_overdue(self) -> bool:
        """Whether the login has taken so long that the connection must be closed."""


@dataclass(slots=True, eq=False)
class Connection:
    """One client connection as handlers see it; `id` is unique within the process and never reused."""

    id: int
    peer_host: str
    peer_port: int
    listener: str = "PLAINTEXT"  # its name
    principal: str = ANONYMOUS
    certificate_expires_ms: int | None = None  # None: the client has no certificate
    by_token: bool = False  # logged in by a delegation token
    authentication: Authentication | None = None  # None: nothing is left to do
    client_software: str = "unknown"
    client_software_version: str = "unknown"
    client_id: str | None = None  # from the latest request, as quotas count it; only while quotas are set

    @property
    def user(self) -> str:
        """The principal's name, as in quotas."""
        return self.principal.partition(":")[2]


class Meter(Protocol):
    """The quotas of one request's client (handlers.meter)."""

    def charge_fetch(self, size: int) -> int:
        """The throttle time in ms if sending `size` bytes exceeds the quota. Otherwise counts them and
        returns 0."""

    def on_reply(self, reply: "Reply") -> None: ...
    def on_error(self) -> None: ...


@dataclass(slots=True, eq=False)
class RequestContext:
    """The header of one request, and its connection."""

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: Connection
    meter: Meter | None = None  # only while quotas are set
    access: Access | None = None  # None: the node has no authorizer, so everything is allowed
    token_id: str = ""  # the delegation token that the request changes, which it names by its HMAC


@dataclass(frozen=True, slots=True)
class RawReply:
    """An encoded response body: bytes and file slices in order; net adds size and header. `errors`: error
    code -> number of occurrences."""

    parts: list[Part]
    errors: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExtensibleReply(RawReply):
    """An encoded response with an array of items. `with_items` returns it with more items behind its own, and
    takes its place."""

    with_items: "Callable[[list[Any]], ExtensibleReply]" = field(kw_only=True)


class Close(Enum):
    """Close the connection without a response, after the responses to earlier requests."""

    CLOSE = auto()


CLOSE = Close.CLOSE

Reply = Message | RawReply | Close | None
"""A response message, or its bytes. CLOSE: close the connection. None: send nothing (acks=0)."""


class Pending:
    """A reply that is not ready, and what of its request the connection must observe until it is.

    `work`: a future of the reply, or a coroutine, which `handlers.chain` makes a task. A future that the
    handler made is cancelled with its connection. A coroutine is cancelled only if its API has
    Order.AFTER_APPENDS; all others continue without their client.
    `keeps`: bytes of the request that stay in memory: WHOLE_FRAME, whose views stay valid, or the number of
    bytes that the handler has copied.
    `blocks_later_until`: later requests of the connection wait until this future or the reply is done. From
    then on the request keeps no bytes. None: later requests do not wait.
    """

    __slots__ = ("begun", "blocks_later_until", "keeps", "outlives_connection", "waiting_from", "work")

    def __init__(
        self,
        work: "asyncio.Future[Any] | Coroutine[Any, Any, Any]",
        keeps: int = 0,
        blocks_later_until: "asyncio.Future[None] | None" = None,
    ) -> None:
        self.work = work
        self.keeps = keeps
        self.blocks_later_until = blocks_later_until
        self.outlives_connection = False  # set by `handlers.chain`: continues if the connection closes
        self.begun = self.waiting_from = 0.0  # when the handler was called, and when it returned

    def __await__(self) -> Generator[Any, Any, Reply]:
        return self.work.__await__()


async def outcome(work: Coroutine[Any, Any, Reply]) -> Reply | Exception:
    """Await the coroutine and return its reply or its exception: a task that fails would be reported."""
    # not in `handlers.chain`, which is compiled: compiled coroutines are of another type (ADR 0007)
    try:
        return await work
    except Exception as failure:
        return failure


Handler = Callable[[RequestContext, Any], "Reply | Pending"]


def pending(handler: Callable[[RequestContext, Any], Coroutine[Any, Any, Reply]]) -> Handler:
    """The handler of an API whose requests always wait."""
    return lambda context, request: Pending(handler(context, request))


R = TypeVar("R", bound=Reply)


def at_once_or_pending(found: "R | asyncio.Future[R]") -> Reply | Pending:
    """The reply of a coordinator, which waits only if its records have to reach other brokers: a task for
    each request would cost more than the rest of it."""
    return Pending(found) if isinstance(found, asyncio.Future) else found


def controller_timeout_s(timeout_ms: int) -> float:
    """Timeout of a request that the controller decides: the client's, up to TIMEOUT_MAX_S."""
    return min(max(timeout_ms, 0) / 1000, TIMEOUT_MAX_S)
