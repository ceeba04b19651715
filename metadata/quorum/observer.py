"""Metadata observer: the metadata of a broker that is not a controller.

It reads the committed log from any voter and sends commands to the leader. It has the interface of
MetadataNode but keeps nothing on disk: it starts from a voter's snapshot or log, and continues from its last
index. It changes to another voter if the present one knows of no leader (it may be partitioned) or leaves a
request unanswered (it may hang). It watches the other brokers as controllers do, so that its clients learn of
a death as early as theirs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import AnyCommand, AnyReply, Heartbeat, HeartbeatReply
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image
from tierlog.metadata.quorum.failure_detector import DeadBrokers
from tierlog.metadata.quorum.log_pages import UNKNOWN_TERM, LogPage
from tierlog.metadata.quorum.log_reader import LogReader
from tierlog.metadata.quorum.peers import MetadataUnavailable, NotTheLeader, Peers
from tierlog.metadata.quorum.publisher import MetadataPublisher, Subscriber, wait_for_event
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import CONFIGURATION, NO_NODE, Entry
from tierlog.metadata.records import decode_records

RETRY_S = 0.1

R = TypeVar("R")


class ObserverStatus(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    cluster_id: str
    role: str
    leader: int
    applied_index: int
    voters: dict[int, str]


class MetadataObserver:
    def __init__(
        self,
        node_id: int,
        voters: Mapping[int, str],
        clock: Clock,
        tasks: TaskGroup,
        cluster_id: str,
        *,
        peers: Peers,
        session_ms: int,
    ) -> None:
        """`voters`: id -> URL of some voters; they name the rest. `session_ms`: broker.session.timeout.ms."""
        self.node_id, self.cluster_id = node_id, cluster_id
        self.voters = dict(voters)
        self.leader = NO_NODE
        self._tasks, self._peers = tasks, peers
        self._publisher = MetadataPublisher(ClusterImage(cluster_id=cluster_id), node_id)
        self._reader = LogReader(
            peers,
            self._candidates,
            lambda: self.image.index,
            self._accept,
            remedy="Restart this broker to follow the other log",
        )
        self._reading: asyncio.Task[None] | None = None
        self._page_accepted = asyncio.Event()
        self._dead_brokers = DeadBrokers(self._publisher, clock, session_ms)
        self._watched: object = None  # `image.brokers` as last passed to the peers to watch

    @property
    def image(self) -> ClusterImage:
        """The latest committed image known to this node."""
        return self._publisher.image

    @property
    def dead_brokers(self) -> frozenset[int]:
        """Brokers whose process seems dead, for one session at most. Clients see their
        partitions without a leader."""
        return self._dead_brokers.brokers | self._peers.suspects

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def started(self) -> bool:
        """Whether a voter has sent a page."""
        return self.leader != NO_NODE or self.image.index > 0

    @property
    def has_reserve(self) -> bool:
        """Always: an observer keeps nothing on disk."""
        return True

    async def ensure_reserve(self) -> bool:
        return True

    async def start(self, timeout_s: float = 60.0) -> None:
        """Returns once a voter has sent a page. Raises MetadataUnavailable."""
        self._peers.start(
            lambda peer: None, self._on_death, self._dead_brokers.mark_alive, lambda messages: None
        )
        self._configure()
        self._reading = self._tasks.spawn(f"metadata observer {self.node_id}", self._read())
        try:
            async with asyncio.timeout(timeout_s):
                await self._page_accepted.wait()
        except TimeoutError:
            raise MetadataUnavailable(
                "no voter of the metadata quorum responded", applied_unknown=False
            ) from None

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._peers.close()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """As MetadataPublisher.subscribe."""
        return self._publisher.subscribe(subscriber)

    async def submit(self, command: AnyCommand, timeout_s: float = 30.0) -> AnyReply:
        """Send the command to the leader; return its reply once this node's image includes the outcome.

        Raises MetadataUnavailable."""

        async def send(leader: int) -> AnyReply:
            reply, index = await self._peers.submit(leader, command)
            while self.image.index < index:
                await self._publisher.changed.wait()
            return reply

        return await self._run_on_leader(send, timeout_s)

    async def heartbeat(self, heartbeat: Heartbeat, timeout_s: float = 2.0) -> HeartbeatReply:
        """Send a broker's heartbeat to the leader. Raises MetadataUnavailable."""
        return await self._run_on_leader(
            lambda leader: self._peers.heartbeat(leader, heartbeat, timeout_s / 2), timeout_s
        )

    async def quorum(self, timeout_s: float = 30.0) -> NodeStatus:
        """The quorum as its leader sees it. Raises MetadataUnavailable."""
        return await self._run_on_leader(self._peers.status, timeout_s)

    async def add_voter(self, node_id: int, url: str, timeout_s: float = 60.0) -> None:
        """Raises NotTheLeader, which names the leader."""
        raise NotTheLeader(self.leader, self.voters.get(self.leader, ""))

    async def remove_voter(self, node_id: int, timeout_s: float = 30.0) -> None:
        """Raises NotTheLeader, which names the leader."""
        raise NotTheLeader(self.leader, self.voters.get(self.leader, ""))

    def status(self) -> ObserverStatus:
        return ObserverStatus(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            role="observer",
            leader=self.leader,
            applied_index=self.image.index,
            voters=self.voters,
        )

    async def _run_on_leader(self, send: Callable[[int], Awaitable[R]], timeout_s: float) -> R:
        """Try again until a leader accepts the request, or may have accepted it."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if (leader := self.leader) != NO_NODE:
                        sent = True
                        try:
                            return await send(leader)
                        except MetadataUnavailable as unavailable:
                            if not unavailable.refused:
                                self._reader.on_no_response(leader)  # it may hang, and another be leader
                            if unavailable.applied_unknown:
                                raise
                        sent = False
                        await wait_for_event(self._page_accepted, RETRY_S)
                    else:
                        await wait_for_event(self._page_accepted, None)
        except TimeoutError:
            raise MetadataUnavailable(
                "no quorum of metadata nodes responded in time", applied_unknown=sent
            ) from None

    # --- reading the log

    async def _read(self) -> None:
        while True:
            await self._reader.read()
            await asyncio.sleep(RETRY_S)

    def _accept(self, page: LogPage, snapshot: bytes) -> bool:
        """False, without any change, if the page's entries do not continue this node's log."""
        if page.entries and page.after_term not in (UNKNOWN_TERM, self._publisher.term):
            return False
        if snapshot:
            self._publisher.publish(decode_image(snapshot), page.snapshot_term)
        elif page.entries:
            self._apply(page.entries)
        if self._watched is not self.image.brokers:
            self._watched = brokers = self.image.brokers
            self._peers.watch({n: brokers[n].admin_url for n in sorted(brokers) if n != self.node_id})
        self.leader = page.leader
        if page.voters and page.voters != self.voters:
            self.voters = page.voters
            self._configure()
        self._page_accepted.set()
        self._page_accepted = asyncio.Event()
        return True

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        image = self.image
        for entry in entries:
            records = () if entry.kind == CONFIGURATION else decode_records(entry.payload)
            image = apply_entry(image, entry.index, records)
        self._publisher.publish(image, entries[-1].term)

    def _candidates(self) -> list[int]:
        """The leader last: it has the most to do."""
        return sorted((v for v in self.voters if v != self.node_id), key=lambda v: (v == self.leader, v))

    def _configure(self) -> None:
        members = {node: Member(url) for node, url in self.voters.items() if node != self.node_id}
        self._peers.configure({**members, self.node_id: Member()}, {})

    def _on_death(self, peer: int) -> None:
        self._dead_brokers.mark_dead(peer)
        if peer == self.leader:
            self.leader = NO_NODE
