"""Which brokers the leader has heard of lately. Soft state: kept in memory, lost with the leadership.

A broker's lease ends `lease_ms` after it sent a heartbeat, and it is fenced `session_ms` after the leader
received that one, which is later: so it has stopped serving before another leads (both on monotonic clocks;
`lease_ms` is shorter, as clocks run at different speeds). A new leader has heard of nobody: it gives everyone
a whole session from the moment it took over. A broker whose process has certainly ended has no session left.

The leading node calls `heartbeat` for each heartbeat and `overdue` with each tick, and submits what they
return. Before it gives an answer away it makes sure that it still leads (a read that the quorum confirms): a
deposed leader must grant no lease. Whom `overdue` has named gets none until the image shows it fenced.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tierlog.metadata.controller.commands import (
    FenceBroker,
    Heartbeat,
    HeartbeatReply,
    StopBroker,
)
from tierlog.metadata.controller.election import leads_others_could
from tierlog.metadata.image import BrokerImage, ClusterImage
from tierlog.protocol.errors import ErrorCode

CLOCK_DRIFT = 10  # a lease is a tenth shorter than the session


@dataclass(slots=True)
class _Session:
    """Of one process of a broker."""

    broker_epoch: int
    until_ms: int
    must_see: int  # index of the log entry that its image must hold before it is let in
    serves: bool = False  # as the image showed it last
    heard: bool = True  # it registered, or sent a heartbeat, since this node leads
    condemned: bool = False  # `overdue` named it; until it is fenced nothing saves it
    leaving: bool = False  # it asked to stop
    ended: bool = False  # its process has; a heartbeat that comes later is an old one

    def lasts(self, now_ms: int) -> bool:
        return not self.ended and now_ms < self.until_ms


class Heard(NamedTuple):
    """What to answer a heartbeat, and what it asks for: submitted first, and then answered with
    `answer()` on the image that shows it."""

    reply: HeartbeatReply
    command: FenceBroker | StopBroker | None


class BrokerSessions:
    """`session_ms`: broker.session.timeout.ms."""

    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self.lease_ms = session_ms - session_ms // CLOCK_DRIFT
        self._sessions: dict[int, _Session] = {}

    def took_over(self, image: ClusterImage, now_ms: int) -> None:
        """This node leads from now on. Since when a broker is fenced it cannot know."""
        self._sessions = {}
        for broker in image.brokers.values():
            session = self._session(image, broker, now_ms)
            session.must_see, session.heard = image.index, False

    def ended(self, broker_id: int, broker_epoch: int) -> None:
        """Its process has certainly ended (a notice of its sentinel), so it is overdue at once. News of an
        earlier process of the broker changes nothing."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch < broker_epoch:
            self._sessions[broker_id] = session = _Session(broker_epoch, 0, must_see=broker_epoch)
        session.ended |= session.broker_epoch == broker_epoch

    def held_up(self, for_ms: int) -> None:
        """This node did not run for so long (its tick came late): heartbeats of that time wait unread, so it
        counts against nobody."""
        for session in self._sessions.values():
            session.until_ms += for_ms

    def overdue(self, image: ClusterImage, now_ms: int) -> tuple[FenceBroker, ...]:
        """Those to fence. One that registered since is given a session: it has not had the time."""
        found = []
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            session = self._session(image, broker, now_ms)
            if session.serves and not session.lasts(now_ms):
                session.condemned = True
                found.append(_fence(broker, fenced=True))
        for broker_id in self._sessions.keys() - set(image.brokers):
            del self._sessions[broker_id]
        return tuple(found)

    def valid(self, image: ClusterImage, now_ms: int) -> frozenset[int]:
        """Brokers in whose place no other process is registered: their session lasts, fenced or not, as in
        Kafka. A broker that asked to stop keeps no place, so a restart need not wait for the session of its
        last process. Nor does a fenced one of which this leader has not heard yet: it serves nobody, and
        mostly is the one that starts again."""
        return frozenset(one.broker_id for one in image.brokers.values() if self._is_valid(one, now_ms))

    def next_deadline_ms(self) -> int | None:
        """When `overdue` may have something to say, as far as it is known; None: nobody serves."""
        return min((one.until_ms for one in self._sessions.values() if one.serves), default=None)

    def heartbeat(self, image: ClusterImage, heartbeat: Heartbeat, now_ms: int) -> Heard:
        """Notes it, and judges what the broker asks for."""
        broker = _sender(image, heartbeat)
        if broker is None:
            return Heard(self.answer(image, heartbeat), None)
        session = self._session(image, broker, now_ms)
        session.heard, session.leaving = True, session.leaving or heartbeat.want_stop
        if not session.condemned:
            session.until_ms = now_ms + self.session_ms
        command = self.unfence(image, heartbeat) or _taken_out(image, broker, heartbeat)
        return Heard(self._answer(image, broker, heartbeat, session), command)

    def unfence(self, image: ClusterImage, heartbeat: Heartbeat) -> FenceBroker | None:
        """Lets a broker in that wants to serve and works by an image of after it was fenced, or registered:
        by an older one it would lead what it leads no more."""
        broker = _sender(image, heartbeat)
        if broker is None or not broker.fenced or broker.stopping:
            return None
        session = self._sessions.get(broker.broker_id)
        must_see = broker.broker_epoch if session is None else session.must_see
        if session is not None and session.ended:
            return None
        if heartbeat.want_fence or heartbeat.want_stop or heartbeat.image_index < must_see:
            return None
        return _fence(broker, fenced=False)

    def answer(self, image: ClusterImage, heartbeat: Heartbeat) -> HeartbeatReply:
        """By the image as it is; called again when what the heartbeat asked for is committed."""
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None:
            message = f"broker {heartbeat.broker_id} is not registered"
            return HeartbeatReply(error=ErrorCode.BROKER_ID_NOT_REGISTERED, message=message)
        if broker.broker_epoch != heartbeat.broker_epoch:
            message = f"broker {broker.broker_id} is at epoch {broker.broker_epoch}"
            return HeartbeatReply(error=ErrorCode.STALE_BROKER_EPOCH, message=message)
        return self._answer(image, broker, heartbeat, self._sessions.get(broker.broker_id))

    def _answer(
        self, image: ClusterImage, broker: BrokerImage, heartbeat: Heartbeat, session: _Session | None
    ) -> HeartbeatReply:
        no_lease = broker.fenced or session is None or session.condemned or session.ended
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
            session = _Session(broker.broker_epoch, until_ms, must_see=broker.broker_epoch)
            self._sessions[broker.broker_id] = session
        if broker.fenced:
            if session.serves:
                session.must_see = image.index
            session.condemned = False
        session.serves = not broker.fenced
        return session

    def _is_valid(self, broker: BrokerImage, now_ms: int) -> bool:
        """A process without a session has registered since `overdue` last looked, and gets a whole one."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.broker_epoch < broker.broker_epoch:
            return True
        if broker.fenced and (session.leaving or not session.heard):
            return False
        return session.lasts(now_ms)


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
    return broker.fenced or (broker.stopping and leads_others_could(image, broker.broker_id) == 0)
