"""Broker lifecycle on virtual time: registration, heartbeats, lease and controlled shutdown."""

import asyncio
import itertools
import math
import random
import uuid

import pytest
from simulator.clock import SimClock
from simulator.loop import SimLoop

from tierlog.base.tasks import TaskGroup
from tierlog.broker.lifecycle import (
    SHUTDOWN_SESSIONS,
    BrokerLifecycle,
    RegistrationRefused,
)
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

LEASE_MS = 2700
BROKER = c.RegisterBroker(
    broker_id=1,
    incarnation=uuid.UUID(int=1),
    host="h",
    port=1,
    admin_url="",
    rack=None,
    may_have_lost=False,
)


class Controller:
    """The metadata of a lifecycle: unfences every broker, and records the times of its heartbeats."""

    image = ClusterImage(cluster_id="c")

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.heard: list[tuple[int, c.Heartbeat]] = []
        self.leaderships = 0  # led by the broker; one less with each heartbeat during controlled shutdown
        self.response_time_s = 0.0
        self.session_until_ms = 0  # session of another process of the broker

    def subscribe(self, subscriber: object) -> None:
        raise NotImplementedError

    async def submit(self, command: object, timeout_s: float = 30.0) -> c.BrokerRegistered:
        if self.clock.monotonic_ms() < self.session_until_ms:
            return c.BrokerRegistered(error=ErrorCode.DUPLICATE_BROKER_REGISTRATION, message="taken")
        return c.BrokerRegistered(broker_epoch=7)

    async def heartbeat(self, beat: c.Heartbeat, timeout_s: float = 2.0) -> c.HeartbeatReply:
        self.heard.append((self.clock.monotonic_ms(), beat))
        await reach(self.heard[-1][0] + int(min(self.response_time_s, timeout_s) * 1000))
        if self.response_time_s > timeout_s / 2:  # two tries
            raise MetadataUnavailable("no answer in time", applied_unknown=False)
        if beat.want_stop:
            self.leaderships -= 1
        return c.HeartbeatReply(
            fenced=beat.want_fence, may_stop=beat.want_stop and self.leaderships <= 0, lease_ms=LEASE_MS
        )

    async def quorum(self, timeout_s: float = 30.0) -> None:
        raise NotImplementedError


class Harness:
    def __init__(self, interval_ms: int, session_ms: int = 3000) -> None:
        self.loop = SimLoop(random.Random(1))
        self.clock = SimClock(self.loop)
        self.controller = Controller(self.clock)
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        self.lifecycle = BrokerLifecycle(
            self.controller,  # type: ignore[arg-type]
            self.clock,
            self.tasks,
            interval_ms=interval_ms,
            session_ms=session_ms,
            standalone=False,
        )

    async def enter(self) -> None:
        await self.lifecycle.register(BROKER)
        self.lifecycle.start(BROKER)
        await self.lifecycle.unfence()


@pytest.mark.parametrize(
    ("session_ms", "taken_ms", "gives_up"),
    [(3000, 3000, False), (3000, 120_000, True), (100_000, 120_000, False), (100_000, 300_000, True)],
)
def test_registration_waits_for_the_session_of_the_previous_process(
    session_ms: int, taken_ms: int, gives_up: bool
) -> None:
    """Even longer than a session: after all nodes were killed, a new controller gives each a full session."""
    harness = Harness(500, session_ms)
    harness.controller.session_until_ms = taken_ms

    async def main() -> None:
        if gives_up:
            with pytest.raises(RegistrationRefused, match="taken"):
                await harness.enter()
        else:
            await harness.enter()
            assert harness.lifecycle.holds_lease()
        await harness.tasks.close()

    harness.loop.run_for(main())


async def reach(at_ms: int) -> None:
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_at(at_ms / 1000, reached.set_result, None)
    await reached


@pytest.mark.parametrize("interval_ms", [50, 500, 2000])
def test_heartbeat_is_sent_each_interval(interval_ms: int) -> None:
    harness = Harness(interval_ms)

    async def main() -> None:
        await harness.enter()
        await reach(20_000)
        assert harness.lifecycle.holds_lease()
        await harness.lifecycle.stop()
        assert not harness.lifecycle.holds_lease()

    harness.loop.run_for(main())
    times = [at for at, beat in harness.controller.heard if not beat.want_fence]
    gaps = {after - before for before, after in itertools.pairwise(times)}
    assert gaps and max(gaps) - interval_ms <= 1 and min(gaps) >= interval_ms - 1
    assert harness.failures == []


def test_lease_is_kept_when_heartbeat_responses_are_late() -> None:
    harness = Harness(500)

    async def main() -> list[bool]:
        await harness.enter()
        harness.controller.response_time_s = 1.3  # longer than it waits for at first
        await reach(10_000)
        held = []
        for at_ms in range(10_000, 20_000, 50):
            await reach(at_ms)
            held.append(harness.lifecycle.holds_lease())
        await harness.lifecycle.stop()
        return held

    assert all(harness.loop.run_for(main()))


def test_controlled_shutdown_continues_until_the_broker_leads_no_partition() -> None:
    harness = Harness(500)
    harness.controller.leaderships = 3

    async def main() -> bool:
        await harness.enter()
        left = await harness.lifecycle.controlled_shutdown(10)
        await harness.lifecycle.stop()
        return left

    assert harness.loop.run_for(main())
    assert sum(beat.want_stop for _, beat in harness.controller.heard) == 3


def test_controlled_shutdown_ends_if_no_controller_responds() -> None:
    """The last node of a cluster to stop: no other broker can lead."""
    harness = Harness(500, session_ms=3000)

    async def main() -> bool:
        await harness.enter()
        harness.controller.response_time_s = math.inf
        began_ms = harness.clock.monotonic_ms()
        left = await harness.lifecycle.controlled_shutdown(3600)
        await harness.lifecycle.stop()
        assert harness.clock.monotonic_ms() - began_ms <= 2 * SHUTDOWN_SESSIONS * 3000, "of virtual time"
        return left

    assert not harness.loop.run_for(main())


def test_controlled_shutdown_waits_for_a_new_controller() -> None:
    """The new controller gives each broker a full session."""
    harness = Harness(500, session_ms=3000)
    harness.controller.leaderships = 12

    async def main() -> bool:
        await harness.enter()
        harness.controller.response_time_s = math.inf
        asyncio.get_running_loop().call_later(4, setattr, harness.controller, "response_time_s", 0.0)
        left = await harness.lifecycle.controlled_shutdown(3600)
        await harness.lifecycle.stop()
        return left

    assert harness.loop.run_for(main())


def test_controlled_shutdown_ends_in_time_if_no_other_leader_is_elected() -> None:
    harness = Harness(500)
    harness.controller.leaderships = 1_000_000

    async def main() -> bool:
        await harness.enter()
        left = await harness.lifecycle.controlled_shutdown(10)
        await harness.lifecycle.stop()
        return left

    assert not harness.loop.run_for(main())
