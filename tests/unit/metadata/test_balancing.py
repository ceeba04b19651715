"""When the leader of the quorum looks for leaders to put back, and what it says of that."""

import asyncio
from typing import Any

import pytest
from pump import until
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
    """Judges by the newest image, which may have moved on since the one that was looked at."""

    term, draft = 1, object()

    def __init__(self, world: World) -> None:
        self.world, self.asked = world, 0

    async def commit(self, command: c.AnyCommand) -> c.AnyReply:
        self.asked += 1
        return self.world.do(command)


@pytest.fixture
def elsewhere(world: World) -> World:
    """All that prefers broker 1 is led by broker 2."""
    world.brokers(1, 2)
    numbers = range(MAX_ELECTIONS)
    world.create("t", assignments=tuple((number, (2, 1)) for number in numbers))
    world.do(c.Reassign(changes=tuple(("t", number, (1, 2)) for number in numbers)))
    return world


def looks() -> bool:
    return any(task.get_name() == "metadata balances leaders" for task in asyncio.all_tasks())


async def test_elections_that_failed_are_not_told_of_and_not_tried_again_before_the_interval(
    elsewhere: World,
) -> None:
    failures: list[BaseException] = []
    tasks, clock = TaskGroup(lambda _, failure: failures.append(failure)), Clock()
    seen, leadership = MetadataPublisher(elsewhere.image, 1), Leadership(elsewhere)
    balancing = LeaderBalancer(BalanceSettings(interval_ms=10), seen, clock, tasks)
    with capture_logs() as told:
        elsewhere.fence(1)
        balancing.tick(leadership)
        clock.now = 10
        balancing.tick(leadership)
        await until(lambda: leadership.asked == 1)
        balancing.tick(leadership)
        assert not looks() and told == []

        elsewhere.fence(1, fenced=False)
        elsewhere.in_sync(1, 2, number=0)
        clock.now = 20
        balancing.tick(leadership)
        await until(lambda: leadership.asked == 2)
        assert [line["partitions"] for line in told] == [1]
        balancing.tick(leadership)
        assert looks()  # as many as may be at a time, and some did: there may be more
    await tasks.close()
    assert failures == []
