"""Registration by broker epoch, fencing with its elections, and producer ids."""

import uuid
from typing import Any

from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import Endpoint
from tierlog.protocol.errors import ErrorCode as E

World = Any
PLAINTEXT = Endpoint(name="PLAINTEXT", host="h", port=9092, protocol="PLAINTEXT")


def partition(world: World) -> Any:
    return world.image.topic("t").partitions[0]


def fence(world: World, broker_id: int, fenced: bool = True) -> E:
    epoch = world.image.brokers[broker_id].broker_epoch
    return world.do(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced)).error


def test_new_incarnation_gets_a_new_epoch_and_a_retry_keeps_it(world: World) -> None:
    first = world.register(1, incarnation=7).broker_epoch
    world.brokers(2)
    assert world.register(1, incarnation=7).broker_epoch == first
    assert world.register(1, incarnation=8).broker_epoch > first
    assert world.image.brokers[1].incarnation == uuid.UUID(int=8)


def test_another_process_is_refused_while_the_session_of_a_broker_is_valid(world: World) -> None:
    epoch = world.register(1, incarnation=7).broker_epoch
    world.in_session.add(1)
    refused = world.register(1, incarnation=8, host="elsewhere")
    assert refused.error == E.DUPLICATE_BROKER_REGISTRATION
    assert "h:9092" in refused.message, "it names the process that is registered"
    assert world.register(1, incarnation=7).broker_epoch == epoch, (
        "a retry of the same process is no other one"
    )
    assert world.image.brokers[1].host == "h"
    world.in_session.clear()
    assert world.register(1, incarnation=8).broker_epoch > epoch


def test_broker_epoch_is_not_reused_after_unregistering(world: World) -> None:
    first = world.register(1, incarnation=7).broker_epoch
    world.do(c.UnregisterBroker(broker_id=1))
    assert world.register(1, incarnation=8).broker_epoch > first


def test_invalid_registrations_are_refused(world: World) -> None:
    assert world.register(-1, incarnation=1).error == E.INVALID_REGISTRATION


def test_restarted_only_replica_leads_under_a_new_leader_epoch(world: World) -> None:
    world.register(1, incarnation=7)
    world.create("t")
    assert (partition(world).leader, partition(world).leader_epoch) == (1, 0)
    world.register(1, incarnation=7)
    assert partition(world).leader_epoch == 0
    world.register(1, incarnation=8)
    assert (partition(world).leader, partition(world).leader_epoch) == (1, 1)
    assert partition(world).in_sync == (1,)


def test_restarted_replica_must_catch_up_before_it_leads(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1, 2)),))
    world.register(1, incarnation=9)
    assert (partition(world).leader, partition(world).in_sync) == (2, (2,))
    assert partition(world).leader_epoch == 1


def test_fencing_moves_leaders_to_in_sync_replicas_only(world: World) -> None:
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2)),))
    assert fence(world, 1) == E.NONE
    assert (partition(world).leader, partition(world).in_sync, partition(world).leader_epoch) == (2, (2,), 1)
    assert fence(world, 2) == E.NONE
    assert (partition(world).leader, partition(world).in_sync, partition(world).leader_epoch) == (-1, (2,), 2)
    assert fence(world, 1, fenced=False) == E.NONE  # it is no longer in sync
    assert partition(world).leader == -1
    assert fence(world, 2, fenced=False) == E.NONE
    assert (partition(world).leader, partition(world).in_sync, partition(world).leader_epoch) == (2, (2,), 3)


def test_fencing_a_follower_keeps_the_leader_and_its_epoch(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1, 2)),))
    fence(world, 2)
    assert (partition(world).leader, partition(world).in_sync, partition(world).leader_epoch) == (1, (1,), 0)
    assert partition(world).partition_epoch == 1


def test_fencing_again_changes_nothing(world: World) -> None:
    world.brokers(1)
    world.create("t")
    fence(world, 1)
    before = partition(world)
    assert fence(world, 1) == E.NONE
    assert partition(world) == before


def test_stale_and_unknown_brokers_cannot_fence(world: World) -> None:
    world.brokers(1)
    stale = c.FenceBroker(broker_id=1, broker_epoch=0, fenced=True)
    assert world.do(stale).error == E.STALE_BROKER_EPOCH
    unknown = c.FenceBroker(broker_id=5, broker_epoch=0, fenced=True)
    assert world.do(unknown).error == E.BROKER_ID_NOT_REGISTERED
    assert world.do(c.UnregisterBroker(broker_id=5)).error == E.BROKER_ID_NOT_REGISTERED


def test_broker_that_starts_fenced_leads_once_unfenced(world: World) -> None:
    world.register(1, incarnation=7)
    world.create("t")
    world.register(1, incarnation=8, start_fenced=True)
    assert world.image.brokers[1].fenced
    fence(world, 1, fenced=False)
    assert partition(world).leader == 1


def test_only_a_fenced_broker_can_be_unregistered(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1, 2)),), configs=(("min.insync.replicas", "2"),))
    assert world.do(c.UnregisterBroker(broker_id=1)).error == E.INVALID_REQUEST
    fence(world, 1)
    assert partition(world).eligible == (1,)
    assert world.do(c.UnregisterBroker(broker_id=1)).error == E.NONE
    assert (partition(world).leader, list(world.image.brokers)) == (2, [2])
    assert partition(world).eligible == ()


def test_producer_ids_never_overlap(world: World) -> None:
    epoch = world.register(1).broker_epoch
    ask = c.AllocateProducerIds(broker_id=1, broker_epoch=epoch)
    blocks = [world.do(ask) for _ in range(3)]
    assert [(block.first_id, block.count) for block in blocks] == [(0, 1000), (1000, 1000), (2000, 1000)]
    stale = c.AllocateProducerIds(broker_id=1, broker_epoch=epoch - 1)
    assert world.do(stale).error == E.STALE_BROKER_EPOCH
    greedy = c.AllocateProducerIds(broker_id=1, broker_epoch=epoch, count=2**40)
    assert world.do(greedy).error == E.INVALID_REQUEST


def test_broker_with_one_listener_has_no_address_for_others(world: World) -> None:
    world.register(1, formats=(1, 3), endpoints=(PLAINTEXT,))
    assert world.image.brokers[1].address_of("PLAINTEXT") == ("h", 9092)
    assert world.image.brokers[1].address_of("SASL_SSL") is None


def test_broker_that_registered_below_format_3_has_one_address_for_all(world: World) -> None:
    world.register(1, formats=(1, 2), endpoints=(PLAINTEXT,))
    assert world.image.brokers[1].address_of("SASL_SSL") == ("h", 9092)


def test_broker_that_names_no_listeners_has_one_address_for_all(world: World) -> None:
    world.register(1, formats=(1, 3))
    assert world.image.brokers[1].address_of("SASL_SSL") == ("h", 9092)
