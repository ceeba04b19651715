"""Leader balancer: when it elects preferred leaders, and what it logs."""

import asyncio
from typing import Any

import pytest
from connection_harness import until
from structlog.testing import capture_logs

from tierlog.base.clock import SystemClock
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.balance import MAX_ELECTIONS
from tierlog.metadata.quorum.balancing import BalanceSettings, LeaderBalancer
from tierlog.metadata.quorum.publisher import MetadataPublisher

World = Any


class Clock(SystemClock):
    now = 0

    def monotonic_ms(self) -> int:
        return self.now


class Leadership:
    """Applies commands to the newest image, which may be newer than the one the election is based on."""

    term, draft = 1, object()

    def __init__(self, world: World) -> None:
        self.world, self.commits = world, 0

    async def commit(self, command: c.AnyCommand) -> c.AnyReply:
        self.commits += 1
        return self.world.do(command)


@pytest.fixture
def led_by_others(world: World) -> World:
    """Broker 2 leads all partitions whose preferred leader is broker 1."""
    world.brokers(1, 2)
    numbers = range(MAX_ELECTIONS)
    world.create("t", assignments=tuple((number, (2, 1)) for number in numbers))
    world.do(c.Reassign(changes=tuple(("t", number, (1, 2)) for number in numbers)))
    return world


def is_rebalancing() -> bool:
    return any(task.get_name() == "metadata balances leaders" for task in asyncio.all_tasks())


async def test_failed_elections_are_not_logged_and_wait_for_the_next_interval(
    led_by_others: World,
) -> None:
    failures: list[BaseException] = []
    tasks, clock = TaskGroup(lambda _, failure: failures.append(failure)), Clock()
    publisher, leadership = MetadataPublisher(led_by_others.image), Leadership(led_by_others)
    balancer = LeaderBalancer(BalanceSettings(interval_ms=10), publisher, clock, tasks)
    with capture_logs() as logs:
        led_by_others.fence(1)
        balancer.tick(leadership)
        clock.now = 10
        balancer.tick(leadership)
        await until(lambda: leadership.commits == 1)
        balancer.tick(leadership)
        assert not is_rebalancing() and logs == []

        led_by_others.fence(1, fenced=False)
        led_by_others.in_sync(1, 2, number=0)
        clock.now = 20
        balancer.tick(leadership)
        await until(lambda: leadership.commits == 2)
        assert [line["partitions"] for line in logs] == [1]
        balancer.tick(leadership)
        assert is_rebalancing()  # the maximum per election, and some succeeded: there may be more
    await tasks.close()
    assert failures == []
