"""Replica placement: hosts, zones and load."""

from collections import Counter
from typing import Any

import pytest

from tierlog.protocol.errors import ErrorCode as E

World = Any


def cluster(world: World, racks: dict[int, str]) -> None:
    world.brokers(*racks, racks=racks)


def replicas(world: World, name: str = "t") -> list[tuple[int, ...]]:
    return [partition.replicas for partition in world.image.topic(name).partitions]


def test_replicas_are_on_different_hosts_if_possible(world: World) -> None:
    racks = {1: "a/h1", 2: "a/h1", 3: "a/h2", 4: "b/h3", 5: "b/h3"}
    cluster(world, racks)
    world.create("t", partitions=30, replication_factor=3)
    for chosen in replicas(world):
        assert {racks[one] for one in chosen} == {"a/h1", "a/h2", "b/h3"}


def test_host_is_used_twice_if_there_are_too_few(world: World) -> None:
    cluster(world, {1: "a/h1", 2: "a/h1", 3: "a/h2"})
    assert world.create("t", partitions=3, replication_factor=3).error == E.NONE
    assert all(sorted(chosen) == [1, 2, 3] for chosen in replicas(world))


def test_brokers_of_one_address_share_a_host_without_one_in_the_rack(world: World) -> None:
    world.brokers(1, 2, racks={1: "a", 2: "a"})
    world.register(3, rack="a", host="other")
    world.create("t", partitions=9, replication_factor=2)
    assert all(3 in chosen for chosen in replicas(world))


@pytest.mark.parametrize("zones", [{"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 3, "c": 2}])
def test_zones_are_used_evenly(world: World, zones: dict[str, int]) -> None:
    names = [zone for zone, count in zones.items() for _ in range(count)]
    racks = {number: f"{zone}/h{number}" for number, zone in enumerate(names)}
    cluster(world, racks)
    world.create("t", partitions=24, replication_factor=3)
    for chosen in replicas(world):
        assert sorted(racks[one][0] for one in chosen) == ["a", "b", "c"]


def test_leaders_and_replicas_are_balanced(world: World) -> None:
    world.brokers(1, 2, 3, 4, 5)
    world.create("t", partitions=50, replication_factor=3)
    assert set(Counter(chosen[0] for chosen in replicas(world)).values()) == {10}
    assert set(Counter(one for chosen in replicas(world) for one in chosen).values()) == {30}


def test_partitions_of_a_lost_leader_are_shared_by_all_others(world: World) -> None:
    world.brokers(1, 2, 3, 4)
    world.create("t", partitions=48, replication_factor=3)
    world.fence(1)
    leads = Counter(partition.leader for partition in world.image.topic("t").partitions)
    assert set(leads) == {2, 3, 4}
    assert max(leads.values()) - min(leads.values()) <= 4


def test_new_broker_gets_the_next_replicas(world: World) -> None:
    world.brokers(1, 2)
    world.create("old", partitions=4, replication_factor=2)
    world.brokers(3)
    world.create("t", partitions=2, replication_factor=2)
    assert [chosen[0] for chosen in replicas(world)] == [3, 3]


def test_topics_can_be_created_while_a_broker_is_down(world: World) -> None:
    world.brokers(1, 2, 3)
    world.fence(2)
    world.create("t", partitions=6, replication_factor=3)
    world.create("u", partitions=6, replication_factor=2)
    for partition in world.image.topic("t").partitions:
        assert partition.leader == partition.replicas[0] != 2
        assert sorted(partition.in_sync) == [1, 3]
    assert all(2 not in chosen for chosen in replicas(world, "u"))
    for broker_id in (1, 3):
        world.fence(broker_id)
    assert world.create("v").error == E.INVALID_REPLICATION_FACTOR
