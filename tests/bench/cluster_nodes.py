"""Clusters of three nodes on this machine: tierlog and Apache Kafka in the same layout.

Each node is broker and voter at once, topics have three replicas, and acks=all needs two of them.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Protocol

import wire
from report import KAFKA, TIERLOG
from suite import HERE, Broker
from versus import JVM_FLAGS

from tierlog.base.types import random_uuid
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import BrokerFailed

sys.path.insert(0, str(HERE.parent / "support"))
from kafka_process import KafkaProcess, free_ports

NODES = 3
JAVA = ("java", "-Xms512m", "-Xmx1g", *JVM_FLAGS)
ALIKE = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
}
KAFKA_TOPICS = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
START_TIMEOUT_S = 60.0


class Cluster(Protocol):
    """A running cluster. Nodes are numbered from 1."""

    label: str

    @property
    def addresses(self) -> Mapping[int, str]:
        """Node -> host:port for clients."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running nodes."""

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the process is gone."""

    def restart(self, node: int) -> None:
        """Restart a killed node on its data; returns when it serves."""


def bootstrap(cluster: Cluster) -> str:
    return ",".join(cluster.addresses.values())


def as_broker(cluster: Cluster) -> Broker:
    """For run_case: its processes are measured together."""
    first, *more = cluster.pids
    return Broker(bootstrap(cluster), first, cluster.label, more_pids=tuple(more))


class TierlogCluster:
    label = TIERLOG

    def __init__(self, directory: Path, settings: Mapping[str, str], compiled: Path | None) -> None:
        """Starts it; raises RuntimeError. `compiled`: what compile_hot.py made."""
        environment = {"PYTHONPATH": str(compiled)} if compiled else {}
        self._nodes = LocalCluster(directory, NODES, {**ALIKE, **settings}, environment=environment)
        try:
            self._nodes.start()
        except BaseException as failure:
            self._nodes.kill()
            if isinstance(failure, BrokerFailed):
                raise RuntimeError(str(failure).strip().splitlines()[-1]) from failure
            raise

    @property
    def addresses(self) -> Mapping[int, str]:
        return {node: broker.bootstrap for node, broker in self._nodes.nodes.items()}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self._nodes if broker.running)

    def kill(self, node: int) -> None:
        self._nodes.nodes[node].kill()

    def restart(self, node: int) -> None:
        self._nodes.start([node])

    def stop(self) -> None:
        self._nodes.kill()


class KafkaCluster:
    label = KAFKA

    def __init__(self, classpath: str, directory: Path, settings: Mapping[str, str]) -> None:
        """Starts it."""
        ports = free_ports(2 * NODES)
        by_node = {node: (ports[2 * node - 2], ports[2 * node - 1]) for node in range(1, NODES + 1)}
        voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in by_node.items())
        common = {**ALIKE, **KAFKA_TOPICS, "controller.quorum.voters": voters, **settings}
        cluster_id = str(random_uuid(SystemRandom()))  # in base64 it may begin like an option

        def node_process(node: int) -> KafkaProcess:
            home = directory / str(node)
            home.mkdir()
            lines = "".join(f"{name}={value}\n" for name, value in {**common, "node.id": node}.items())
            return KafkaProcess(
                classpath, home, JAVA, lines, wait=False, ports=by_node[node], cluster_id=cluster_id
            )

        with ThreadPoolExecutor(NODES) as pool:  # none serves before two of them have come together
            made = {node: pool.submit(node_process, node) for node in by_node}
        self._down: set[int] = set()
        self._nodes: dict[int, KafkaProcess] = {}
        with ExitStack() as stack:
            stack.callback(self.stop)
            self._nodes = {node: process.result() for node, process in made.items()}
            for process in self._nodes.values():
                process.wait()
            stack.pop_all()

    @property
    def addresses(self) -> Mapping[int, str]:
        return {node: process.bootstrap for node, process in self._nodes.items()}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for node, process in self._nodes.items() if node not in self._down)

    def kill(self, node: int) -> None:
        self._nodes[node].kill()
        self._down.add(node)

    def restart(self, node: int) -> None:
        self._nodes[node].start()
        self._down.discard(node)
        self._nodes[node].wait()

    def stop(self) -> None:
        """Kill all nodes. In a clean stop the last ones would wait for a quorum, and the data is
        discarded."""
        for process in self._nodes.values():
            process.kill()


@contextmanager
def ended(cluster: TierlogCluster | KafkaCluster) -> Iterator[Cluster]:
    """Yield the cluster once every broker lists all of them; stop it at the end."""
    try:
        await_brokers(cluster)
        yield cluster
    finally:
        cluster.stop()


def await_brokers(cluster: Cluster) -> None:
    """Wait until every node lists all nodes as live."""
    deadline = time.monotonic() + START_TIMEOUT_S
    for address in cluster.addresses.values():
        while len(metadata(address)[0]) < NODES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{cluster.label}: not all brokers came together")
            time.sleep(0.1)


def metadata(address: str, topic: str | None = None):
    """One node's metadata: {broker: (host, port)}, and for the topic {partition: (error, leader, in
    sync)}."""
    with wire.connect(wire.parse_address(address), 10) as connection:
        connection.sendall(wire.metadata_request(topic))
        brokers, _, topics = wire.parse_metadata(wire.read_frame(connection))
    return brokers, topics.get(topic, {})
