"""Metadata for a broker that is no voter: it follows the committed log of any voter, and asks the leader.

The same face as MetadataNode. It keeps nothing on disk: it starts from a voter's snapshot or log, and reads
on from the index that it has. A voter that hears of no leader may be cut off, and one that leaves a question
unanswered may hang, so another is asked then. Like voters it watches the other brokers, so that its clients
hear of a death as early as theirs.
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
from tierlog.metadata.quorum.log_pages import UNKNOWN, LogPage
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
        """`voters`: id -> URL of some of them; who they all are, they tell. `session_ms`:
        broker.session.timeout.ms."""
        self.node_id, self.cluster_id = node_id, cluster_id
        self.voters = dict(voters)
        self.leader = NO_NODE
        self._tasks, self._peers = tasks, peers
        self._publisher = MetadataPublisher(ClusterImage(cluster_id=cluster_id), node_id)
        self._reader = LogReader(
            peers,
            self._candidates,
            lambda: self.image.index,
            self._take,
            remedy="This broker has to be restarted to follow that one",
        )
        self._following: asyncio.Task[None] | None = None
        self._paged = asyncio.Event()
        self._dead_brokers = DeadBrokers(self._publisher, clock, session_ms)
        self._watched: object = None  # brokers that the peers were told to watch

    @property
    def image(self) -> ClusterImage:
        """The latest committed image that has come here."""
        return self._publisher.image

    @property
    def dead_brokers(self) -> frozenset[int]:
        """Those whose process seems dead, for a session at most: clients are told of no leader there."""
        return self._dead_brokers.brokers | self._peers.suspects

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def started(self) -> bool:
        """A voter has told how things stand."""
        return self.leader != NO_NODE or self.image.index > 0

    @property
    def has_reserve(self) -> bool:
        """It keeps nothing on disk, so there is always room enough."""
        return True

    async def ensure_reserve(self) -> bool:
        return True

    async def start(self, timeout_s: float = 60.0) -> None:
        """Returns once a voter has told how things stand. Raises MetadataUnavailable."""
        self._peers.start(lambda peer: None, self._died, self._dead_brokers.lives, lambda messages: None)
        self._configure()
        self._following = self._tasks.spawn(f"metadata observer {self.node_id}", self._follow())
        try:
            async with asyncio.timeout(timeout_s):
                await self._paged.wait()
        except TimeoutError:
            raise MetadataUnavailable("no voter of the metadata answered", applied_unknown=False) from None

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._peers.close()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls subscriber(old, new) after each change, on the loop; what it raises is only logged."""
        return self._publisher.subscribe(subscriber)

    async def submit(self, command: AnyCommand, timeout_s: float = 30.0) -> AnyReply:
        """Has the leader judge and commit the command, and waits until it shows here.

        Raises MetadataUnavailable."""

        async def ask(leader: int) -> AnyReply:
            reply, index = await self._peers.submit(leader, command)
            while self.image.index < index:
                await self._publisher.changed.wait()
            return reply

        return await self._ask(ask, timeout_s)

    async def heartbeat(self, heartbeat: Heartbeat, timeout_s: float = 2.0) -> HeartbeatReply:
        """Tells the leader that this broker lives. Raises MetadataUnavailable."""
        return await self._ask(
            lambda leader: self._peers.heartbeat(leader, heartbeat, timeout_s / 2), timeout_s
        )

    async def quorum(self, timeout_s: float = 30.0) -> NodeStatus:
        """As its leader sees it. Raises MetadataUnavailable."""
        return await self._ask(self._peers.status, timeout_s)

    async def add_voter(self, node_id: int, url: str, timeout_s: float = 60.0) -> None:
        """Raises NotTheLeader, which says whom to ask."""
        raise NotTheLeader(self.leader, self.voters.get(self.leader, ""))

    async def remove_voter(self, node_id: int, timeout_s: float = 30.0) -> None:
        """Raises NotTheLeader, which says whom to ask."""
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

    async def _ask(self, ask: Callable[[int], Awaitable[R]], timeout_s: float) -> R:
        """Again until a leader takes it, or may have taken it."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if (leader := self.leader) != NO_NODE:
                        sent = True
                        try:
                            return await ask(leader)
                        except MetadataUnavailable as unavailable:
                            if not unavailable.refused:
                                self._reader.doubt(leader)  # if it hangs, another leads by now
                            if unavailable.applied_unknown:
                                raise
                        sent = False
                        await wait_for_event(self._paged, RETRY_S)
                    else:
                        await wait_for_event(self._paged, None)
        except TimeoutError:
            raise MetadataUnavailable(
                "no quorum of metadata nodes answered in time", applied_unknown=sent
            ) from None

    # --- following

    async def _follow(self) -> None:
        while True:
            await self._reader.read()
            await asyncio.sleep(RETRY_S)

    def _take(self, page: LogPage, snapshot: bytes) -> bool:
        """False, and nothing is taken, if its entries do not follow those that are here."""
        if page.entries and page.after_term not in (UNKNOWN, self._publisher.term):
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
        self._paged.set()
        self._paged = asyncio.Event()
        return True

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        image = self.image
        for entry in entries:
            records = () if entry.kind == CONFIGURATION else decode_records(entry.payload)
            image = apply_entry(image, entry.index, records)
        self._publisher.publish(image, entries[-1].term)

    def _candidates(self) -> list[int]:
        """The leader last: it has more to do than the others."""
        return sorted((v for v in self.voters if v != self.node_id), key=lambda v: (v == self.leader, v))

    def _configure(self) -> None:
        members = {node: Member(url) for node, url in self.voters.items() if node != self.node_id}
        self._peers.configure({**members, self.node_id: Member()}, {})

    def _died(self, peer: int) -> None:
        self._dead_brokers.note(peer)
        if peer == self.leader:
            self.leader = NO_NODE
