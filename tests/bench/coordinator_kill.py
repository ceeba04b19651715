"""Commits as a client sees them when the coordinator of its transactional id is killed (SIGKILL).

A librdkafka producer commits transactions of one record, one after another, to a topic with three replicas.
A reader of committed records must find each committed record once, and may find one more: the transaction
whose end the client did not hear.
"""

import itertools
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

from cluster_nodes import Cluster, bootstrap
from failover import BEFORE_S, LIMIT_S, REST_S, Summary, create
from suite import HERE

sys.path.insert(0, str(HERE.parent / "support"))
from wire_client import Client

from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest

SILENCE_S = 15.0
"""How long commits are measured after the kill. A longer gap is not seen."""

TRANSACTION = 1  # the key type of FindCoordinator


def measure(cluster: Cluster) -> Summary:
    """Kill the coordinator in the middle, and start it again. Raises RuntimeError if records are lost or
    doubled."""
    from confluent_kafka.admin import AdminClient

    servers = bootstrap(cluster)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    nodes = sorted(cluster.addresses)
    topic = create(admin, [nodes])
    time.sleep(REST_S)
    context = get_context("spawn")
    stop, started = context.Event(), context.Event()
    ours, theirs = context.Pipe(False)
    process = context.Process(target=commit, args=(servers, topic, stop, started, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not started.wait(LIMIT_S):
            raise TimeoutError("nothing is committed")
        time.sleep(BEFORE_S)
        victim = coordinator(cluster.addresses[nodes[0]], topic)
        cluster.kill(victim)
        time.sleep(SILENCE_S)
        stop.set()
        if not ours.poll(LIMIT_S):
            raise TimeoutError("the producer does not end")
        times = ours.recv()
    finally:
        process.kill()
        process.join()
    cluster.restart(victim)
    found = committed(servers, topic)
    if found != list(range(len(found))) or not len(times) <= len(found) <= len(times) + 1:
        raise RuntimeError(f"{len(times)} committed, the reader found {len(found)}")
    admin.delete_topics([topic])[topic].result(LIMIT_S)
    gap_s = max(later - sooner for sooner, later in itertools.pairwise(times))
    return {"gap_s": [round(gap_s, 3)] * 3, "commits": [float(len(times))] * 3}


def coordinator(address: str, transactional_id: str) -> int:
    client = Client(address)
    try:
        request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[transactional_id])
        [found] = client.send("FindCoordinator", 4, request).coordinators
    finally:
        client.close()
    return int(found.node_id)


def commit(servers: str, topic: str, stop, started, results: Connection) -> None:
    """Sends when each commit was confirmed."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 0, "log_level": 0}
    producer, times = Producer(settings), []
    producer.init_transactions(LIMIT_S)
    while not stop.is_set():
        producer.begin_transaction()
        producer.produce(topic, str(len(times)))
        ended(producer)
        times.append(time.monotonic())
        started.set()
    results.send(times)


def ended(producer) -> None:
    """A commit is repeated as long as the client says that it can be."""
    from confluent_kafka import KafkaException

    while True:
        try:
            producer.commit_transaction(LIMIT_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def committed(servers: str, topic: str) -> list[int]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": topic, "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
        elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
            break
        if time.monotonic() > deadline:
            raise TimeoutError("the topic cannot be read to its end")
    consumer.close()
    return found
