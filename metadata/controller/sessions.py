"""Broker sessions and leases. Soft state of the active controller: in memory, lost with its leadership.

A broker's lease ends `lease_ms` after it sent a heartbeat. The controller fences the broker `session_ms`
after it received that heartbeat, which is later: the broker has stopped serving before another becomes the
leader. Both use monotonic clocks; `lease_ms` is shorter because clocks run at different speeds. A new
controller gives every broker a full session from its own election. A broker whose process has ended has no
session.

The active controller calls `heartbeat` for each heartbeat and `fence_expired` with each tick, and submits the
commands that they return. It confirms that it is still the leader (ReadIndex) before it replies, because a
deposed leader must grant no lease. A broker that `fence_expired` returned gets no lease until it is fenced in
the image.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tierlog.base.safeguards import safeguard
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
    """Session of one process of a broker."""

    broker_epoch: int
    until_ms: int
    min_image_index: int  # the broker's image must be this recent before it is unfenced
    unfenced: bool = False  # in the latest image
    heard: bool = True  # the broker registered or sent a heartbeat since this node became the leader
    expired: bool = False  # `fence_expired` returned it; no heartbeat renews the session
    wants_stop: bool = False  # the broker requested a controlled shutdown
    ended: bool = False  # the process has ended; later heartbeats are old ones

    def is_valid(self, now_ms: int) -> bool:
        return not self.ended and now_ms < self.until_ms


class HeartbeatDecision(NamedTuple):
    """The reply to a heartbeat, or a command to submit before `reply()` on the new image."""

    reply: HeartbeatReply
    command: FenceBroker | StopBroker | None


class BrokerSessions:
    """`session_ms`: broker.session.timeout.ms."""

    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self.lease_ms = session_ms - session_ms // CLOCK_DRIFT
        self._sessions: dict[int, _Session] = {}

    @safeguard("a new controller starts a session for every broker")
    def on_leadership_gained(self, image: ClusterImage, now_ms: int) -> None:
        """This node became the leader. It cannot know since when a broker is fenced."""
        self._sessions = {}
        for broker in image.brokers.values():
            session = self._session(image, broker, now_ms)
            session.min_image_index, session.heard = image.index, False

    def on_process_ended(self, broker_id: int, broker_epoch: int) -> None:
        """The broker's process has ended (a notice of its sentinel), so its session ends at once. A notice of
        an earlier process changes nothing."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch < broker_epoch:
            self._sessions[broker_id] = session = _Session(broker_epoch, 0, min_image_index=broker_epoch)
        session.ended |= session.broker_epoch == broker_epoch

    def extend_all(self, for_ms: int) -> None:
        """This node was paused for `for_ms` (its tick was late). Heartbeats of that time are still unread, so
        extend all sessions."""
        for session in self._sessions.values():
            session.until_ms += for_ms

    def fence_expired(self, image: ClusterImage, now_ms: int) -> tuple[FenceBroker, ...]:
        """Commands to fence brokers whose session has expired. Newly registered ones get a session."""
        commands = []
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            session = self._session(image, broker, now_ms)
            if session.unfenced and not session.is_valid(now_ms):
                session.expired = True
                commands.append(_fence(broker, fenced=True))
        for broker_id in self._sessions.keys() - set(image.brokers):
            del self._sessions[broker_id]
        return tuple(commands)

    @safeguard("a broker id with a live session cannot be registered again")
    def in_session(self, image: ClusterImage, now_ms: int) -> frozenset[int]:
        """Brokers with a valid session, fenced or not: no other process may register their id, as in Kafka.

        Not a broker that requested a controlled shutdown, so that its restart need not wait. Not a fenced
        broker that has not contacted this leader either: most likely it is the one that restarts.
        """
        return frozenset(one.broker_id for one in image.brokers.values() if self._is_valid(one, now_ms))

    def heartbeat(self, image: ClusterImage, heartbeat: Heartbeat, now_ms: int) -> HeartbeatDecision:
        """Renew the session, and decide what the broker requests."""
        broker = _sender(image, heartbeat)
        if broker is None:
            return HeartbeatDecision(self.reply(image, heartbeat), None)
        session = self._session(image, broker, now_ms)
        session.heard, session.wants_stop = True, session.wants_stop or heartbeat.want_stop
        if not session.expired:
            session.until_ms = now_ms + self.session_ms
        command = self.unfence_command(image, heartbeat) or _stop_command(image, broker, heartbeat)
        return HeartbeatDecision(self._reply(image, broker, heartbeat, session), command)

    def unfence_command(self, image: ClusterImage, heartbeat: Heartbeat) -> FenceBroker | None:
        """Unfence a broker that requests it and has an image that is newer than its fencing or registration:
        with an older image it would act as leader of partitions that it lost."""
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
        """The reply according to `image`; called again once the command of the heartbeat is committed."""
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
        """The broker's session, updated from the image; a new one for a new process."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.broker_epoch < broker.broker_epoch:
            until_ms = now_ms + self.session_ms
            session = _Session(broker.broker_epoch, until_ms, min_image_index=broker.broker_epoch)
            self._sessions[broker.broker_id] = session
        if broker.fenced:
            if session.unfenced:
                session.min_image_index = image.index
            session.expired = False
        session.unfenced = not broker.fenced
        return session

    def _is_valid(self, broker: BrokerImage, now_ms: int) -> bool:
        """A process without a session registered after the last `fence_expired`, which will give it one."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.broker_epoch < broker.broker_epoch:
            return True
        if broker.fenced and (session.wants_stop or not session.heard):
            return False
        return session.is_valid(now_ms)


def _sender(image: ClusterImage, heartbeat: Heartbeat) -> BrokerImage | None:
    """The sender, or None if it is not the broker's current process."""
    broker = image.brokers.get(heartbeat.broker_id)
    return broker if broker is not None and broker.broker_epoch == heartbeat.broker_epoch else None


def _fence(broker: BrokerImage, *, fenced: bool) -> FenceBroker:
    return FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=fenced)


def _stop_command(
    image: ClusterImage, broker: BrokerImage, heartbeat: Heartbeat
) -> FenceBroker | StopBroker | None:
    """The command for a broker that requests a controlled shutdown. If it may stop, it is fenced at once, so
    that other brokers need not wait for its session.

    `want_fence` of an unfenced broker is ignored: such a heartbeat is late, and fencing the broker would
    allow another leader during its lease.
    """
    if broker.fenced or not heartbeat.want_stop:
        return None
    if _may_stop(image, broker):
        return _fence(broker, fenced=True)
    return StopBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)


def _may_stop(image: ClusterImage, broker: BrokerImage) -> bool:
    """Whether the broker is fenced, or is shutting down and no other broker can take over a leadership."""
    return broker.fenced or (broker.stopping and count_transferable_leaderships(image, broker.broker_id) == 0)
