"""Metadata nodes in one process, over real HTTP on loopback: started, killed, wiped, added and removed."""

import contextlib
import random
import shutil
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opened_metadata import opened_metadata
from raft_server import RaftServer

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.balancing import BalanceSettings
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.peers import NotTheLeader
from tierlog.metadata.quorum.tls import TlsFiles
from tierlog.metadata.quorum.transport import HttpPeers
from tierlog.metadata.raft.messages import AnyMessage
from tierlog.metadata.raft.settings import RaftSettings

SECRET = b"a secret of the test"
CLUSTER_ID = "quorum-test"


def listen(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


class CuttablePeers(HttpPeers):
    """Drops Raft messages to and from the nodes in `cut_off`. Other requests still arrive."""

    def __init__(self, quorum: "Quorum", node_id: int, tasks: TaskGroup) -> None:
        super().__init__(node_id, CLUSTER_ID, SECRET, tasks, quorum.certificates.get(node_id))
        self.quorum, self.node_id = quorum, node_id

    def send(self, message: AnyMessage) -> None:
        if not {self.node_id, message.to} & self.quorum.cut_off:
            super().send(message)


class Running:
    """A node with its server, started and stopped in the order of a real process."""

    def __init__(self, quorum: "Quorum", node_id: int) -> None:
        self.tasks = TaskGroup(lambda name, failure: quorum.failures.append(failure))
        self.peers = CuttablePeers(quorum, node_id, self.tasks)
        self.disk = ThreadPoolExecutor(1)
        """A job submitted to it runs before the node's next write."""
        self.node = opened_metadata(
            node_id,
            {n: quorum.urls[n] for n in quorum.voters or ({1} - {node_id})},
            quorum.directory / str(node_id),
            OsFiles(),
            SystemClock(),
            random.Random(f"{node_id} {quorum.starts}"),
            self.tasks,
            CLUSTER_ID,
            peers=self.peers,
            url=quorum.urls[node_id],
            settings=quorum.settings,
            sessions=BrokerSessions(quorum.session_ms) if quorum.session_ms else None,
            balance=quorum.balance,
            tick_ms=20,
            snapshot_entries=quorum.snapshot_entries,
            keep_entries=1,
            worker=self.disk,
        )
        self.client = self.node
        self.server = RaftServer(self.node, SECRET, quorum.certificates.get(node_id))

    async def start(self, listener: socket.socket) -> None:
        await self.node.start()
        await self.server.start(listener)

    async def stop(self) -> None:
        await self.server.close()
        await self.node.stop()
        await self.tasks.close()
        self.disk.shutdown()


class RunningObserver:
    def __init__(self, quorum: "Quorum", node_id: int, voters: Iterable[int]) -> None:
        self.tasks = TaskGroup(lambda name, failure: quorum.failures.append(failure))
        peers = HttpPeers(node_id, CLUSTER_ID, SECRET, self.tasks, quorum.certificates.get(node_id))
        urls = {n: quorum.urls[n] for n in voters}
        self.observer = MetadataObserver(
            node_id,
            urls,
            SystemClock(),
            self.tasks,
            CLUSTER_ID,
            peers=peers,
            session_ms=quorum.session_ms,
        )
        self.client = self.observer

    async def stop(self) -> None:
        await self.observer.stop()
        await self.tasks.close()


class Quorum:
    """`voters`: as in the settings; if empty, node 1 is a quorum of one and the others know it. Nodes 1 to 4
    have addresses."""

    def __init__(
        self,
        directory: Path,
        voters: Iterable[int] = (1, 2, 3),
        certificates: Mapping[int, TlsFiles] | None = None,
    ) -> None:
        """`certificates`: by node; None: plain HTTP."""
        self.directory = directory
        self.voters = tuple(voters)
        self.settings: RaftSettings | None = None
        self.session_ms = 0
        self.balance: BalanceSettings | None = None
        self.starts = 0
        self.cut_off: set[int] = set()
        self.observers: list[RunningObserver] = []
        self.failures: list[BaseException] = []
        self.snapshot_entries = 10_000
        self.listeners = {n: listen() for n in (1, 2, 3, 4)}
        self.ports = {n: listener.getsockname()[1] for n, listener in self.listeners.items()}
        self.certificates = certificates or {}
        self.scheme = "https" if certificates else "http"
        self.urls = {n: f"{self.scheme}://127.0.0.1:{port}" for n, port in self.ports.items()}
        self.running: dict[int, Running] = {}

    async def start(self, node_id: int) -> Running:
        self.starts += 1
        member = self.running[node_id] = Running(self, node_id)
        await member.start(self.listeners.pop(node_id, None) or listen(self.ports[node_id]))
        return member

    async def observe(self, node_id: int, *voters: int) -> "RunningObserver":
        """Start an observer that knows only these voters."""
        observing = RunningObserver(self, node_id, voters)
        self.observers.append(observing)
        await observing.observer.start()
        return observing

    async def watched(self) -> None:
        """Wait until each member would detect the death of any other."""
        for member in self.running.values():
            others = set(self.running) - {member.node.node_id}
            await member.node.membership.status_when(lambda _, m=member, o=others: m.peers.connected >= o)

    async def kill(self, node_id: int) -> None:
        await self.running.pop(node_id).stop()

    def move(self, node_id: int) -> None:
        """Give the node another port. The test has to update the quorum."""
        self.listeners[node_id] = listen()
        self.ports[node_id] = self.listeners[node_id].getsockname()[1]
        self.urls[node_id] = f"{self.scheme}://127.0.0.1:{self.ports[node_id]}"

    def wipe(self, node_id: int) -> None:
        shutil.rmtree(self.directory / str(node_id))

    async def leader(self) -> int:
        """The leader, once a command has been committed."""
        return await self._leader_known_to(next(iter(self.running)))

    async def _leader_known_to(self, node: int) -> int:
        while True:
            await self.running[node].client.submit(c.ConfirmRemoteDeleted(uuids=()))
            for node_id, member in self.running.items():
                if member.node.is_leader:  # on a busy machine it may have lost its leadership again
                    return node_id

    async def add_voter(self, node_id: int) -> None:
        await self._by_leader(node_id, lambda node: node.membership.add_voter(node_id, self.urls[node_id]))

    async def remove_voter(self, node_id: int) -> None:
        await self._by_leader(node_id, lambda node: node.membership.remove_voter(node_id))

    async def _by_leader(self, changed: int, change: Callable[[MetadataNode], Awaitable[None]]) -> None:
        """Repeat the change if the leader loses its leadership, as may happen on a busy machine."""
        other = next(n for n in self.running if n != changed)
        while True:
            with contextlib.suppress(NotTheLeader):
                return await change(self.running[await self._leader_known_to(other)].node)

    async def close(self) -> None:
        for observing in self.observers:
            await observing.stop()
        for node_id in list(self.running):
            await self.kill(node_id)
        for listener in self.listeners.values():
            listener.close()


def register(broker_id: int = 1) -> c.RegisterBroker:
    incarnation = uuid.UUID(int=broker_id)
    return c.RegisterBroker(broker_id=broker_id, incarnation=incarnation, host="h", port=1, admin_url="")


def topic(name: str) -> c.CreateTopics:
    return c.CreateTopics(topics=(c.NewTopic(name=name, partitions=2),))


def has(name: str) -> Callable[[ClusterImage], bool]:
    def check(image: ClusterImage) -> bool:
        return image.topic(name) is not None

    return check
