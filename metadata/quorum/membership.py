"""Who is in the quorum: nodes taken in and let go, one at a time, and which directory each of them has.

A new node is a learner until it has caught up (thesis 4.2.1), so that it never holds up a commit. Each call
between nodes names the caller's directory; the leader writes those it has heard of into the configuration.
From then on a node whose disk was replaced is not taken for the voter that made the old promises (KIP-853):
it has to be removed and added again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
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

_log = structlog.get_logger("tierlog.metadata")


class Host(Protocol):
    """The node, as far as it is needed here."""

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
        self._hearing = FollowerContacts()
        self._heard: dict[int, UUID] = {}  # directories of members as they called in this term
        self._heard_term = -1
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
                self._heard.pop(node_id, None)  # its disk may have been emptied since
                await self._change(lambda: self._with_own_url().with_learner(node_id, Member(url)))
            while not self._caught_up(node_id):
                await self._turned.wait()
            # it has answered, or it had not caught up: so its directory is known
            await self._change(
                lambda: self._core.configuration.with_voter(
                    node_id, Member(url, self._heard_now().get(node_id))
                )
            )

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        self._require_leader()
        async with _within(timeout_s, f"the removal of node {node_id} is not committed yet"), self._changing:
            if node_id in self._core.configuration.members:
                await self._change(lambda: self._with_own_url().without(node_id))
            else:  # perhaps by another leader, or by a call that waited no longer
                await self._settled()

    async def _change(self, changed: Callable[[], Configuration]) -> None:
        """Whatever became of it, the next leader may be asked for the same again."""
        await self._settled()
        try:
            await self._leadership.configure(changed())
        except MetadataUnavailable:
            if not self._core.is_leader:
                self._require_leader()
            raise

    async def _settled(self) -> None:
        """No change is under way, such as a directory that is written down."""
        while self._core.configuration_index > self._core.log.commit:
            self._require_leader()
            await self._turned.wait()

    async def hand_over(self, timeout_s: float) -> bool:
        """Has another voter lead. False if none could, in time."""
        core = self._core
        try:
            async with asyncio.timeout(timeout_s):
                while core.is_leader or core.leader == NO_NODE:  # then the heir may need this node's vote
                    if core.is_leader and not self._leadership.hand_over():
                        return False
                    await self._turned.wait()
        except TimeoutError:
            return False
        return True

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
            self._heard_now()[sender] = directory
        return True

    def _heard_now(self) -> dict[int, UUID]:
        """What was heard before this node led may be of a disk that another leader knew to be gone."""
        if self._heard_term != self._core.term:
            self._heard, self._heard_term = {}, self._core.term
        return self._heard

    def tick(self) -> None:
        """The leader writes down the directories of members that it has heard of."""
        core = self._core
        if self._leadership.draft is None or core.configuration_index > core.log.commit:
            return
        if self._changing.locked() or len(core.configuration.members) < 2:
            return
        known = core.configuration.with_directories(
            {**self._heard_now(), self._host.node_id: self._host.directory_id}
        )
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

    def heard(self, senders: Iterable[int]) -> None:
        """Members whose messages have been taken in."""
        core = self._core
        if core.replication is None:
            return
        for sender in senders:
            if (progress := core.replication.progress.get(sender)) is not None:
                self._note(sender, progress.match_index)

    def heard_broker(self, heartbeat: Heartbeat) -> None:
        """Of a broker that is no member the leader knows by its heartbeats how far it follows."""
        broker = self._host.image.brokers.get(heartbeat.broker_id)
        if broker is None or broker.broker_epoch != heartbeat.broker_epoch:
            return
        if heartbeat.broker_id not in self._core.configuration.members:
            self._note(heartbeat.broker_id, heartbeat.image_index)

    def _note(self, node_id: int, index: int) -> None:
        core = self._core
        self._hearing.note(core.term, node_id, index, core.log.last_index, self._clock.now_ms())

    def status(self) -> NodeStatus:
        core, log, present = self._core, self._core.log, self._core.configuration
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
            voters={node: self._host.url_of(node) for node in present.voters},
            learners={node: self._host.url_of(node) for node in present.learners},
            members=tuple(
                self._peer(node, member, now_ms) for node, member in sorted(present.members.items())
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
        heard = self._hearing.of(self._core.term, node_id)
        return msgspec.structs.replace(
            status,
            match_index=progress.match_index,
            lag=self._core.log.last_index - progress.match_index,
            caught_up=voter or progress.caught_up,
            last_heard_ms=now_ms if itself else heard and heard.heard_ms,
            last_caught_up_ms=now_ms if itself else heard and heard.caught_up_ms,
        )

    def _observers(self, now_ms: int) -> tuple[PeerStatus, ...]:
        brokers, members = self._host.image.brokers, self._core.configuration.members
        following = [broker_id for broker_id in sorted(brokers) if broker_id not in members]
        return tuple(
            PeerStatus(
                node_id=broker_id,
                url=brokers[broker_id].admin_url,
                voter=False,
                match_index=heard.index,
                lag=max(self._core.log.last_index - heard.index, 0),
                last_heard_ms=heard.heard_ms,
                last_caught_up_ms=heard.caught_up_ms,
            )
            for broker_id, heard in self._hearing.lately(self._core.term, following, now_ms).items()
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
