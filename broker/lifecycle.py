"""How this broker stands with the controller: registered, let in, heard of, leased, and taking its leave.

A broker registers fenced, opens its logs, and asks to be let in. From then on heartbeats keep its session,
and each answer is a lease: the broker serves only until `lease_ms` after it sent the heartbeat, which is
before the controller gives its partitions to others. One that stops hands its leaderships over first. A
broker that is the whole quorum itself needs none of this: nobody else could lead.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import InvariantViolation
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller.commands import (
    BrokerRegistered,
    Heartbeat,
    HeartbeatReply,
    RegisterBroker,
)
from tierlog.metadata.quorum.node import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

REGISTER_TIMEOUT_S = 60.0
"""How long a node that starts with its whole cluster waits for a quorum to come together (Kafka:
initial.broker.registration.timeout.ms)."""

REGISTER_SESSIONS = 2
"""A broker whose last process may be alive waits until the session of that one has ended, and a new
controller gives it a whole one. It waits for this many sessions, or REGISTER_TIMEOUT_S if that is longer."""

STOP_SESSIONS = 2
"""A broker that stops hands over as long as a controller answers it. After so many sessions without an answer
there is nothing left to hand over: either no quorum exists, or its controller has fenced this broker, and a
new controller first gave it a whole session again."""

ANSWER_TIMEOUT_S = 2.0
ANSWER_TIMES = 4
FIRST_LEASE_MS = 4_000
"""For how long an answer to a heartbeat is waited for, in two tries: so many times as long as the last one
took, and twice as long as before where none came, but each try no longer than a lease. Who gave all answers
of a busy machine up would be heard, hence not fenced, and hold none."""

RETRIES_AN_INTERVAL = 4
"""A heartbeat that failed is repeated after this part of the interval."""

NEVER_MS = 1 << 62
_log = structlog.get_logger("tierlog.lifecycle")


class RegistrationRefused(Exception):
    """The controller will not have this broker; only another configuration helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What the cluster is told of this broker. `may_have_lost`: bytes that were not synced may be gone."""

    broker_id: int
    incarnation: UUID
    host: str
    port: int
    admin_url: str
    rack: str | None
    may_have_lost: bool
    directories: tuple[UUID, ...] = ()
    previous_epoch: int | None = None
    min_in_sync: int = 1
    unclean_election: bool = False


class BrokerLifecycle:
    def __init__(
        self,
        metadata: MetadataClient,
        clock: Clock,
        tasks: TaskGroup,
        *,
        interval_ms: int,
        session_ms: int,
        alone: bool,
        replaced: Callable[[str], None] = lambda why: None,
        registered: Callable[[int], None] = lambda broker_epoch: None,
    ) -> None:
        """`session_ms`: broker.session.timeout.ms. `alone`: this process is the whole quorum. `replaced`:
        another process has registered as this broker, with which this one must not contend. `registered`:
        called with each broker epoch that this process gets, before it asks to be let in.
        """
        self.broker_epoch = -1
        self.fenced = True
        self._metadata = metadata
        self._clock = clock
        self._tasks = tasks
        self._registration: Registration | None = None
        self._interval_s = interval_ms / 1000
        self._register_ms = max(int(REGISTER_TIMEOUT_S * 1000), REGISTER_SESSIONS * session_ms)
        self._stop_ms = STOP_SESSIONS * session_ms
        self._answered_ms = 0  # when it began to leave, or the controller answered last
        self._unanswered = False  # it stops, and no controller answers
        self._timeout_s = ANSWER_TIMEOUT_S
        self._lease_ms = FIRST_LEASE_MS  # of the last one
        self._alone = alone
        self._replaced, self._registered = replaced, registered
        self._lease_until_ms = NEVER_MS if alone else 0
        self._wants_in = False
        self._wants_out = False
        self._beat_now = asyncio.Event()
        self._may_stop = asyncio.Event()
        self._let_in = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    def holds_lease(self) -> bool:
        """Whether it may serve now."""
        return self._clock.monotonic_ms() < self._lease_until_ms

    def present(self, registration: Registration) -> None:
        """What to register, once its addresses are known."""
        self._registration = registration

    async def register(self) -> None:
        """Waits while another process of this broker has a valid session. Raises RegistrationRefused,
        MetadataUnavailable."""
        deadline_ms = self._clock.monotonic_ms() + self._register_ms
        reply = await self._submit_registration()
        if reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            _log.warning("waits for the end of another process's session", why=reply.message)
        while reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            if self._clock.monotonic_ms() >= deadline_ms:
                break
            await asyncio.sleep(self._interval_s / RETRIES_AN_INTERVAL)
            reply = await self._submit_registration()
        if reply.error is not ErrorCode.NONE:
            raise RegistrationRefused(
                f"the controller refuses this broker: {reply.message or reply.error.name}"
            )
        if reply.message is not None:
            _log.warning(
                "the replicas of this broker leave the in-sync sets until they catch up", why=reply.message
            )
        self.broker_epoch = reply.broker_epoch
        self.fenced = not self._alone
        self._registered(reply.broker_epoch)

    async def _submit_registration(self) -> BrokerRegistered:
        known = self._presented
        return await self._metadata.submit(
            RegisterBroker(
                broker_id=known.broker_id,
                incarnation=known.incarnation,
                host=known.host,
                port=known.port,
                admin_url=known.admin_url,
                rack=known.rack,
                start_fenced=not self._alone,
                may_have_lost=known.may_have_lost,
                directories=known.directories,
                previous_epoch=known.previous_epoch,
                min_in_sync=known.min_in_sync,
                unclean_election=known.unclean_election,
            ),
            REGISTER_TIMEOUT_S,
        )

    def start(self) -> None:
        """From now on the controller hears of it; it is not let in before `enter`."""
        if not self._alone:
            self._beating = self._tasks.spawn("heartbeats", self._beat())

    async def enter(self) -> None:
        """Its logs are open: returns when the controller has let it in and it may serve."""
        self._wants_in = True
        self._beat_now.set()
        if not self._alone:
            await self._let_in.wait()

    async def leave(self, timeout_s: float) -> bool:
        """Has the controller move its leaderships away; False if that was not done in time, or if no
        controller answers."""
        if self._alone or self._beating is None:
            return True
        self._answered_ms = self._clock.monotonic_ms()
        self._wants_out = True
        self._beat_now.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            _log.warning("stops while it leads: no other took over in time", waited_s=timeout_s)
            return False
        if self._unanswered:
            _log.warning("stops without handing over: no controller answers, so no broker can take over")
        return not self._unanswered

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if not self._alone:
            self._lease_until_ms = 0

    @property
    def _presented(self) -> Registration:
        if self._registration is None:
            raise InvariantViolation("a broker without addresses cannot register")
        return self._registration

    # --- heartbeats

    async def _beat(self) -> None:
        while True:
            self._beat_now.clear()
            began_ms = self._clock.monotonic_ms()
            answered = await self._beat_once()
            took_s = (self._clock.monotonic_ms() - began_ms) / 1000
            pause_s = (
                max(self._interval_s - took_s, 0) if answered else self._interval_s / RETRIES_AN_INTERVAL
            )
            if answered and (self._wants_out or (self._wants_in and self.fenced)):
                pause_s /= RETRIES_AN_INTERVAL  # what it waits for may come soon
            try:
                async with asyncio.timeout(pause_s):
                    await self._beat_now.wait()
            except TimeoutError:
                continue

    async def _beat_once(self) -> bool:
        sent_ms = self._clock.monotonic_ms()
        heartbeat = Heartbeat(
            broker_id=self._presented.broker_id,
            broker_epoch=self.broker_epoch,
            image_index=self._metadata.image.index,
            want_fence=not self._wants_in,
            want_stop=self._wants_out,
        )
        try:
            reply = await self._metadata.heartbeat(heartbeat, self._timeout_s)
            if reply.error is ErrorCode.STALE_BROKER_EPOCH:
                self.fenced, self._lease_until_ms = True, 0
                self._replaced(f"another process is registered as this broker: {reply.message}")
                return False
            if reply.error is ErrorCode.BROKER_ID_NOT_REGISTERED:
                await self._register_anew(reply)
                return False
        except MetadataUnavailable as failure:
            self._allow_s(self._timeout_s * 2)
            _log.info("no controller answers", error=str(failure), holds_lease=self.holds_lease())
            if self._wants_out and self._clock.monotonic_ms() - self._answered_ms >= self._stop_ms:
                self._unanswered = True
                self._may_stop.set()
            return False
        except RegistrationRefused as failure:
            _log.error("not registered", error=str(failure))
            return False
        if reply.error is not ErrorCode.NONE:
            _log.warning("the controller refuses heartbeats", error=reply.error.name, why=reply.message)
            return False
        self._answered_ms = self._clock.monotonic_ms()
        self._take(reply, sent_ms)
        return True

    def _allow_s(self, timeout_s: float) -> None:
        most_s = max(2 * self._lease_ms / 1000, ANSWER_TIMEOUT_S)
        self._timeout_s = min(max(timeout_s, ANSWER_TIMEOUT_S), most_s)

    def _take(self, reply: HeartbeatReply, sent_ms: int) -> None:
        was_fenced = self.fenced
        self.fenced = reply.fenced
        self._lease_ms = reply.lease_ms or self._lease_ms
        self._allow_s((self._clock.monotonic_ms() - sent_ms) / 1000 * ANSWER_TIMES)
        self._lease_until_ms = sent_ms + reply.lease_ms if reply.lease_ms else 0
        if self.holds_lease():
            self._let_in.set()
        if reply.may_stop:
            self._may_stop.set()
        if was_fenced != self.fenced:
            _log.info("fenced" if self.fenced else "let in", broker_epoch=self.broker_epoch)

    async def _register_anew(self, reply: HeartbeatReply) -> None:
        """The controller knows it no more."""
        _log.warning("registers again", error=reply.error.name, why=reply.message)
        self.fenced, self._lease_until_ms = True, 0
        await self.register()
