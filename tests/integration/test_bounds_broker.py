"""Each bound on client resources: a broker reaches it, reports it in a metric and continues to serve."""

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scraping import metric, wait_for_metric
from waiting import until
from wire_client import Client

from tierlog.protocol.api import BY_NAME, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import api_versions, describe_configs, fetch, metadata
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

KIB, MIB = 1 << 10, 1 << 20
REFUSED, CLOSED = (
    "tierlog_connections_refused_total",
    "kafka_server_socket_server_metrics_connection_close_total",
)
SETTINGS = {
    "max.connections": 12,
    "max.connections.per.ip": 6,
    "max.connections.per.ip.overrides": "127.0.0.9:2",
    "max.connection.creation.rate": 50,
    "max.in.flight.requests.per.connection": 3,
    "socket.request.max.bytes": MIB,
    "queued.max.request.bytes": MIB,
    "queued.max.response.bytes": 256 * KIB,
    "queued.max.response.total.bytes": MIB,
    "request.header.timeout.ms": 300,
    "request.receive.timeout.ms": 3_000,
    "response.send.timeout.ms": 6_000,
    "max.incremental.fetch.session.cache.slots": 2,
    "purgatory.max.operations": 4,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("bounds"), SETTINGS) as broker:
        yield broker


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def served_as_before(broker: TierlogBroker) -> Iterator[None]:
    """After each test, check that other clients are served and that no resources are still held."""
    yield
    until(lambda: metric(broker, "tierlog_connections") == 0, "connections")
    with contextlib.closing(Client(broker.bootstrap)) as client:
        client.send("Metadata", 12, metadata.MetadataRequest())
    for name in ("memorypoolused", "requests_held_bytes", "responses_kept_bytes"):
        full = f"kafka_network_socketserver_{name}" if name == "memorypoolused" else f"tierlog_{name}"
        assert metric(broker, full) == 0, full


def connect(broker: TierlogBroker, sockets: contextlib.ExitStack, host: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of this machine."""
    address = broker.host, broker.port
    return sockets.enter_context(socket.create_connection(address, timeout=30, source_address=(host, 0)))


def is_served(connection: socket.socket) -> bool:
    request = api_versions.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    try:
        connection.sendall(encode_request(BY_NAME["ApiVersions"], 3, 1, "t", request))
        return bool(connection.recv(64 * KIB))
    except ConnectionError:
        return False


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_total_connections_are_bounded(broker: TierlogBroker, sockets: contextlib.ExitStack) -> None:
    hosts = ["127.0.0.2"] * 6 + ["127.0.0.3"] * 6
    assert [is_served(connect(broker, sockets, host)) for host in hosts] == [True] * 12
    assert not is_served(connect(broker, sockets, "127.0.0.4"))
    assert metric(broker, REFUSED, bound="max.connections") == 1
    assert "bound='max.connections'" in broker.log_tail()


def test_connections_per_address_are_bounded(broker: TierlogBroker, sockets: contextlib.ExitStack) -> None:
    assert [is_served(connect(broker, sockets, "127.0.0.2")) for _ in range(7)] == [True] * 6 + [False]
    assert [is_served(connect(broker, sockets, "127.0.0.9")) for _ in range(3)] == [True] * 2 + [False]
    assert is_served(connect(broker, sockets, "127.0.0.3"))
    assert metric(broker, REFUSED, bound="max.connections.per.ip") == 2


def test_new_connections_per_second_are_bounded(broker: TierlogBroker, sockets: contextlib.ExitStack) -> None:
    several = [connect(broker, sockets, "127.0.0.9") for _ in range(120)]  # the kernel takes them
    wait_for_metric(broker, 1, REFUSED, bound="max.connection.creation.rate")
    assert is_served(several[0])
    assert is_closed(several[-1])  # it had its turn, and exceeds the limit of its address


def test_oversized_request_closes_the_connection(
    broker: TierlogBroker, sockets: contextlib.ExitStack
) -> None:
    client = connect(broker, sockets)
    client.sendall(struct.pack(">i", MIB + 1))
    assert is_closed(client)
    assert metric(broker, CLOSED, reason="malformed") == 1
    assert f"a frame of {MIB + 1} bytes" in broker.log_tail()


@pytest.mark.parametrize(
    "begun", [b"\0\0", b"\0\0\1\0\0\3\0", b"\0\0\1\0\0\3\0\1\0\0\0\0\0\0"], ids=["size", "header", "body"]
)
def test_slow_request_closes_the_connection(
    broker: TierlogBroker, sockets: contextlib.ExitStack, begun: bytes
) -> None:
    before = metric(broker, CLOSED, reason="slow")
    client = connect(broker, sockets)
    client.sendall(begun)
    assert is_closed(client)
    assert metric(broker, CLOSED, reason="slow") == before + 1
    assert f"{len(begun)} bytes of a frame in" in broker.log_tail()


def test_large_request_waits_for_request_memory(broker: TierlogBroker, sockets: contextlib.ExitStack) -> None:
    """A large request waits while others hold all request memory, and is served once they are gone."""
    topics = [metadata.MetadataRequestTopic(name="x" * 32_000) for _ in range(30)]
    whole = bytes(encode_request(BY_NAME["Metadata"], 12, 1, "t", metadata.MetadataRequest(topics=topics)))
    holders = [connect(broker, sockets) for _ in range(2)]
    for number, holder in enumerate(holders, 1):
        holder.sendall(whole[:1000])
        wait_for_metric(broker, number * 900_000, "kafka_network_socketserver_memorypoolused")
    client = connect(broker, sockets)
    client.sendall(whole)
    wait_for_metric(broker, 1, "tierlog_connections_memory_waits_total")
    assert metric(broker, "kafka_network_socketserver_memorypoolused") < 2 * MIB
    for holder in holders:
        holder.close()
    assert client.recv(64 * KIB)


def fetching(broker: TierlogBroker, **fields: int) -> tuple[Client, fetch.FetchRequest]:
    client = Client(broker.bootstrap)
    requested = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    topics = [fetch.FetchTopic(topic=client.create(), partitions=[requested])]
    return client, fetch.FetchRequest(topics=topics, **fields)


def test_waiting_requests_are_bounded_per_connection_and_in_all(broker: TierlogBroker) -> None:
    """Three per connection, four in all."""
    in_purgatory = "kafka_server_delayedoperationpurgatory_purgatorysize"
    refused = "tierlog_purgatory_refused_total"
    first, request = fetching(broker, max_wait_ms=60_000, min_bytes=1)
    second = Client(broker.bootstrap)
    for _ in range(6):
        first.post("Fetch", 11, request)
    wait_for_metric(broker, 3, in_purgatory, delayed_operation="Fetch")
    assert is_served_soon(broker)
    assert metric(broker, in_purgatory, delayed_operation="Fetch") == 3
    assert metric(broker, "tierlog_connections_saturated") == 1
    for _ in range(3):
        second.post("Fetch", 11, request)
    wait_for_metric(broker, 2, refused, delayed_operation="Fetch")
    assert metric(broker, in_purgatory, delayed_operation="Fetch") == 4
    first.close()
    second.close()


def is_served_soon(broker: TierlogBroker) -> bool:
    """It is served in a turn of the loop after those of earlier connections."""
    with contextlib.closing(Client(broker.bootstrap)) as client:
        return client.send("Metadata", 12, metadata.MetadataRequest()) is not None


def test_fetch_sessions_are_bounded(broker: TierlogBroker) -> None:
    client, request = fetching(broker, max_wait_ms=0, session_epoch=0)
    sessions = [client.send("Fetch", 12, request).session_id for _ in range(3)]
    client.close()
    assert [session > 0 for session in sessions] == [True, True, False]
    assert metric(broker, "kafka_server_fetchsessioncache_numincrementalfetchsessions") == 2
    assert metric(broker, "tierlog_fetch_sessions_refused_total") == 1


# ---- responses that clients do not read -----------------------------------------------------------


def sleeper(broker: TierlogBroker, sockets: contextlib.ExitStack) -> socket.socket:
    """A client that requests much more than it ever reads."""
    client = sockets.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
    client.connect((broker.host, broker.port))
    resource = describe_configs.DescribeConfigsResource(resource_type=4, resource_name="1")
    request = describe_configs.DescribeConfigsRequest(resources=[resource], include_documentation=True)
    client.sendall(bytes(encode_request(BY_NAME["DescribeConfigs"], 4, 1, "t", request)) * 300)
    return client


def test_client_that_reads_no_responses_is_disconnected(
    broker: TierlogBroker, sockets: contextlib.ExitStack
) -> None:
    client = sleeper(broker, sockets)
    wait_for_metric(broker, 1, "tierlog_connections_blocked")
    wait_for_metric(broker, 200 * KIB, "tierlog_responses_kept_bytes")
    assert metric(broker, "tierlog_responses_kept_bytes") < 400 * KIB  # queued.max.response.bytes
    wait_for_metric(broker, 1, CLOSED, reason="blocked")
    assert "bytes not accepted for" in broker.log_tail()
    until(lambda: not client.recv(64 * KIB), "the end of what was sent")


def test_clients_that_read_no_responses_share_one_bound(
    broker: TierlogBroker, sockets: contextlib.ExitStack
) -> None:
    clients = [sleeper(broker, sockets) for _ in range(5)]
    wait_for_metric(broker, 1, CLOSED, reason="queue_full")
    assert metric(broker, "tierlog_responses_kept_bytes") <= MIB
    wait_for_metric(broker, len(clients), "kafka_server_socket_server_metrics_connection_creation_total")


# ---- brokers of their own -------------------------------------------------------------------------


def test_idle_connection_is_closed(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"connections.max.idle.ms": 200})
    with contextlib.ExitStack() as sockets:
        assert is_closed(connect(broker, sockets))
    assert metric(broker, CLOSED, reason="idle") == 1


def test_without_descriptors_connections_wait(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory()
    with contextlib.ExitStack() as sockets:
        assert is_served(connect(broker, sockets))  # descriptors that the first client needs are open
        metric(broker, REFUSED)
        used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 3, hard))
        several = [connect(broker, sockets) for _ in range(10)]
        assert all(map(is_served, several[:2]))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert all(map(is_served, several))
    assert metric(broker, REFUSED, bound="open files") >= 1
    assert "bound='open files'" in broker.log_tail()


def resident_peak_bytes(broker: TierlogBroker) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return next(int(line.split()[1]) * KIB for line in status if line.startswith("VmHWM"))


def test_decompression_bomb_stays_within_the_memory_bound(broker: TierlogBroker) -> None:
    """A few KB that decompress to 140 MiB cost no more than any frame: twice its size and 8 MiB."""
    now_ms = int(time.time() * 1000)
    with contextlib.closing(Client(broker.bootstrap)) as client:
        topics = [
            client.create(max_message_bytes=str(100 * MIB), **more)
            for more in ({}, {"cleanup_policy": "compact"}, {"compression_type": "gzip"})
        ]
        for codec in (Codec.ZSTD, Codec.GZIP, Codec.LZ4):
            warm = bytes(encode_batch([NewRecord(now_ms, b"k", bytes(4 * MIB))], codec=codec))
            bomb = bytes(encode_batch([NewRecord(now_ms, b"k", bytes(140 * MIB))], codec=codec))
            assert len(bomb) < MIB
            for topic in topics:
                assert client.produce(topic, warm).error_code == ErrorCode.NONE
                before = resident_peak_bytes(broker)
                assert client.produce(topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE
                assert resident_peak_bytes(broker) - before < 2 * len(bomb) + 8 * MIB
