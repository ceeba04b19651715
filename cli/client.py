"""A small synchronous Kafka client for the CLI: one socket per broker, one request at a time.

Requests are tierlog's own message classes (`protocol.messages`), so the CLI needs no client library. Each
goes in the newest version that both sides speak, capped where newer versions name topics by id (`NEWEST`).
"""

import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, cast

from tierlog.cli.errors import CliError, ExitCode, unknown_topic, unreachable, usage
from tierlog.cli.output import done
from tierlog.cli.where import announce, target_of
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
"""For the first answer of one of several brokers: one that is paused takes connections and answers nobody."""

NEWEST = {0: 12, 1: 12, 8: 9, 9: 9}
"""Produce, Fetch, OffsetCommit, OffsetFetch: the last version that takes a topic's name."""

SLOW_S = 5.0
"""A command that waits longer for an answer says so, and what may be wrong."""

ANSWER_FACTOR = 1.5
"""Times the timeout of a request: a broker without a quorum answers with its own error when that is over."""

Address = tuple[str, int]


class TimedOut(CliError):
    """A broker took the request and did not answer: it may still be carried out."""


class Connection:
    """One broker's socket; knows the versions that the broker speaks."""

    def __init__(self, address: Address, timeout_s: float, first_timeout_s: float | None = None) -> None:
        """`first_timeout_s`: until it has answered once."""
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
        """The response to the request; raises CliError if the broker lacks the call or goes away."""
        api = _api_of(request)
        least, most = self._versions.get(api.key, (1, 0))
        version = min(most, api.most, NEWEST.get(api.key, api.most))
        if version < max(least, api.least):
            hint = "Use the `tierlog` of the version that the broker runs."
            what = f"the broker at {self.name} offers no version of {api.name} that this command knows"
            raise CliError(what, hint=hint)
        return self._exchange(api, version, request)

    def close(self) -> None:
        self._socket.close()

    def _exchange(self, api: Api, version: int, request: Any) -> Any:
        self._correlation_id += 1
        try:
            sent = encode_request(api, version, self._correlation_id, CLIENT_ID, request)
        except ValueError as misfit:  # for example text that is not UTF-8
            hint = "Check the names and numbers on the command line."
            raise usage(f"{api.name} cannot hold a value: {misfit}", hint) from None
        try:
            self._socket.sendall(sent)
            self._wait(api)
            frame = self._read_frame()
        except TimeoutError:
            what = f"{self.name} did not answer {api.name} in {self._socket.gettimeout():g} s"
            raise TimedOut(what, hint=_HINTS["REQUEST_TIMED_OUT"], code=ExitCode.UNREACHABLE) from None
        except OSError as failure:
            raise unreachable(self.name, failure) from None
        correlation_id, response = decode_response(api, version, frame)
        if correlation_id != self._correlation_id:
            what = f"{api.name}: answer {correlation_id} to request {self._correlation_id}"
            raise CliError(what, hint=f"Is {self.name} a Kafka port? --bootstrap names another.")
        return response

    def _wait(self, api: Api) -> None:
        timeout_s = self._socket.gettimeout() or 0.0
        if timeout_s > SLOW_S and not select.select([self._socket], [], [], SLOW_S)[0]:
            done(
                f"{self.name} has not answered {api.name} for {SLOW_S:g} s, waiting up to {timeout_s:g} s. "
                "`tierlog cluster health` says whether the metadata quorum has a leader."
            )

    def _read_frame(self) -> memoryview:
        size = struct.unpack(">i", self._read(4))[0]
        if not 0 < size <= FRAME_MAX_BYTES:
            hint = f"Is {self.name} a Kafka port? --bootstrap names another."
            raise CliError(f"an answer of {size:,} bytes", hint=hint)
        return self._read(size)

    def _read(self, count: int) -> memoryview:
        view, done = memoryview(bytearray(count)), 0
        while done < count:
            got = self._socket.recv_into(view[done:])
            if not got:
                raise ConnectionError("the broker closed the connection")
            done += got
        return view


class KafkaClient:
    """Finds brokers and leaders, and talks to them. Use it as a context manager."""

    def __init__(self, bootstrap: str | None, *, timeout_s: float = 30.0, changes: bool = False) -> None:
        """`bootstrap` None: of the local cluster, or at the default address. `changes`: the command changes
        something, so it prints its target."""
        self.timeout_s = timeout_s
        target = target_of(bootstrap)
        self._seeds = [_address(text) for text in target.addresses.split(",") if text]
        if not self._seeds:
            raise _no_address()
        if changes:
            announce(target)
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, MetadataResponseTopic] = {}

    def __enter__(self) -> "KafkaClient":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def call(self, request: Any, node_id: int | None = None) -> Any:
        """Asks one node, or any; a broken connection is opened anew once."""
        address = self._nodes.get(node_id) if node_id is not None else None
        connection = self._connection(address) if address else self._any_connection()
        try:
            return connection.call(request)
        except CliError as failure:
            self._drop(connection)
            if failure.code != ExitCode.UNREACHABLE or isinstance(failure, TimedOut):
                raise
        return (self._connection(address) if address else self._any_connection()).call(request)

    def metadata(self, names: list[str] | None = None) -> MetadataResponse:
        """Brokers and topics, all topics if no names are given; never creates a topic."""
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
        """Addresses of the metadata quorum's voters: those of their admin APIs."""
        asked = describe_quorum.TopicData(
            topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData(partition_index=0)]
        )
        answer = self.call(describe_quorum.DescribeQuorumRequest(topics=[asked]))
        raise_for(answer.error_code, answer.error_message, "the voters of the quorum")
        return [(one.host, one.port) for node in answer.nodes for one in node.listeners]

    def topic(self, name: str) -> "MetadataResponseTopic":
        """A topic's partitions and leaders, cached once seen; raises CliError if there is none."""
        if name not in self._topics:
            found = self.metadata([name]).topics[0]
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise unknown_topic(name)
            raise_for(found.error_code, None, f"topic {name}")
        return self._topics[name]

    def knows(self, node_id: int) -> bool:
        """Whether it is a broker that serves, as Metadata lists them."""
        return node_id in self._nodes

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads the partition now; waits while there is none."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            for found in self.topic(topic).partitions:
                if found.partition_index == partition and found.leader_id in self._nodes:
                    return found.leader_id
            if partition >= len(self.topic(topic).partitions):
                raise CliError(
                    f"{topic} has no partition {partition}",
                    hint=f"`tierlog topic describe {topic}` shows them.",
                )
            self.refresh(topic, deadline, f"{topic}-{partition} has no leader")

    def refresh(self, topic: str, deadline: float, problem: str) -> None:
        """Forgets what is known of a topic after a pause; raises CliError(problem) past the deadline."""
        if time.monotonic() > deadline:
            raise CliError(problem, hint="The broker may be starting; try again, or look at its log.")
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
            timeout_s = self.timeout_s * ANSWER_FACTOR
            self._connections[address] = Connection(address, timeout_s, first_timeout_s)
        return self._connections[address]

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._connections.pop(connection.address, None)


def raise_for(code: int, message: str | None, subject: str) -> None:
    """Raises CliError for an error code of a response, with the broker's words if it sent some."""
    if not code:
        return
    name = ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"
    missing = name == "UNKNOWN_TOPIC_OR_PARTITION"
    outcome = ExitCode.NOT_FOUND if missing else ExitCode.FAILED
    raise CliError(f"{subject}: {message or name}", hint=_HINTS.get(name, LOOK_AT_LOG), code=outcome)


LOOK_AT_LOG = "The log of the broker may say more; `tierlog cluster health` says whether all is well."


_HINTS = {
    "TOPIC_ALREADY_EXISTS": "`tierlog topic describe` shows it; `tierlog topic alter` changes its settings.",
    "INVALID_REQUEST": "The request as a whole makes no sense: compare it with docs/reference/cli.md.",
    "POLICY_VIOLATION": "Ask for less at once; docs/reference/settings.md lists the bounds of a node.",
    "NOT_CONTROLLER": "The metadata quorum has no leader: `tierlog cluster health` says what to do.",
    "REQUEST_TIMED_OUT": "It may be done later: `tierlog cluster health` says what is wrong.",
    "INVALID_CONFIG": "docs/reference/settings.md lists the settings of a topic.",
    "INVALID_PARTITIONS": "Partitions can only be added, and a topic has at least one.",
    "INVALID_REPLICATION_FACTOR": "`tierlog cluster info` shows how many brokers there are.",
    "INVALID_TOPIC_EXCEPTION": "A name has 1 to 249 of a-z A-Z 0-9 . _ - and is not '.' or '..'.",
    "UNKNOWN_TOPIC_OR_PARTITION": "`tierlog topic list` shows what there is.",
    "THROTTLING_QUOTA_EXCEEDED": "Wait a little; `tierlog quota list` shows controller_mutation_rate.",
    "MESSAGE_TOO_LARGE": "The topic's setting max.message.bytes bounds a batch.",
}


def _api_of(request: Any) -> Api:
    return BY_NAME[type(request).__name__.removesuffix("Request")]


def _no_address() -> CliError:
    return usage("no broker address given", hint="For example: --bootstrap 127.0.0.1:9092")


def _address(text: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65_535:
        raise usage(f"{text!r} is not HOST:PORT", hint="For example: --bootstrap 127.0.0.1:9092")
    return host.strip("[]"), int(port)
