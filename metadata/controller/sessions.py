"""Which brokers the leader has heard of lately. Soft state: kept in memory, lost with the leadership.

A broker's lease ends `lease_ms` after it sent a heartbeat, and it is fenced `session_ms` after the leader
received that one, which is later: so it has stopped serving before another leads (both on monotonic clocks;
`lease_ms` is shorter, as clocks run at different speeds). A new leader has heard of nobody: it gives everyone
a whole session from the moment it took over. A broker whose process is known to be dead has no session left.

The leading node calls `heartbeat` for each heartbeat and `overdue` with each tick, and submits what they
return. Before it gives an answer away it makes sure that it still leads (a read that the quorum confirms): a
deposed leader must grant no lease. Whom `overdue` has named gets none until the image shows it fenced.
"""

from typing import NamedTuple

from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata.controller.commands import (
    FenceBroker,
    Heartbeat,
    HeartbeatReply,
    StopBroker,
)
from tierlog.metadata.controller.election import leads_others_could
from tierlog.metadata.image import BrokerImage, ClusterImage

CLOCK_DRIFT = 10  # a lease is a tenth shorter than the session


class _Session(NamedTuple):
    broker_epoch: int
    until_ms: int


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
        self._condemned: dict[int, int] = {}  # broker -> the epoch that `overdue` gave up

    def took_over(self, image: ClusterImage, now_ms: int) -> None:
        """This node leads from now on."""
        self._condemned = {}
        until_ms = now_ms + self.session_ms
        self._sessions = {
            broker_id: _Session(image.brokers[broker_id].broker_epoch, until_ms)
            for broker_id in sorted(image.brokers)
        }

    def heard(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A heartbeat came in; one of an earlier process of the broker changes nothing."""
        known = self._sessions.get(broker_id)
        if self._condemned.get(broker_id) == broker_epoch:
            return
        if known is None or known.broker_epoch <= broker_epoch:
            self._sessions[broker_id] = _Session(broker_epoch, now_ms + self.session_ms)

    def lost(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """Its process is dead: its host says that nobody listens. It is overdue at once."""
        known = self._sessions.get(broker_id)
        if known is None or known.broker_epoch <= broker_epoch:
            self._sessions[broker_id] = _Session(broker_epoch, now_ms)

    def held_up(self, for_ms: int) -> None:
        """This node did not run for so long (its tick came late): heartbeats of that time wait unread, so it
        counts against nobody."""
        self._sessions = {
            broker_id: session._replace(until_ms=session.until_ms + for_ms)
            for broker_id, session in self._sessions.items()
        }

    def overdue(self, image: ClusterImage, now_ms: int) -> tuple[FenceBroker, ...]:
        """Those to fence. One that registered since is given a session: it has not had the time."""
        found = []
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            session = self._sessions.get(broker_id)
            self._pardon(broker)
            if session is None or session.broker_epoch < broker.broker_epoch:
                self._sessions[broker_id] = _Session(broker.broker_epoch, now_ms + self.session_ms)
            elif not broker.fenced and now_ms >= session.until_ms:
                self._condemned[broker_id] = broker.broker_epoch
                found.append(FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch, fenced=True))
        for broker_id in self._sessions.keys() - set(image.brokers):
            del self._sessions[broker_id]
        return tuple(found)

    def next_deadline_ms(self, image: ClusterImage) -> int | None:
        """When `overdue` may have something to say; None: not before it was asked again."""
        return min(
            (
                session.until_ms
                for broker_id, session in self._sessions.items()
                if (broker := image.brokers.get(broker_id)) is not None and not broker.fenced
            ),
            default=None,
        )

    def heartbeat(self, image: ClusterImage, heartbeat: Heartbeat, now_ms: int) -> Heard:
        """Notes it, and judges what the broker asks for."""
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None or broker.broker_epoch != heartbeat.broker_epoch:
            return Heard(self.answer(image, heartbeat), None)
        self._pardon(broker)
        self.heard(heartbeat.broker_id, heartbeat.broker_epoch, now_ms)
        return Heard(self.answer(image, heartbeat), _asked(image, broker, heartbeat))

    def unfence(self, image: ClusterImage, heartbeat: Heartbeat) -> FenceBroker | None:
        """Lets a broker in that wants to serve and has seen its own registration."""
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None or broker.broker_epoch != heartbeat.broker_epoch:
            return None
        command = _asked(image, broker, heartbeat)
        return command if isinstance(command, FenceBroker) and not command.fenced else None

    def answer(self, image: ClusterImage, heartbeat: Heartbeat) -> HeartbeatReply:
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None:
            return _refused(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {heartbeat.broker_id}: not registered"
            )
        if broker.broker_epoch != heartbeat.broker_epoch:
            message = f"broker {broker.broker_id} is at epoch {broker.broker_epoch}"
            return _refused(ErrorCode.STALE_BROKER_EPOCH, message)
        return HeartbeatReply(
            fenced=broker.fenced,
            may_stop=heartbeat.want_stop and _may_stop(image, broker),
            lease_ms=0 if broker.fenced or broker.broker_id in self._condemned else self.lease_ms,
        )

    def _pardon(self, broker: BrokerImage) -> None:
        """Fenced, or another process by now: it may begin anew."""
        if broker.fenced or self._condemned.get(broker.broker_id) != broker.broker_epoch:
            self._condemned.pop(broker.broker_id, None)


def _asked(image: ClusterImage, broker: BrokerImage, heartbeat: Heartbeat) -> FenceBroker | StopBroker | None:
    def fence(fenced: bool) -> FenceBroker:
        return FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced)

    if broker.fenced:
        wants_in = not heartbeat.want_fence and not heartbeat.want_stop and not broker.stopping
        return fence(False) if wants_in and heartbeat.image_index >= broker.broker_epoch else None
    if heartbeat.want_fence:
        return fence(True)
    if heartbeat.want_stop and not _may_stop(image, broker):
        return StopBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return None


def _may_stop(image: ClusterImage, broker: BrokerImage) -> bool:
    """A fenced one leads nothing; another has said that it stops, and nobody could take over from it."""
    return broker.fenced or (broker.stopping and leads_others_could(image, broker.broker_id) == 0)


def _refused(error: ErrorCode, message: str) -> HeartbeatReply:
    return HeartbeatReply(error=error, message=message)
