"""A cluster of broker processes on this machine: each node broker and voter, on ports of its own.

For `tierlog cluster up` and for tests. Addresses are chosen before the first start and stay, since the nodes
name each other by them.
"""

import secrets
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

from tierlog.broker.log.checkpoints import encode_uuid
from tierlog.cli.process import TierlogBroker

START_TIMEOUT_S = 90.0


class LocalCluster:
    """`nodes` processes, ids from 1 on. `start` returns once all of them serve."""

    def __init__(self, directory: Path, nodes: int = 3, settings: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        ports = _free_ports(2 * nodes)
        voters = ",".join(f"{n + 1}@127.0.0.1:{ports[nodes + n]}" for n in range(nodes))
        replicas = min(nodes, 3)
        common: dict[str, object] = {
            "cluster.id": encode_uuid(UUID(bytes=secrets.token_bytes(16), version=4)),
            "controller.quorum.voters": voters,
            "controller.quorum.secret": secrets.token_hex(16),
            "default.replication.factor": replicas,
            "min.insync.replicas": 1 if nodes < 3 else 2,
            "offsets.topic.replication.factor": replicas,
            **(settings or {}),
        }
        self.nodes: dict[int, TierlogBroker] = {}
        for number in range(nodes):
            broker = TierlogBroker(
                directory / f"node-{number + 1}",
                {**common, "node.id": number + 1},
                object_store=f"file://{(directory / 'objects').absolute()}",
            )
            broker.bootstrap = f"127.0.0.1:{ports[number]}"
            broker.admin_url = f"http://127.0.0.1:{ports[nodes + number]}"
            self.nodes[number + 1] = broker

    def __iter__(self) -> Iterator[TierlogBroker]:
        return iter(self.nodes.values())

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self)

    def start(self) -> "LocalCluster":
        """Side by side: none serves before a majority of them has come together."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for started in [pool.submit(broker.start, START_TIMEOUT_S) for broker in self]:
                started.result()
        return self

    def kill(self) -> None:
        for broker in self:
            broker.kill()

    def __enter__(self) -> "LocalCluster":
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()


def _free_ports(count: int) -> list[int]:
    """Free a moment ago; all of them are held until the last is known, so that they differ."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
