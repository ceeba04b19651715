"""Broker lifecycle: registration, heartbeats, the lease and controlled shutdown, as in Kafka's
BrokerLifecycleManager.

A broker registers fenced, opens its logs and asks to be unfenced. From then on heartbeats keep its session.
Each reply to an unfenced broker grants a lease: the broker serves for `lease_ms` from the moment it sent the
heartbeat. The lease ends before the controller elects other leaders. A broker that stops hands its
leaderships over first. A standalone broker needs none of this, since no other broker could lead.
"""

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller.commands import (
    Heartbeat,
    HeartbeatReply,
    RegisterBroker,
)
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

REGISTER_TIMEOUT_S = 60.0
"""How long registration waits for a quorum, which may be starting too (Kafka:
initial.broker.registration.timeout.ms)."""

REGISTER_SESSIONS = 2
"""Registration waits until the session of the broker's previous process has ended, and a new controller
starts that session again. It waits for this many sessions, or REGISTER_TIMEOUT_S if that is longer."""

SHUTDOWN_SESSIONS = 2
"""Controlled shutdown gives up after this many sessions without an answer from a controller. By then there is
no quorum, or its controller has fenced this broker; a new controller starts its session again first."""

INITIAL_HEARTBEAT_TIMEOUT_S = 2.0
HEARTBEAT_TIMEOUT_FACTOR = 4
INITIAL_LEASE_MS = 4_000
"""The heartbeat timeout adapts: HEARTBEAT_TIMEOUT_FACTOR times the last round trip, doubled after a timeout,
and at most two leases, for two tries. A short fixed timeout would starve an overloaded broker: the controller
receives its heartbeats and does not fence it, but the broker never sees a reply and never holds a lease."""

RETRIES_PER_INTERVAL = 4
"""A failed heartbeat is repeated after the interval divided by this."""

NO_LEASE_NEEDED_MS = 1 << 62
_log = structlog.get_logger("tierlog.lifecycle")


class RegistrationRefused(Exception):
    """The controller rejects this broker; its configuration must change."""


class BrokerLifecycle:
    def __init__(
        self,
        metadata: MetadataClient,
        clock: Clock,
        tasks: TaskGroup,
        *,
        interval_ms: int,
        session_ms: int,
        standalone: bool,
        on_replaced: Callable[[str], None] = lambda why: None,
        on_registered: Callable[[int], None] = lambda broker_epoch: None,
    ) -> None:
        """`session_ms`: broker.session.timeout.ms. `standalone`: this process is the whole quorum.
        `on_replaced`: another process has registered as this broker, so this one must stop.
        `on_registered`: called with each new broker epoch, before the broker asks to be unfenced.
        """
        self.broker_epoch = -1
        self.fenced = True
        self._metadata = metadata
        self._clock = clock
        self._tasks = tasks
        self._interval_s = interval_ms / 1000
        self._register_ms = max(int(REGISTER_TIMEOUT_S * 1000), REGISTER_SESSIONS * session_ms)
        self._shutdown_ms = SHUTDOWN_SESSIONS * session_ms
        self._last_reply_ms = 0  # or the start of controlled shutdown
        self._no_controller = False  # controlled shutdown got no answers
        self._timeout_s = INITIAL_HEARTBEAT_TIMEOUT_S
        self._lease_ms = INITIAL_LEASE_MS  # the last one's length
        self._standalone = standalone
        self._on_replaced, self._on_registered = on_replaced, on_registered
        self._lease_until_ms = NO_LEASE_NEEDED_MS if standalone else 0
        self._wants_unfence = False
        self._wants_shutdown = False
        self._heartbeat_now = asyncio.Event()
        self._may_stop = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None

    @safeguard("a broker serves only while it holds a lease")
    def holds_lease(self) -> bool:
        """Whether the broker may serve now."""
        return self._clock.monotonic_ms() < self._lease_until_ms

    async def register(self, registration: RegisterBroker) -> None:
        """Register; wait while another process of this broker has a valid session. A broker that is not
        standalone starts fenced. Raises RegistrationRefused, MetadataUnavailable."""
        registration = replace(registration, start_fenced=not self._standalone)
        deadline_ms = self._clock.monotonic_ms() + self._register_ms
        reply = await self._metadata.submit(registration, REGISTER_TIMEOUT_S)
        if reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            _log.warning("broker.registration.waiting", why=reply.message)
        while reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            if self._clock.monotonic_ms() >= deadline_ms:
                break
            await asyncio.sleep(self._interval_s / RETRIES_PER_INTERVAL)
            reply = await self._metadata.submit(registration, REGISTER_TIMEOUT_S)
        if reply.error is not ErrorCode.NONE:
            raise RegistrationRefused(
                f"the controller rejected this broker's registration: {reply.message or reply.error.name}"
            )
        if reply.message is not None:
            _log.warning("broker.left_isr", why=reply.message)
        self.broker_epoch = reply.broker_epoch
        self.fenced = not self._standalone
        self._on_registered(reply.broker_epoch)

    def start(self, registration: RegisterBroker) -> None:
        """Start to send heartbeats; the broker stays fenced until `unfence`. `registration` is repeated if
        the controller no longer knows the broker."""
        if not self._standalone:
            self._heartbeats = self._tasks.spawn("heartbeats", self._send_heartbeats(registration))

    async def unfence(self) -> None:
        """Ask to be unfenced, since the logs are open. Returns when the broker may serve."""
        self._wants_unfence = True
        self._heartbeat_now.set()
        if not self._standalone:
            await self._unfenced.wait()

    async def controlled_shutdown(self, timeout_s: float) -> bool:
        """Have the controller move leaderships to other brokers. Returns False if it did not do so in time
        or no controller answers."""
        if self._standalone or self._heartbeats is None:
            return True
        self._last_reply_ms = self._clock.monotonic_ms()
        self._wants_shutdown = True
        self._heartbeat_now.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            _log.warning("broker.stopping.leading", waited_s=timeout_s)
            return False
        if self._no_controller:
            _log.warning("broker.stopping.unheard")
        return not self._no_controller

    async def stop(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if not self._standalone:
            self._lease_until_ms = 0

    # --- heartbeats

    async def _send_heartbeats(self, registration: RegisterBroker) -> None:
        while True:
            self._heartbeat_now.clear()
            began_ms = self._clock.monotonic_ms()
            acknowledged = await self._heartbeat(registration)
            took_s = (self._clock.monotonic_ms() - began_ms) / 1000
            pause_s = (
                max(self._interval_s - took_s, 0) if acknowledged else self._interval_s / RETRIES_PER_INTERVAL
            )
            if acknowledged and (self._wants_shutdown or (self._wants_unfence and self.fenced)):
                pause_s /= RETRIES_PER_INTERVAL  # the controller may allow it soon
            try:
                async with asyncio.timeout(pause_s):
                    await self._heartbeat_now.wait()
            except TimeoutError:
                continue

    async def _heartbeat(self, registration: RegisterBroker) -> bool:
        """Send one heartbeat. Returns False if it failed."""
        sent_ms = self._clock.monotonic_ms()
        heartbeat = Heartbeat(
            broker_id=registration.broker_id,
            broker_epoch=self.broker_epoch,
            image_index=self._metadata.image.index,
            want_fence=not self._wants_unfence,
            want_stop=self._wants_shutdown,
        )
        try:
            reply = await self._metadata.heartbeat(heartbeat, self._timeout_s)
            if reply.error is ErrorCode.STALE_BROKER_EPOCH:
                self.fenced, self._lease_until_ms = True, 0
                self._on_replaced(f"another process is registered as this broker: {reply.message}")
                return False
            if reply.error is ErrorCode.BROKER_ID_NOT_REGISTERED:
                await self._register_again(registration, reply)
                return False
        except MetadataUnavailable as failure:
            self._set_timeout(self._timeout_s * 2)
            _log.info("broker.heartbeat.unanswered", error=str(failure), holds_lease=self.holds_lease())
            waited_ms = self._clock.monotonic_ms() - self._last_reply_ms
            if self._wants_shutdown and waited_ms >= self._shutdown_ms:
                self._no_controller = True
                self._may_stop.set()
            return False
        except RegistrationRefused as failure:
            _log.error("broker.registration.failed", error=str(failure))
            return False
        if reply.error is not ErrorCode.NONE:
            _log.warning("broker.heartbeat.rejected", error=reply.error.name, why=reply.message)
            return False
        self._last_reply_ms = self._clock.monotonic_ms()
        self._apply(reply, sent_ms)
        return True

    def _set_timeout(self, timeout_s: float) -> None:
        most_s = max(2 * self._lease_ms / 1000, INITIAL_HEARTBEAT_TIMEOUT_S)
        self._timeout_s = min(max(timeout_s, INITIAL_HEARTBEAT_TIMEOUT_S), most_s)

    @safeguard("a lease starts when its heartbeat is sent")
    def _apply(self, reply: HeartbeatReply, sent_ms: int) -> None:
        was_fenced = self.fenced
        self.fenced = reply.fenced
        self._lease_ms = reply.lease_ms or self._lease_ms
        round_trip_s = (self._clock.monotonic_ms() - sent_ms) / 1000
        self._set_timeout(round_trip_s * HEARTBEAT_TIMEOUT_FACTOR)
        self._lease_until_ms = sent_ms + reply.lease_ms if reply.lease_ms else 0
        if self.holds_lease():
            self._unfenced.set()
        if reply.may_stop:
            self._may_stop.set()
        if was_fenced != self.fenced:
            _log.info("broker.fenced" if self.fenced else "broker.unfenced", broker_epoch=self.broker_epoch)

    async def _register_again(self, registration: RegisterBroker, reply: HeartbeatReply) -> None:
        """The controller no longer knows this broker."""
        _log.warning("broker.registration.repeated", error=reply.error.name, why=reply.message)
        self.fenced, self._lease_until_ms = True, 0
        await self.register(registration)
