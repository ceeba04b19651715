"""Coordinators without a lease, with slow or damaged replicas, or of an older leader epoch."""

import asyncio
import struct
from dataclasses import replace

import pytest
from group_broker import (
    SETTINGS,
    Lease,
    OneBroker,
    commit_request,
    fetched,
    fetched_error,
    join_request,
    sync_request,
)
from msgspec import structs

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators import shards
from tierlog.broker.coordinators.core.effects import Appended, WriteId
from tierlog.broker.coordinators.shards import partition_of
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.messages import find_coordinator, heartbeat, list_groups
from tierlog.records.batch import iter_batches


@pytest.fixture
async def broker(tmp_path):
    async with OneBroker(tmp_path) as running:
        await running.service.shards.create_topic()
        await running.create("t")
        yield running


async def test_shard_of_an_older_leader_epoch_is_loaded_again(broker):
    """Another broker may have been leader in an image which was skipped."""
    await broker.call("OffsetCommit", 9, commit_request(5))
    before = dict(broker.service.shards._shards)
    image = broker.metadata.image
    topic = image.topic(OFFSETS_TOPIC)
    later = tuple(structs.replace(each, leader_epoch=each.leader_epoch + 2) for each in topic.partitions)
    for number, each in enumerate(later):
        replica = broker.replicas[TopicPartition(OFFSETS_TOPIC, number)]
        replica.become_leader(each.leader_epoch, each.partition_epoch + 1, [1])
    changed = structs.replace(topic, partitions=later)
    broker.service.shards.follow(structs.replace(image, topics=image.topics.set(topic.topic_id, changed)))
    assert all(broker.service.shards._shards[number] is not shard for number, shard in before.items())
    assert await fetched_error(broker) == E.COORDINATOR_LOAD_IN_PROGRESS
    await broker.service.shards._shards[partition_of("g", 2)].load()
    assert await fetched(broker) == 5


# -- without a lease, and while replicas take long


async def test_broker_without_a_lease_is_not_a_coordinator(tmp_path):
    lease = Lease()
    async with OneBroker(tmp_path, SETTINGS, lease) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        member = await broker.member()
        await broker.call("OffsetCommit", 9, commit_request(7, group="h"))
        lease.held = False
        commit = await broker.call("OffsetCommit", 9, commit_request(8, group="h"))
        assert commit.topics[0].partitions[0].error_code == E.NOT_COORDINATOR
        assert await fetched_error(broker) == E.COORDINATOR_LOAD_IN_PROGRESS, "another may have newer offsets"
        beat = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NOT_COORDINATOR
        assert (await broker.call("JoinGroup", 9, join_request("g"))).error_code == E.NOT_COORDINATOR
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
        found = (await broker.call("FindCoordinator", 6, request)).coordinators[0]
        assert (found.error_code, found.node_id) == (E.COORDINATOR_NOT_AVAILABLE, -1)
        listed = await broker.call("ListGroups", 5, list_groups.ListGroupsRequest())
        assert (listed.error_code, listed.groups) == (E.COORDINATOR_NOT_AVAILABLE, [])
        lease.held = True
        assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NONE, "it was the same all the while"
        assert await fetched(broker, "h") == 7


async def test_offsets_are_elsewhere_once_the_lease_is_gone_for_long(tmp_path, monkeypatch):
    lease = Lease()
    async with OneBroker(tmp_path, SETTINGS, lease) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        await broker.call("OffsetCommit", 9, commit_request(7))
        lease.held = False
        assert await fetched_error(broker) == E.COORDINATOR_LOAD_IN_PROGRESS
        monkeypatch.setattr(shards, "LEASE_MAY_RETURN_MS", 0)
        assert await fetched_error(broker) == E.NOT_COORDINATOR


async def test_waiting_requests_fail_when_the_lease_ends(tmp_path):
    lease = Lease()
    settings = replace(SETTINGS, group_initial_rebalance_delay_ms=60_000)
    async with OneBroker(tmp_path, settings, lease) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        request = join_request("g")
        request.member_id = (await broker.call("JoinGroup", 9, request)).member_id
        joining = broker.begin("JoinGroup", 9, request)
        lag_behind(broker)
        committing = broker.begin("OffsetCommit", 9, commit_request(7, group="h"))
        lease.held = False
        assert (await joining).error_code == E.NOT_COORDINATOR
        assert (await committing).topics[0].partitions[0].error_code == E.NOT_COORDINATOR
        lease.held = True
        catch_up(broker)
        assert await fetched(broker, "h") == 7, "the replicas had it after all"
        again = broker.begin("JoinGroup", 9, request)
        await asyncio.sleep(0)
        assert not again.done()


async def test_commit_times_out_if_replicas_are_slow(tmp_path):
    async with OneBroker(tmp_path, replace(SETTINGS, offsets_commit_timeout_ms=20)) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        lag_behind(broker)
        first = broker.begin("OffsetCommit", 9, commit_request(7))
        second = broker.begin("OffsetCommit", 9, commit_request(8))
        for response in (await first, await second):
            assert response.topics[0].partitions[0].error_code == E.COORDINATOR_NOT_AVAILABLE
        assert await fetched(broker) == -1, "records that may be lost are not visible"
        catch_up(broker)
        assert await fetched(broker) == 8
        response = await broker.call("OffsetCommit", 9, commit_request(9))
        assert response.topics[0].partitions[0].error_code == E.NONE


async def test_rebuilt_shard_waits_for_the_appends_of_its_predecessor(broker):
    """They count once they are durable, so a core that did not replay them would contradict its log."""
    await broker.call("OffsetCommit", 9, commit_request(5))
    lag_behind(broker)
    late = broker.begin("OffsetCommit", 9, commit_request(6))
    shard = broker.service.shards._shards[partition_of("g", 2)]
    shard.submit(Appended(write_id=WriteId(99)))  # the core knows no append with this id
    assert (await late).topics[0].partitions[0].error_code == E.NOT_COORDINATOR
    loading = asyncio.ensure_future(shard.load())
    await asyncio.wait([loading], timeout=0.1)
    assert not loading.done()
    catch_up(broker)
    await loading
    assert await fetched(broker) == 6


async def test_assignment_that_times_out_starts_another_rebalance(tmp_path):
    async with OneBroker(tmp_path, replace(SETTINGS, offsets_commit_timeout_ms=20)) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        request = join_request("g")
        request.member_id = (await broker.call("JoinGroup", 9, request)).member_id
        joined = await broker.call("JoinGroup", 9, request)
        lag_behind(broker)
        synced = await broker.call("SyncGroup", 5, sync_request("g", joined))
        assert synced.error_code == E.COORDINATOR_NOT_AVAILABLE
        catch_up(broker)
        joined = await broker.call("JoinGroup", 9, request)
        assert (joined.error_code, joined.generation_id) == (E.NONE, 2)
        assert (await broker.call("SyncGroup", 5, sync_request("g", joined))).error_code == E.NONE


@pytest.mark.parametrize("longer", [0, 1 << 10, 1 << 30, -1, -64, -(1 << 31)])
async def test_coordinator_waits_for_the_repair_of_a_damaged_commit(tmp_path, longer):
    """`longer`: how much longer than it is a batch says to be, which may hide the batches after it."""
    settings = replace(SETTINGS, offsets_topic_replication_factor=2)
    async with OneBroker(tmp_path, settings, Lease()) as broker:
        await broker.register(2)
        await broker.service.shards.create_topic()
        await broker.create("t")
        [number] = broker.service.shards._shards
        group = next(name for name in map(str, range(9)) if partition_of(name, 2) == number)
        for offset in (4, 5, 6):
            await broker.call("OffsetCommit", 9, commit_request(offset, group=group))
        shard = broker.service.shards._shards[number]
        shard.submit(Appended(write_id=WriteId(99)))  # it fails
        broker.service.shards.timers.close()
        suspected = []
        shard.replica.suspect = lambda offset, why: suspected.append(offset)
        path = next((broker.directory / str(shard.name)).glob("*.log"))
        whole = path.read_bytes()
        damaged, (begin, header) = bytearray(whole), list(iter_batches(whole))[-2]
        struct.pack_into(">i", damaged, begin + 8, header.batch_length + longer)
        damaged[begin + header.size - 1] ^= not longer
        path.write_bytes(damaged)
        await broker.service.shards._load_shard(shard)
        assert suspected == [shard.replica.log_end_offset - 2]
        assert not shard.ready, "it would not know this commit, or not those after it"
        path.write_bytes(whole)
        await broker.service.shards._load_shard(shard)
        assert await fetched(broker, group) == 6


def lag_behind(broker: OneBroker) -> None:
    """From now on broker 2 is in sync, and appends nothing."""
    for replica in broker.replicas.values():
        replica.become_leader(replica.leader_epoch, replica.partition_epoch + 1, [1, 2], now_ms=0)


def catch_up(broker: OneBroker) -> None:
    """It appends everything, and leaves the in-sync set."""
    for replica in broker.replicas.values():
        replica.as_leader.follower_fetched(2, 1, replica.log_end_offset, 0)
        replica.become_leader(replica.leader_epoch, replica.partition_epoch + 1, [1], now_ms=0)
