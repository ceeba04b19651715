"""Failure detector: what raises a suspicion that a broker's process is dead, and what ends it."""

from typing import Any

import pytest

from tierlog.base.clock import SystemClock
from tierlog.metadata.quorum.failure_detector import DeadBrokers
from tierlog.metadata.quorum.publisher import MetadataPublisher

World = Any
SESSION_MS = 3000


class ManualClock(SystemClock):
    time_ms = 0

    def monotonic_ms(self) -> int:
        return self.time_ms


class Observer:
    """A node that tracks dead brokers."""

    def __init__(self, world: World) -> None:
        self.world, self.clock = world, ManualClock()
        self.publisher = MetadataPublisher(world.image)
        self.dead = DeadBrokers(self.publisher, self.clock, SESSION_MS)

    def suspected(self) -> set[int]:
        """After the newest image is published."""
        self.publisher.publish(self.world.image, 1)
        return set(self.dead.brokers)


@pytest.fixture
def observer(world: World) -> Observer:
    world.brokers(1, 2, 3)
    return Observer(world)


def test_suspicion_expires_after_one_session_if_the_broker_is_never_fenced(observer: Observer) -> None:
    """A firewall resets all connections to the broker, but its own heartbeats get through."""
    observer.dead.mark_dead(2)
    assert observer.suspected() == {2}
    observer.world.register(3, incarnation=33)
    observer.clock.time_ms = SESSION_MS - 1
    assert observer.suspected() == {2}
    observer.clock.time_ms = SESSION_MS
    assert observer.suspected() == set()
    observer.dead.mark_dead(2)
    assert observer.suspected() == {2}, "new evidence counts again"


def test_suspicion_expires_without_a_new_image(observer: Observer) -> None:
    observer.dead.mark_dead(2)
    observer.clock.time_ms = SESSION_MS
    assert observer.dead.brokers == frozenset()


def test_successful_connection_withdraws_the_suspicion(observer: Observer) -> None:
    observer.dead.mark_dead(2)
    observer.dead.mark_alive(2)
    assert observer.suspected() == set()


def test_suspicion_does_not_carry_over_to_a_new_process(observer: Observer) -> None:
    observer.dead.mark_dead(2)
    observer.world.register(2, incarnation=22)
    assert observer.suspected() == set()


def test_suspicion_ends_when_the_broker_is_unfenced(observer: Observer) -> None:
    observer.dead.mark_dead(2)
    observer.world.fence(2)
    assert observer.suspected() == {2}
    observer.world.fence(2, fenced=False)
    assert observer.suspected() == set()


def test_node_that_is_not_a_registered_broker_is_never_suspected(observer: Observer) -> None:
    observer.dead.mark_dead(101)
    assert observer.suspected() == set()
