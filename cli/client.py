"""Synchronous Kafka client for the CLI: one socket per broker, one request at a time.

It uses tierlog's own message classes (`protocol.messages`), so the CLI needs no client library. Each request
has the newest version that both sides support, except that versions which refer to topics by id are not used
(`MAX_VERSIONS`).
"""

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tierlog.cli.errors import CliError, ExitCode, no_partition, unknown_topic, unreachable, usage
from tierlog.cli.output import print_status
from tierlog.cli.targets import announce_target, bootstrap_target
from tierlog.protocol.api import BY_NAME, Api, decode_response, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import describe_quorum
from tierlog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

if TYPE_CHECKING:
    from tierlog.protocol.messages.metadata import MetadataResponseTopic

CLIENT_ID = "tierlog-cli"
METADATA_TOPIC = "__cluster_metadata"
FRAME_MAX_BYTES = 256 << 20
RETRY_PAUSE_S = 0.1
PROBE_TIMEOUT_S = 5.0
"""Timeout of the first response if there are several bootstrap brokers: a paused broker accepts connections
and never responds."""

MAX_VERSIONS = {0: 12, 1: 12, 8: 9, 9: 9}
"""By API key (Produce, Fetch, OffsetCommit, OffsetFetch): the last version that refers to topics by name."""

COORDINATOR_MOVES = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

T = TypeVar("T")

SLOW_S = 5.0
"""After waiting this long for a response, the command prints what it is waiting for."""

QUORUM_TIMEOUT_S = 3.0
"""A quorum with a leader describes itself within milliseconds."""

RESPONSE_TIMEOUT_FACTOR = 1.5
"""How long to wait for a response, as a multiple of the request's own timeout. When that ends, a broker
without a quorum still responds with an error."""

Address = tuple[str, int]


class TimedOut(CliError):
    """The broker received the request and did not respond: it may still execute it."""


class Connection:
    """Connection to one broker, with the API versions that the broker supports."""

    def __init__(self, address: Address, timeout_s: float, first_timeout_s: float | None = None) -> None:
        """`first_timeout_s`: timeout of the first response."""
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection(address, first_timeout_s or timeout_s)
        except OSError as failure:
            raise unreachable(self.name, failure.strerror or failure) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        versions = cast(
            ApiVersionsResponse, self._exchange(_api_of(ApiVersionsRequest()), 0, ApiVersionsRequest())
        )
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in versions.api_keys}
        self._socket.settimeout(timeout_s)

    def call(self, request: Any) -> Any:
        """Send the request and return its response. Raises CliError if the broker does not support it or the
        connection breaks."""
        api = _api_of(request)
        broker_min, broker_max = self._versions.get(api.key, (1, 0))
        version = min(broker_max, api.max_version, MAX_VERSIONS.get(api.key, api.max_version))
        if version < max(broker_min, api.min_version):
            hint = "Use the `tierlog` version that the broker runs."
            what = f"the broker at {self.name} supports no version of {api.name} that this command supports"
            raise CliError(what, hint=hint)
        return self._exchange(api, version, request)

    def supports(self, api: str) -> bool:
        """Whether the broker advertises the API."""
        return BY_NAME[api].key in self._versions

    def close(self) -> None:
        self._socket.close()

    def _exchange(self, api: Api, version: int, request: Any) -> Any:
        self._correlation_id += 1
        try:
            sent = encode_request(api, version, self._correlation_id, CLIENT_ID, request)
        except ValueError as invalid:  # for example text that is not UTF-8
            hint = "Check the names and numbers on the command line."
            raise usage(f"invalid value in {api.name} request: {invalid}", hint) from None
        try:
            self._socket.sendall(sent)
            self._wait(api)
            frame = self._read_frame()
        except TimeoutError:
            what = f"{self.name} did not respond to {api.name} within {self._socket.gettimeout():g} s"
            raise TimedOut(what, hint=_HINTS["REQUEST_TIMED_OUT"], code=ExitCode.UNREACHABLE) from None
        except OSError as failure:
            raise unreachable(self.name, failure) from None
        correlation_id, response = decode_response(api, version, frame)
        if correlation_id != self._correlation_id:
            what = (
                f"{api.name}: response has correlation id {correlation_id}, expected {self._correlation_id}"
            )
            raise CliError(what, hint=f"Check that {self.name} is a Kafka port: --bootstrap HOST:PORT")
        return response

    def _wait(self, api: Api) -> None:
        timeout_s = self._socket.gettimeout() or 0.0
        if timeout_s > SLOW_S and not select.select([self._socket], [], [], SLOW_S)[0]:
            print_status(
                f"No response to {api.name} from {self.name} after {SLOW_S:g} s, waiting up to "
                f"{timeout_s:g} s. "
                "Run `tierlog cluster health` to check that the metadata quorum has a leader."
            )

    def _read_frame(self) -> memoryview:
        size = struct.unpack(">i", self._read(4))[0]
        if not 0 < size <= FRAME_MAX_BYTES:
            hint = f"Check that {self.name} is a Kafka port: --bootstrap HOST:PORT"
            what = f"{self.name} does not speak the Kafka protocol: invalid response size {size:,}"
            raise CliError(what, hint=hint)
        return self._read(size)

    def _read(self, count: int) -> memoryview:
        view, received = memoryview(bytearray(count)), 0
        while received < count:
            size = self._socket.recv_into(view[received:])
            if not size:
                raise ConnectionError("the broker closed the connection")
            received += size
        return view


class KafkaClient:
    """Kafka client that finds brokers and partition leaders. Use it as a context manager."""

    def __init__(self, bootstrap: str | None, *, timeout_s: float = 30.0, changes: bool = False) -> None:
        """`bootstrap` None: the local cluster, or else the default address. `changes`: the command changes
        the cluster, so it prints its target."""
        self.timeout_s = timeout_s
        target = bootstrap_target(bootstrap)
        self._seeds = [_address(text) for text in target.addresses.split(",") if text]
        if not self._seeds:
            raise _no_address()
        if changes:
            announce_target(target)
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, MetadataResponseTopic] = {}

    def __enter__(self) -> "KafkaClient":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def call(self, request: Any, node_id: int | None = None) -> Any:
        """Send a request to one node, or to any. Retries once on a new connection if the connection broke."""
        address = self._nodes.get(node_id) if node_id is not None else None
        connection = self._connection(address) if address else self._any_connection()
        try:
            return connection.call(request)
        except CliError as failure:
            self._drop(connection)
            if failure.code != ExitCode.UNREACHABLE or isinstance(failure, TimedOut):
                raise
        return (self._connection(address) if address else self._any_connection()).call(request)

    def supports(self, api: str, node_id: int) -> bool:
        """Whether a node advertises the API."""
        address = self._nodes.get(node_id)
        return (self._connection(address) if address else self._any_connection()).supports(api)

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

    def voters(self) -> list[Address]:
        """Admin API addresses of the metadata quorum's voters."""
        response = self.call(_quorum_request())
        raise_for(response.error_code, response.error_message, "voters of the metadata quorum")
        return [(listener.host, listener.port) for node in response.nodes for listener in node.listeners]

    def require_quorum(self, problem: str) -> None:
        """Raises CliError(problem) if the metadata quorum has no leader, which explains the problem."""
        for address in dict.fromkeys((*self._connections, *self._seeds)):
            try:
                connection = Connection(address, QUORUM_TIMEOUT_S)
            except CliError:
                continue
            try:
                has_leader = not connection.call(_quorum_request()).error_code
            except TimedOut:
                has_leader = False
            except CliError:  # unknown: the broker does not support the request
                has_leader = True
            finally:
                connection.close()
            if not has_leader:
                raise CliError(problem, hint=_HINTS["NOT_CONTROLLER"])
            return

    def topic(self, name: str) -> "MetadataResponseTopic":
        """Cached metadata of a topic. Raises CliError if the topic does not exist."""
        if name not in self._topics:
            found = self.metadata([name]).topics[0]
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise unknown_topic(name)
            raise_for(found.error_code, None, f"topic {name}")
        return self._topics[name]

    def is_live(self, node_id: int) -> bool:
        """Whether the latest Metadata response lists the broker."""
        return node_id in self._nodes

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the partition's leader; waits while the partition has none."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            for found in self.topic(topic).partitions:
                if found.partition_index == partition and found.leader_id in self._nodes:
                    return found.leader_id
            if partition >= len(self.topic(topic).partitions):
                raise no_partition(topic, partition, len(self.topic(topic).partitions))
            self.refresh(topic, deadline, f"{topic}-{partition} has no leader")

    def refresh(self, topic: str, deadline: float, problem: str) -> None:
        """Pause, then drop the topic's cached metadata. Raises CliError(problem) after the deadline."""
        if time.monotonic() > deadline:
            self.require_quorum(problem)
            raise CliError(problem, hint="The broker may still be starting: retry, or see its log.")
        time.sleep(RETRY_PAUSE_S)
        self._topics.pop(topic, None)

    def _any_connection(self) -> Connection:
        if self._connections:
            return next(iter(self._connections.values()))
        failure: CliError | None = None
        for seed in self._seeds:
            try:
                return self._connection(seed, PROBE_TIMEOUT_S if len(self._seeds) > 1 else None)
            except CliError as refused:
                failure = refused
        raise failure or _no_address()

    def _connection(self, address: Address, first_timeout_s: float | None = None) -> Connection:
        if address not in self._connections:
            timeout_s = self.timeout_s * RESPONSE_TIMEOUT_FACTOR
            self._connections[address] = Connection(address, timeout_s, first_timeout_s)
        return self._connections[address]

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._connections.pop(connection.address, None)


def until_final(client: KafkaClient, send: Callable[[], T], error: Callable[[T], int]) -> T:
    """Repeat a request while the coordinator moves or loads, or its broker has just died."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        try:
            response = send()
        except TimedOut:
            raise
        except CliError as failure:
            if failure.code != ExitCode.UNREACHABLE or time.monotonic() > deadline:
                raise
        else:
            if error(response) not in COORDINATOR_MOVES or time.monotonic() > deadline:
                return response
        time.sleep(RETRY_PAUSE_S)


def is_retriable(code: int) -> bool:
    """Whether it is an error that may end by itself. False for codes of newer brokers."""
    return code in ErrorCode.__members__.values() and ErrorCode(code).retriable


def raise_for(code: int, message: str | None, subject: str, *, hint: str = "") -> None:
    """Raise CliError for a response's error code, with the broker's message if there is one. `hint`: for an
    invalid request."""
    if not code:
        return
    name = ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"
    missing = name == "UNKNOWN_TOPIC_OR_PARTITION"
    exit_code = ExitCode.NOT_FOUND if missing else ExitCode.FAILED
    named = subject.removeprefix("topic ")
    subjects = (f"topic {named}".lower(), f"topic '{named}'".lower())
    has_subject = message is not None and message.lower().startswith(subjects)
    text = message if message is not None and has_subject else f"{subject}: {message or name}"
    own = hint if name == "INVALID_REQUEST" else ""
    raise CliError(text, hint=own or _HINTS.get(name, LOG_HINT), code=exit_code)


LOG_HINT = "See the broker's log, or check the cluster with `tierlog cluster health`."


_HINTS = {
    "TOPIC_ALREADY_EXISTS": "See the topic with `tierlog topic describe`; change its settings with "
    "`tierlog topic alter`.",
    "INVALID_REQUEST": "Check the options against docs/reference/cli.md.",
    "INVALID_REGULAR_EXPRESSION": "Regular expressions are RE2's, for example: orders-.*",
    "POLICY_VIOLATION": "Request less at once; docs/reference/settings.md lists the limits of a node.",
    "NOT_CONTROLLER": "The metadata quorum has no leader: run `tierlog cluster health` to see what to do.",
    "REQUEST_TIMED_OUT": "The request may still be executed: run `tierlog cluster health` to see what is "
    "wrong.",
    "INVALID_CONFIG": "docs/reference/settings.md lists all topic settings.",
    "INVALID_PARTITIONS": "A topic has at least one partition, and partitions can only be added.",
    "INVALID_REPLICATION_FACTOR": "See the available brokers with `tierlog cluster info`.",
    "INVALID_TOPIC_EXCEPTION": "Use 1 to 249 of the characters a-z A-Z 0-9 . _ - (not '.' or '..').",
    "UNKNOWN_TOPIC_OR_PARTITION": "List topics with `tierlog topic list`.",
    "THROTTLING_QUOTA_EXCEEDED": "Retry later, or see controller_mutation_rate in `tierlog quota list`.",
    "MESSAGE_TOO_LARGE": "The topic's max.message.bytes limits the size of a batch.",
}


def _quorum_request() -> describe_quorum.DescribeQuorumRequest:
    partition = describe_quorum.PartitionData(partition_index=0)
    topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return describe_quorum.DescribeQuorumRequest(topics=[topic])


def _api_of(request: Any) -> Api:
    return BY_NAME[type(request).__name__.removesuffix("Request")]


def _no_address() -> CliError:
    return usage("no broker address given", hint="For example: --bootstrap 127.0.0.1:9092")


def _address(text: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65_535:
        raise usage(f"{text!r} is not HOST:PORT", hint="For example: --bootstrap 127.0.0.1:9092")
    return host.strip("[]"), int(port)
