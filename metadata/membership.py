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
import structlog

from tierlog.metadata.leadership import Leadership
from tierlog.metadata.peers import LeadershipLost, MetadataUnavailable, NotTheLeader
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.membership import ChangeRefused, Configuration, Member

_log = structlog.get_logger("tierlog.metadata")


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
    addresses: dict[int, str]
    has_peers: bool

    @property
    def directory_id(self) -> UUID: ...
    def url_of(self, node_id: int) -> str: ...


class Membership:
    def __init__(self, host: Host, core: RaftCore, leadership: Leadership) -> None:
        self._host, self._core, self._leadership = host, core, leadership
        self._heard: dict[int, UUID] = {}  # directories of members as they called
        self._refused: dict[int, UUID | None] = {}
        self._changing = asyncio.Lock()
        self._turned = asyncio.Event()

    # --- changes

    async def add_voter(self, node_id: int, url: str, timeout_s: float) -> None:
        self._require_leader()
        if not url:
            raise ChangeRefused("the new voter's URL is needed")
        if not self._host.has_peers:
            raise ChangeRefused("this node has no shared secret (controller.quorum.secret)")
        async with _within(timeout_s, f"node {node_id} is behind: it stays a learner"), self._changing:
            if node_id in self._core.voters:
                if self._host.url_of(node_id) != url:
                    await self._change(lambda: self._moved(node_id, url))
                return
            if self._core.configuration.learners.get(node_id, Member()).url != url:
                await self._change(lambda: self._with_own_url().with_learner(node_id, Member(url)))
            while not self._caught_up(node_id):
                await self._turned.wait()
            # it has answered, or it had not caught up: so its directory is known
            await self._change(
                lambda: self._core.configuration.with_voter(node_id, Member(url, self._heard.get(node_id)))
            )

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        self._require_leader()
        async with _within(timeout_s, f"the removal of node {node_id} is not committed yet"), self._changing:
            if node_id in self._core.configuration.members:
                await self._change(lambda: self._with_own_url().without(node_id))

    async def _change(self, changed: Callable[[], Configuration]) -> None:
        """A change still under way, such as a directory that is written down, is waited for."""
        while self._core.configuration_index > self._core.log.commit:
            self._require_leader()
            await self._turned.wait()
        try:
            await self._leadership.configure(changed())
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
        """A leader that was alone had no need of an address; those that settings name keep theirs there."""
        own, present = self._host.node_id, self._core.configuration
        if own not in present.voters or present.voters[own].url or own in self._host.addresses:
            return present
        if not self._host.url:
            raise ChangeRefused("this node's own URL is not known")
        return self._moved(own, self._host.url)

    def _moved(self, voter: int, url: str) -> Configuration:
        present = self._core.configuration
        return present.with_voter(voter, Member(url, present.voters[voter].directory))

    def _require_leader(self) -> None:
        if self._leadership.draft is None:
            leader = self._core.leader
            raise NotTheLeader(leader, "" if leader == self._host.node_id else self._host.url_of(leader))

    # --- directories

    def admits(self, sender: int, directory: UUID | None) -> bool:
        """Whether it is the directory that the log names for this member; until it names one, any will do."""
        member = self._core.configuration.members.get(sender)
        if member is None:
            return True  # of another configuration, or no member: the core knows what to make of it
        if member.directory is not None and member.directory != directory:
            if self._refused.get(sender) != directory:
                _log.warning(
                    "a member calls from a directory that is not its own: "
                    "if its disk was replaced, remove it from the quorum and add it again",
                    node=sender,
                    directory=directory,
                    known=member.directory,
                )
            self._refused[sender] = directory
            return False
        if directory is not None:
            self._heard[sender] = directory
        return True

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
            role=self._role(),
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

    def _role(self) -> str:
        if self._host.node_id in self._core.voters or self._core.is_leader:
            return self._core.role.value
        return "learner" if self._host.node_id in self._core.configuration.learners else "no member"

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
