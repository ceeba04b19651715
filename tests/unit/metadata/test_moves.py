"""Plans that drain a broker or balance brokers."""

from collections import Counter
from typing import Any

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.moves import drain, spread
from tierlog.protocol.errors import ErrorCode

World = Any


def held(world: World) -> Counter[int]:
    return Counter(
        one
        for topic in world.image.topics.values()
        for partition in topic.partitions
        for one in partition.replicas
        if one not in partition.removing
    )


def carry_out(world: World, command: c.Reassign) -> None:
    """Submit the plan, and let all new replicas catch up."""
    assert all(one.error == ErrorCode.NONE for one in world.do(command).partitions)
    for name, number, _ in command.changes:
        partition = world.partition(name, number)
        if partition.is_reassigned:
            world.in_sync(*partition.replicas, name=name, number=number)
            assert not world.partition(name, number).is_reassigned


def test_drained_broker_has_no_replicas_and_the_others_are_balanced(world: World) -> None:
    world.brokers(1, 2, 3, 4)
    world.create("t", partitions=12, replication_factor=2)
    plan = drain(world.image, {4})
    assert (plan.stuck, plan.more) == ((), False)
    carry_out(world, plan.command)
    assert held(world) == {1: 8, 2: 8, 3: 8}
    assert drain(world.image, {4}).command.changes == ()


def test_drained_replica_moves_to_another_host_and_zone(world: World) -> None:
    racks = {1: "a/h1", 2: "a/h1", 3: "b/h2", 4: "b/h3"}
    world.brokers(*racks, racks=racks)
    world.create("t", assignments=((0, (1, 3)), (1, (3, 1))))
    plan = drain(world.image, {1})
    assert plan.command.changes == (("t", 0, (2, 3)), ("t", 1, (3, 2)))


def test_plan_lists_replicas_that_no_broker_can_take(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1, 2)),))
    world.create("u", assignments=((0, (2,)),))
    plan = drain(world.image, {2})
    assert (plan.command.changes, plan.stuck) == ((("u", 0, (1,)),), (("t", 0),))


def test_large_plan_is_divided_into_parts(world: World) -> None:
    world.brokers(1, 2, 3)
    world.create("t", partitions=9, replication_factor=2)
    rounds = 0
    while (plan := drain(world.image, {3}, limit=2)).command.changes:
        carry_out(world, plan.command)
        rounds += 1
    assert rounds == 3
    assert 3 not in held(world)


def test_new_broker_gets_its_share_and_a_second_plan_is_empty(world: World) -> None:
    world.brokers(1, 2, 3)
    world.create("t", partitions=12, replication_factor=2)
    assert spread(world.image).command.changes == ()
    world.brokers(4)
    carry_out(world, spread(world.image).command)
    assert set(held(world).values()) == {6}
    assert spread(world.image).command.changes == ()


def test_balancing_puts_no_replicas_closer_together(world: World) -> None:
    racks = {1: "a/h1", 2: "b/h2", 3: "a/h3"}
    world.brokers(1, 2, racks=racks)
    world.create("t", partitions=8, replication_factor=2)
    world.brokers(3, racks=racks)
    carry_out(world, spread(world.image).command)
    assert held(world) == {1: 4, 2: 8, 3: 4}
