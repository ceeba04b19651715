"""Suspicions that a broker's process is dead: what raises one, and what ends it."""

from typing import Any

import pytest

from tierlog.base.clock import SystemClock
from tierlog.metadata.quorum.failure_detector import DeadBrokers
from tierlog.metadata.quorum.publisher import MetadataPublisher

World = Any
SESSION_MS = 3000


class HandClock(SystemClock):
    time_ms = 0

    def monotonic_ms(self) -> int:
        return self.time_ms


class Watcher:
    """A node that watches the brokers of a world."""

    def __init__(self, world: World) -> None:
        self.world, self.clock = world, HandClock()
        self.feed = MetadataPublisher(world.image, node_id=9)
        self.deaths = DeadBrokers(self.feed, self.clock, SESSION_MS)

    def suspected(self) -> set[int]:
        """Once the watcher has the newest image."""
        self.feed.publish(self.world.image, 1)
        return set(self.deaths.brokers)


@pytest.fixture
def watcher(world: World) -> Watcher:
    world.brokers(1, 2, 3)
    return Watcher(world)


def test_a_broker_that_is_never_fenced_is_suspected_for_a_session_at_most(watcher: Watcher) -> None:
    """A firewall resets its connections for good, and it sends its heartbeats by another way."""
    watcher.deaths.note(2)
    assert watcher.suspected() == {2}
    watcher.world.register(3, incarnation=33)
    watcher.clock.time_ms = SESSION_MS - 1
    assert watcher.suspected() == {2}
    watcher.clock.time_ms = SESSION_MS
    assert watcher.suspected() == set()
    watcher.deaths.note(2)
    assert watcher.suspected() == {2}, "new evidence counts again"


def test_a_suspicion_ends_though_no_new_image_comes(watcher: Watcher) -> None:
    watcher.deaths.note(2)
    watcher.clock.time_ms = SESSION_MS
    assert watcher.deaths.brokers == frozenset()


def test_a_connection_ends_a_suspicion(watcher: Watcher) -> None:
    watcher.deaths.note(2)
    watcher.deaths.lives(2)
    assert watcher.suspected() == set()


def test_a_new_process_is_not_suspected_for_the_last_one(watcher: Watcher) -> None:
    watcher.deaths.note(2)
    watcher.world.register(2, incarnation=22)
    assert watcher.suspected() == set()


def test_a_broker_that_is_let_in_again_is_not_suspected(watcher: Watcher) -> None:
    watcher.deaths.note(2)
    watcher.world.fence(2)
    assert watcher.suspected() == {2}
    watcher.world.fence(2, fenced=False)
    assert watcher.suspected() == set()


def test_a_node_that_is_no_broker_is_not_suspected(watcher: Watcher) -> None:
    watcher.deaths.note(101)
    assert watcher.suspected() == set()
