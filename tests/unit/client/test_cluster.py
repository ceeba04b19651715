"""The client against a broker that responds as a script says."""

import socket
from typing import Any

import pytest
from scripted_broker import broker

from tierlog.client import (
    ClientError,
    Cluster,
    ErrorResponse,
    InvalidAddress,
    TimedOut,
    UnknownTopic,
    Unreachable,
    cluster,
    racing,
)
from tierlog.client.cluster import CoordinatorType, parse_address
from tierlog.client.connection import Address, ConnectionOptions
from tierlog.client.errors import AuthenticationFailed
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tierlog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def metadata(port: int, leader: int, error: ErrorCode = ErrorCode.NONE) -> MetadataResponse:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)],
        topics=[MetadataResponseTopic(name="t", error_code=error, partitions=[partition])],
    )


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "RETRY_PAUSE_S", 0.0)


def test_leader_is_awaited_while_an_election_runs() -> None:
    leaders = iter([-1, -1, 1])
    with broker(lambda _, port: metadata(port, next(leaders))) as address, Cluster(address) as client:
        assert client.leader("t", 0) == 1
        assert client.leader("t", 0) == 1  # from the cache: the script has no fourth response
    assert next(leaders, None) is None


def test_topic_that_does_not_exist_has_an_error_of_its_own() -> None:
    def respond(_: str, port: int) -> MetadataResponse:
        return metadata(port, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    with broker(respond) as address, Cluster(address) as client, pytest.raises(UnknownTopic):
        client.topic("t")


def test_coordinator_is_awaited_cached_and_forgotten() -> None:
    codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE, ErrorCode.NONE]

    def respond(_: str, port: int) -> FindCoordinatorResponse:
        found = Coordinator(key="q", node_id=7, host="127.0.0.1", port=port, error_code=codes.pop(0))
        return FindCoordinatorResponse(coordinators=[found])

    with broker(respond) as address, Cluster(address) as client:
        assert client.coordinator(CoordinatorType.TRANSACTION, "q") == 7
        assert client.coordinator(CoordinatorType.TRANSACTION, "q") == 7
        assert client.is_live(7) and len(codes) == 1
        client.forget_coordinator(CoordinatorType.TRANSACTION, "q")
        assert client.coordinator(CoordinatorType.TRANSACTION, "q") == 7 and not codes


def test_refusal_of_the_coordinator_is_final() -> None:
    found = Coordinator(key="q", error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    response = FindCoordinatorResponse(coordinators=[found])
    refused = pytest.raises(ErrorResponse, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with broker(lambda *_: response) as address, Cluster(address) as client, refused:
        client.coordinator(CoordinatorType.TRANSACTION, "q")


def test_broken_connection_is_opened_again_once() -> None:
    calls = []

    def respond(name: str, port: int) -> MetadataResponse | None:
        calls.append(name)
        return None if len(calls) == 1 else metadata(port, 1)

    with broker(respond) as address, Cluster(address) as client:
        assert client.leader("t", 0) == 1
    assert calls == ["Metadata", "Metadata"]


def test_request_without_a_response_is_not_sent_twice() -> None:
    calls = []

    def respond(name: str, _: int) -> Any:
        calls.append(name)
        return ...

    late = pytest.raises(TimedOut, match="did not respond to Metadata")
    with broker(respond) as address, Cluster(address) as client, late:
        client.call(MetadataRequest(topics=[]), timeout_s=0.2)
    assert calls == ["Metadata"]


def test_next_bootstrap_broker_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refused = f"127.0.0.1:{closed.getsockname()[1]}"
    with broker(lambda _, port: metadata(port, 1)) as address, Cluster(f"{refused}, {address}") as client:
        assert client.leader("t", 0) == 1
    with Cluster(refused) as client, pytest.raises(ClientError, match="cannot reach"):
        client.metadata()


def test_silent_bootstrap_broker_is_not_waited_for() -> None:
    """As a paused process, or a host that drops packets."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seed = f"127.0.0.1:{silent.getsockname()[1]}"
        with broker(lambda _, port: metadata(port, 1)) as address, Cluster(f"{seed},{address}") as client:
            assert client.leader("t", 0) == 1
            assert client.addresses()[0] == parse_address(address)


def test_all_bootstrap_brokers_that_do_not_respond_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refused = f"127.0.0.1:{closed.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seed = f"127.0.0.1:{silent.getsockname()[1]}"
        with Cluster(f"{seed},{refused}") as client, pytest.raises(Unreachable) as unreachable:
            client.metadata()
        with Cluster(seed) as client, pytest.raises(Unreachable, match="accepts connections, but"):
            client.metadata()
    message = str(unreachable.value)
    assert message.startswith("cannot reach any of 2 brokers: ")
    assert f"{seed}: it accepts connections" in message and f"{refused}: Connection refused" in message


def test_refused_login_is_not_repeated_at_other_bootstrap_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "STAGGER_S", 3600.0)
    monkeypatch.setattr(racing, "SPREAD_MAX_S", 72_000.0)
    logins: list[Address] = []

    def refuse(address: Address, timeout_s: float) -> socket.socket:
        logins.append(address)
        raise AuthenticationFailed("wrong password")

    options = ConnectionOptions(open_socket=refuse)
    with Cluster("a:1,b:1,c:1", options=options) as client, pytest.raises(AuthenticationFailed):
        client.topic("t")
    assert logins == [("a", 1)]


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:70000", "host:x"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidAddress):
        Cluster(text)


def test_ipv6_addresses_are_in_brackets() -> None:
    assert parse_address("[::1]:9092") == ("::1", 9092)
