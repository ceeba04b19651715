"""Cluster as one principal sees it: its connections, partition leaders and coordinators.

All requests with the same credentials share one connection to each broker, except those that may wait there
for other brokers (Produce, and changes of metadata): responses leave in the order of the requests, so that
others would wait behind them. Those go through lanes, a few more connections with the same login. A
connection is replaced before its login expires, and when it is CONNECTION_AGE_S old, so that a password that
was changed is refused soon.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tierlog.base.tasks import TaskGroup
from tierlog.client.cluster import CoordinatorType
from tierlog.client.connection import Address
from tierlog.client.errors import (
    AuthenticationFailed,
    ClientError,
    InvalidAddress,
    NotAvailable,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
    is_retriable,
    raise_for,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_partitions import CreatePartitionsRequest
from tierlog.protocol.messages.create_topics import CreateTopicsRequest
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tierlog.rest.connection import RESPONSE_TIMEOUT_S, Connection, Login, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tierlog.protocol.messages.metadata import MetadataResponseTopic

CONNECTION_AGE_S = 120.0
LOGIN_SHARE = 0.8
"""Share of a login's lifetime after which its connection is replaced."""

TOPIC_AGE_S = 30.0
"""For how long a topic's metadata is used, unless a response shows that it is outdated."""

TOPICS_MAX = 1_000
"""Topics whose metadata is kept for a principal."""

RETRY_PAUSE_S = 0.1
TIMEOUT_S = 30.0
"""How long to wait for leaders and coordinators."""

CHANGES = (
    CreateTopicsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
"""Requests that wait until the metadata quorum has committed them, and until the broker has applied that."""

LANES, LANES_MAX = 4, 16
"""Lanes to one broker for a principal, and how many there are at most while none of the others moves."""

HELD_UP_S = 0.5
"""A lane whose first request has waited for longer does not move: a follower is slow, or has stopped."""

STAGGER_S = 0.25
"""After this time without a response the next bootstrap broker is tried too: the first one may be paused."""

T = TypeVar("T")


class _Pooled:
    """A connection to one broker, and the lock under which it is opened. `waiting`: when the requests that
    wait for a response were sent, the oldest first; counted for lanes only."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: Connection | None = None
        self.renew_at = 0.0
        self.waiting: list[float] = []


def _lane(lanes: list[_Pooled]) -> _Pooled:
    """An idle one, else a new one if there may be more, else that whose first request has waited for the
    shortest time."""
    idle = next((lane for lane in lanes if not lane.waiting), None)
    if idle is not None:
        return idle
    newest = max(lanes, key=lambda lane: lane.waiting[0], default=None)
    is_held_up = newest is None or newest.waiting[0] < time.monotonic() - HELD_UP_S
    if newest is None or len(lanes) < (LANES_MAX if is_held_up else LANES):
        lanes.append(newest := _Pooled())
    return newest


class Cluster:
    """`seeds`: bootstrap brokers. `tls`: None for plain connections."""

    def __init__(
        self, seeds: Sequence[Address], login: Login, tls: ssl.SSLContext | None, tasks: TaskGroup
    ) -> None:
        self._seeds = list(seeds)
        self._login = login
        self._tls = tls
        self._tasks = tasks
        self._pool: dict[Address, _Pooled] = {}
        self._lanes: dict[Address, list[_Pooled]] = {}
        self._retired: list[Connection] = []
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, tuple[float, MetadataResponseTopic]] = {}
        self._coordinators: dict[str, int] = {}

    async def authenticate(self) -> None:
        """Make sure that there is a connection, which proves the credentials. Raises ClientError."""
        await self._any()

    def close(self) -> None:
        for pooled in chain(self._pool.values(), *self._lanes.values()):
            if pooled.connection is not None:
                pooled.connection.close()
        for connection in self._retired:
            connection.close()
        self._pool.clear()
        self._lanes.clear()
        self._retired.clear()

    async def call(self, request: Any, node_id: int | None = None) -> Any:
        """Send a request to one node, or to any. It is repeated once if the connection broke, and may have
        been executed twice. Raises ClientError."""
        send = self.call_in_lane if isinstance(request, CHANGES) else self._call_shared
        try:
            return await send(request, node_id)
        except Unreachable:
            return await send(request, node_id)

    async def call_in_lane(self, request: Any, node_id: int | None = None) -> Any:
        """Send a request that may wait at the broker, so that no other request of this principal waits behind
        it. It is sent once. Raises ClientError."""
        address = self._nodes.get(node_id) if node_id is not None else None
        if address is None:
            address = (await self._any()).address
        lane = _lane(self._lanes.setdefault(address, []))
        sent_at = time.monotonic()
        lane.waiting.append(sent_at)
        try:
            return await (await self._open(address, lane)).call(request)
        finally:
            lane.waiting.remove(sent_at)

    async def _call_shared(self, request: Any, node_id: int | None) -> Any:
        return await (await self.shared(node_id)).call(request)

    async def shared(self, node_id: int | None = None) -> Connection:
        """The shared connection to a node, or to any. Raises ClientError."""
        address = self._nodes.get(node_id) if node_id is not None else None
        return await (self._any() if address is None else self._open_shared(address))

    @asynccontextmanager
    async def private(self, node_id: int) -> "AsyncIterator[Connection]":
        """A connection for one reader alone. Raises ClientError."""
        connection = await connect(self._nodes[node_id], self._login, self._tls, self._tasks)
        try:
            yield connection
        finally:
            connection.close()

    async def metadata(self, names: Sequence[str] | None = None) -> MetadataResponse:
        """Brokers, and the named topics, or all with None. Never creates a topic."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        response = cast(
            MetadataResponse, await self.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        )
        self._nodes.update({broker.node_id: (broker.host, broker.port) for broker in response.brokers})
        return response

    async def topic(self, name: str, *, fresh: bool = False) -> "MetadataResponseTopic":
        """Metadata of a topic. Raises UnknownTopic and ErrorResponse."""
        known = self._topics.get(name)
        if known is not None and not fresh and time.monotonic() < known[0] + TOPIC_AGE_S:
            return known[1]
        self._topics.pop(name, None)
        found = (await self.metadata([name])).topics[0]
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(name)
        raise_for(found.error_code, None, f"topic {name}")
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        self._topics[name] = time.monotonic(), found
        return found

    def forget(self, topic: str) -> None:
        """Ask for the topic's metadata when it is needed again."""
        self._topics.pop(topic, None)

    async def leader(self, topic: str, partition: int, deadline: float | None = None) -> int:
        """Node id of the partition's leader; waits while there is none. Raises NotAvailable, UnknownTopic and
        UnknownPartition. `deadline`: by `time.monotonic`."""
        deadline = time.monotonic() + TIMEOUT_S if deadline is None else deadline
        while True:
            metadata = await self.topic(topic)
            if not 0 <= partition < len(metadata.partitions):
                metadata = await self.topic(topic, fresh=True)  # it may have been added since
            if not 0 <= partition < len(metadata.partitions):
                raise UnknownPartition(topic, partition, len(metadata.partitions))
            for found in metadata.partitions:
                if found.partition_index == partition and found.leader_id in self._nodes:
                    return found.leader_id
            await self.refresh(topic, deadline, f"{topic}-{partition} has no leader")

    async def refresh(self, topic: str, deadline: float, problem: str) -> None:
        """Pause, then forget the topic's metadata. Raises NotAvailable(problem) after the deadline."""
        if time.monotonic() > deadline:
            raise NotAvailable(problem)
        await asyncio.sleep(RETRY_PAUSE_S)
        self._topics.pop(topic, None)

    async def at_coordinator(self, group: str, request: Any, error: Callable[[Any], int]) -> tuple[int, Any]:
        """The coordinator of a group, and its response. Repeats the request while `error`, the error code
        within a response, is one that ends by itself. Raises ClientError."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            node = await self._coordinator(group, deadline)
            try:
                response = await self.call(request, node)
                code = error(response)
            except Unreachable:
                code = ErrorCode.NOT_COORDINATOR
                response = None
            if response is not None and not is_retriable(code):
                return node, response
            self._coordinators.pop(group, None)
            if time.monotonic() > deadline:
                raise NotAvailable(f"coordinator of group {group}: {ErrorCode(code).name}")
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _coordinator(self, group: str, deadline: float) -> int:
        while group not in self._coordinators:
            request = FindCoordinatorRequest(
                key=group, key_type=CoordinatorType.GROUP, coordinator_keys=[group]
            )
            response = await self.call(request)
            found = response.coordinators[0] if response.coordinators else response
            subject = f"coordinator of group {group}"
            if found.error_code == ErrorCode.NONE:
                self._nodes[found.node_id] = (found.host, found.port)
                if len(self._coordinators) >= TOPICS_MAX:
                    self._coordinators.clear()
                self._coordinators[group] = found.node_id
                break
            if not is_retriable(found.error_code):
                raise_for(found.error_code, found.error_message, subject)
            if time.monotonic() > deadline:
                raise NotAvailable(f"{subject}: {ErrorCode(found.error_code).name}")
            await asyncio.sleep(RETRY_PAUSE_S)
        return self._coordinators[group]

    async def _any(self) -> Connection:
        for pooled in self._pool.values():
            if pooled.connection is not None and self._is_usable(pooled):
                return pooled.connection
        return await self._first_of(list(dict.fromkeys((*self._seeds, *self._nodes.values()))))

    async def _first_of(self, addresses: Sequence[Address]) -> Connection:
        """A connection to the first of these brokers that responds. The next one is tried when an earlier one
        has failed, or has not responded after STAGGER_S. Raises ClientError."""
        failure: ClientError | None = None
        attempts: set[asyncio.Task[Connection]] = set()
        untried = iter(addresses)
        try:
            while True:
                if (address := next(untried, None)) is not None:
                    attempts.add(attempt := asyncio.ensure_future(self._open_shared(address)))
                    attempt.add_done_callback(_retrieve)
                elif not attempts:
                    raise failure or InvalidAddress("no broker address given")
                done, attempts = await asyncio.wait(
                    attempts,
                    timeout=None if address is None else STAGGER_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for ended in done:
                    try:
                        return ended.result()
                    except AuthenticationFailed:
                        raise  # all brokers know the same users
                    except ClientError as refused:
                        failure = refused
        finally:
            for attempt in attempts:
                attempt.cancel()

    async def _open_shared(self, address: Address) -> Connection:
        return await self._open(address, self._pool.setdefault(address, _Pooled()))

    async def _open(self, address: Address, pooled: _Pooled) -> Connection:
        if pooled.connection is not None and self._is_usable(pooled):
            return pooled.connection
        async with pooled.lock:
            if pooled.connection is not None:
                if self._is_usable(pooled):
                    return pooled.connection
                self._retire(pooled.connection)
                pooled.connection = None
            opened = await connect(address, self._login, self._tls, self._tasks)
            age_s = CONNECTION_AGE_S
            if opened.login_ms:
                age_s = min(age_s, opened.login_ms / 1000 * LOGIN_SHARE)
            pooled.connection, pooled.renew_at = opened, time.monotonic() + age_s
            return opened

    def _is_usable(self, pooled: _Pooled) -> bool:
        connection = pooled.connection
        return connection is not None and connection.is_open and time.monotonic() < pooled.renew_at

    def _retire(self, connection: Connection) -> None:
        """Close a connection once its calls have their responses."""
        self._retired.append(connection)
        for one in self._retired:
            if one.is_idle:
                one.close()
        self._retired = [one for one in self._retired if one.is_open]


def _retrieve(attempt: "asyncio.Task[Connection]") -> None:
    """Retrieve the failure, which asyncio would log if another attempt has ended the search."""
    if not attempt.cancelled():
        attempt.exception()


async def of_each(items: Sequence[T], work: Callable[[T], Awaitable[Any]]) -> list[Any]:
    """Results in order. After a failure the other calls end first, so that none runs unobserved."""
    results = await asyncio.gather(*(work(item) for item in items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


__all__ = ["RESPONSE_TIMEOUT_S", "TIMEOUT_S", "Cluster", "of_each"]
