"""Replica reports of brokers: failed disks (KIP-858), full disks and emptied logs."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.balance import rebalance
from tierlog.metadata.controller.commands import ElectionKind
from tierlog.metadata.controller.election import count_transferable_leaderships
from tierlog.metadata.controller.replicas import MAX_REPLICAS_PER_REPORT
from tierlog.protocol.errors import ErrorCode as E

World = Any


@pytest.fixture
def three(world: World) -> World:
    """Two partitions on brokers 1, 2 and 3, all in sync, led by 1 and 2, with min.insync.replicas=1."""
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2, 3)), (1, (2, 1, 3))))
    return world


def report(world: World, broker_id: int, *numbers: int, kind: str = "failed", **other: Any) -> E:
    epoch = other.get("broker_epoch", world.image.brokers[broker_id].broker_epoch)
    named = tuple((world.image.topic_ids["t"], number) for number in numbers)
    command = c.ReportReplicas(broker_id=broker_id, broker_epoch=epoch, **{kind: named})
    return world.do(command).error


def state(world: World, number: int = 0) -> tuple[int, tuple[int, ...]]:
    partition = world.partition(number=number)
    return partition.leader, partition.in_sync


def restart(world: World, broker_id: int, **more: Any) -> None:
    """Register fenced, like a broker of a cluster; `fence(fenced=False)` unfences it."""
    incarnation = world.image.index + 1000
    assert not world.register(broker_id, incarnation=incarnation, start_fenced=True, **more).error


def elect(world: World, kind: ElectionKind) -> E:
    return world.do(c.ElectLeaders(partitions=(("t", 0),), kind=kind)).partitions[0].error


def allow_unclean(world: World) -> None:
    change = c.ConfigChange(
        key="unclean.leader.election.enable", operation=c.ConfigOperation.SET, value="true"
    )
    resource = c.ConfigResource(scope=c.ConfigScope.TOPIC, name="t", changes=(change,))
    world.do(c.AlterConfigs(resources=(resource,)))


# --- a disk that fails


def test_failed_disk_moves_only_its_own_leaderships(three: World) -> None:
    before = three.partition(number=1)
    assert report(three, 1, 0) == E.NONE
    assert state(three) == (2, (2, 3))
    assert three.partition().leader_epoch == 1
    assert three.partition().offline == (1,)
    assert three.partition(number=1) == before


def test_follower_with_a_failed_disk_leaves_the_in_sync_set(three: World) -> None:
    report(three, 3, 0)
    assert state(three) == (1, (1, 2))
    assert three.partition().leader_epoch == 0


def test_repeated_report_changes_nothing(three: World) -> None:
    report(three, 1, 0)
    before = three.partition()
    assert report(three, 1, 0, 0) == E.NONE
    assert three.partition() == before


def test_failed_replica_does_not_join_before_its_broker_registers_again(three: World) -> None:
    report(three, 3, 0)
    assert three.in_sync(1, 2, 3).partitions[0].error == E.INELIGIBLE_REPLICA
    restart(three, 3)
    assert three.partition().offline == ()
    three.fence(3, fenced=False)
    assert three.in_sync(1, 2, 3).partitions[0].error == E.NONE
    assert state(three) == (1, (1, 2, 3))


def test_partition_is_offline_until_its_only_in_sync_replica_returns(three: World) -> None:
    three.in_sync(1)
    report(three, 1, 0)
    assert state(three) == (-1, (1,))
    for other in (2, 3):
        three.fence(other)
        three.fence(other, fenced=False)
    assert state(three) == (-1, (1,))
    restart(three, 1)
    assert state(three) == (-1, (1,))
    three.fence(1, fenced=False)
    assert state(three) == (1, (1,))


def test_unclean_election_skips_failed_disks(three: World) -> None:
    three.in_sync(1)
    report(three, 1, 0)
    report(three, 2, 0)
    allow_unclean(three)
    assert state(three) == (3, (3,))


def test_replica_on_a_failed_disk_is_not_eligible(world: World) -> None:
    """It was eligible (KIP-966), but its log after the return is unknown."""
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2, 3)),), configs=(("min.insync.replicas", "2"),))
    world.in_sync(1, 2)
    world.fence(2)
    assert world.partition().eligible == (2,)
    report(world, 2, 0)
    restart(world, 2)
    assert world.partition().eligible == ()


def test_preferred_leader_with_a_failed_disk_is_not_elected(three: World) -> None:
    report(three, 1, 0)
    assert elect(three, ElectionKind.PREFERRED) == E.PREFERRED_LEADER_NOT_AVAILABLE


def test_controlled_shutdown_does_not_wait_for_failed_disks(three: World) -> None:
    report(three, 2, 0)
    report(three, 3, 0)
    assert count_transferable_leaderships(three.image, 1) == 0


def test_reports_of_other_epochs_and_partitions_are_ignored(three: World) -> None:
    before = three.image.topics
    assert report(three, 1, 0, broker_epoch=0) == E.STALE_BROKER_EPOCH
    three.brokers(4)
    assert report(three, 4, 0, 1, 7) == E.NONE
    unknown = c.ReportReplicas(broker_id=9, broker_epoch=1)
    assert three.do(unknown).error == E.BROKER_ID_NOT_REGISTERED
    assert report(three, 1, *[0] * (MAX_REPLICAS_PER_REPORT + 1)) == E.INVALID_REQUEST
    assert three.image.topics == before


# --- a full disk


def test_leader_on_a_full_disk_hands_over_and_leaves_the_in_sync_set(three: World) -> None:
    before = three.partition(number=1)
    assert report(three, 1, 0, kind="full") == E.NONE
    assert state(three) == (2, (2, 3))
    assert (three.partition().leader_epoch, three.partition().full) == (1, (1,))
    assert three.partition(number=1) == before


def test_follower_on_a_full_disk_leaves_until_it_has_space(three: World) -> None:
    report(three, 3, 0, kind="full")
    assert state(three) == (1, (1, 2))
    assert three.partition().leader_epoch == 0
    assert three.in_sync(1, 2, 3).partitions[0].error == E.INELIGIBLE_REPLICA
    report(three, 3, 0, kind="has_space")
    assert state(three) == (1, (1, 2))
    assert three.in_sync(1, 2, 3).partitions[0].error == E.NONE
    assert state(three) == (1, (1, 2, 3))


@pytest.mark.parametrize("kind", ["full", "has_space"])
def test_repeated_report_of_disk_space_changes_nothing(three: World, kind: str) -> None:
    report(three, 1, 0, kind="full")
    report(three, 1, 0, kind=kind)
    before = three.partition()
    assert report(three, 1, 0, 0, kind=kind) == E.NONE
    assert three.partition() == before


def test_report_of_disk_space_has_its_first_name_between_nodes() -> None:
    """So that nodes of neighbouring versions understand each other."""
    names = ((UUID(int=1), 0),)
    fields = {"command": "ReportReplicas", "broker_id": 1, "broker_epoch": 2, "has_room": names}
    command = c.decode_command(msgspec.msgpack.encode(fields))
    assert command == c.ReportReplicas(broker_id=1, broker_epoch=2, has_space=names)
    assert msgspec.msgpack.decode(c.encode_command(command)).keys() >= fields.keys()


def test_leadership_does_not_return_with_the_disk_space(three: World) -> None:
    """Otherwise it would move back and forth with a disk that is full now and then."""
    report(three, 1, 0, kind="full")
    assert elect(three, ElectionKind.PREFERRED) == E.PREFERRED_LEADER_NOT_AVAILABLE
    assert rebalance(three.image) is None
    report(three, 1, 0, kind="has_space")
    assert state(three) == (2, (2, 3))
    three.in_sync(1, 2, 3)
    assert state(three) == (2, (1, 2, 3))
    assert elect(three, ElectionKind.PREFERRED) == E.NONE
    assert state(three) == (1, (1, 2, 3))


def test_partition_with_only_full_disks_does_not_change(three: World) -> None:
    report(three, 3, 0, kind="full")
    report(three, 2, 0, kind="full")
    assert state(three) == (1, (1,))
    assert report(three, 1, 0, kind="full") == E.NONE
    assert state(three) == (1, (1,))
    assert three.partition().leader_epoch == 0
    assert rebalance(three.image) is None


def test_full_leader_hands_over_once_an_in_sync_replica_has_space(three: World) -> None:
    three.in_sync(1, 2)
    three.fence(2)
    report(three, 1, 0, kind="full")
    three.fence(2, fenced=False)
    assert state(three) == (1, (1,))
    assert three.in_sync(1, 2).partitions[0].error == E.NEW_LEADER_ELECTED
    assert state(three) == (2, (2,))


def test_full_replica_is_eligible_and_elected_last(world: World) -> None:
    """It has all committed records, so it serves reads when the others are down."""
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2, 3)),), configs=(("min.insync.replicas", "3"),))
    report(world, 1, 0, kind="full")
    world.fence(2)
    assert (*state(world), world.partition().eligible) == (3, (3,), (1, 2))
    world.fence(2, fenced=False)
    world.fence(3)
    assert state(world) == (2, (2,)), "rather one that has space"
    world.fence(2)
    assert state(world) == (1, (1,))


def test_restart_does_not_clear_the_full_mark(three: World) -> None:
    report(three, 1, 0, kind="full")
    restart(three, 1)
    three.fence(1, fenced=False)
    assert three.partition().full == (1,)


def test_controlled_shutdown_does_not_wait_for_full_disks(three: World) -> None:
    report(three, 2, 0, kind="full")
    report(three, 3, 0, kind="full")
    assert count_transferable_leaderships(three.image, 1) == 0


def test_unclean_election_elects_a_full_replica_as_a_last_resort(three: World) -> None:
    report(three, 2, 0, kind="full")
    report(three, 3, 0, kind="failed")
    three.fence(1)
    assert state(three)[0] == -1
    allow_unclean(three)
    assert state(three) == (2, (2,))


def test_mark_of_a_removed_replica_is_cleared(three: World) -> None:
    report(three, 3, 0, kind="full")
    three.do(c.Reassign(changes=(("t", 0, (1, 2)),)))
    assert three.partition().full == ()


# --- emptied logs


def wiped(world: World, broker_id: int, *numbers: int) -> None:
    restart(world, broker_id, may_have_lost=True)
    assert report(world, broker_id, *numbers, kind="emptied") == E.NONE
    world.fence(broker_id, fenced=False)


def test_emptied_replica_never_leads_before_it_has_caught_up(three: World) -> None:
    three.in_sync(1)
    wiped(three, 1, 0)
    assert state(three) == (-1, (1,))
    assert elect(three, ElectionKind.UNCLEAN) == E.ELIGIBLE_LEADERS_NOT_AVAILABLE


@pytest.mark.parametrize("kind", ["failed", "emptied"])
def test_rebalancing_skips_in_sync_replicas_that_cannot_lead(three: World, kind: str) -> None:
    three.in_sync(1)
    report(three, 1, 0, kind=kind)
    assert state(three) == (-1, (1,))
    assert rebalance(three.image) is None


def test_unclean_election_prefers_a_replica_that_is_not_empty(three: World) -> None:
    three.in_sync(1)
    wiped(three, 1, 0)
    allow_unclean(three)
    assert state(three) == (2, (2,))
    assert three.partition().emptied == (1,)
    assert three.in_sync(2, 1).partitions[0].error == E.NONE
    assert three.partition().emptied == ()
    three.fence(2)
    assert state(three) == (1, (1,))


def test_second_restart_does_not_clear_the_emptied_mark(three: World) -> None:
    three.in_sync(1)
    wiped(three, 1, 0)
    restart(three, 1)
    three.fence(1, fenced=False)
    assert state(three) == (-1, (1,))


def test_eligible_replica_that_was_emptied_is_no_longer_eligible(world: World) -> None:
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2, 3)),), configs=(("min.insync.replicas", "2"),))
    world.in_sync(1, 2)
    world.fence(2)
    report(world, 2, 0, kind="emptied")
    assert world.partition().eligible == ()
    world.fence(1)
    world.fence(2, fenced=False)
    assert state(world) == (-1, (1,))


def test_partition_with_only_empty_replicas_gets_a_leader(three: World) -> None:
    three.fence(3)
    three.fence(2)
    wiped(three, 2, 0)
    wiped(three, 3, 0)
    wiped(three, 1, 0)
    assert state(three)[0] == 1
    assert three.partition().emptied == ()


def test_only_replica_leads_although_it_is_empty(world: World) -> None:
    """No other replica has records, so waiting is pointless."""
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1,)),))
    wiped(world, 1, 0)
    assert state(world) == (1, (1,))
