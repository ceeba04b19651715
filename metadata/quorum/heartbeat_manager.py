"""The leader's watch over brokers: heartbeats answered, silent or dead brokers fenced.

The sessions themselves are soft state (`controller.sessions`). An answer leaves only after the quorum has
confirmed that this node led when the heartbeat came in, so a deposed leader extends no lease.

Two kinds of evidence say that a process is gone. A connection that breaks and another that is refused are
seen at once, but any firewall can forge them: such a broker is suspected (`dead`), and clients are told of no
leader there, but it keeps its session, since its lease may run on. A notice signed by the process itself,
which its sentinel sends once it has ended, is certain: the broker is fenced at once. Every voter notes it: a
new leader need not give that process a session.
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

ENDLESS_LEASE_MS = 1 << 52  # where nobody fences anybody

SUSPICION_MS = 9_000
"""How long a suspicion lasts if brokers have no sessions: the default of broker.session.timeout.ms."""


class BrokerHeartbeatManager:
    """`sessions` None: a quorum of one whose only broker is in the same process; its lease never ends."""

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
        self._term = -1  # for which the sessions are
        session_ms = SUSPICION_MS if sessions is None else sessions.session_ms
        self._dead_brokers = DeadBrokers(publisher, clock, session_ms)
        self._ended: dict[
            int, int
        ] = {}  # broker -> the epoch of its last process that is certain to have ended
        self._fencing: asyncio.Task[None] | None = None
        self._ticked_ms = clock.monotonic_ms()

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Raises MetadataUnavailable; LeadershipLost if another has to be asked."""
        if self._sessions is None:
            await self._leadership.confirm()
            broker = self._publisher.image.brokers.get(heartbeat.broker_id)
            fenced = broker is None or broker.fenced
            return HeartbeatReply(fenced=fenced, may_stop=heartbeat.want_stop, lease_ms=ENDLESS_LEASE_MS)
        self.follow_leadership()
        heard = self._sessions.heartbeat(self._publisher.image, heartbeat, self._clock.monotonic_ms())
        if heard.command is not None:
            await self._leadership.commit(heard.command)
        else:
            await self._leadership.confirm()
        return self._sessions.reply(self._publisher.image, heartbeat)

    def died(self, node_id: int) -> None:
        """The process of this node seems dead; a broker that registers again has another epoch."""
        self._dead_brokers.note(node_id)

    def ended(self, broker_id: int, broker_epoch: int) -> None:
        """The process that registered under this epoch is certain to serve no more. Raises
        MetadataUnavailable if this node has not heard of the broker yet: to be told again."""
        known = self._publisher.image.brokers.get(broker_id)
        if known is None:
            unknown = f"broker {broker_id} is not known here yet"
            raise MetadataUnavailable(unknown, applied_unknown=False)
        if known.broker_epoch > broker_epoch:
            return
        self._ended[broker_id] = broker_epoch
        self.follow_leadership()
        self._end_session(broker_id)
        self._fence_overdue()

    def lives(self, node_id: int) -> None:
        self._dead_brokers.lives(node_id)

    @property
    def dead(self) -> frozenset[int]:
        """Brokers whose processes seem dead."""
        return self._dead_brokers.brokers

    @property
    def in_session(self) -> frozenset[int]:
        """Brokers whose registered process may be alive and serve."""
        if self._sessions is None:
            return frozenset()
        self.follow_leadership()
        return self._sessions.in_session(
            self._leadership.draft or self._publisher.image, self._clock.monotonic_ms()
        )

    def follow_leadership(self) -> None:
        """Every broker gets a whole session when this node takes over, unless its process has ended."""
        if self._leadership.draft is None:
            self._term = -1
        elif self._sessions is not None and self._term != self._leadership.term:
            self._term = self._leadership.term
            self._sessions.on_leadership_gained(self._publisher.image, self._clock.monotonic_ms())
            for broker_id in self._ended:
                self._end_session(broker_id)

    def tick(self, tick_ms: int) -> None:
        """Called each `tick_ms`; if it was later, this node did not run, and that counts against nobody."""
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
            return  # the next tick, or the next leader, finds them overdue again
        finally:
            self._fencing = None

    def _end_session(self, broker_id: int) -> None:
        """That of another process, which has registered since, goes on."""
        if self._sessions is not None and self._leadership.draft is not None:
            self._sessions.on_process_ended(broker_id, self._ended[broker_id])
