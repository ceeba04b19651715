"""Broker heartbeat manager: replies to heartbeats, and fences brokers that are silent or have ended.

Works on the leader. The sessions are soft state (`controller.sessions`). A heartbeat gets its reply only
after the quorum has confirmed that this node was leader when it arrived, so a deposed leader extends no
lease.

There are two kinds of evidence that a process has ended:

- A broken connection followed by a refused one is seen at once, but a firewall can forge it. The broker
  becomes suspect (`dead_brokers`) and clients see its partitions without a leader. It keeps its
  session, since its lease may still run.
- A notice signed by the process itself, sent by its sentinel after the end, is certain. The broker is fenced
  at once. Every controller node records it, so that a new leader grants that process no session.

Owned by the metadata node, and called on its event loop.
"""

import asyncio

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import FenceBroker, Heartbeat, HeartbeatReply
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.quorum.failure_detector import DeadBrokers
from tierlog.metadata.quorum.leadership import Leadership
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import MetadataPublisher

ENDLESS_LEASE_MS = 1 << 52  # granted where no broker is ever fenced for silence

SUSPICION_MS = 9_000
"""How long a suspicion lasts if brokers have no sessions: three default session timeouts."""


class BrokerHeartbeatManager:
    """`sessions`: None for a quorum of one whose only broker is in the same process; its lease never ends."""

    def __init__(
        self,
        sessions: BrokerSessions | None,
        leadership: Leadership,
        publisher: MetadataPublisher,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._sessions, self._leadership, self._publisher = sessions, leadership, publisher
        self._clock, self._tasks = clock, tasks
        self._term = -1  # in which the sessions were created
        session_ms = SUSPICION_MS if sessions is None else sessions.session_ms
        self._dead_brokers = DeadBrokers(publisher, clock, session_ms)
        self._ended_epochs: dict[int, int] = {}  # broker -> epoch of its last process that certainly ended
        self._fencing: asyncio.Task[None] | None = None
        self._ticked_ms = clock.monotonic_ms()

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Raises MetadataUnavailable; LeadershipLost if the caller has to ask another node."""
        if self._sessions is None:
            await self._leadership.confirm()
            broker = self._publisher.image.brokers.get(heartbeat.broker_id)
            fenced = broker is None or broker.fenced
            return HeartbeatReply(fenced=fenced, may_stop=heartbeat.want_stop, lease_ms=ENDLESS_LEASE_MS)
        self.follow_leadership()
        outcome = self._sessions.heartbeat(self._publisher.image, heartbeat, self._clock.monotonic_ms())
        if outcome.command is not None:
            await self._leadership.commit(outcome.command)
        else:
            await self._leadership.confirm()
        return self._sessions.reply(self._publisher.image, heartbeat)

    def mark_dead(self, node_id: int) -> None:
        """The node's current process seems dead."""
        self._dead_brokers.mark_dead(node_id)

    def mark_alive(self, node_id: int) -> None:
        """A connection to the node succeeded."""
        self._dead_brokers.mark_alive(node_id)

    def on_process_end(self, broker_id: int, broker_epoch: int) -> None:
        """The process that registered under this epoch has certainly ended.

        Raises MetadataUnavailable if this node does not know the broker yet: the caller has to retry.
        """
        known = self._publisher.image.brokers.get(broker_id)
        if known is None:
            unknown = f"broker {broker_id} is not registered in this node's metadata yet"
            raise MetadataUnavailable(unknown, applied_unknown=False)
        if known.broker_epoch > broker_epoch:
            return
        self._ended_epochs[broker_id] = broker_epoch
        self.follow_leadership()
        self._end_session(broker_id)
        self._fence_overdue()

    @property
    def dead_brokers(self) -> frozenset[int]:
        """Brokers whose process seems dead."""
        return self._dead_brokers.brokers

    @property
    def in_session(self) -> frozenset[int]:
        """Brokers whose registered process may be alive and serving."""
        if self._sessions is None:
            return frozenset()
        self.follow_leadership()
        return self._sessions.in_session(
            self._leadership.draft or self._publisher.image, self._clock.monotonic_ms()
        )

    def follow_leadership(self) -> None:
        """A new leader grants every broker a full session, unless its process has ended."""
        if self._leadership.draft is None:
            self._term = -1
        elif self._sessions is not None and self._term != self._leadership.term:
            self._term = self._leadership.term
            self._sessions.on_leadership_gained(self._publisher.image, self._clock.monotonic_ms())
            for broker_id in self._ended_epochs:
                self._end_session(broker_id)

    def tick(self, tick_ms: int) -> None:
        """Called every `tick_ms`. If the call is late, this node did not run, which extends all sessions."""
        now_ms = self._clock.monotonic_ms()
        late_ms, self._ticked_ms = now_ms - self._ticked_ms - tick_ms, now_ms
        if self._sessions is not None and late_ms > tick_ms:
            self._sessions.extend_all(late_ms)
        self._fence_overdue()

    def _fence_overdue(self) -> None:
        """One batch at a time."""
        if self._sessions is None or self._leadership.draft is None or self._fencing is not None:
            return
        overdue = self._sessions.fence_expired(self._publisher.image, self._clock.monotonic_ms())
        if overdue:
            self._fencing = self._tasks.spawn("metadata fences brokers", self._fence(overdue))

    async def _fence(self, overdue: tuple[FenceBroker, ...]) -> None:
        try:
            await asyncio.gather(*(self._leadership.commit(command) for command in overdue))
        except MetadataUnavailable:
            return  # still overdue at the next tick, or for the next leader
        finally:
            self._fencing = None

    def _end_session(self, broker_id: int) -> None:
        """Has no effect on the session of a process that registered later."""
        if self._sessions is not None and self._leadership.draft is not None:
            self._sessions.on_process_ended(broker_id, self._ended_epochs[broker_id])
