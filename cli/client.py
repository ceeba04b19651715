"""Kafka client of the command line: `tierlog.client` with errors, hints and exit codes of commands.

A command says which cluster it changes, and what it waits for when a response is slow.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tierlog.cli.client_config import socket_opener
from tierlog.cli.errors import (
    SILENT_HINT,
    CliError,
    ExitCode,
    no_partition,
    no_response,
    unknown_topic,
    unreachable,
    usage,
)
from tierlog.cli.output import print_status
from tierlog.cli.targets import announce_target, bootstrap_target
from tierlog.client import cluster, connection, errors
from tierlog.client.cluster import RETRY_PAUSE_S
from tierlog.client.connection import Address, ConnectionOptions
from tierlog.client.errors import is_retriable
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import describe_quorum

if TYPE_CHECKING:
    from tierlog.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

__all__ = ["SLOW_S", "KafkaClient", "TimedOut", "is_retriable", "of_each_broker", "raise_for", "until_final"]

CLIENT_ID = "tierlog-cli"
METADATA_TOPIC = "__cluster_metadata"

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


class TimedOut(CliError):
    """The broker received the request and did not respond: it may still execute it."""


class KafkaClient:
    """The client of one command. Failures are CliErrors. Use it as a context manager."""

    def __init__(self, bootstrap: str | None, *, timeout_s: float = 30.0, changes: bool = False) -> None:
        """`bootstrap` None: the local cluster, or else the default address. `changes`: the command changes
        the cluster, so it prints its target."""
        self.timeout_s = timeout_s
        target = bootstrap_target(bootstrap)
        open_socket = socket_opener(target.addresses)
        self._options = options = ConnectionOptions(
            client_id=CLIENT_ID, open_socket=open_socket, slow_s=SLOW_S, on_slow=_print_slow
        )
        with _as_cli_errors():
            self._cluster = cluster.Cluster(target.addresses, timeout_s=timeout_s, options=options)
        if changes:
            announce_target(target)

    def __enter__(self) -> "KafkaClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def call(self, request: Any, node_id: int | None = None) -> Any:
        """Send a request to one node, or to any. Retries once on a new connection if the connection broke."""
        with _as_cli_errors():
            return self._cluster.call(request, node_id)

    def silent(self, node_ids: Iterable[int]) -> dict[int, str]:
        """Which of these brokers do not respond, and why: together they take as long as one of them."""
        with _as_cli_errors():
            failures = self._cluster.connect(node_ids)
        return {node: f"broker {node}: {failure}" for node, failure in sorted(failures.items())}

    def require(self, node_ids: Iterable[int]) -> None:
        """Raises CliError that names the brokers which do not respond."""
        if silent := self.silent(node_ids):
            raise no_response(silent.values())

    def silent_leaders(self, topics: "Collection[MetadataResponseTopic]") -> set[int]:
        """Leaders of these topics that do not respond. Prints that what they know is missing."""
        leaders = {
            one.leader_id for topic in topics for one in topic.partitions if self.is_live(one.leader_id)
        }
        if silent := self.silent(leaders):
            print_status(f"Offsets are missing: {no_response(silent.values())}.\n{SILENT_HINT}")
        return set(silent)

    def supports(self, api: str, node_id: int) -> bool:
        """Whether a node advertises the API."""
        with _as_cli_errors():
            return self._cluster.supports(api, node_id)

    def metadata(self, names: list[str] | None = None) -> "MetadataResponse":
        """Brokers, and the named topics, or all with None. Never creates a topic."""
        with _as_cli_errors():
            return self._cluster.metadata(names)

    def voters(self) -> list[Address]:
        """Admin API addresses of the metadata quorum's voters, as far as a broker knows them if there is no
        leader."""
        response = self.call(_quorum_request())
        if not response.nodes:
            raise_for(response.error_code, response.error_message, "voters of the metadata quorum")
        return [(listener.host, listener.port) for node in response.nodes for listener in node.listeners]

    def require_quorum(self, problem: str) -> None:
        """Raises CliError(problem) if the metadata quorum has no leader, which explains the problem."""
        for address in self._cluster.addresses():
            try:
                probe = connection.Connection(address, QUORUM_TIMEOUT_S, options=self._options)
            except errors.ClientError:
                continue
            try:
                has_leader = not probe.call(_quorum_request()).error_code
            except errors.TimedOut:
                has_leader = False
            except errors.ClientError:  # unknown: the broker does not support the request
                has_leader = True
            finally:
                probe.close()
            if not has_leader:
                raise CliError(problem, hint=_HINTS["NOT_CONTROLLER"])
            return

    def topic(self, name: str) -> "MetadataResponseTopic":
        """Cached metadata of a topic. Raises CliError if the topic does not exist."""
        with _as_cli_errors():
            return self._cluster.topic(name)

    def is_live(self, node_id: int) -> bool:
        """Whether the latest Metadata response lists the broker."""
        return self._cluster.is_live(node_id)

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the partition's leader; waits while the partition has none."""
        with self._explained():
            return self._cluster.leader(topic, partition)

    def refresh(self, topic: str, deadline: float, problem: str) -> None:
        """Pause, then drop the topic's cached metadata. Raises CliError(problem) after the deadline."""
        with self._explained():
            self._cluster.refresh(topic, deadline, problem)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """If what the request needs is not available, say whether the metadata quorum is the cause."""
        try:
            with _as_cli_errors():
                yield
        except errors.NotAvailable as failure:
            self.require_quorum(str(failure))
            hint = _UNAVAILABLE_HINTS.get(str(failure).rpartition(" ")[2], STARTING_HINT)
            raise CliError(str(failure), hint=hint) from None


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


class _BrokerLeft(Exception):
    """The broker does not respond, and is not in the latest metadata: others have what it coordinated."""


def of_each_broker(client: KafkaClient, request: Any, subject: str) -> list[tuple[int, Any]]:
    """The responses of all brokers, by node id. All are asked again if one of them turns out to be fenced.
    Raises CliError; `subject`: what the request is about."""

    def live() -> list[int]:
        return [broker.node_id for broker in client.metadata([]).brokers]

    def send(broker: int) -> Any:
        try:
            return client.call(request, broker)
        except CliError as failure:
            if failure.code == ExitCode.UNREACHABLE and broker not in live():
                raise _BrokerLeft from None
            raise

    deadline = time.monotonic() + client.timeout_s
    while True:
        found = []
        silent = client.silent(live())
        brokers = live()
        if remaining := [why for broker, why in silent.items() if broker in brokers]:
            if time.monotonic() > deadline:
                raise no_response(remaining)
            time.sleep(RETRY_PAUSE_S)
            continue
        try:
            for broker in brokers:
                response = until_final(client, partial(send, broker), lambda response: response.error_code)
                raise_for(response.error_code, None, f"{subject} of broker {broker}")
                found.append((broker, response))
        except _BrokerLeft:
            if time.monotonic() < deadline:
                continue
            raise CliError(f"brokers leave while their {subject} are requested", hint=LOG_HINT) from None
        return found


def raise_for(code: int, message: str | None, subject: str, *, hint: str = "") -> None:
    """Raise CliError for a response's error code, with the broker's message if there is one. `hint`: for an
    invalid request."""
    if code:
        raise response_error(code, message, subject, hint=hint)


def response_error(code: int, message: str | None, subject: str, *, hint: str = "") -> CliError:
    """The error of a command for a response's error code."""
    name = errors.error_name(code)
    missing = name == "UNKNOWN_TOPIC_OR_PARTITION"
    exit_code = ExitCode.NOT_FOUND if missing else ExitCode.FAILED
    named = subject.removeprefix("topic ")
    subjects = (f"topic {named}".lower(), f"topic '{named}'".lower())
    has_subject = message is not None and message.lower().startswith(subjects)
    text = message if message is not None and has_subject else f"{subject}: {message or name}"
    own = hint if name == "INVALID_REQUEST" else ""
    return CliError(text, hint=own or _HINTS.get(name, LOG_HINT), code=exit_code)


STARTING_HINT = "The broker may still be starting: retry, or see its log."
_UNAVAILABLE_HINTS = {
    "CORRUPT_MESSAGE": "A batch in the log is damaged: see `tierlog doctor`, and "
    "docs/runbooks/damaged-log.md.",
    "OFFSET_NOT_AVAILABLE": errors.UNKNOWN_END_REMEDY,
}
"""Error code in a problem that did not end in time -> hint."""
LOG_HINT = "See the broker's log, or check the cluster with `tierlog cluster health`."


def remedy(code: ErrorCode) -> str:
    """The hint for an error that may end by itself, and has not."""
    return _UNAVAILABLE_HINTS.get(code.name) or _HINTS.get(code.name, LOG_HINT)


_ACCESS_HINT = (
    "An administrator can permit it with `tierlog acl create`; docs/reference/access.md lists the operations "
    "that each API needs."
)
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
    "SECURITY_DISABLED": "Set authorizer.class.name on all nodes first: docs/explanation/security.md.",
    "TOPIC_AUTHORIZATION_FAILED": _ACCESS_HINT,
    "GROUP_AUTHORIZATION_FAILED": _ACCESS_HINT,
    "CLUSTER_AUTHORIZATION_FAILED": _ACCESS_HINT,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _ACCESS_HINT,
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": "Tokens of others need the operation CREATE_TOKENS on the user, "
    "which an administrator can permit with `tierlog acl create --user`.",
    "DELEGATION_TOKEN_AUTH_DISABLED": "Set delegation.token.secret.key on all brokers first: "
    "docs/explanation/security.md.",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "Log in by a password or a certificate, not by a token, on a "
    "listener with SASL or client certificates.",
    "DELEGATION_TOKEN_EXPIRED": "Create another one with `tierlog token create`.",
    "DELEGATION_TOKEN_OWNER_MISMATCH": "Its owner, its requester and its renewers may change it: see "
    "`tierlog token describe`.",
    "DELEGATION_TOKEN_NOT_FOUND": "List tokens with `tierlog token list`.",
    "MESSAGE_TOO_LARGE": "The topic's max.message.bytes limits the size of a batch.",
}


@contextmanager
def _as_cli_errors() -> Iterator[None]:
    """Raise CliError for a failure of the client. NotAvailable passes: its cause is yet to be found."""
    try:
        yield
    except errors.NotAvailable:
        raise
    except errors.ClientError as failure:
        raise cli_error(failure) from None


def cli_error(failure: errors.ClientError) -> CliError:
    match failure:
        case errors.InvalidAddress():
            return usage(str(failure), hint="For example: --bootstrap 127.0.0.1:9092")
        case errors.Silent():
            return CliError(str(failure), hint=SILENT_HINT, code=ExitCode.UNREACHABLE)
        case errors.Unreachable():
            return unreachable(failure.address, failure.reason)
        case errors.TimedOut():
            return TimedOut(str(failure), hint=_HINTS["REQUEST_TIMED_OUT"], code=ExitCode.UNREACHABLE)
        case errors.UnsupportedRequest():
            what = f"the broker at {failure.address} supports no version of {failure.api}"
            hint = "Use the `tierlog` version that the broker runs."
            return CliError(f"{what} that this command supports", hint=hint)
        case errors.InvalidRequest():
            return usage(str(failure), "Check the names and numbers on the command line.")
        case errors.AuthenticationFailed():
            hint = "Check the user and password in the file of --client-config."
            return CliError(str(failure), hint=hint)
        case errors.InvalidResponse():
            hint = f"Check that {failure.address} is a Kafka port: --bootstrap HOST:PORT"
            return CliError(str(failure), hint=hint)
        case errors.UnknownTopic():
            return unknown_topic(failure.topic)
        case errors.UnknownPartition():
            return no_partition(failure.topic, failure.partition, failure.count)
        case errors.ErrorResponse():
            return response_error(failure.code, failure.message, failure.subject)
        case _:
            return CliError(str(failure), hint=LOG_HINT)


def _print_slow(api: str, address: str, timeout_s: float) -> None:
    print_status(
        f"No response to {api} from {address} after {SLOW_S:g} s, waiting up to {timeout_s:g} s. "
        "Run `tierlog cluster health` to check that the metadata quorum has a leader."
    )


def _quorum_request() -> describe_quorum.DescribeQuorumRequest:
    partition = describe_quorum.PartitionData(partition_index=0)
    topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return describe_quorum.DescribeQuorumRequest(topics=[topic])
