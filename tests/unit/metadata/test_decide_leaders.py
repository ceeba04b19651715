"""In-sync sets, eligible replicas (KIP-966), elections and controlled shutdown."""

import uuid
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.balance import rebalance
from tierlog.metadata.controller.commands import ConfigOperation, ElectionKind
from tierlog.metadata.controller.rules import cluster_defaults, min_in_sync
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import BROKER_FIELDS, decode_image, encode_image
from tierlog.metadata.records import BrokerRegistration, ConfigScope, decode_records
from tierlog.protocol.errors import ErrorCode as E

World = Any


@pytest.fixture
def three(world: World) -> World:
    """A partition on brokers 1, 2 and 3, all in sync, with min.insync.replicas=2."""
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2, 3)),), configs=(("min.insync.replicas", "2"),))
    return world


def state(world: World) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    partition = world.partition()
    return partition.leader, partition.in_sync, partition.eligible


def configure(world: World, key: str, value: str, scope: ConfigScope = ConfigScope.TOPIC) -> E:
    change = c.ConfigChange(key=key, operation=ConfigOperation.SET, value=value)
    name = {ConfigScope.TOPIC: "t", ConfigScope.CLUSTER: "", ConfigScope.BROKER: "1"}[scope]
    resource = c.ConfigResource(scope=scope, name=name, changes=(change,))
    return world.do(c.AlterConfigs(resources=(resource,))).resources[0].error


def elect(world: World, kind: ElectionKind = ElectionKind.PREFERRED) -> E:
    return world.do(c.ElectLeaders(partitions=(("t", 0),), kind=kind)).partitions[0].error


# --- AlterPartition requests of leaders


def test_leader_shrinks_and_expands_its_in_sync_set(three: World) -> None:
    outcome = three.in_sync(1, 3).partitions[0]
    assert (outcome.error, outcome.in_sync, outcome.partition_epoch, outcome.leader) == (E.NONE, (1, 3), 1, 1)
    assert three.in_sync(3, 1, 2).partitions[0].in_sync == (1, 2, 3)
    assert (three.partition().partition_epoch, three.partition().leader_epoch) == (2, 0)


def test_request_for_the_current_in_sync_set_raises_only_the_partition_epoch(three: World) -> None:
    """So that earlier requests with an unknown outcome cannot take effect later."""
    before = three.partition()
    assert three.in_sync(1, 2, 3).partitions[0].error == E.NONE
    assert three.partition() == replace(before, partition_epoch=before.partition_epoch + 1)


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        ({"leader_epoch": -1}, E.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 1}, E.NOT_CONTROLLER),
        ({"partition_epoch": 2}, E.NOT_CONTROLLER),
        ({"partition_epoch": 0}, E.INVALID_UPDATE_VERSION),
        ({"broker_id": 2}, E.INVALID_REQUEST),
    ],
)
def test_stale_and_invalid_requests_change_nothing(three: World, requested: dict[str, int], error: E) -> None:
    three.in_sync(1, 3)
    before = three.partition()
    assert three.in_sync(1, **requested).partitions[0].error == error
    assert three.partition() == before


@pytest.mark.parametrize("members", [(), (2, 3), (1, 4), (1, 1)])
def test_in_sync_set_contains_only_replicas_and_the_leader(three: World, members: tuple[int, ...]) -> None:
    three.brokers(4)
    assert three.in_sync(*members).partitions[0].error == E.INVALID_REQUEST


def test_request_of_another_process_of_the_leader_is_refused(three: World) -> None:
    assert three.in_sync(1, broker_epoch=0).error == E.STALE_BROKER_EPOCH
    assert three.in_sync(1, broker_epoch=0).partitions == ()


def test_fenced_broker_or_another_process_does_not_join(three: World) -> None:
    three.fence(3)
    assert three.in_sync(1, 2, 3).partitions[0].error == E.INELIGIBLE_REPLICA
    stale = c.InSync(3, three.image.brokers[3].broker_epoch)
    three.register(3, incarnation=33)
    change = c.IsrChange(
        topic_id=three.image.topic_ids["t"],
        partition=0,
        leader_epoch=0,
        partition_epoch=three.partition().partition_epoch,
        in_sync=(c.InSync(1), c.InSync(2), stale),
    )
    epoch = three.image.brokers[1].broker_epoch
    reply = three.do(c.AlterPartitions(broker_id=1, broker_epoch=epoch, changes=(change,)))
    assert reply.partitions[0].error == E.INELIGIBLE_REPLICA
    assert three.in_sync(1, 2, 3).partitions[0].error == E.NONE


def test_second_change_of_a_partition_applies_to_the_first_result(three: World) -> None:
    change = c.IsrChange(
        topic_id=three.image.topic_ids["t"],
        partition=0,
        leader_epoch=0,
        partition_epoch=0,
        in_sync=(c.InSync(1), c.InSync(2)),
    )
    epoch = three.image.brokers[1].broker_epoch
    reply = three.do(c.AlterPartitions(broker_id=1, broker_epoch=epoch, changes=(change, change)))
    assert [one.error for one in reply.partitions] == [E.NONE, E.INVALID_UPDATE_VERSION]


def test_unknown_topics_and_partitions(three: World) -> None:
    epoch = three.image.brokers[1].broker_epoch
    change = {"leader_epoch": 0, "partition_epoch": 0, "in_sync": (c.InSync(1),)}
    changes = (
        c.IsrChange(topic_id=uuid.UUID(int=1), partition=0, **change),
        c.IsrChange(topic_id=three.image.topic_ids["t"], partition=1, **change),
    )
    reply = three.do(c.AlterPartitions(broker_id=1, broker_epoch=epoch, changes=changes))
    assert [one.error for one in reply.partitions] == [E.UNKNOWN_TOPIC_ID, E.UNKNOWN_TOPIC_OR_PARTITION]


# --- eligible replicas


def test_replicas_that_leave_below_the_minimum_stay_eligible_until_it_is_reached_again(three: World) -> None:
    three.in_sync(1, 2)
    assert state(three) == (1, (1, 2), ())  # two still commit, so 3 lacks their records
    three.in_sync(1)
    assert state(three) == (1, (1,), (2,))
    three.in_sync(1, 3)
    assert state(three) == (1, (1, 3), ())


def test_eligible_replica_leads_when_the_last_in_sync_one_is_lost(three: World) -> None:
    three.in_sync(1)
    assert state(three) == (1, (1,), (2, 3))
    three.fence(1)
    assert state(three) == (2, (2,), (1, 3))
    assert three.partition().leader_epoch == 1


def test_first_eligible_replica_to_return_leads_an_offline_partition(three: World) -> None:
    for broker_id in (3, 2, 1):
        three.fence(broker_id)
    assert state(three) == (-1, (1,), (2,))
    assert three.partition().last_known_leader == 1
    three.fence(3, fenced=False)
    assert state(three) == (-1, (1,), (2,))  # two committed after it left
    three.fence(2, fenced=False)
    assert state(three) == (2, (2,), (1,))
    assert three.partition().last_known_leader == -1


def test_replica_that_may_have_lost_data_is_not_eligible(three: World) -> None:
    three.in_sync(1)
    three.register(2, incarnation=22, may_have_lost=True)
    assert state(three) == (1, (1,), (3,))
    three.register(1, incarnation=11, may_have_lost=True)
    assert state(three) == (3, (3,), ())


def directories(*numbers: int) -> dict[str, Any]:
    return {"directories": tuple(uuid.UUID(int=number) for number in numbers)}


@pytest.mark.parametrize(
    ("before", "after", "eligible"),
    [
        ((1, 2), (1, 2), True),
        ((1, 2), (2, 1), True),
        ((1, 2), (1,), True),
        ((1, 2), (1, 3), False),
        ((1,), (3,), False),
    ],
    ids=["the same", "in another order", "one is offline", "one is replaced", "another disk"],
)
def test_replica_on_unknown_directories_is_not_eligible(
    three: World, before: tuple[int, ...], after: tuple[int, ...], eligible: bool
) -> None:
    three.register(2, incarnation=21, **directories(*before))
    three.fence(2, fenced=False)
    three.in_sync(1, 2, 3)
    three.in_sync(1)
    reply = three.register(2, incarnation=22, **directories(*after))
    assert state(three) == (1, (1,), (2, 3) if eligible else (3,))
    assert (reply.error, reply.message is None) == (E.NONE, eligible)


@pytest.fixture
def recording(world: World) -> World:
    """Like `three`, with brokers that record their epochs. Only 1 is in sync; 2 and 3 are eligible."""
    for broker_id in (1, 2, 3):
        world.register(broker_id, previous_epoch=-1)
    world.create("t", assignments=((0, (1, 2, 3)),), configs=(("min.insync.replicas", "2"),))
    world.in_sync(1)
    assert state(world) == (1, (1,), (2, 3))
    return world


def test_replica_on_a_copy_of_an_older_broker_epoch_is_not_eligible(recording: World) -> None:
    """Its directory was restored from a copy that is older than the last epoch of the broker (KIP-966)."""
    three = recording
    served = three.image.brokers[2].broker_epoch
    three.register(2, incarnation=22, previous_epoch=served)
    assert state(three) == (1, (1,), (2, 3))
    reply = three.register(2, incarnation=23, previous_epoch=served - 1)
    assert state(three) == (1, (1,), (3,))
    assert "an older copy was restored" in reply.message


def test_replica_without_a_recorded_epoch_is_not_eligible(recording: World) -> None:
    reply = recording.register(2, incarnation=22, previous_epoch=-1)
    assert state(recording) == (1, (1,), (3,))
    assert "does not record its last epoch" in reply.message
    assert "older copy" not in reply.message


def restart_with_epoch(world: World, broker_id: int, previous_epoch: int = -1) -> c.BrokerRegistered:
    return world.register(
        broker_id, incarnation=uuid.uuid4().int, previous_epoch=previous_epoch, start_fenced=True
    )


def test_first_start_after_an_upgrade_keeps_replicas_eligible(three: World) -> None:
    """The log is of a version that recorded no broker epochs, and the directories record -1."""
    payloads = []
    for payload in three.log:
        records = msgspec.msgpack.decode(payload)
        for record in records:
            if record[0] == BrokerRegistration.__struct_config__.tag:
                record.pop()
        payloads.append(msgspec.msgpack.encode(records))
    three.image = ClusterImage(cluster_id="c")
    for index, payload in enumerate(payloads, 1):
        three.image = apply_entry(three.image, index, decode_records(payload))
    three.in_sync(1)
    assert restart_with_epoch(three, 2).message is None
    assert state(three) == (1, (1,), (2, 3))
    three.fence(2, fenced=False)
    assert restart_with_epoch(three, 2).message is not None, "a missing epoch counts from now on"


def test_replayed_log_and_old_snapshot_give_the_same_image(three: World) -> None:
    """A snapshot of a version that recorded no broker epochs, and the log after it."""
    whole = msgspec.msgpack.decode(encode_image(three.image))
    for broker in whole[4]:
        assert dict(zip(BROKER_FIELDS, broker, strict=True))["served_epoch"] == -1
        del broker[BROKER_FIELDS.index("served_epoch") :]
    loaded = decode_image(msgspec.msgpack.encode(whole))
    assert loaded == three.image
    three.fence(2)
    three.fence(2, fenced=False)
    for payload in three.log[-2:]:
        loaded = apply_entry(loaded, loaded.index + 1, decode_records(payload))
    assert loaded == three.image


def test_broker_that_gets_a_secret_stays_eligible(world: World) -> None:
    """Before, it was the only broker of a quorum of one, and recorded no epochs."""
    world.register(1, incarnation=11)
    world.create("t")
    assert restart_with_epoch(world, 1).message is None
    world.fence(1, fenced=False)
    served = world.image.brokers[1].broker_epoch
    assert restart_with_epoch(world, 1, served).message is None


def test_broker_that_recorded_no_epoch_for_a_while_stays_eligible(recording: World) -> None:
    """It was downgraded to an older version for a while."""
    recording.register(2, incarnation=22)
    assert restart_with_epoch(recording, 2).message is None


def test_epoch_in_which_a_broker_was_never_unfenced_is_ignored(recording: World) -> None:
    """A process that dies while it is fenced has recorded no epoch and acknowledged nothing."""
    three = recording
    served = three.image.brokers[2].broker_epoch
    three.register(2, incarnation=22, previous_epoch=served, start_fenced=True)
    three.register(2, incarnation=23, previous_epoch=served, start_fenced=True)
    assert state(three) == (1, (1,), (2, 3))
    three.fence(2, fenced=False)
    three.register(2, incarnation=24, previous_epoch=served, start_fenced=True)
    assert state(three) == (1, (1,), (3,))


def test_last_replica_leads_even_if_it_may_have_lost_data(three: World) -> None:
    three.in_sync(1)
    for broker_id in (2, 3, 1):
        three.register(broker_id, incarnation=20 + broker_id, may_have_lost=True)
    assert state(three) == (1, (1,), ())
    assert three.partition().leader_epoch == 1


def test_killed_process_without_power_loss_stays_eligible(three: World) -> None:
    three.in_sync(1, 2)
    three.register(1, incarnation=11)
    assert state(three) == (2, (2,), (1,))


def test_lower_min_insync_replicas_ends_eligibility_at_once(three: World) -> None:
    three.in_sync(1)
    assert configure(three, "min.insync.replicas", "1") == E.NONE
    assert state(three) == (1, (1,), ())  # the leader alone is enough now


def test_min_insync_replicas_is_the_topics_or_else_the_clusters(world: World) -> None:
    world.register(1, min_in_sync=3)
    world.register(2, min_in_sync=2)
    world.create("t", assignments=((0, (1, 2)),))
    assert min_in_sync(world.image, "t") == 3
    assert configure(world, "min.insync.replicas", "4", ConfigScope.CLUSTER) == E.NONE
    assert min_in_sync(world.image, "t") == 4
    assert configure(world, "min.insync.replicas", "1") == E.NONE
    assert min_in_sync(world.image, "t") == 1
    assert configure(world, "min.insync.replicas", "1", ConfigScope.BROKER) == E.INVALID_CONFIG


def test_defaults_of_a_later_broker_change_nothing(world: World) -> None:
    world.register(1, min_in_sync=2)
    world.register(2, min_in_sync=2)
    world.create("t", assignments=((0, (1, 2)),))
    world.in_sync(1)
    assert state(world) == (1, (1,), (2,))
    world.register(3, min_in_sync=1, unclean_election=True)
    world.register(2, incarnation=22, min_in_sync=1, unclean_election=True)
    world.register(1, incarnation=11, min_in_sync=1, unclean_election=True)
    assert cluster_defaults(world.image) == (2, False)
    assert state(world) == (1, (1,), (2,))


def test_first_broker_stores_the_defaults_of_elections(world: World) -> None:
    world.register(1, min_in_sync=2, unclean_election=True)
    assert dict(world.image.overrides(ConfigScope.CLUSTER, "")) == {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "true",
    }
    assert cluster_defaults(world.image) == (2, True)


@pytest.mark.parametrize(
    ("set_before", "unclean", "after"),
    [
        ({}, (True, True), (2, True)),
        ({}, (True, False), (2, False)),
        ({"min.insync.replicas": "3"}, (True, True), (3, False)),  # the safer value
        ({"unclean.leader.election.enable": "true"}, (False, False), (2, True)),
    ],
)
def test_cluster_of_an_older_version_keeps_its_defaults(
    world: World, set_before: dict[str, str], unclean: tuple[bool, bool], after: tuple[int, bool]
) -> None:
    """Its log has no cluster settings, and brokers that registered with different values."""
    registered = [
        r.BrokerRegistration(
            broker_id=one,
            broker_epoch=one,
            incarnation=uuid.UUID(int=one),
            host="h",
            port=1,
            admin_url="u",
            min_in_sync=4 - one,
            unclean_election=unclean[one - 1],
        )
        for one in (1, 2)
    ]
    configs = [
        r.ConfigRecord(scope=ConfigScope.CLUSTER, name="", key=key, value=value)
        for key, value in set_before.items()
    ]
    world.image = apply_entry(world.image, world.image.index + 1, (*registered, *configs))
    world.register(2, incarnation=22, min_in_sync=1)
    assert cluster_defaults(world.image) == after
    assert world.image.overrides(ConfigScope.CLUSTER, "")["min.insync.replicas"] == str(after[0])
    world.register(1, incarnation=11, min_in_sync=1)
    assert cluster_defaults(world.image) == after


def test_min_insync_replicas_of_the_cluster_can_change_but_not_be_removed(world: World) -> None:
    world.register(1, min_in_sync=2)
    world.register(2)
    world.create("t", assignments=((0, (1, 2)),))
    world.in_sync(1)
    change = c.ConfigChange(key="min.insync.replicas", operation=ConfigOperation.DELETE)
    resource = c.ConfigResource(scope=ConfigScope.CLUSTER, name="", changes=(change,))
    assert world.do(c.AlterConfigs(resources=(resource,))).resources[0].error == E.INVALID_CONFIG
    assert state(world) == (1, (1,), (2,))
    assert configure(world, "min.insync.replicas", "1", ConfigScope.CLUSTER) == E.NONE
    assert state(world) == (1, (1,), ())


# --- elections


def test_preferred_leader_is_elected_when_in_sync(three: World) -> None:
    assert elect(three) == E.ELECTION_NOT_NEEDED
    three.fence(1)
    three.fence(1, fenced=False)
    assert elect(three) == E.PREFERRED_LEADER_NOT_AVAILABLE
    three.in_sync(1, 2, 3)
    assert elect(three) == E.NONE
    assert (three.partition().leader, three.partition().leader_epoch) == (1, 2)


def test_election_of_all_partitions_reports_only_those_that_needed_it(three: World) -> None:
    three.create("u", assignments=((0, (3, 1)),))
    three.fence(1)
    three.fence(1, fenced=False)
    three.in_sync(1, 2, 3)
    reply = three.do(c.ElectLeaders(partitions=None))
    assert [(one.topic, one.error) for one in reply.partitions] == [("t", E.NONE)]
    unknown = three.do(c.ElectLeaders(partitions=(("nope", 0), ("t", 7))))
    assert {one.error for one in unknown.partitions} == {E.UNKNOWN_TOPIC_OR_PARTITION}


def test_no_unclean_election_unless_allowed(three: World) -> None:
    assert elect(three, ElectionKind.UNCLEAN) == E.ELECTION_NOT_NEEDED
    three.in_sync(1, 2)
    three.fence(1)
    three.register(2, incarnation=22, may_have_lost=True, start_fenced=True)
    assert state(three) == (-1, (1,), ())
    assert elect(three, ElectionKind.UNCLEAN) == E.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert configure(three, "unclean.leader.election.enable", "true") == E.NONE
    assert state(three) == (3, (3,), ())
    three.fence(1, fenced=False)
    assert state(three) == (3, (3,), ())  # the log of 1 may differ, so it follows


def test_unclean_election_can_be_a_cluster_setting(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1, 2)),))
    world.in_sync(1)
    world.fence(1)
    assert world.partition().leader == -1
    configure(world, "unclean.leader.election.enable", "true", ConfigScope.CLUSTER)
    assert world.partition().leader == 2


def test_preferred_leaders_are_elected_beyond_the_imbalance_percentage(world: World) -> None:
    world.brokers(1, 2)
    world.create("t", assignments=tuple((n, (1 + n % 2, 2 - n % 2)) for n in range(20)))
    assert rebalance(world.image) is None
    world.fence(1)
    world.fence(1, fenced=False)
    assert rebalance(world.image) is None  # no preferred leader is in sync yet
    for number in range(0, 20, 2):
        world.in_sync(1, 2, number=number)
    assert len(rebalance(world.image, limit=3).partitions) == 3
    reply = world.do(rebalance(world.image))
    assert [one.error for one in reply.partitions] == [E.NONE] * 10
    assert rebalance(world.image) is None
    world.do(c.StopBroker(broker_id=1, broker_epoch=world.image.brokers[1].broker_epoch))
    assert rebalance(world.image) is None


# --- controlled shutdown


def stop(world: World, broker_id: int) -> c.BrokerStopping:
    epoch = world.image.brokers[broker_id].broker_epoch
    return world.do(c.StopBroker(broker_id=broker_id, broker_epoch=epoch))


def test_stopping_broker_hands_over_and_joins_no_in_sync_set(three: World) -> None:
    assert stop(three, 1).leads == 0
    assert state(three) == (2, (2, 3), ())
    assert three.in_sync(1, 2, 3).partitions[0].error == E.INELIGIBLE_REPLICA
    three.create("u", partitions=4, replication_factor=2)
    assert all(1 not in partition.replicas for partition in three.image.topic("u").partitions)
    three.register(1, incarnation=11)
    assert not three.image.brokers[1].stopping
    assert three.in_sync(1, 2, 3).partitions[0].error == E.NONE


def test_stopping_broker_leads_until_another_can_take_over(three: World) -> None:
    three.in_sync(1)
    three.create("alone", assignments=((0, (1,)),))
    assert stop(three, 1).leads == 1  # no other broker has a replica of "alone"
    assert state(three) == (1, (1,), (2, 3))
    outcome = three.in_sync(1, 2).partitions[0]
    assert (outcome.error, outcome.leader) == (E.NEW_LEADER_ELECTED, 2)
    assert stop(three, 1).leads == 0
    assert state(three) == (2, (2,), (1,))
    assert three.partition("alone").leader == 1


def test_stop_of_another_process_is_refused(three: World) -> None:
    assert three.do(c.StopBroker(broker_id=1, broker_epoch=0)).error == E.STALE_BROKER_EPOCH
    assert three.do(c.StopBroker(broker_id=9, broker_epoch=0)).error == E.BROKER_ID_NOT_REGISTERED


def test_retried_registration_continues_the_controlled_shutdown(three: World) -> None:
    stop(three, 1)
    three.register(1)
    assert three.image.brokers[1].stopping
    assert not three.image.brokers[1].fenced
