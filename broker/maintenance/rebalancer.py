"""Rebalancer: measures the load of all brokers, and moves leaders and replicas (ADR 0056).

One broker acts, the active one with the lowest id, every auto.rebalance.interval.seconds while
auto.rebalance.enable is on. Any broker plans for `tierlog partition balance --explain` and `--execute`. The
plan is made by `metadata.controller.load_balance`. Nothing moves unless the cluster was healthy before and
after the measurement, all voters take part in the quorum, and no other move is in progress. The controller
refuses a plan if another one has begun since its measurement (`controller.balance_plans`).

Copies are throttled as those of `partition move --throttle`. The quorum keeps which throttle balancing has
set by itself, and the acting broker removes it when these moves are complete, also if another broker has
begun them, and if auto.rebalance.enable is off.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

from tierlog.base.clock import Clock
from tierlog.base.network import Network
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.load_samples import Sample, loads_between, take_sample
from tierlog.broker.replication.dynamic_settings import DynamicSettings
from tierlog.config.node import NodeSettings
from tierlog.metadata.balance_plan import BalancePlan, last_plan, own_throttle
from tierlog.metadata.controller.balance_plans import are_moving
from tierlog.metadata.controller.commands import ElectionKind, ElectLeaders, NamedOutcome, Reassign
from tierlog.metadata.controller.load_balance import (
    Bounds,
    Fault,
    Hold,
    Load,
    LoadPlan,
    Loads,
    faults,
    plan_by_load,
    with_replicas,
)
from tierlog.metadata.controller.throttles import is_throttled
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.quorum.status import NodeStatus

VOTER_SILENT_MS = 10_000
"""A voter that the leader has not heard of for longer counts as down. It answers within milliseconds."""

END_INTERVAL_S = 5.0
"""How often the acting broker looks whether the moves of balancing are complete."""

NO_PLAN = LoadPlan()
_log = structlog.get_logger("tierlog.rebalancer")


class State(StrEnum):
    """State of balancing by itself on a broker. STANDBY: another broker acts."""

    OFF = "off"
    STANDBY = "standby"
    MEASURING = "measuring"
    MOVING = "moving"
    HELD = "held"


class Result(StrEnum):
    """Results of a measurement. EVEN: no move helps."""

    MOVED = "moved"
    EVEN = "even"
    HELD = "held"


class End(StrEnum):
    """Ends of a move. FAILED: refused, cancelled, replaced by another one, or the topic was deleted."""

    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(slots=True)
class Activity:
    """Balancing by itself on this broker, for metrics. `held`: the faults that it found last. `begun`: moves
    by whether they copy a replica. `imbalance`: of the last measurement, empty while another broker acts."""

    state: State = State.OFF
    held: tuple[Fault, ...] = ()
    results: Counter[Result] = field(default_factory=Counter)
    begun: Counter[bool] = field(default_factory=Counter)
    ended: Counter[End] = field(default_factory=Counter)
    imbalance: Mapping[Load, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`faults`: why nothing may be moved; the plan is empty then. `seconds`: length of the measurement.
    `after`: number of the last plan before it."""

    faults: tuple[Fault, ...] = ()
    plan: LoadPlan = NO_PLAN
    loads: Loads | None = None
    seconds: float = 0.0
    after: int = 0


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
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.activity = Activity()
        self.busy = asyncio.Lock()
        """Held while a request of an operator measures or moves."""

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings; auto.rebalance.enable starts or stops the loop."""
        self._settings = settings
        if settings.auto_rebalance_enable == (self._running is not None) or self._network is None:
            return
        if self._running is None:
            self._running = self._tasks.repeat("rebalance", self._turn)
        else:
            self._running.cancel()
            self._running = None
            self._rest(State.OFF)

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Notice a throttle of balancing, which the acting broker must remove: perhaps this one, later."""
        is_ending = self._ending is not None and not self._ending.done()
        if old.configs is not new.configs and not is_ending and own_throttle(new) is not None:
            self._ending = self._tasks.spawn("rebalance end", self._end())

    async def measure(self, seconds: float, bounds: Bounds, *, by_itself: bool = False) -> Report:
        """Measure the loads for so long, and plan. Raises MetadataUnavailable."""
        if self._network is None:
            return Report(faults=(Fault(Hold.BROKER, "this broker is the whole cluster"),))
        metadata, network = self._metadata, self._network
        found = await self._faults(by_itself)
        after = last_plan(metadata.image)
        if found:
            return Report(faults=tuple(found))
        start = await self._sample(metadata.image, network)
        await asyncio.sleep(seconds)
        found = await self._faults(by_itself)
        image = metadata.image
        end = await self._sample(image, network)
        found += (Fault(Hold.LOAD, one) for one in (*start.problems, *end.problems))
        if found:
            return Report(faults=tuple(dict.fromkeys(found)))
        loads = loads_between(start, end)
        plan = await asyncio.to_thread(plan_by_load, image, loads, bounds)  # the image is immutable
        return Report(plan=plan, loads=loads, seconds=(end.at_ms - start.at_ms) / 1000, after=after)

    async def execute(self, report: Report, throttle: int, *, by_itself: bool = False) -> list[NamedOutcome]:
        """Move leaders, which happens at once, and start the copies. `throttle`: bytes a second for each
        broker. All outcomes are errors if another plan has begun since the measurement. Raises
        MetadataUnavailable; copies may have been started then."""
        image = await self._metadata.current()
        plan = BalancePlan(after=report.after, by_itself=by_itself)
        changes = with_replicas(image, report.plan.actions)
        if not changes:
            return []
        command = Reassign(changes=tuple(changes), throttle=throttle, plan=plan)
        outcomes = (await self._metadata.submit(command)).partitions
        begun = {(one.topic, one.partition) for one in outcomes if not one.error}
        leaders = {(one.topic, one.partition) for one in report.plan.actions if not one.copied_bytes}
        if chosen := tuple(sorted(begun & leaders)):
            await self._metadata.submit(ElectLeaders(partitions=chosen, kind=ElectionKind.PREFERRED))
        return list(outcomes)

    # --- the loop of the acting broker

    async def _turn(self) -> None:
        interval_s = self._settings.auto_rebalance_interval_seconds
        if not self._acts():
            self._rest(State.STANDBY)
            await asyncio.sleep(interval_s)
        elif own_throttle(self._metadata.image) is not None:
            self.activity.state, self.activity.held = State.MOVING, ()
            await asyncio.sleep(END_INTERVAL_S)  # `_end` removes it
        else:
            self.activity.state = State.MEASURING
            try:
                why = await self._balance(interval_s)
            except MetadataUnavailable as unavailable:
                why = (Fault(Hold.METADATA, str(unavailable)),)
            self._note_held(why)
            if why:
                await asyncio.sleep(interval_s)

    async def _balance(self, interval_s: float) -> tuple[Fault, ...]:
        """Measure and move once. Returns the faults that prevent it. Raises MetadataUnavailable."""
        settings, activity = self._settings, self.activity
        bounds = Bounds(max_actions=settings.auto_rebalance_max_moves, fills_empty=False)
        report = await self.measure(interval_s, bounds, by_itself=True)
        if report.faults or not self._acts():
            return report.faults
        activity.imbalance = dict(report.plan.imbalance)
        if not report.plan.actions:
            activity.results[Result.EVEN] += 1
            return ()
        throttle = settings.auto_rebalance_max_bytes_per_second
        outcomes = await self.execute(report, throttle, by_itself=True)
        errors = [one for one in outcomes if one.error]
        begun = {(one.topic, one.partition) for one in outcomes if not one.error}
        if not begun:
            return tuple(Fault(Hold.MOVES, one.message or one.error.name) for one in errors[:1])
        activity.ended[End.FAILED] += len(errors)
        started = [one for one in report.plan.actions if (one.topic, one.partition) in begun]
        activity.results[Result.MOVED] += 1
        activity.begun.update(bool(one.copied_bytes) for one in started)
        activity.ended[End.COMPLETED] += sum(not one.copied_bytes for one in started)
        reasons = [f"{one.topic}-{one.partition}: {one.reason}" for one in started]
        _log.info("rebalance.started", partitions=len(started), why=reasons)
        return ()

    def _acts(self) -> bool:
        brokers = self._metadata.image.brokers
        active = [one for one, broker in brokers.items() if broker.may_lead]
        return min(active, default=-1) == self._settings.node_id

    def _rest(self, state: State) -> None:
        self.activity.state, self.activity.held, self.activity.imbalance = state, (), {}

    def _note_held(self, why: tuple[Fault, ...]) -> None:
        activity = self.activity
        if why and why != activity.held:
            _log.info("rebalance.held", why=[one.text for one in why])
        activity.held = why
        if why:
            activity.state = State.HELD
            activity.results[Result.HELD] += 1

    async def _end(self) -> None:
        """Wait until the moves of balancing are complete, and remove their throttle, if this broker acts."""
        while (throttle := own_throttle(self._metadata.image)) is not None:
            with suppress(MetadataUnavailable):
                if self._acts() and not are_moving(self._metadata.image, throttle.moves):
                    await self._remove_throttle()
                    continue
            await asyncio.sleep(END_INTERVAL_S)

    async def _remove_throttle(self) -> None:
        plan = BalancePlan(after=last_plan(self._metadata.image), ends=True)
        outcomes = (await self._metadata.submit(Reassign(changes=(), plan=plan))).partitions
        ends = Counter(End.FAILED if one.error else End.COMPLETED for one in outcomes)
        if outcomes:
            self.activity.ended += ends
            _log.info("rebalance.ended", completed=ends[End.COMPLETED], failed=ends[End.FAILED])
        else:
            await asyncio.sleep(END_INTERVAL_S)  # moves that are not seen here yet, or a topic refuses it

    # --- measurements

    async def _sample(self, image: ClusterImage, network: Network) -> Sample:
        return await take_sample(image, network, self._clock.monotonic_ms())

    async def _faults(self, by_itself: bool) -> list[Fault]:
        image = await self._metadata.current()
        found = await asyncio.to_thread(faults, image)
        if by_itself and is_throttled(image):
            what = "a replication throttle is set: `tierlog partition unthrottle` removes it"
            found.append(Fault(Hold.THROTTLE, what))
        voters = silent_voters(await self._metadata.quorum())
        return [*found, *(Fault(Hold.VOTER, one) for one in voters)]


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
    parts: AsyncExitStack,
) -> Rebalancer:
    """The rebalancer of a broker, whose loop follows its settings and ends with `tasks`. `parts`: closed
    before them."""
    rebalancer = Rebalancer(settings.now, metadata, clock, tasks, network)
    settings.listeners.append(rebalancer.configure)
    rebalancer.configure(settings.now)
    parts.callback(metadata.publish_to((Publisher("rebalancer", rebalancer.follow),)))
    return rebalancer
