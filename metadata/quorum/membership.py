"""Quorum membership: adds and removes nodes, one at a time, and records the directory of each.

A new node is a learner until it has caught up (thesis 4.2.1), so that it never delays a commit. Each request
between nodes names the sender's directory, and the leader writes those it has seen into the configuration.
From then on a node whose disk was replaced is not mistaken for the voter with the old votes
(KIP-853): it has to be removed and added again.

Owned by the metadata node, and called on its event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from uuid import UUID

import msgspec
import structlog

from tierlog.base.clock import Clock
from tierlog.metadata.controller.commands import Heartbeat
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.leadership import Leadership
from tierlog.metadata.quorum.peers import MetadataUnavailable, NotTheLeader
from tierlog.metadata.quorum.status import FollowerContacts, NodeStatus, PeerStatus
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.membership import ChangeRefused, Configuration, Member
from tierlog.metadata.raft.messages import NO_NODE

ELECTION_WAIT_S = 10.0
"""How long a change of members waits for a leader."""

_log = structlog.get_logger("tierlog.metadata")


class Host(Protocol):
    """The part of the node that membership needs."""

    node_id: int
    cluster_id: str
    url: str
    addresses: dict[int, str]
    has_peers: bool

    @property
    def directory_id(self) -> UUID: ...
    @property
    def image(self) -> ClusterImage: ...
    def url_of(self, node_id: int) -> str: ...


class Membership:
    def __init__(self, host: Host, core: RaftCore, leadership: Leadership, clock: Clock) -> None:
        self._host, self._core, self._leadership, self._clock = host, core, leadership, clock
        self._contacts = FollowerContacts()
        self._directories: dict[int, UUID] = {}  # named by members in their requests, in `_directories_term`
        self._directories_term = -1
        self._refused: dict[int, UUID | None] = {}
        self._changing = asyncio.Lock()
        self._loop_ran = asyncio.Event()

    # --- changes

    async def add_voter(self, node_id: int, url: str, timeout_s: float = 60.0) -> None:
        """Add a node as a learner, and make it a voter once it has caught up. Raises NotTheLeader,
        ChangeRefused, MetadataUnavailable (calling again continues the addition)."""
        await self._as_leader(lambda: self._add_voter(node_id, url, timeout_s))

    async def _add_voter(self, node_id: int, url: str, timeout_s: float) -> None:
        if not url:
            raise ChangeRefused("the URL of the new voter is missing")
        if not self._host.has_peers:
            raise ChangeRefused("this node has no shared secret: set controller.quorum.secret")
        behind = f"node {node_id} has not caught up: it remains a learner"
        async with _within(timeout_s, behind), self._changing:
            if node_id in self._core.voters:
                if self._host.url_of(node_id) != url:
                    await self._change(lambda: self._with_url(node_id, url))
                return
            if self._core.configuration.learners.get(node_id, Member()).url != url:
                self._directories.pop(node_id, None)  # its disk may have been emptied since
                await self._change(lambda: self._with_own_url().with_learner(node_id, Member(url)))
            while not self._caught_up(node_id):
                await self._loop_ran.wait()
            # it has caught up, so it has responded, and its directory is known
            await self._change(
                lambda: self._core.configuration.with_voter(
                    node_id, Member(url, self._seen_directories().get(node_id))
                )
            )

    async def remove_voter(self, node_id: int, timeout_s: float = 30.0) -> None:
        """Remove a voter or learner. A leader that removes itself hands over. Raises as `add_voter`."""
        await self._as_leader(lambda: self._remove_voter(node_id, timeout_s))

    async def _remove_voter(self, node_id: int, timeout_s: float) -> None:
        async with _within(timeout_s, f"the removal of node {node_id} is not committed yet"), self._changing:
            if node_id in self._core.configuration.members:
                await self._change(lambda: self._with_own_url().without(node_id))
            else:  # perhaps an earlier request removed it, and that is not committed yet
                await self._wait_for_pending_change()

    async def _as_leader(self, change: Callable[[], Awaitable[None]]) -> None:
        """Repeat a change after an election that this node wins. With a second voter that responds late, a
        leader loses its majority for a moment."""
        while True:
            await self._wait_for_leader()
            self._require_leader()
            with suppress(NotTheLeader):
                return await change()

    async def _wait_for_leader(self) -> None:
        own = self._host.node_id
        with suppress(TimeoutError):
            async with asyncio.timeout(ELECTION_WAIT_S):
                while self._leadership.draft is None and self._core.leader in (NO_NODE, own):
                    await self._loop_ran.wait()

    async def _change(self, changed: Callable[[], Configuration]) -> None:
        """If leadership is lost, the outcome does not matter: the next leader can repeat the change."""
        await self._wait_for_pending_change()
        try:
            await self._leadership.configure(changed())
        except MetadataUnavailable:
            if not self._core.is_leader:
                self._require_leader()
            raise

    async def _wait_for_pending_change(self) -> None:
        """Wait until the last change, such as one that records a directory, is committed."""
        while self._core.configuration_index > self._core.log.commit:
            self._require_leader()
            await self._loop_ran.wait()

    async def hand_over(self, timeout_s: float) -> bool:
        """Transfer leadership before this node stops, so that the quorum does not wait for an election. False
        if no other voter took over in time."""
        core = self._core
        try:
            async with asyncio.timeout(timeout_s):
                while core.is_leader or core.leader == NO_NODE:  # then the target may need this node's vote
                    if core.is_leader and not self._leadership.hand_over():
                        return False
                    await self._loop_ran.wait()
        except TimeoutError:
            return False
        return True

    def _caught_up(self, node_id: int) -> bool:
        self._require_leader()
        replication = self._core.replication
        progress = replication.progress.get(node_id) if replication is not None else None
        if progress is None:
            raise ChangeRefused(f"node {node_id} has been removed")
        return progress.caught_up

    def _with_own_url(self) -> Configuration:
        """The configuration with this node's URL, which a quorum of one does not need to have. A node that
        the settings name keeps its URL there."""
        own, current = self._host.node_id, self._core.configuration
        if own not in current.voters or current.voters[own].url or own in self._host.addresses:
            return current
        if not self._host.url:
            raise ChangeRefused("the URL of this node is not known")
        return self._with_url(own, self._host.url)

    def _with_url(self, voter: int, url: str) -> Configuration:
        current = self._core.configuration
        return current.with_voter(voter, Member(url, current.voters[voter].directory))

    def _require_leader(self) -> None:
        if self._leadership.draft is None:
            leader = self._core.leader
            raise NotTheLeader(leader, "" if leader == self._host.node_id else self._host.url_of(leader))

    # --- directories

    def admits(self, sender: int, directory: UUID | None) -> bool:
        """Whether the configuration names this directory for the member, or none yet."""
        member = self._core.configuration.members.get(sender)
        if member is None:
            return True  # the core handles messages from nodes outside its configuration
        if member.directory is not None and member.directory != directory:
            if self._refused.get(sender) != directory:
                _log.warning(
                    "quorum.member.unexpected_directory",
                    node=sender,
                    directory=directory,
                    known=member.directory,
                )
            self._refused[sender] = directory
            return False
        if directory is not None:
            self._seen_directories()[sender] = directory
        return True

    def _seen_directories(self) -> dict[int, UUID]:
        """Directories named in the present term. An earlier one may be of a disk that was replaced since."""
        if self._directories_term != self._core.term:
            self._directories, self._directories_term = {}, self._core.term
        return self._directories

    def tick(self) -> None:
        """The leader records the directories that members have named."""
        core = self._core
        if self._leadership.draft is None or core.configuration_index > core.log.commit:
            return
        if self._changing.locked() or len(core.configuration.members) < 2:
            return
        known = core.configuration.with_directories(
            {**self._seen_directories(), self._host.node_id: self._host.directory_id}
        )
        if known != core.configuration:
            try:
                self._leadership.configure(known).add_done_callback(_ignore_outcome)
            except (MetadataUnavailable, ChangeRefused):
                return  # the next tick tries again

    def on_loop_ran(self) -> None:
        """The node's loop has processed some work, so callers check their condition again."""
        self._loop_ran.set()
        self._loop_ran = asyncio.Event()

    # --- status

    async def status_when(self, reached: Callable[[NodeStatus], bool], timeout_s: float = 30.0) -> NodeStatus:
        """The first status for which `reached` returns True. Raises MetadataUnavailable."""
        async with _within(timeout_s, "the quorum did not reach the awaited state"):
            while not reached(status := self.status()):
                await self._loop_ran.wait()
            return status
        raise MetadataUnavailable("the quorum did not reach the awaited state", applied_unknown=False)

    def on_messages(self, senders: Iterable[int]) -> None:
        """Messages from these members have been processed."""
        core = self._core
        if core.replication is None:
            return
        for sender in senders:
            if (progress := core.replication.progress.get(sender)) is not None:
                self._record_contact(sender, progress.match_index)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A heartbeat shows how far an observer has read."""
        broker = self._host.image.brokers.get(heartbeat.broker_id)
        if broker is None or broker.broker_epoch != heartbeat.broker_epoch:
            return
        if heartbeat.broker_id not in self._core.configuration.members:
            self._record_contact(heartbeat.broker_id, heartbeat.image_index)

    def _record_contact(self, node_id: int, index: int) -> None:
        core = self._core
        self._contacts.record(core.term, node_id, index, core.log.last_index, self._clock.now_ms())

    def status(self) -> NodeStatus:
        core, log, current = self._core, self._core.log, self._core.configuration
        now_ms = self._clock.now_ms()
        return NodeStatus(
            node_id=self._host.node_id,
            cluster_id=self._host.cluster_id,
            directory_id=self._host.directory_id,
            role=self._role(),
            leader=core.leader,
            term=core.term,
            applied_index=log.applied,
            commit_index=log.commit,
            last_index=log.last_index,
            snapshot_index=log.snapshot.index,
            voters={node: self._host.url_of(node) for node in current.voters},
            learners={node: self._host.url_of(node) for node in current.learners},
            members=tuple(
                self._peer(node, member, now_ms) for node, member in sorted(current.members.items())
            ),
            observers=self._observers(now_ms) if core.is_leader else (),
        )

    def _role(self) -> str:
        if self._host.node_id in self._core.voters or self._core.is_leader:
            return self._core.role.value
        return "learner" if self._host.node_id in self._core.configuration.learners else "no member"

    def _peer(self, node_id: int, member: Member, now_ms: int) -> PeerStatus:
        progress = self._core.replication.progress.get(node_id) if self._core.replication else None
        voter, itself = node_id in self._core.voters, node_id == self._host.node_id
        status = PeerStatus(
            node_id=node_id,
            url=self._host.url_of(node_id),
            voter=voter,
            directory_id=self._host.directory_id if itself else member.directory,
        )
        if progress is None:
            return status
        contact = self._contacts.get(self._core.term, node_id)
        return msgspec.structs.replace(
            status,
            match_index=progress.match_index,
            lag=self._core.log.last_index - progress.match_index,
            caught_up=voter or progress.caught_up,
            last_heard_ms=now_ms if itself else contact and contact.contact_ms,
            last_caught_up_ms=now_ms if itself else contact and contact.caught_up_ms,
        )

    def _observers(self, now_ms: int) -> tuple[PeerStatus, ...]:
        brokers, members = self._host.image.brokers, self._core.configuration.members
        observers = [broker_id for broker_id in sorted(brokers) if broker_id not in members]
        return tuple(
            PeerStatus(
                node_id=broker_id,
                url=brokers[broker_id].admin_url,
                voter=False,
                match_index=contact.index,
                lag=max(self._core.log.last_index - contact.index, 0),
                last_heard_ms=contact.contact_ms,
                last_caught_up_ms=contact.caught_up_ms,
            )
            for broker_id, contact in self._contacts.recent(self._core.term, observers, now_ms).items()
        )


def _ignore_outcome(change: asyncio.Future[None]) -> None:
    if not change.cancelled():
        change.exception()  # marks it as retrieved; a leader tries again at the next tick


@asynccontextmanager
async def _within(timeout_s: float, message: str) -> AsyncIterator[None]:
    """Turn a time-out into MetadataUnavailable."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise MetadataUnavailable(message, applied_unknown=True) from None
