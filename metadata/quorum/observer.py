"""Metadata observer: the metadata of a broker that is not a controller.

It reads the committed log from any voter and sends commands to the leader. It keeps nothing on disk: it
starts from a voter's snapshot or log, and continues from its last index. It switches to another voter if the
current one has no leader (it may be partitioned) or does not respond (it may hang). It watches the other
brokers as controllers do, so that clients of this broker learn of a leader's death as early as clients of a
controller.
"""

import asyncio
from collections.abc import Mapping

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.client import RETRY_S, MetadataClient
from tierlog.metadata.quorum.failure_detector import DeadBrokers
from tierlog.metadata.quorum.log_pages import UNKNOWN_TERM, LogPage
from tierlog.metadata.quorum.log_reader import LogReader
from tierlog.metadata.quorum.membership import Membership
from tierlog.metadata.quorum.peers import MetadataUnavailable, NotTheLeader, Peers
from tierlog.metadata.quorum.publisher import wait_for_event
from tierlog.metadata.quorum.replay import image_of, replay
from tierlog.metadata.quorum.status import ObserverStatus
from tierlog.metadata.raft.membership import Member
from tierlog.metadata.raft.messages import NO_NODE, Entry


class MetadataObserver(MetadataClient):
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
        super().__init__(node_id, cluster_id, peers)
        self.voters = dict(voters)
        self.leader = NO_NODE
        self._tasks = tasks
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

    @property
    def dead_brokers(self) -> frozenset[int]:
        return self._dead_brokers.brokers | self._peers.suspects

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def started(self) -> bool:
        """Whether this node knows a leader or has applied an entry."""
        return self.leader != NO_NODE or self.image.index > 0

    async def ensure_reserve(self) -> bool:
        return True

    async def start(self, timeout_s: float = 60.0) -> None:
        """Returns once a voter has sent a page. Raises MetadataUnavailable."""
        self._peers.start(
            on_unreachable=lambda peer: None,
            on_death=self._on_death,
            on_connected=self._dead_brokers.mark_alive,
            on_messages=lambda messages: None,
        )
        self._connect_to_voters()
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

    @property
    def membership(self) -> Membership:
        """Not available on an observer: always raises NotTheLeader, which names the leader."""
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

    def _request_target(self, forward: bool) -> int:
        return self.leader

    async def _wait_for_leader(self, at_most_s: float | None) -> None:
        await wait_for_event(self._page_accepted, at_most_s)

    def _on_unavailable(self, leader: int, unavailable: MetadataUnavailable) -> None:
        if not unavailable.refused:
            self._reader.on_no_response(leader)  # it may hang while another node is the leader
        super()._on_unavailable(leader, unavailable)

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
            self._publisher.publish(image_of(snapshot), page.snapshot_term)
        elif page.entries:
            self._apply(page.entries)
        self._watch_brokers()
        self.leader = page.leader
        if page.voters and page.voters != self.voters:
            self.voters = page.voters
            self._connect_to_voters()
        self._page_accepted.set()
        self._page_accepted = asyncio.Event()
        return True

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        image = self.image
        for entry in entries:
            image = replay(image, entry)
        self._publisher.publish(image, entries[-1].term)

    def _candidates(self) -> list[int]:
        """The leader last: it has the most to do."""
        return sorted((v for v in self.voters if v != self.node_id), key=lambda v: (v == self.leader, v))

    def _connect_to_voters(self) -> None:
        members = {node: Member(url) for node, url in self.voters.items() if node != self.node_id}
        self._peers.configure({**members, self.node_id: Member()}, {})

    def _on_death(self, peer: int) -> None:
        self._dead_brokers.mark_dead(peer)
        if peer == self.leader:
            self.leader = NO_NODE
