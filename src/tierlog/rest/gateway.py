"""Gateway: what all requests share (sessions, limits, formats, counts), and the call of one request."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from aiohttp import web

from tierlog.base.clock import Clock
from tierlog.base.histogram import Histogram
from tierlog.base.http_listener import IDLE_TIMEOUT_S, HttpListener
from tierlog.base.tasks import TaskGroup
from tierlog.rest.budget import Budget
from tierlog.rest.cluster import Cluster
from tierlog.rest.errors import JSON, NO_CLUSTER, RETRY_AFTER_S, TOO_MANY, RestError
from tierlog.rest.formats import Values
from tierlog.rest.producer import Producer
from tierlog.rest.sessions import Session, Sessions

MIB = 1 << 20
PART_BYTES = 64 << 10
DURATIONS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`memory_bytes`: of all requests together. `body_bytes`: of a request that is not a stream.
    `record_bytes`: of a record in a stream. `window_bytes`: of a stream's records that wait for the broker.
    `connections`: more than streams, so that requests are served beside them.
    `write_timeout_s`: a client that takes nothing for so long is disconnected; while others wait for memory,
    after `short_write_timeout_s`."""

    memory_bytes: int = 64 * MIB
    body_bytes: int = 16 * MIB
    record_bytes: int = 16 * MIB
    window_bytes: int = MIB
    streams: int = 2_000
    connections: int = 4_000
    write_timeout_s: float = 60.0
    short_write_timeout_s: float = 2.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = IDLE_TIMEOUT_S
    stop_timeout_s: float = 10.0


@dataclass(slots=True)
class Counts:
    """Counts for the metrics."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By method, path of the route, and status."""
    seconds: Histogram = field(default_factory=lambda: Histogram(DURATIONS_S))
    records_produced: int = 0
    bytes_produced: int = 0
    records_failed: int = 0
    records_consumed: int = 0
    bytes_consumed: int = 0
    slow_clients: int = 0
    streams: int = 0


class Gateway:
    def __init__(
        self,
        sessions: Sessions,
        values: Values,
        limits: Limits,
        clock: Clock,
        tasks: TaskGroup,
        hosts: Iterable[str] = (),
    ) -> None:
        """`hosts`: names that requests may use, besides addresses and localhost."""
        self.sessions = sessions
        self.values = values
        self.limits = limits
        self.clock = clock
        self.tasks = tasks
        self.hosts = frozenset(hosts)
        self.budget = Budget(limits.memory_bytes)
        self.counts = Counts()
        self.listener: HttpListener | None = None
        self.stopping = asyncio.Event()

    def begin_stream(self) -> None:
        """Raises RestError if there are as many streams as there may be."""
        if self.counts.streams >= self.limits.streams:
            raise RestError(TOO_MANY, f"{self.limits.streams} streams are open", retry_after_s=RETRY_AFTER_S)
        self.counts.streams += 1

    def end_stream(self) -> None:
        self.counts.streams -= 1


@dataclass(slots=True, kw_only=True)
class Call:
    """One request, with the session of its principal."""

    gateway: Gateway
    request: web.Request
    session: Session
    body: bytes = b""

    @property
    def cluster(self) -> Cluster:
        return self.session.cluster

    @property
    def producer(self) -> Producer:
        return self.session.producer

    def part(self, name: str) -> str:
        """A part of the path."""
        return self.request.match_info[name]

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed the connection. A stream that writes nothing must ask."""
        transport = self.request.transport
        return transport is None or transport.is_closing()

    async def cluster_id(self) -> str:
        """The cluster's id. Raises RestError if the path names another one."""
        found = (await self.cluster.metadata([])).cluster_id or ""
        wanted = self.request.match_info.get("cluster_id", found)
        if wanted != found:
            raise RestError(NO_CLUSTER, f"there is no cluster {wanted!r} here, only {found!r}")
        return found

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Write a part of a stream. Raises ConnectionError if the client is gone, or takes nothing for too
        long."""
        began, limits = time.monotonic(), self.gateway.limits
        writing = asyncio.ensure_future(response.write(data))
        try:
            while not writing.done():
                await asyncio.wait((writing,), timeout=limits.short_write_timeout_s)
                is_late = time.monotonic() > began + limits.write_timeout_s
                if not writing.done() and (is_late or self.gateway.budget.is_short):
                    self.gateway.counts.slow_clients += 1
                    raise ConnectionResetError("the client takes no data")
            writing.result()
        finally:
            writing.cancel()

    async def respond(self, status: int, body: bytes) -> web.StreamResponse:
        """A long response of JSON, in parts, so that it ends if the client takes nothing. Raises
        ConnectionError."""
        response = web.StreamResponse(status=status, headers={"Content-Type": JSON})
        response.content_length = len(body)
        await response.prepare(self.request)
        for first in range(0, len(body), PART_BYTES):
            await self.write(response, body[first : first + PART_BYTES])
        await response.write_eof()
        return response

    def url(self, *parts: object) -> str:
        """URL of a resource of this gateway, under /v3."""
        origin = f"{self.request.scheme}://{self.request.host}"
        return "/".join([origin, "v3", *(quote(str(part), safe=":") for part in parts)])
