"""Who is in the quorum: nodes taken in and let go, one at a time, and which directory each of them has.

A new node is a learner until it has caught up (thesis 4.2.1), so that it never holds up a commit. Each call
between nodes names the caller's directory; the leader writes those it has heard of into the configuration.
From then on a node whose disk was replaced is not taken for the voter that made the old promises (KIP-853):
it has to be removed and added again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

import msgspec

from tierlog.metadata.leadership import Leadership
from tierlog.metadata.peers import LeadershipLost, MetadataUnavailable, NotTheLeader
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.membership import ChangeRefused, Configuration, Member


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader knows of a member. `lag`: entries that it is not known to hold."""

    node_id: int
    url: str
    voter: bool
    directory_id: UUID | None = None
    match_index: int | None = None  # None: this node does not lead, so it does not know
    lag: int | None = None
    caught_up: bool | None = None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator sees of a member of the quorum."""

    node_id: int
    cluster_id: str
    directory_id: UUID
    role: str
    leader: int
    term: int
    applied_index: int
    commit_index: int
    last_index: int
    snapshot_index: int
    voters: dict[int, str]
    learners: dict[int, str]
    members: tuple[PeerStatus, ...]


class Host(Protocol):
    """The node, as far as it is needed here."""

    node_id: int
    cluster_id: str
    url: str

    @property
    def directory_id(self) -> UUID: ...
    def url_of(self, node_id: int) -> str: ...


class Membership:
    def __init__(self, host: Host, core: RaftCore, leadership: Leadership) -> None:
        self._host, self._core, self._leadership = host, core, leadership
        self._heard: dict[int, UUID] = {}  # directories of members as they called
        self._changing = asyncio.Lock()
        self._turned = asyncio.Event()

    # --- changes

    async def add_voter(self, node_id: int, url: str, timeout_s: float) -> None:
        self._require_leader()
        if not url:
            raise ChangeRefused("the new voter's URL is needed")
        async with (
            self._changing,
            _within(timeout_s, f"node {node_id} is behind: it stays a learner"),
        ):
            if self._core.configuration.voters.get(node_id, Member()).url == url:
                return
            if node_id in self._core.voters:
                raise ChangeRefused(f"node {node_id} is a voter with another address: remove it first")
            if self._core.configuration.learners.get(node_id, Member()).url != url:
                await self._change(self._with_own_url().with_learner(node_id, Member(url)))
            while not self._caught_up(node_id):
                await self._turned.wait()
            member = self._core.configuration.learners[node_id]
            await self._change(self._core.configuration.with_voter(node_id, member))

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        self._require_leader()
        async with self._changing, _within(timeout_s, f"the removal of node {node_id} is not committed yet"):
            if node_id in self._core.configuration.members:
                await self._change(self._with_own_url().without(node_id))

    async def _change(self, configuration: Configuration) -> None:
        """A change still under way, such as a directory that is written down, is waited for."""
        while self._core.configuration_index > self._core.log.commit:
            self._require_leader()
            await self._turned.wait()
        try:
            await self._leadership.configure(configuration)
        except LeadershipLost:
            self._require_leader()
            raise

    def _caught_up(self, node_id: int) -> bool:
        self._require_leader()
        replication = self._core.replication
        progress = replication.progress.get(node_id) if replication is not None else None
        if progress is None:
            raise ChangeRefused(f"node {node_id} was removed meanwhile")
        return progress.caught_up

    def _with_own_url(self) -> Configuration:
        """A leader that was alone had no need of an address."""
        own, present = self._host.node_id, self._core.configuration
        if own not in present.voters or present.voters[own].url:
            return present
        if not self._host.url:
            raise ChangeRefused("this node's own URL is not known")
        return present.with_voter(own, Member(self._host.url, self._host.directory_id))

    def _require_leader(self) -> None:
        if self._leadership.draft is None:
            raise NotTheLeader(self._core.leader, self._host.url_of(self._core.leader))

    # --- directories

    def admits(self, sender: int, directory: UUID | None) -> bool:
        """Whether it is the directory that this member is known with; the first that is heard of counts
        until the log names one."""
        member = self._core.configuration.members.get(sender)
        if member is None or directory is None:
            return member is None or member.directory is None
        known = member.directory or self._heard.setdefault(sender, directory)
        return known == directory

    def tick(self) -> None:
        """The leader writes down the directories of members that it has heard of."""
        core = self._core
        if self._leadership.draft is None or core.configuration_index > core.log.commit:
            return
        if self._changing.locked() or len(core.configuration.members) < 2:
            return
        known = core.configuration.knowing({**self._heard, self._host.node_id: self._host.directory_id})
        if known != core.configuration:
            try:
                self._leadership.configure(known).add_done_callback(_note_outcome)
            except (MetadataUnavailable, ChangeRefused):
                return  # the next tick tries again

    def turned(self) -> None:
        """The node's loop went round: what is waited for may have come."""
        self._turned.set()
        self._turned = asyncio.Event()

    # --- status

    async def status_when(self, reached: Callable[[NodeStatus], bool], timeout_s: float) -> NodeStatus:
        async with _within(timeout_s, "the quorum is not as awaited"):
            while not reached(status := self.status()):
                await self._turned.wait()
            return status
        raise MetadataUnavailable("the quorum is not as awaited", applied_unknown=False)

    def status(self) -> NodeStatus:
        core, log, present = self._core, self._core.log, self._core.configuration
        return NodeStatus(
            node_id=self._host.node_id,
            cluster_id=self._host.cluster_id,
            directory_id=self._host.directory_id,
            role=core.role.value if self._host.node_id in core.voters or core.is_leader else "learner",
            leader=core.leader,
            term=core.term,
            applied_index=log.applied,
            commit_index=log.commit,
            last_index=log.last_index,
            snapshot_index=log.snapshot.index,
            voters={node: self._host.url_of(node) for node in present.voters},
            learners={node: self._host.url_of(node) for node in present.learners},
            members=tuple(self._peer(node, member) for node, member in sorted(present.members.items())),
        )

    def _peer(self, node_id: int, member: Member) -> PeerStatus:
        progress = self._core.replication.progress.get(node_id) if self._core.replication else None
        voter = node_id in self._core.voters
        return PeerStatus(
            node_id=node_id,
            url=self._host.url_of(node_id),
            voter=voter,
            directory_id=member.directory,
            match_index=progress.match_index if progress else None,
            lag=self._core.log.last_index - progress.match_index if progress else None,
            caught_up=(voter or progress.caught_up) if progress else None,
        )


def _note_outcome(change: asyncio.Future[None]) -> None:
    if not change.cancelled():
        change.exception()  # tried again at the next tick, if this node still leads


@asynccontextmanager
async def _within(timeout_s: float, message: str) -> AsyncIterator[None]:
    """A time-out says what is not known then."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise MetadataUnavailable(message, applied_unknown=True) from None
