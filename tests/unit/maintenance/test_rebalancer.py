"""Rebalancer with a controller and scripted brokers: which broker acts, what holds it, and how it moves."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from connection_harness import until
from inline_controller import InlineController
from manual_clock import ManualClock

from tierlog.base.network import Unreachable
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance import rebalancer as module
from tierlog.broker.maintenance.load_samples import EARLIEST_LOCAL
from tierlog.broker.maintenance.rebalancer import End, Rebalancer, Result, State
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.commands import Reassign
from tierlog.metadata.controller.load_balance import Bounds, Fault, Hold, Load
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.messages import describe_log_dirs as dirs
from tierlog.protocol.messages import list_offsets as offsets

GIB = 1 << 30
PARTITIONS = 6
BOUNDS = Bounds(max_actions=2)


class Controller(InlineController):
    """A controller whose quorum has no silent voters."""

    async def quorum(self, timeout_s: float = 30.0) -> Any:
        return type("Status", (), {"members": (), "node_id": 1})()


class Broker:
    """A connection to a scripted broker: replicas of 1 GiB, and logs that grow between two samples."""

    is_open = True

    def __init__(self, brokers: "Brokers", broker_id: int) -> None:
        self._brokers, self._id = brokers, broker_id

    async def call(self, api_key: int, version: int, request: Any, timeout_s: float) -> Any:
        if isinstance(request, dirs.DescribeLogDirsRequest):
            self._brokers.described += 1
            self._brokers.on_described(self._brokers.described)
            parts = [
                dirs.DescribeLogDirsPartition(partition_index=at, partition_size=GIB, offset_lag=0)
                for at, one in enumerate(self._brokers.controller.image.topic("t").partitions)
                if self._id in one.replicas
            ]
            topics = [dirs.DescribeLogDirsTopic(name="t", partitions=parts)]
            result = dirs.DescribeLogDirsResult(
                log_dir="/d", topics=topics, total_bytes=100 * GIB, usable_bytes=90 * GIB
            )
            return dirs.DescribeLogDirsResponse(results=[result])
        is_start = request.topics and request.topics[0].partitions[0].timestamp == EARLIEST_LOCAL
        found = [
            offsets.ListOffsetsPartitionResponse(
                partition_index=one.partition_index, offset=0 if is_start else self._brokers.described * 1000
            )
            for topic in request.topics
            for one in topic.partitions
        ]
        return offsets.ListOffsetsResponse(
            topics=[offsets.ListOffsetsTopicResponse(name="t", partitions=found)]
        )

    def close(self) -> None:
        pass


class Brokers:
    def __init__(self, controller: InlineController) -> None:
        self.controller = controller
        self.described = 0
        self.dead: set[int] = set()
        self.on_described: Callable[[int], None] = lambda count: None

    async def connect(self, peer: Any, client_id: str) -> Any:
        if peer.broker_id in self.dead:
            raise Unreachable("refused")
        return Broker(self, peer.broker_id)


@pytest.fixture
def controller() -> InlineController:
    controller = Controller(1, 2, 3)
    assignment = tuple((1, 2) for _ in range(PARTITIONS))
    controller.create("t", *assignment)
    return controller


@pytest.fixture
def brokers(controller: InlineController) -> Brokers:
    return Brokers(controller)


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    tasks = TaskGroup(lambda name, failure: pytest.fail(f"{name}: {failure!r}"))
    yield tasks
    await tasks.close()


def rebalancer(brokers: Brokers, tasks: TaskGroup, node_id: int = 1) -> Rebalancer:
    settings = NodeSettings(node_id=node_id, auto_rebalance_interval_seconds=0)
    one = Rebalancer(settings, brokers.controller, ManualClock(), tasks, brokers)
    brokers.controller.publish_to((Publisher("rebalancer", one.follow),))
    return one


async def test_measured_plan_is_executed_with_a_throttle(brokers: Brokers, tasks: TaskGroup) -> None:
    one = rebalancer(brokers, tasks)
    report = await one.measure(0, BOUNDS)
    assert report.faults == () and len(report.plan.actions) == 2
    outcomes = await one.execute(report, 1000)
    assert all(not outcome.error for outcome in outcomes)
    image = brokers.controller.image
    assert image.overrides(ConfigScope.BROKER, "3")["follower.replication.throttled.rate"] == "1000"
    again = await one.measure(0, BOUNDS)
    assert any("being moved" in fault.text for fault in again.faults) and not again.plan.actions


async def test_two_brokers_that_measure_at_once_move_no_more_than_one_plan(
    brokers: Brokers, tasks: TaskGroup
) -> None:
    first, second = rebalancer(brokers, tasks, 1), rebalancer(brokers, tasks, 2)
    plans = [await one.measure(0, BOUNDS) for one in (first, second)]
    other = dataclasses.replace(plans[1].plan.actions[0], partition=PARTITIONS - 1)
    plan = dataclasses.replace(plans[1].plan, actions=(other,))
    assert all(not one.error for one in await first.execute(plans[0], 1000))
    [refused] = await second.execute(dataclasses.replace(plans[1], plan=plan), 1000)
    assert "another plan has begun" in (refused.message or "")
    assert len(moving(brokers.controller)) <= BOUNDS.max_actions


async def test_fault_during_the_measurement_holds_the_plan(brokers: Brokers, tasks: TaskGroup) -> None:
    def fence(count: int) -> None:
        if count == 3:
            brokers.controller.fence(3)

    brokers.on_described = fence
    report = await rebalancer(brokers, tasks).measure(0, BOUNDS)
    assert Fault(Hold.BROKER, "broker 3 is fenced") in report.faults and not report.plan.actions


async def test_broker_that_does_not_respond_holds_the_plan(brokers: Brokers, tasks: TaskGroup) -> None:
    brokers.dead.add(2)
    report = await rebalancer(brokers, tasks).measure(0, BOUNDS)
    assert report.faults == (Fault(Hold.LOAD, "the load of broker 2 cannot be read: refused"),)


async def test_loop_acts_on_the_active_broker_with_the_lowest_id_alone(
    brokers: Brokers, tasks: TaskGroup
) -> None:
    is_measured = asyncio.Event()
    brokers.on_described = lambda count: is_measured.set()
    second = rebalancer(brokers, tasks, 2)
    second.configure(loop_of(2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not is_measured.is_set() and second.activity.state is State.STANDBY
    second.configure(NodeSettings(node_id=2))
    assert second.activity.state is State.OFF
    first = rebalancer(brokers, tasks, 1)
    first.configure(loop_of(1))
    await is_measured.wait()
    topic = lambda: brokers.controller.image.topic("t").partitions  # noqa: E731
    await until(lambda: any(one.replicas == (2, 1) for one in topic()))
    assert all(3 not in one.replicas for one in topic()), "broker 3 is empty: it may have been drained"
    await until(lambda: first.activity.results[Result.EVEN] > 0)
    moves = first.activity
    assert moves.begun[False] == moves.ended[End.COMPLETED] == 3 and not moves.begun[True]
    assert moves.imbalance[Load.LED] < 0.1, "three of six leaders have moved"


async def test_reason_that_holds_the_loop_is_shown_until_it_ends(brokers: Brokers, tasks: TaskGroup) -> None:
    brokers.controller.fence(3)
    one = rebalancer(brokers, tasks)
    one.configure(loop_of(1))
    await until(lambda: one.activity.state is State.HELD)
    assert one.activity.held == (Fault(Hold.BROKER, "broker 3 is fenced"),)
    brokers.controller.fence(3, fenced=False)
    await until(lambda: one.activity.results[Result.MOVED] > 0 and not one.activity.held)


@pytest.mark.parametrize(
    "changed", [{"auto_rebalance_enable": False}, {"auto_rebalance_max_bytes_per_second": 7}]
)
async def test_throttle_is_removed_after_the_moves_although_settings_have_changed(
    tasks: TaskGroup, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "END_INTERVAL_S", 0)
    controller = Controller(1, 2, 3)
    controller.create("t", *[(1, 2)] * PARTITIONS, (3, 1))  # the loop fills no empty broker
    one = rebalancer(Brokers(controller), tasks)
    one.configure(loop_of(1))
    await until(lambda: bool(moving(controller)))
    assert throttled(controller)
    one.activity.held = (Fault(Hold.MOVES, "from an earlier look"),)
    await until(lambda: one.activity.state is State.MOVING and not one.activity.held)
    one.configure(dataclasses.replace(loop_of(1), **changed))
    cancelled = moving(controller)
    cancel_moves(controller)
    await until(lambda: one.activity.ended[End.FAILED] == len(cancelled))
    one.configure(NodeSettings(node_id=1))
    cancel_moves(controller)
    await until(lambda: not throttled(controller))


async def test_throttle_is_removed_by_another_broker_after_a_restart(
    tasks: TaskGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balancing is off by then. Broker 1 is down, and broker 2 has just started."""
    monkeypatch.setattr(module, "END_INTERVAL_S", 0)
    controller = Controller(1, 2, 3)
    controller.create("t", *[(1, 2)] * PARTITIONS, (3, 1))
    at_first = TaskGroup(lambda name, failure: None)
    rebalancer(Brokers(controller), at_first).configure(loop_of(1))
    await until(lambda: bool(moving(controller)))
    await at_first.close()
    rebalancer(Brokers(controller), tasks, 3)
    second = rebalancer(Brokers(controller), tasks, 2)
    cancel_moves(controller)
    for _ in range(20):
        await asyncio.sleep(0)
    assert throttled(controller), "broker 1 is the one that acts"
    controller.fence(1)
    await until(lambda: not throttled(controller))
    assert second.activity.ended[End.FAILED] > 0 and second.activity.state is State.OFF


def cancel_moves(controller: InlineController) -> None:
    controller.do(Reassign(changes=tuple((name, number, None) for name, number in moving(controller))))


def moving(controller: InlineController) -> list[tuple[str, int]]:
    topics = controller.image.topics.values()
    return [(one.name, at) for one in topics for at, part in enumerate(one.partitions) if part.is_reassigned]


def throttled(controller: InlineController) -> bool:
    return any("throttled" in name for configs in controller.image.configs.values() for name in configs)


def loop_of(node_id: int) -> NodeSettings:
    return NodeSettings(node_id=node_id, auto_rebalance_enable=True, auto_rebalance_interval_seconds=0)
