"""Partition reassignment (KIP-455), and the format version."""

import uuid
from typing import Any

import pytest

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import throttles
from tierlog.metadata.controller.brokers import update_format
from tierlog.metadata.controller.decision import Refusal
from tierlog.metadata.controller.reassignment import under_way
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode as E

World = Any


@pytest.fixture
def pair(world: World) -> World:
    """A partition on brokers 1 and 2, in a cluster of brokers 1 to 5."""
    world.brokers(1, 2, 3, 4, 5)
    world.create("t", assignments=((0, (1, 2)),))
    return world


@pytest.fixture
def safe_pair(world: World) -> World:
    """Like `pair`, with min.insync.replicas=2."""
    world.brokers(1, 2, 3, 4, 5)
    world.create("t", assignments=((0, (1, 2)),), configs=(("min.insync.replicas", "2"),))
    return world


def move(world: World, *replicas: int) -> E:
    return world.do(c.Reassign(changes=(("t", 0, replicas),))).partitions[0].error


def cancel(world: World) -> E:
    return world.do(c.Reassign(changes=(("t", 0, None),))).partitions[0].error


def test_reassignment_completes_when_all_new_replicas_are_in_sync(pair: World) -> None:
    assert move(pair, 3, 1) == E.NONE
    partition = pair.partition()
    assert (partition.replicas, partition.adding, partition.removing) == ((3, 1, 2), (3,), (2,))
    assert (partition.leader, partition.in_sync, partition.leader_epoch) == (1, (1, 2), 0)
    assert [(topic.name, number) for topic, number, _ in under_way(pair.image)] == [("t", 0)]
    outcome = pair.in_sync(1, 2, 3).partitions[0]
    assert (outcome.error, outcome.in_sync, outcome.leader) == (E.NONE, (3, 1), 1)
    partition = pair.partition()
    assert (partition.replicas, partition.adding, partition.removing) == ((3, 1), (), ())
    assert partition.leader_epoch == 1  # so that the leader stops counting 2
    assert list(under_way(pair.image)) == []


def test_throttle_is_set_only_for_reassignments_that_begin(pair: World) -> None:
    command = c.Reassign(changes=(("t", 0, (1, 3)), ("t", 7, (1, 4)), ("t", 0, (1, 9))), throttle=1000)
    errors = [one.error for one in pair.do(command).partitions]
    assert errors == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_REPLICA_ASSIGNMENT]
    limited = {name for scope, name in pair.image.configs if scope is ConfigScope.BROKER}
    assert limited == {"1", "2", "3"}
    assert dict(pair.image.topic_overrides("t")) == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:3",
    }


def test_throttle_with_too_many_replicas_applies_to_the_whole_topic(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", partitions=6_000)
    moves = tuple(("t", number, (3 - world.partition("t", number).leader,)) for number in range(6_000))
    assert {one.error for one in world.do(c.Reassign(changes=moves, throttle=1000)).partitions} == {E.NONE}
    assert dict(world.image.topic_overrides("t")) == dict.fromkeys(throttles.REPLICAS, "*")


def test_no_reassignment_begins_without_its_throttle(pair: World) -> None:
    configs = pair.image.configs
    [outcome] = pair.do(c.Reassign(changes=(("t", 0, (1, 3)),), throttle=-1)).partitions
    assert outcome.error == E.INVALID_REQUEST and "throttle" in outcome.message
    assert not pair.partition().is_reassigned and pair.image.configs == configs


def test_leader_that_is_removed_hands_over_to_a_new_leader(pair: World) -> None:
    assert move(pair, 3, 4) == E.NONE
    assert pair.in_sync(1, 2, 3).partitions[0].error == E.NONE
    outcome = pair.in_sync(1, 2, 3, 4).partitions[0]
    assert (outcome.error, outcome.leader, outcome.in_sync) == (E.NEW_LEADER_ELECTED, 3, (3, 4))
    assert pair.partition().leader_epoch == 1


def test_reordering_or_removing_replicas_completes_at_once(pair: World) -> None:
    assert move(pair, 2, 1) == E.NONE
    assert (pair.partition().replicas, pair.partition().leader) == ((2, 1), 1)
    assert move(pair, 2) == E.NONE
    partition = pair.partition()
    assert (partition.replicas, partition.in_sync, partition.leader) == ((2,), (2,), 2)
    assert list(under_way(pair.image)) == []


def test_removal_of_replicas_waits_for_a_lagging_one(pair: World) -> None:
    pair.in_sync(1)
    assert move(pair, 2) == E.NONE
    assert pair.partition().removing == (1,)
    pair.in_sync(1, 2)
    assert (pair.partition().replicas, pair.partition().leader) == ((2,), 2)


def test_change_of_the_replication_factor_can_be_refused(pair: World) -> None:
    def keeping(*replicas: int) -> E:
        command = c.Reassign(changes=(("t", 0, replicas),), may_change_factor=False)
        return pair.do(command).partitions[0].error

    assert keeping(1, 2, 3) == E.INVALID_REPLICATION_FACTOR
    assert keeping(1) == E.INVALID_REPLICATION_FACTOR
    assert pair.partition().adding == ()
    assert move(pair, 3, 4, 5) == E.NONE  # five replicas during the move, three after it
    assert keeping(1, 2) == E.INVALID_REPLICATION_FACTOR
    assert keeping(1, 2, 3) == E.NONE


def test_cancellation_restores_the_replicas(pair: World) -> None:
    assert cancel(pair) == E.NO_REASSIGNMENT_IN_PROGRESS
    move(pair, 3, 4)
    pair.in_sync(1, 2, 3)
    assert cancel(pair) == E.NONE
    partition = pair.partition()
    assert (partition.replicas, partition.in_sync, partition.leader) == ((1, 2), (1, 2), 1)
    assert (partition.adding, partition.removing) == ((), ())


def test_reassignment_replaces_another(pair: World) -> None:
    move(pair, 3, 4)
    pair.in_sync(1, 2, 3)
    assert move(pair, 4, 5) == E.NONE
    partition = pair.partition()
    assert (partition.replicas, partition.adding, partition.removing) == ((4, 5, 1, 2), (4, 5), (1, 2))
    assert partition.in_sync == (1, 2)
    pair.in_sync(1, 2, 4, 5)
    assert pair.partition().replicas == (4, 5)


def test_cancellation_that_removes_all_in_sync_replicas_is_refused(pair: World) -> None:
    move(pair, 3, 4)
    pair.in_sync(1, 2, 3)
    pair.fence(2)
    pair.fence(1)
    assert (pair.partition().in_sync, pair.partition().leader) == ((3,), 3)
    assert cancel(pair) == E.INVALID_REPLICA_ASSIGNMENT
    assert move(pair, 1, 5) == E.INVALID_REPLICA_ASSIGNMENT
    assert move(pair, 3, 5) == E.NONE


@pytest.mark.parametrize("back", [None, (1, 2), (1, 4)], ids=["cancel", "move back", "move elsewhere"])
def test_replicas_needed_for_min_insync_replicas_cannot_be_removed(
    safe_pair: World, back: tuple[int, ...] | None
) -> None:
    """2 is down, and only 1 and 3 have the records that they commit."""
    move(safe_pair, 1, 2, 3)
    safe_pair.fence(2)
    assert safe_pair.partition().eligible == (2,)
    safe_pair.in_sync(1, 3)
    assert (safe_pair.partition().in_sync, safe_pair.partition().eligible) == ((1, 3), ())
    [outcome] = safe_pair.do(c.Reassign(changes=(("t", 0, back),))).partitions
    assert outcome.error == E.INVALID_REPLICA_ASSIGNMENT
    assert "only [1]" in outcome.message and "keep [3]" in outcome.message
    assert (safe_pair.partition().replicas, safe_pair.partition().in_sync) == ((1, 2, 3), (1, 3))
    assert move(safe_pair, 1, 3, 4) == E.NONE  # allowed, because 3 stays


def test_added_replicas_can_be_removed_if_enough_others_are_complete(safe_pair: World) -> None:
    move(safe_pair, 1, 2, 3)
    safe_pair.fence(2)
    assert cancel(safe_pair) == E.NONE
    assert (safe_pair.partition().in_sync, safe_pair.partition().eligible) == ((1,), (2,))
    move(safe_pair, 1, 2, 3)
    safe_pair.in_sync(1, 3)
    assert move(safe_pair, 1) == E.NONE  # a single replica needs only itself
    assert safe_pair.partition().in_sync == (1,)


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9), tuple(range(100))])
def test_invalid_targets_are_refused(pair: World, replicas: tuple[int, ...]) -> None:
    before = pair.partition()
    assert move(pair, *replicas) == E.INVALID_REPLICA_ASSIGNMENT
    assert pair.partition() == before


def test_unknown_partitions(pair: World) -> None:
    reply = pair.do(c.Reassign(changes=(("t", 1, (1,)), ("nope", 0, None), ("t", 0, (2, 1)))))
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.error for one in reply.partitions] == [unknown, unknown, E.NONE]


def test_new_partitions_use_the_replication_factor_after_the_reassignment(pair: World) -> None:
    move(pair, 3, 4, 5)
    assert (
        pair.do(c.CreatePartitions(topics=(c.MorePartitions(name="t", count=2),))).topics[0].error == E.NONE
    )
    assert len(pair.partition("t", 1).replicas) == 3


def test_format_version_only_grows_and_only_if_all_brokers_support_it(world: World) -> None:
    def update(version: int, supported: tuple[int, int] = (1, 2), **more: bool) -> E:
        try:
            decision = update_format(world.image, c.UpdateFormat(version=version, **more), supported)
        except Refusal as refusal:
            return refusal.error
        world.image = evolve_all(world.image, decision.records)
        return decision.reply.error

    world.register(2)
    world.register(1, formats=(1, 2))
    assert update(2) == E.INVALID_UPDATE_VERSION
    world.register(2, incarnation=22, formats=(1, 3))
    assert update(2, supported=(1, 1)) == E.INVALID_UPDATE_VERSION
    assert update(2, validate_only=True) == E.NONE
    assert world.image.format_version == 1
    assert update(2) == E.NONE
    assert world.image.format_version == 2
    assert update(1) == E.INVALID_UPDATE_VERSION
    assert world.register(3).error == E.INVALID_REGISTRATION
    assert world.do(c.UpdateFormat(version=7)).error == E.INVALID_UPDATE_VERSION


def test_registration_stores_the_directories(world: World) -> None:
    world.register(1, directories=(uuid.UUID(int=7),))
    assert world.image.brokers[1].directories == (uuid.UUID(int=7),)
