"""Thousands of connections: idle ones use little memory, and active ones are served fairly."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from many_clients import ManyClients
from scraping import metric
from wire_client import Client

from tierlog.broker.net.core.bounds import FRAMES_PER_TURN
from tierlog.protocol.api import BY_NAME, encode_request
from tierlog.protocol.messages import api_versions, fetch, produce
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

KIB = 1 << 10
IDLE, ACTIVE = 5_000, 1_000
ROUNDS = 30
NOW_MS = int(time.time() * 1000)
IDLE_BYTES_MAX = 16 * KIB
SETTINGS = {"max.connection.creation.rate": 100_000}


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= count, f"this test needs {count} descriptors"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def frame(api: str, version: int, message: object) -> bytes:
    return bytes(encode_request(BY_NAME[api], version, 1, "many-clients", message))


HELLO = frame(
    "ApiVersions",
    3,
    api_versions.ApiVersionsRequest(client_software_name="a", client_software_version="1"),
)


@pytest.mark.slow
def test_idle_connections_use_little_memory(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory(SETTINGS)
    warm = Client(broker.bootstrap)
    topic = warm.create()
    warm.produce(topic, bytes(encode_batch([NewRecord(NOW_MS, None, b"v")])))
    before = broker.memory_bytes()[0]
    with descriptors(IDLE + 500), ExitStack() as stack:
        idle = []
        for _ in range(IDLE):
            connection = stack.enter_context(socket.create_connection((broker.host, broker.port), timeout=30))
            connection.sendall(HELLO)
            assert connection.recv(4 * KIB)
            idle.append(connection)
        assert metric(broker, "tierlog_connections") == IDLE + 1
        each = (broker.memory_bytes()[0] - before) / IDLE
        assert each < IDLE_BYTES_MAX, f"{each:.0f} bytes a connection"
        assert warm.produce(topic, bytes(encode_batch([NewRecord(NOW_MS, None, b"v")]))).base_offset == 1
        for connection in idle[::100]:
            connection.sendall(HELLO)
            assert connection.recv(4 * KIB)
    warm.close()


def request_frame(kind: str, topic: str) -> bytes:
    if kind == "fetch":
        requested = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=16 * KIB)
        topics = [fetch.FetchTopic(topic=topic, partitions=[requested])]
        return frame("Fetch", 11, fetch.FetchRequest(max_wait_ms=0, topics=topics))
    batch = encode_batch([NewRecord(NOW_MS, None, bytes(16 * KIB if kind == "large" else 100))])
    data = produce.PartitionProduceData(index=0, records=bytes(batch))
    produced = [produce.TopicProduceData(name=topic, partition_data=[data])]
    return frame("Produce", 9, produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=produced))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["small", "fetch", "small fetch large"])
def test_active_connections_are_served_fairly(
    tierlog_broker_factory: TierlogBrokerFactory, kinds: str
) -> None:
    broker = tierlog_broker_factory(SETTINGS)
    client = Client(broker.bootstrap)
    topic = client.create()
    client.produce(topic, bytes(encode_batch([NewRecord(NOW_MS, None, bytes(16 * KIB))])))
    client.close()
    frames = [request_frame(kind, topic) for kind in kinds.split()]
    with descriptors(ACTIVE + 500):
        clients = ManyClients((broker.host, broker.port), [frames[n % len(frames)] for n in range(ACTIVE)])
        clients.run(ROUNDS * ACTIVE)
        assert min(clients.answers) >= ROUNDS / 3, sorted(clients.answers)[:10]
        clients.close()


@pytest.mark.slow
def test_client_with_many_requests_in_flight_does_not_starve_others(tierlog_broker: TierlogBroker) -> None:
    """Ten clients with hundreds of requests in flight, among two hundred with one each."""
    hogs, others = 10, 200
    depths = [500] * hogs + [1] * others
    clients = ManyClients((tierlog_broker.host, tierlog_broker.port), [HELLO] * len(depths), depths)
    clients.run(100 * len(depths))
    mean_of_hogs = sum(clients.answers[:hogs]) / hogs
    # a turn of the loop serves one request of each connection in `others`, and FRAMES_PER_TURN of each hog
    assert min(clients.answers[hogs:]) >= mean_of_hogs / FRAMES_PER_TURN / 3, sorted(clients.answers)
    clients.close()
