"""Which brokers the leader has heard of lately. Soft state: kept in memory, lost with the leadership.

A broker's lease ends `lease_ms` after it sent a heartbeat, and it is fenced `session_ms` after the leader
received that one, which is later: so it has stopped serving before another leads (both on monotonic clocks;
`lease_ms` is shorter, as clocks run at different speeds). A new leader has heard of nobody: it gives everyone
a whole session from the moment it took over. A broker whose process has certainly ended has no session left.

The leading node calls `heartbeat` for each heartbeat and `fence_expired` with each tick, and submits what
they return. Before it replies it confirms that it is still the leader (ReadIndex), as a deposed leader must
grant no lease. Whom `fence_expired` has named gets none until the image shows it fenced.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tierlog.metadata.controller.commands import (
    FenceBroker,
    Heartbeat,
    HeartbeatReply,
    StopBroker,
)
from tierlog.metadata.controller.election import count_transferable_leaderships
from tierlog.metadata.image import BrokerImage, ClusterImage
from tierlog.protocol.errors import ErrorCode

CLOCK_DRIFT = 10  # a lease is a tenth shorter than the session


@dataclass(slots=True)
class _Session:
    """Of one process of a broker."""

    broker_epoch: int
    until_ms: int
    min_image_index: int  # index of the log entry that its image must hold before it is let in
    serves: bool = False  # as the image showed it last
    heard: bool = True  # it registered, or sent a heartbeat, since this node leads
    expired: bool = False  # `fence_expired` named it; until it is fenced nothing saves it
    wants_stop: bool = False  # it asked to stop
    ended: bool = False  # its process has; a heartbeat that comes later is an old one

    def is_valid(self, now_ms: int) -> bool:
        return not self.ended and now_ms < self.until_ms


class HeartbeatDecision(NamedTuple):
    """What to answer a heartbeat, and what it asks for: submitted first, and then answered with
    `reply()` on the image that shows it."""

    reply: HeartbeatReply
    command: FenceBroker | StopBroker | None


class BrokerSessions:
    """`session_ms`: broker.session.timeout.ms."""

    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self.lease_ms = session_ms - session_ms // CLOCK_DRIFT
        self._sessions: dict[int, _Session] = {}

    def on_leadership_gained(self, image: ClusterImage, now_ms: int) -> None:
        """This node leads from now on. Since when a broker is fenced it cannot know."""
        self._sessions = {}
        for broker in image.brokers.values():
            session = self._session(image, broker, now_ms)
            session.min_image_index, session.heard = image.index, False

    def on_process_ended(self, broker_id: int, broker_epoch: int) -> None:
        """Its process has certainly ended (a notice of its sentinel), so it is overdue at once. News of an
        earlier process of the broker changes nothing."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch < broker_epoch:
            self._sessions[broker_id] = session = _Session(broker_epoch, 0, min_image_index=broker_epoch)
        session.ended |= session.broker_epoch == broker_epoch

    def extend_all(self, for_ms: int) -> None:
        """This node did not run for so long (its tick came late): heartbeats of that time wait unread, so it
        counts against nobody."""
        for session in self._sessions.values():
            session.until_ms += for_ms

    def fence_expired(self, image: ClusterImage, now_ms: int) -> tuple[FenceBroker, ...]:
        """Those to fence. One that registered since is given a session: it has not had the time."""
        found = []
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            session = self._session(image, broker, now_ms)
            if session.serves and not session.is_valid(now_ms):
                session.expired = True
                found.append(_fence(broker, fenced=True))
        for broker_id in self._sessions.keys() - set(image.brokers):
            del self._sessions[broker_id]
        return tuple(found)

    def in_session(self, image: ClusterImage, now_ms: int) -> frozenset[int]:
        """Brokers in whose place no other process is registered: their session is_valid, fenced or not, as in
        Kafka. A broker that asked to stop keeps no place, so a restart need not wait for the session of its
        last process. Nor does a fenced one of which this leader has not heard yet: it serves nobody, and
        mostly is the one that starts again."""
        return frozenset(one.broker_id for one in image.brokers.values() if self._is_valid(one, now_ms))

    def next_deadline_ms(self) -> int | None:
        """When `fence_expired` may have something to say, as far as it is known; None: nobody serves."""
        return min((one.until_ms for one in self._sessions.values() if one.serves), default=None)

    def heartbeat(self, image: ClusterImage, heartbeat: Heartbeat, now_ms: int) -> HeartbeatDecision:
        """Notes it, and judges what the broker asks for."""
        broker = _sender(image, heartbeat)
        if broker is None:
            return HeartbeatDecision(self.reply(image, heartbeat), None)
        session = self._session(image, broker, now_ms)
        session.heard, session.wants_stop = True, session.wants_stop or heartbeat.want_stop
        if not session.expired:
            session.until_ms = now_ms + self.session_ms
        command = self.unfence_command(image, heartbeat) or _taken_out(image, broker, heartbeat)
        return HeartbeatDecision(self._reply(image, broker, heartbeat, session), command)

    def unfence_command(self, image: ClusterImage, heartbeat: Heartbeat) -> FenceBroker | None:
        """Lets a broker in that wants to serve and works by an image of after it was fenced, or registered:
        by an older one it would lead what it leads no more."""
        broker = _sender(image, heartbeat)
        if broker is None or not broker.fenced or broker.stopping:
            return None
        session = self._sessions.get(broker.broker_id)
        min_image_index = broker.broker_epoch if session is None else session.min_image_index
        if session is not None and session.ended:
            return None
        if heartbeat.want_fence or heartbeat.want_stop or heartbeat.image_index < min_image_index:
            return None
        return _fence(broker, fenced=False)

    def reply(self, image: ClusterImage, heartbeat: Heartbeat) -> HeartbeatReply:
        """By the image as it is; called again when what the heartbeat asked for is committed."""
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None:
            message = f"broker {heartbeat.broker_id} is not registered"
            return HeartbeatReply(error=ErrorCode.BROKER_ID_NOT_REGISTERED, message=message)
        if broker.broker_epoch != heartbeat.broker_epoch:
            message = f"broker {broker.broker_id} is at epoch {broker.broker_epoch}"
            return HeartbeatReply(error=ErrorCode.STALE_BROKER_EPOCH, message=message)
        return self._reply(image, broker, heartbeat, self._sessions.get(broker.broker_id))

    def _reply(
        self, image: ClusterImage, broker: BrokerImage, heartbeat: Heartbeat, session: _Session | None
    ) -> HeartbeatReply:
        no_lease = broker.fenced or session is None or session.expired or session.ended
        return HeartbeatReply(
            fenced=broker.fenced,
            may_stop=heartbeat.want_stop and _may_stop(image, broker),
            lease_ms=0 if no_lease else self.lease_ms,
        )

    def _session(self, image: ClusterImage, broker: BrokerImage, now_ms: int) -> _Session:
        """A new one for a new process, and what the image says of it."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.broker_epoch < broker.broker_epoch:
            until_ms = now_ms + self.session_ms
            session = _Session(broker.broker_epoch, until_ms, min_image_index=broker.broker_epoch)
            self._sessions[broker.broker_id] = session
        if broker.fenced:
            if session.serves:
                session.min_image_index = image.index
            session.expired = False
        session.serves = not broker.fenced
        return session

    def _is_valid(self, broker: BrokerImage, now_ms: int) -> bool:
        """A process without a session has registered since the last `fence_expired`, and gets a whole one."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.broker_epoch < broker.broker_epoch:
            return True
        if broker.fenced and (session.wants_stop or not session.heard):
            return False
        return session.is_valid(now_ms)


def _sender(image: ClusterImage, heartbeat: Heartbeat) -> BrokerImage | None:
    """None if it is not the broker's current process."""
    broker = image.brokers.get(heartbeat.broker_id)
    return broker if broker is not None and broker.broker_epoch == heartbeat.broker_epoch else None


def _fence(broker: BrokerImage, *, fenced: bool) -> FenceBroker:
    return FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced)


def _taken_out(
    image: ClusterImage, broker: BrokerImage, heartbeat: Heartbeat
) -> FenceBroker | StopBroker | None:
    """It asks to stop; one that may is fenced at once, so that nobody waits for its session.

    That it wants to stay fenced it says only before it is let in: of a broker that serves, such a heartbeat
    is late, and to fence it would let another lead while its lease runs.
    """
    if broker.fenced or not heartbeat.want_stop:
        return None
    if _may_stop(image, broker):
        return _fence(broker, fenced=True)
    return StopBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)


def _may_stop(image: ClusterImage, broker: BrokerImage) -> bool:
    """A fenced one leads nothing; another has said that it stops, and nobody could take over from it."""
    return broker.fenced or (broker.stopping and count_transferable_leaderships(image, broker.broker_id) == 0)
