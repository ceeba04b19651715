"""Rebalancer: measures the load of all brokers, and moves leaders and replicas (ADR 0056).

One broker acts, the active one with the lowest id, every auto.rebalance.interval.seconds while
auto.rebalance.enable is on. Any broker plans for `tierlog partition balance --explain` and `--execute`. The
plan is made by `metadata.controller.load_balance`. Nothing moves unless the cluster was healthy before and
after the measurement, all voters take part in the quorum, and no other move is in progress. One plan is
therefore executed at a time. Copies are throttled as those of `partition move --throttle`. The acting broker
removes the throttle once no partition is being moved, also after auto.rebalance.enable was turned off.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from tierlog.base.clock import Clock
from tierlog.base.network import Network
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.load_samples import Sample, loads_between, take_sample
from tierlog.broker.replication.dynamic_settings import DynamicSettings
from tierlog.config.dynamic import REPLICATION_RATES
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.commands import ElectionKind, ElectLeaders, NamedOutcome, Reassign
from tierlog.metadata.controller.load_balance import (
    Action,
    Bounds,
    LoadPlan,
    Loads,
    faults,
    plan_by_load,
    with_replicas,
)
from tierlog.metadata.controller.throttles import unthrottle
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode

VOTER_SILENT_MS = 10_000
"""A voter that the leader has not heard of for longer counts as down. It answers within milliseconds."""

END_INTERVAL_S = 5.0
"""How often a loop that was turned off looks whether its moves are complete."""

NO_PLAN = LoadPlan()
_log = structlog.get_logger("tierlog.rebalancer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`faults`: why nothing may be moved; the plan is empty then. `seconds`: length of the measurement."""

    faults: tuple[str, ...] = ()
    plan: LoadPlan = NO_PLAN
    loads: Loads | None = None
    seconds: float = 0.0


class Rebalancer:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        clock: Clock,
        tasks: TaskGroup,
        network: Network | None,
    ) -> None:
        """`network`: None for a broker that is the whole cluster."""
        self._settings, self._metadata, self._clock = settings, metadata, clock
        self._tasks, self._network = tasks, network
        self._is_on = False
        self._running: asyncio.Task[None] | None = None
        self._throttles: set[int] = set()  # rates of moves that the loop has begun
        self._held: tuple[str, ...] = ()  # the faults that were logged last
        self.busy = asyncio.Lock()
        """Held while a request of an operator measures or moves."""

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings; auto.rebalance.enable starts or stops the loop."""
        self._settings = settings
        if settings.auto_rebalance_enable == self._is_on or self._network is None:
            return
        self._is_on = settings.auto_rebalance_enable
        if self._running is not None:
            self._running.cancel()
        self._running = (
            self._tasks.repeat("rebalance", self._turn)
            if self._is_on
            else self._tasks.spawn("rebalance end", self._end())
        )

    async def measure(self, seconds: float, bounds: Bounds) -> Report:
        """Measure the loads for so long, and plan. Raises MetadataUnavailable."""
        if self._network is None:
            return Report(faults=("this broker is the whole cluster",))
        metadata, network = self._metadata, self._network
        found = await self._faults()
        if found:
            return Report(faults=tuple(found))
        before = await self._sample(metadata.image, network)
        await asyncio.sleep(seconds)
        found = await self._faults()
        image = metadata.image
        after = await self._sample(image, network)
        found += [*before.problems, *after.problems]
        if found:
            return Report(faults=tuple(dict.fromkeys(found)))
        loads = loads_between(before, after)
        plan = await asyncio.to_thread(plan_by_load, image, loads, bounds)  # the image is immutable
        return Report(plan=plan, loads=loads, seconds=(after.at_ms - before.at_ms) / 1000)

    async def execute(self, actions: Sequence[Action], throttle: int) -> list[NamedOutcome]:
        """Move leaders, which happens at once, and start the copies. `throttle`: bytes a second for each
        broker. Raises MetadataUnavailable; copies may have been started then."""
        metadata = self._metadata
        image = await metadata.current()
        if has_moves(image):
            return []
        outcomes: list[NamedOutcome] = []
        handovers = with_replicas(image, [one for one in actions if not one.copied_bytes])
        if handovers:
            outcomes += (await metadata.submit(Reassign(changes=tuple(handovers)))).partitions
            chosen = tuple((topic, number) for topic, number, _ in handovers)
            await metadata.submit(ElectLeaders(partitions=chosen, kind=ElectionKind.PREFERRED))
        copies = with_replicas(image, [one for one in actions if one.copied_bytes])
        if copies:
            command = Reassign(changes=tuple(copies), throttle=throttle)
            outcomes += (await metadata.submit(command)).partitions
        return outcomes

    # --- the loop of the acting broker

    async def _turn(self) -> None:
        settings = self._settings
        interval_s = settings.auto_rebalance_interval_seconds
        throttle = settings.auto_rebalance_max_bytes_per_second
        bounds = Bounds(max_actions=settings.auto_rebalance_max_moves, fills_empty=False)
        try:
            if self._acts() or self._throttles:
                await self._remove_throttle()
            if not self._acts():
                await asyncio.sleep(interval_s)
                return
            report = await self.measure(interval_s, bounds)
            if report.faults:
                self._log_held(report.faults)
                await asyncio.sleep(interval_s)
            elif self._acts() and report.plan.actions:
                self._throttles.add(throttle)
                outcomes = await self.execute(report.plan.actions, throttle)
                self._held = ()
                started = sum(one.error is ErrorCode.NONE for one in outcomes)
                reasons = [f"{one.topic}-{one.partition}: {one.reason}" for one in report.plan.actions]
                if outcomes:  # none if other moves have begun
                    _log.info("rebalance.started", partitions=started, why=reasons)
        except MetadataUnavailable as unavailable:
            self._log_held((str(unavailable),))
            await asyncio.sleep(interval_s)

    def _acts(self) -> bool:
        brokers = self._metadata.image.brokers
        active = [one for one, broker in brokers.items() if broker.may_lead]
        return min(active, default=-1) == self._settings.node_id

    def _log_held(self, why: tuple[str, ...]) -> None:
        if why != self._held:
            self._held = why
            _log.info("rebalance.held", why=list(why))

    async def _end(self) -> None:
        """Wait until the moves that the loop has begun are complete, and remove their throttle."""
        while self._throttles:
            await asyncio.sleep(END_INTERVAL_S)  # a command that was cancelled may still be committed
            with suppress(MetadataUnavailable):
                await self._remove_throttle()

    async def _remove_throttle(self) -> None:
        """Remove the throttle of moves that have ended. That of another broker's moves is known by its rate,
        the one in the settings."""
        image = await self._metadata.current()
        if has_moves(image):
            return
        rates = {
            text
            for (scope, _), overrides in image.configs.items()
            if scope is ConfigScope.BROKER
            for name, text in overrides.items()
            if name in REPLICATION_RATES
        }
        own = {str(one) for one in (*self._throttles, self._settings.auto_rebalance_max_bytes_per_second)}
        if rates and rates <= own:
            await self._metadata.submit(unthrottle(image, None))
        self._throttles.clear()

    # --- measurements

    async def _sample(self, image: ClusterImage, network: Network) -> Sample:
        return await take_sample(image, network, self._clock.monotonic_ms())

    async def _faults(self) -> list[str]:
        image = await self._metadata.current()
        found = await asyncio.to_thread(faults, image)
        return [*found, *silent_voters(await self._metadata.quorum())]


def has_moves(image: ClusterImage) -> bool:
    return any(one.is_reassigned for topic in image.topics.values() for one in topic.partitions)


def silent_voters(status: NodeStatus) -> list[str]:
    """Voters that do not follow the leader, from whose view this is."""
    voters = {one.node_id: one.last_heard_ms for one in status.members if one.voter}
    now_ms = voters.get(status.node_id) or 0
    return [
        f"voter {one} does not follow the quorum"
        for one, heard_ms in sorted(voters.items())
        if heard_ms is None or now_ms - heard_ms > VOTER_SILENT_MS
    ]


def start_rebalancer(
    settings: DynamicSettings,
    metadata: MetadataClient,
    clock: Clock,
    tasks: TaskGroup,
    network: Network | None,
) -> Rebalancer:
    """The rebalancer of a broker, whose loop follows its settings and ends with `tasks`."""
    rebalancer = Rebalancer(settings.now, metadata, clock, tasks, network)
    settings.listeners.append(rebalancer.configure)
    rebalancer.configure(settings.now)
    return rebalancer
