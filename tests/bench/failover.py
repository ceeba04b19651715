"""Failover as clients see it, when a node of tierlog or Apache Kafka is killed (SIGKILL).

A librdkafka producer (idempotent, acks=all, otherwise defaults) sends small messages at a steady rate to a
partition that the victim leads. Another topic has 2,000 partitions, a third of them led by the victim. The
Metadata response of another node shows when all have leaders again. At the end the log must have every
acknowledged message.
"""

import itertools
import multiprocessing
import sys
import time
import uuid
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import wire
from cluster_nodes import NODES, Cluster, bootstrap, metadata
from suite import HERE

sys.path.insert(0, str(HERE.parent / "support"))
from wire_client import Client

from tierlog.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)

PARTITIONS = 2000
MESSAGES_S = 500
MESSAGE = b"x" * 256
BEFORE_S, AFTER_S = (
    2.0,
    2.0,
)  # time of producing before the kill, and after every partition has a leader again
POLL_S = 0.05
LIMIT_S = 60.0
CREATE_LIMIT_S = 120.0
IN_SYNC_LIMIT_S = 120.0
REST_S = 2.0  # a follower that asked its leader too early backs off (Kafka: 1 s)

Summary = dict[str, list[float]]


@dataclass
class Sent:
    """Outcomes of the messages; times of CLOCK_MONOTONIC."""

    count: int = 0
    times: list[tuple[float, float]] = field(default_factory=list)
    """When it was sent and when acknowledged, of each that was."""
    failures: list[str] = field(default_factory=list)

    def longest_gap_s(self) -> float:
        acknowledged = sorted(at for _, at in self.times)
        return max((later - sooner for sooner, later in itertools.pairwise(acknowledged)), default=0)

    def longest_wait_s(self) -> float:
        return max((acknowledged - sent for sent, acknowledged in self.times), default=0)


def measure(cluster: Cluster, big: str, *, controller: bool) -> Summary:
    """Kills the leader of a new partition, which is the active controller too or is not, and starts it again.

    `big`: a topic of make_big(). Raises RuntimeError if what was acknowledged is not what the log holds.
    """
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap(cluster), "log_level": 0})
    active = active_controller(next(iter(cluster.addresses.values())))
    victim = active if controller else next(node for node in cluster.addresses if node != active)
    survivor = next(address for node, address in cluster.addresses.items() if node not in (victim, active))
    others = [node for node in cluster.addresses if node != victim]
    small = create(admin, [[victim, *others]])
    await_in_sync(survivor, small, 1)
    time.sleep(REST_S)
    with Producing(bootstrap(cluster), small) as producing:
        time.sleep(BEFORE_S)
        if (metadata(survivor, small)[1][0][1], active_controller(survivor)) != (victim, active):
            raise RuntimeError("the leader or the controller moved before the kill")
        led = sum(leader == victim for _, leader, _ in metadata(survivor, big)[1].values())
        killed = time.monotonic()
        cluster.kill(victim)
        led_s = await_leaders(survivor, big, others, killed)
        time.sleep(AFTER_S)
    sent = producing.result
    check(sent, end_offset(survivor, small))
    cluster.restart(victim)
    await_in_sync(survivor, big, PARTITIONS)
    admin.delete_topics([small])[small].result(LIMIT_S)
    balance(admin, big)
    figures = {
        "gap_s": sent.longest_gap_s(),
        "wait_s": sent.longest_wait_s(),
        "led_s": led_s,
        "moved": float(led),
        "acknowledged": float(len(sent.times)),
        "failed": float(len(sent.failures)),
    }
    return {name: [round(value, 3)] * 3 for name, value in figures.items()}


def check(sent: Sent, log_end: int) -> None:
    """An idempotent producer duplicates nothing. Messages that it gave up may be in the log or not."""
    if not len(sent.times) <= log_end <= sent.count:
        raise RuntimeError(f"{sent.count} sent, {len(sent.times)} acknowledged, the log holds {log_end}")


# --- the producer


class Producing:
    """A producer in a process of its own, from its first acknowledgement until the block ends."""

    def __init__(self, servers: str, topic: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop, self._started = context.Event(), context.Event()
        self._ours, theirs = context.Pipe(False)
        arguments = (servers, topic, self._stop, self._started, theirs)
        self._process = context.Process(target=produce, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self.result = Sent()

    def __enter__(self) -> "Producing":
        if not self._started.wait(LIMIT_S):
            self._process.kill()
            raise TimeoutError("nothing is acknowledged")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        try:
            if not self._ours.poll(LIMIT_S):
                raise TimeoutError("the producer does not end")
            self.result = self._ours.recv()
        finally:
            self._process.kill()
            self._process.join()


def produce(servers: str, topic: str, stop, started, results: Connection) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "log_level": 0}
    producer, sent = Producer(settings), Sent()

    def send() -> None:
        at = time.monotonic()

        def delivered(error, _) -> None:
            if error:
                sent.failures.append(str(error))
            else:
                sent.times.append((at, time.monotonic()))
                started.set()

        producer.produce(topic, MESSAGE, on_delivery=delivered)
        sent.count += 1

    begin = time.monotonic()
    while not stop.is_set():
        while sent.count < (time.monotonic() - begin) * MESSAGES_S:
            send()
        producer.poll(0.001)
    producer.flush(LIMIT_S / 2)
    results.send(sent)


# --- topics


def make_big(cluster: Cluster) -> str:
    """Over all nodes, each of which leads a third of it; everything in sync."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap(cluster), "log_level": 0})
    nodes = sorted(cluster.addresses)
    topic = create(admin, [nodes[n % NODES :] + nodes[: n % NODES] for n in range(PARTITIONS)])
    await_in_sync(next(iter(cluster.addresses.values())), topic, PARTITIONS)
    return topic


def create(admin, assignment: list[list[int]]) -> str:
    from confluent_kafka.admin import NewTopic

    name = f"failover-{uuid.uuid4().hex[:8]}"
    wanted = NewTopic(name, len(assignment), replica_assignment=assignment)
    admin.create_topics([wanted], request_timeout=CREATE_LIMIT_S)[name].result(CREATE_LIMIT_S)
    return name


def balance(admin, topic: str) -> None:
    """Elect the preferred leaders, so that all nodes have equal leaderships before the next kill."""
    from confluent_kafka import ElectionType, TopicPartition

    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    admin.elect_leaders(ElectionType.PREFERRED, partitions).result(LIMIT_S)


def await_in_sync(address: str, topic: str, partitions: int) -> None:
    deadline = time.monotonic() + IN_SYNC_LIMIT_S
    while True:
        state = metadata(address, topic)[1].values()
        whole = sum(not error and leader >= 0 and in_sync == NODES for error, leader, in_sync in state)
        if whole == partitions:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}: {whole} of {partitions} partitions are in sync")
        time.sleep(0.2)


def await_leaders(address: str, topic: str, live: list[int], since: float) -> float:
    """Seconds until every partition has a live leader in one node's Metadata response."""
    with wire.connect(wire.parse_address(address), LIMIT_S) as connection:
        while True:
            connection.sendall(wire.metadata_request(topic))
            _, _, topics = wire.parse_metadata(wire.read_frame(connection))
            took_s = time.monotonic() - since
            led = sum(not error and leader in live for error, leader, _ in topics[topic].values())
            if led == PARTITIONS:
                return took_s
            if took_s > LIMIT_S:
                raise TimeoutError(f"{led} of {PARTITIONS} partitions are led after {LIMIT_S:g} s")
            time.sleep(POLL_S)


def end_offset(address: str, topic: str) -> int:
    brokers, partitions = metadata(address, topic)
    return wire.end_offset(brokers[partitions[0][1]], topic, 0)


def active_controller(address: str) -> int:
    """The active controller. Kafka's Metadata response names any broker instead."""
    leader: int = quorum(address).leader_id
    return leader


def quorum(address: str) -> PartitionDataResponse:
    client = Client(address)
    try:
        requested = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])
        answer = client.send("DescribeQuorum", 0, DescribeQuorumRequest(topics=[requested]))
    finally:
        client.close()
    found: PartitionDataResponse = answer.topics[0].partitions[0]
    return found
