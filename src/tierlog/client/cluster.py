"""Client of a cluster: finds brokers, partition leaders and coordinators, and sends requests to them."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tierlog.client.connection import Address, Connection, ConnectionOptions
from tierlog.client.errors import (
    AuthenticationFailed,
    ClientError,
    InvalidAddress,
    NotAvailable,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
    is_retriable,
    raise_for,
)
from tierlog.client.racing import NoneResponded, first_to_respond
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

if TYPE_CHECKING:
    from tierlog.protocol.messages.metadata import MetadataResponseTopic

RETRY_PAUSE_S = 0.1
CONNECT_TIMEOUT_S = 10.0
"""Timeout of each step until a broker has said what it supports. Other bootstrap brokers are tried at the
same time, so it may be long enough for a login at an overloaded broker."""

RESPONSE_TIMEOUT_FACTOR = 1.5
"""How long to wait for a response, as a multiple of the request's own timeout. When that ends, a broker
without a quorum still responds with an error."""


CONNECT_THREADS = 32


class CoordinatorType(IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Cluster:
    """Kafka client that finds brokers and partition leaders. It belongs to one thread. Use it as a context
    manager."""

    def __init__(
        self, bootstrap: str, *, timeout_s: float = 30.0, options: ConnectionOptions | None = None
    ) -> None:
        """`bootstrap`: HOST:PORT, separated by commas. `timeout_s`: how long to wait for leaders and
        coordinators, and the timeout of requests. Raises InvalidAddress. Connects at the first request."""
        self.timeout_s = timeout_s
        self._options = options or ConnectionOptions()
        self._seeds = [parse_address(text) for text in bootstrap.split(",") if text.strip()]
        if not self._seeds:
            raise InvalidAddress("no broker address given")
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, MetadataResponseTopic] = {}
        self._coordinators: dict[tuple[int, str], int] = {}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def addresses(self) -> Sequence[Address]:
        """Connected brokers, then bootstrap brokers."""
        return list(dict.fromkeys((*self._connections, *self._seeds)))

    def call(self, request: Any, node_id: int | None = None, timeout_s: float | None = None) -> Any:
        """Send a request to one node, or to any. Retries once on a new connection if the connection broke.
        `timeout_s`: time for the response."""
        address = self._nodes.get(node_id) if node_id is not None else None
        connection = self._connection(address) if address else self._any_connection()
        try:
            return connection.call(request, timeout_s)
        except ClientError as failure:
            self._drop(connection)
            if not isinstance(failure, Unreachable):
                raise
        connection = self._connection(address) if address else self._any_connection()
        try:
            return connection.call(request, timeout_s)
        except ClientError:
            self._drop(connection)
            raise

    def connect(self, node_ids: Iterable[int]) -> dict[int, Unreachable | TimedOut]:
        """Connect to several nodes at the same time. Returns the failures of those that do not respond, which
        take together as long as one of them. Raises AuthenticationFailed."""
        missing = {
            node: address
            for node in node_ids
            if (address := self._nodes.get(node)) and address not in self._connections
        }
        quiet = replace(self._options, on_slow=None)

        def attempt(address: Address) -> Connection | Unreachable | TimedOut:
            try:
                return self._open(address, quiet)
            except (Unreachable, TimedOut) as failure:
                return failure

        failures: dict[int, Unreachable | TimedOut] = {}
        with ThreadPoolExecutor(min(CONNECT_THREADS, len(missing)) or 1) as pool:
            for node, opened in zip(missing, pool.map(attempt, missing.values()), strict=True):
                if isinstance(opened, Connection):
                    opened.options = self._options
                    self._connections[opened.address] = opened
                else:
                    failures[node] = opened
        return failures

    def supports(self, api: str, node_id: int) -> bool:
        """Whether a node advertises the API."""
        address = self._nodes.get(node_id)
        return (self._connection(address) if address else self._any_connection()).supports(api)

    def version(self, api: str, node_id: int) -> int | None:
        """The version of an API in requests to a node; None if it has none in common with this client."""
        address = self._nodes.get(node_id)
        return (self._connection(address) if address else self._any_connection()).version(api)

    def metadata(self, names: list[str] | None = None) -> MetadataResponse:
        """Brokers, and the named topics, or all with None. Never creates a topic."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        response = cast(
            MetadataResponse, self.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        )
        self._nodes.update({broker.node_id: (broker.host, broker.port) for broker in response.brokers})
        self._topics.update(
            {topic.name: topic for topic in response.topics if topic.name and not topic.error_code}
        )
        return response

    def topic(self, name: str) -> "MetadataResponseTopic":
        """Cached metadata of a topic. Raises UnknownTopic."""
        if name not in self._topics:
            found = self.metadata([name]).topics[0]
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(name)
            raise_for(found.error_code, None, f"topic {name}")
        return self._topics[name]

    def is_live(self, node_id: int) -> bool:
        """Whether the latest Metadata response lists the broker."""
        return node_id in self._nodes

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the partition's leader; waits while the partition has none. Raises NotAvailable,
        UnknownTopic and UnknownPartition."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            for found in self.topic(topic).partitions:
                if found.partition_index == partition and found.leader_id in self._nodes:
                    return found.leader_id
            if partition >= len(self.topic(topic).partitions):
                self._topics.pop(topic, None)  # it may have been added since
                count = len(self.topic(topic).partitions)
                if partition >= count:
                    raise UnknownPartition(topic, partition, count)
                continue
            self.refresh(topic, deadline, f"{topic}-{partition} has no leader")

    def refresh(self, topic: str, deadline: float, problem: str) -> None:
        """Pause, then drop the topic's cached metadata. Raises NotAvailable(problem) after the deadline
        (of `time.monotonic`)."""
        self.refresh_all((topic,), deadline, problem)

    def refresh_all(self, topics: Iterable[str], deadline: float, problem: str) -> None:
        """As `refresh`, with one pause for several topics."""
        _pause(deadline, problem)
        for topic in topics:
            self._topics.pop(topic, None)

    def coordinator(self, kind: CoordinatorType, key: str) -> int:
        """Node id of the coordinator of a group or of a transactional id; waits while there is none. It is
        cached until `forget_coordinator`. Raises NotAvailable and ErrorResponse."""
        deadline = time.monotonic() + self.timeout_s
        while (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
            response = self.call(request)
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code == ErrorCode.NONE:
                self._nodes[found.node_id] = (found.host, found.port)
                self._coordinators[kind, key] = found.node_id
                break
            subject = f"coordinator of {kind.name.lower()} {key}"
            if not is_retriable(found.error_code):
                raise_for(found.error_code, found.error_message, subject)
            _pause(deadline, f"{subject}: {ErrorCode(found.error_code).name}")
        return self._coordinators[kind, key]

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Look for the coordinator again: it responded with NOT_COORDINATOR, or its broker is gone."""
        self._coordinators.pop((kind, key), None)

    def _any_connection(self) -> Connection:
        """A connection that is open, or else one to the first of the known brokers that responds."""
        if self._connections:
            return next(iter(self._connections.values()))
        known = list(dict.fromkeys((*self._seeds, *self._nodes.values())))
        if len(known) == 1:
            return self._connection(known[0])
        quiet = replace(self._options, on_slow=None)  # another broker may respond
        try:
            address, opened = first_to_respond(
                partial(self._open, options=quiet),
                known,
                discard=Connection.close,
                final=(AuthenticationFailed,),  # all brokers know the same users
            )
        except NoneResponded as none:
            raise _no_seed(none) from None
        opened.options = self._options
        self._connections[address] = opened
        return opened

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = self._open(address, self._options)
        return self._connections[address]

    def _open(self, address: Address, options: ConnectionOptions) -> Connection:
        timeout_s = self.timeout_s * RESPONSE_TIMEOUT_FACTOR
        return Connection(address, timeout_s, min(timeout_s, CONNECT_TIMEOUT_S), options)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._connections.pop(connection.address, None)


def parse_address(text: str) -> Address:
    """HOST:PORT, where an IPv6 host is in brackets. Raises InvalidAddress."""
    host, colon, port = text.strip().rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65_535:
        raise InvalidAddress(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _no_seed(none: NoneResponded[Address]) -> Exception:
    """One error for the failures of all brokers; a fault of this program is the error itself."""
    for _, failure in none.failures:
        if not isinstance(failure, ClientError):
            return failure
    reasons = [
        f"{host}:{port}: {failure.reason if isinstance(failure, Unreachable) else failure}"
        for (host, port), failure in none.failures
    ]
    return Unreachable(f"any of {len(reasons)} brokers", "; ".join(reasons))


def _pause(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise NotAvailable(problem)
    time.sleep(RETRY_PAUSE_S)
