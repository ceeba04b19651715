"""Group service with a real metadata node and real replicas on disk: topic creation, durability, restart."""

import asyncio
import dataclasses
import struct
from itertools import pairwise
from uuid import UUID

import crc32c
import pytest
from group_broker import (
    INCARNATION,
    METADATA,
    SETTINGS,
    Lease,
    OneBroker,
    commit_request,
    fetched,
    fetched_error,
    join_request,
    sync_request,
)
from loop_steps import LoopSteps
from structlog.testing import capture_logs

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators import shard as shard_module
from tierlog.broker.coordinators import shards as shards_module
from tierlog.broker.coordinators.core.effects import Appended, WriteId
from tierlog.broker.coordinators.shard import RESPONSES_PER_TURN
from tierlog.broker.coordinators.shards import partition_of
from tierlog.broker.groups.core.formats import GroupKey, encode_key
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN
from tierlog.broker.replication.replica_events import ReplicasCreated
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.metadata.controller.commands import (
    DeleteTopics,
    TopicRef,
)
from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.messages import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    leave_group,
    list_groups,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tierlog.records.writer import NewRecord, encode_batch


@pytest.fixture
async def broker(tmp_path):
    async with OneBroker(tmp_path) as running:
        await running.service.shards.create_topic()
        await running.create("t")
        yield running


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("hello", 22), ("größe", 7), ("\N{GRINNING FACE}", 49), ("polygenelubricants", 0)],
)
def test_groups_hash_as_in_java(group, partition):
    # hashCode() of "hello" is 99162322, of "polygenelubricants" the least int, whose abs is 0 in Kafka
    assert partition_of(group, 50) == partition


@pytest.mark.parametrize("client_id", ["c" * 32_767, "ü" * 16_383, "short"])
async def test_member_id_fits_a_protocol_string(broker, client_id):
    member_id = broker.service.generate_member_id(client_id)
    assert len(member_id.encode()) <= 32_767
    assert member_id[:5] == client_id[:5] and member_id[-37] == "-"
    assert member_id != broker.service.generate_member_id(client_id)


async def test_groups_wait_for_brokers_for_all_replicas_of_the_offsets_topic(tmp_path):
    settings = dataclasses.replace(SETTINGS, offsets_topic_replication_factor=3)
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
    async with OneBroker(tmp_path, settings, Lease()) as broker:
        with capture_logs() as logs:
            for registered in (1, 2):
                for _ in range(5):
                    response = await broker.call("FindCoordinator", 6, request)
                    assert response.coordinators[0].error_code == E.COORDINATOR_NOT_AVAILABLE
                await broker.register(registered + 1)
        reasons = [line["why"] for line in logs if line["log_level"] == "warning"]
        known = [why.partition(":")[0] for why in reasons]
        assert known == [f"its replicas need 3 brokers, and {count} are registered" for count in (1, 2)]
        assert "offsets.topic.replication.factor" in reasons[0]
        await broker.service.shards.create_topic()
        partitions = broker.metadata.image.topic(OFFSETS_TOPIC).partitions
        assert [sorted(each.replicas) for each in partitions] == [[1, 2, 3]] * 2


async def test_calls_that_need_the_topic_share_one_attempt_to_create_it(tmp_path, monkeypatch):
    submitted, silent = [], asyncio.Event()

    async def submit(command):
        submitted.append(command)
        await silent.wait()

    monkeypatch.setattr(shards_module, "CREATE_TIMEOUT_S", 0.05)
    async with OneBroker(tmp_path) as broker:
        monkeypatch.setattr(broker.metadata, "submit", submit)
        with capture_logs() as logs:
            await asyncio.gather(*(broker.service.shards.create_topic() for _ in range(5)))
        assert len(submitted) == 1
        assert [line["why"] for line in logs] == ["no response from the controller within 0.05 s"]
        monkeypatch.undo()
        await broker.service.shards.create_topic()
        assert broker.service.shards.has_topic


async def test_list_groups_reports_partitions_whose_replicas_do_not_exist_yet(tmp_path):
    async with OneBroker(tmp_path) as broker:
        await broker.service.shards.create_topic()
        assert (await broker.call("ListGroups", 5, list_groups.ListGroupsRequest())).error_code == E.NONE
        replica = broker.replicas.pop(TopicPartition(OFFSETS_TOPIC, 1))
        broker.service.shards._shards.pop(1).close()
        response = await broker.call("ListGroups", 5, list_groups.ListGroupsRequest())
        assert response.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        broker.replicas[replica.name] = replica


async def test_standalone_node_creates_one_replica(tmp_path):
    async with OneBroker(
        tmp_path, dataclasses.replace(SETTINGS, offsets_topic_replication_factor=3)
    ) as broker:
        await broker.service.shards.create_topic()
        assert broker.metadata.image.topic(OFFSETS_TOPIC).partitions[0].replicas == (1,)


@pytest.mark.parametrize("version", range(7))
async def test_first_find_coordinator_creates_the_topic(tmp_path, version):
    async with OneBroker(tmp_path) as broker:
        assert broker.service.shards.coordinator_of("g") is None
        request = find_coordinator.FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
        response = await broker.call("FindCoordinator", version, request)
        found = response.coordinators if version >= 4 else [response]
        assert [(each.error_code, each.node_id, each.host, each.port) for each in found] == [
            (E.NONE, 1, "127.0.0.1", 9092)
        ] * (2 if version >= 4 else 1)
        assert len(broker.metadata.image.topic(OFFSETS_TOPIC).partitions) == 2
        assert broker.metadata.image.topic_overrides(OFFSETS_TOPIC)["cleanup.policy"] == "compact"


async def test_requests_before_the_topic_exists_get_not_coordinator(tmp_path):
    async with OneBroker(tmp_path) as broker:
        beat = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NOT_COORDINATOR
        assert (
            await broker.call("ListGroups", 5, list_groups.ListGroupsRequest())
            == list_groups.ListGroupsResponse()
        )


@pytest.mark.parametrize("version", range(2, 11))
async def test_commit_and_fetch_in_every_version(broker, version):
    topic_id = broker.metadata.image.topic_ids["t"] if version >= 10 else None
    response = await broker.call("OffsetCommit", version, commit_request(42, topic_id=topic_id))
    assert response.topics[0].partitions[0].error_code == E.NONE
    for fetch_version in range(1, 8):
        old = [offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        request = offset_fetch.OffsetFetchRequest(group_id="g", topics=old)
        response = await broker.call("OffsetFetch", fetch_version, request)
        first, missing = response.topics[0].partitions
        assert (first.committed_offset, first.metadata, missing.committed_offset) == (42, "note", -1)
    for fetch_version in range(8, 11):
        groups = [offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "none")]
        response = await broker.call(
            "OffsetFetch", fetch_version, offset_fetch.OffsetFetchRequest(groups=groups)
        )
        found = response.groups[0].topics[0]
        assert found.partitions[0].committed_offset == 42 and response.groups[1].topics == []
        assert found.name == ("t" if fetch_version < 10 else "")
        assert (found.topic_id.int == 0) == (fetch_version < 10)


@pytest.mark.parametrize("version", [7, 9, 10])
async def test_offsets_of_many_partitions_are_answered_in_turns(broker, version):
    topic_id = broker.metadata.image.topic_ids["t"]
    await broker.call("OffsetCommit", 9, commit_request(42))
    numbers, unknown = [*range(2_000)], UUID(int=1)
    if version < 8:
        topics = [offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=numbers)]
        request = offset_fetch.OffsetFetchRequest(group_id="g", topics=topics)
    else:
        topics = [
            offset_fetch.OffsetFetchRequestTopics(name="t", topic_id=one, partition_indexes=numbers)
            for one in (topic_id, unknown)
        ]
        groups = [offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("g", "h")]
        request = offset_fetch.OffsetFetchRequest(groups=groups)
    with LoopSteps() as steps:
        response = await broker.call("OffsetFetch", version, request)
    assert steps.most < steps.total / 3
    found = response.topics if version < 8 else response.groups[0].topics
    assert [each.partition_index for each in found[0].partitions] == numbers
    assert [each.committed_offset for each in found[0].partitions[:2]] == [42, -1]
    if version == 10:
        assert {each.error_code for each in found[1].partitions} == {E.UNKNOWN_TOPIC_ID}
        assert len(response.groups[1].topics) == 2


async def test_many_coordinators_are_found_in_turns(broker):
    keys = [f"g{number}" for number in range(2_000)]
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=keys)
    with LoopSteps() as steps:
        response = await broker.call("FindCoordinator", 6, request)
    assert steps.most < steps.total / 3
    assert [each.key for each in response.coordinators] == keys
    assert {(each.error_code, each.node_id) for each in response.coordinators} == {(E.NONE, 1)}


async def test_commits_for_unknown_partitions(broker):
    response = await broker.call("OffsetCommit", 9, commit_request(1, topic="missing"))
    assert response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    response = await broker.call("OffsetCommit", 10, commit_request(1, topic_id=INCARNATION))
    assert response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID
    for version, error in ((8, E.ILLEGAL_GENERATION), (9, E.GROUP_ID_NOT_FOUND)):
        request = commit_request(1, generation_id_or_member_epoch=3)
        response = await broker.call("OffsetCommit", version, request)
        assert response.topics[0].partitions[0].error_code == error


async def test_group_from_first_join_to_deletion(broker):
    member = await broker.member()
    described = await broker.call(
        "DescribeGroups", 6, describe_groups.DescribeGroupsRequest(groups=["g", "no"])
    )
    group, missing = described.groups
    assert (group.group_state, group.protocol_data, group.members[0].client_host) == (
        "Stable",
        "range",
        "/127.0.0.1",
    )
    assert bytes(group.members[0].member_assignment) == b"mine"
    assert (missing.error_code, missing.group_state) == (E.GROUP_ID_NOT_FOUND, "Dead")
    listed = await broker.call("ListGroups", 5, list_groups.ListGroupsRequest(states_filter=["stable"]))
    assert [(each.group_id, each.group_type) for each in listed.groups] == [("g", "classic")]
    others = list_groups.ListGroupsRequest(types_filter=["consumer"])
    assert (await broker.call("ListGroups", 5, others)).groups == []
    delete = delete_groups.DeleteGroupsRequest(groups_names=["g", "no"])
    codes = [each.error_code for each in (await broker.call("DeleteGroups", 2, delete)).results]
    assert codes == [E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND]
    leaving = [leave_group.MemberIdentity(member_id=member), leave_group.MemberIdentity(member_id="x")]
    left = await broker.call("LeaveGroup", 5, leave_group.LeaveGroupRequest(group_id="g", members=leaving))
    assert [each.error_code for each in left.members] == [E.NONE, E.UNKNOWN_MEMBER_ID]
    old = leave_group.LeaveGroupRequest(group_id="g", member_id=member)
    assert (await broker.call("LeaveGroup", 1, old)).error_code == E.UNKNOWN_MEMBER_ID
    codes = [each.error_code for each in (await broker.call("DeleteGroups", 2, delete)).results]
    assert codes == [E.NONE, E.GROUP_ID_NOT_FOUND]


@pytest.mark.parametrize(
    ("api", "version", "request_"),
    [
        ("DescribeGroups", 6, describe_groups.DescribeGroupsRequest(groups=[f"g{n}" for n in range(2_500)])),
        ("DeleteGroups", 2, delete_groups.DeleteGroupsRequest(groups_names=[f"g{n}" for n in range(2_500)])),
    ],
)
async def test_requests_for_thousands_of_groups_take_several_turns(broker, api, version, request_):
    with LoopSteps() as steps:
        response = await broker.call(api, version, request_)
    assert steps.most < steps.total / 5
    results = response.groups if api == "DescribeGroups" else response.results
    assert [each.group_id for each in results] == [f"g{n}" for n in range(2_500)]
    assert {each.error_code for each in results} == {E.GROUP_ID_NOT_FOUND}


async def test_members_of_a_large_group_are_described_in_turns(broker):
    count, turns = 3 * ENTRIES_PER_TURN, 0
    for _ in range(count):
        broker.begin("JoinGroup", 3, join_request("g"))
    request = describe_groups.DescribeGroupsRequest(groups=["g", "no"])
    describing = asyncio.ensure_future(broker.call("DescribeGroups", 6, request))
    while not describing.done():
        await asyncio.sleep(0)
        turns += 1
    large, missing = (await describing).groups
    assert turns > 3
    assert len(large.members) == len({member.member_id for member in large.members}) == count
    assert (missing.error_code, missing.members) == (E.GROUP_ID_NOT_FOUND, [])


async def test_members_of_a_large_group_get_their_responses_in_turns(broker):
    again = join_request("g")
    again.member_id = await broker.member()
    waiting = [broker.begin("JoinGroup", 3, join_request("g")) for _ in range(3 * RESPONSES_PER_TURN)]
    waiting.append(broker.begin("JoinGroup", 9, again))  # it completes the rebalance
    done = [0]
    while done[-1] < len(waiting):
        done.append(sum(one.done() for one in waiting))
        await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(done)) <= RESPONSES_PER_TURN + 1
    assert {one.result().error_code for one in waiting} == {E.NONE}
    assert {one.result().generation_id for one in waiting} == {2}


@pytest.mark.parametrize("version", range(10))
async def test_join_in_every_version(broker, version):
    request = join_request("g")
    joined = await broker.call("JoinGroup", version, request)
    if version >= 4:
        assert (joined.error_code, joined.generation_id) == (E.MEMBER_ID_REQUIRED, -1)
        request.member_id = joined.member_id
        joined = await broker.call("JoinGroup", version, request)
    assert (joined.error_code, joined.generation_id, joined.leader) == (E.NONE, 1, joined.member_id)
    assert joined.member_id.startswith("client-") and bytes(joined.members[0].metadata) == METADATA


async def test_sync_version_5_must_name_its_protocol(broker):
    response = await broker.call("SyncGroup", 5, sync_group.SyncGroupRequest(group_id="g"))
    assert response.error_code == E.INCONSISTENT_GROUP_PROTOCOL


async def test_offset_delete(broker):
    await broker.call("OffsetCommit", 9, commit_request(1))
    places = [offset_delete.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 7)]
    topics = [offset_delete.OffsetDeleteRequestTopic(name="t", partitions=places)]
    request = offset_delete.OffsetDeleteRequest(group_id="g", topics=topics)
    response = await broker.call("OffsetDelete", 0, request)
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION] and await fetched(broker) == -1


async def test_new_topic_does_not_get_offsets_of_a_deleted_topic(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    assert await fetched(broker) == 5
    await broker.metadata.submit(DeleteTopics(topics=(TopicRef(name="t"),)))
    await broker.create("t")
    assert await fetched(broker) == -1


async def test_topic_created_again_while_its_coordinator_is_down_has_no_offsets(tmp_path):
    async with OneBroker(tmp_path) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        await broker.call("OffsetCommit", 9, commit_request(1000))
        await broker.service.close()
        await broker.metadata.submit(DeleteTopics(topics=(TopicRef(name="t"),)))
        await broker.create("t")
    async with OneBroker(tmp_path) as broker:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("load ")))
        assert await fetched(broker) == -1
        await broker.call("OffsetCommit", 9, commit_request(3))
        assert await fetched(broker) == 3


async def test_groups_and_offsets_survive_a_restart(tmp_path):
    async with OneBroker(tmp_path) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        member = await broker.member(instance="static")
        for offset in range(100):
            commit = commit_request(
                offset, member_id=member, generation_id_or_member_epoch=1, group_instance_id="static"
            )
            assert (await broker.call("OffsetCommit", 9, commit)).topics[0].partitions[0].error_code == E.NONE
    async with OneBroker(tmp_path) as broker:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("load ")))
        assert await fetched(broker) == 99
        beat = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NONE
        rejoined = await broker.member(instance="static")
        assert rejoined != member, "a new id, and its predecessor's assignment without a rebalance"


async def test_failed_core_is_rebuilt_from_its_log(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    shard = broker.service.shards._shards[partition_of("g", 2)]
    waiting = broker.begin("JoinGroup", 3, join_request("g"))
    shard.submit(Appended(write_id=WriteId(99)))  # the core knows no append with this id
    assert (await waiting).error_code == E.NOT_COORDINATOR
    assert await fetched_error(broker) == E.COORDINATOR_LOAD_IN_PROGRESS
    await shard.load()
    assert await fetched(broker) == 5


async def test_load_replays_in_turns(broker, monkeypatch):
    for offset in range(60):
        await broker.call("OffsetCommit", 9, commit_request(offset))
    shard = failed_shard(broker)
    monkeypatch.setattr(shard_module, "RECORDS_PER_TURN", 10)
    with LoopSteps() as steps:
        await shard.load()
    assert steps.most < steps.total / 3
    assert await fetched(broker) == 59


def failed_shard(broker: OneBroker):
    """The shard of group g after its core failed; its state is gone until it has loaded."""
    shard = broker.service.shards._shards[partition_of("g", 2)]
    shard.submit(Appended(write_id=WriteId(99)))
    assert not shard.ready
    return shard


def reloads(broker: OneBroker) -> int:
    return sum(key[0] == OFFSETS_TOPIC for key in broker.service.shards.timers._timers)


async def test_topic_deleted_during_a_load_leaves_no_offsets(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    shard = failed_shard(broker)
    await broker.metadata.submit(DeleteTopics(topics=(TopicRef(name="t"),)))
    await broker.create("t")
    await shard.load()
    assert await fetched(broker) == -1


async def test_events_do_not_pile_up_while_a_shard_loads(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    shard = failed_shard(broker)
    for name in "uvw":
        await broker.create(name)
    assert not shard._inbox
    await shard.load()
    assert await fetched(broker) == 5
    assert (await broker.call("OffsetCommit", 9, commit_request(6, topic="w"))).topics[0].partitions[
        0
    ].error_code == 0


class Unreadable:
    """A replica on a disk that cannot be read."""

    high_watermark, log_start_offset, log_end_offset = 1, 0, 1
    high_watermark_is_current = True

    def read(self, offset, max_bytes):
        raise OSError(5, "Input/output error")


async def test_failed_load_is_retried(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    shard = failed_shard(broker)
    sound, shard.replica = shard.replica, Unreadable()
    broker.service.shards.timers.close()
    await broker.service.shards._load_shard(shard)
    assert not shard.ready and reloads(broker) == 1
    shard.replica = sound
    path = next((broker.directory / str(shard.name)).glob("*.log"))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    await broker.service.shards._load_shard(shard)
    assert not shard.ready
    path.write_bytes(content)
    await broker.service.shards._load_shard(shard)
    assert await fetched(broker) == 5


async def test_damaged_commit_is_skipped_if_no_other_replica_has_it(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    await broker.call("OffsetCommit", 9, commit_request(6))
    shard = failed_shard(broker)
    path = next((broker.directory / str(shard.name)).glob("*.log"))
    content = bytearray(path.read_bytes())
    at = content.rindex((6).to_bytes(8, "big"))
    content[at + 7] = 99
    path.write_bytes(content)
    await shard.load()
    assert await fetched(broker) == 5


async def test_unusable_records_are_skipped_with_one_log_line(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    shard = failed_shard(broker)
    no_member_id = b"\x00\x03" + b"\x00\x01x" * 2
    for value in (no_member_id, b"\x00\x09", b""):
        record = NewRecord(1, encode_key(GroupKey("g")), value)
        shard.replica.as_leader.append(memoryview(encode_batch([record])), 1, from_client=False)
    unreadable = bytearray(encode_batch([NewRecord(1, b"k", b"v")]))
    unreadable[61] = 0x7F  # the length of the record
    struct.pack_into(">I", unreadable, 17, crc32c.crc32c(bytes(unreadable[21:])))
    shard.replica.as_leader.append(memoryview(unreadable), 1, from_client=False)
    with capture_logs() as logged:
        await broker.service.shards._load_shard(shard)
    assert await fetched(broker) == 5
    [line] = [entry for entry in logged if entry["log_level"] == "error"]
    assert line["records"] == 4
    assert broker.service.shards.skipped_records == 4


async def test_shard_is_not_loaded_again_after_a_leader_change(broker):
    await broker.call("OffsetCommit", 9, commit_request(5))
    shard = failed_shard(broker)
    assert reloads(broker) == 1
    shard.replica.close(clean=False)
    await broker.metadata.submit(DeleteTopics(topics=(TopicRef(name=OFFSETS_TOPIC),)))
    assert reloads(broker) == 0
    await broker.service.shards._load_shard(shard)
    assert reloads(broker) == 0 and not shard.ready


async def test_groups_on_a_failed_disk_have_no_coordinator_and_others_keep_theirs(broker):
    partitions = len(broker.metadata.image.topic(OFFSETS_TOPIC).partitions)
    lost = TopicPartition(OFFSETS_TOPIC, partition_of("g", partitions))
    other = next(name for name in "abcdefgh" if partition_of(name, partitions) != lost.partition)
    await broker.member("g")
    broker.replicas.pop(lost).close(clean=False)
    broker.offline.add(lost)
    broker.service.shards.on_replica_event(ReplicasCreated())
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g", other])
    response = await broker.call("FindCoordinator", 4, request)
    errors = [each.error_code for each in response.coordinators]
    assert errors == [E.COORDINATOR_NOT_AVAILABLE, E.NONE]
    beat = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NOT_COORDINATOR
    await broker.member(other)


async def test_members_of_all_groups_share_one_memory_limit(tmp_path):
    settings = dataclasses.replace(SETTINGS, group_members_max_bytes=2_500_000)
    async with OneBroker(tmp_path, settings) as broker:
        await broker.service.shards.create_topic()
        joined = [await broker.call("JoinGroup", 3, large_join(f"g{number}")) for number in range(3)]
        codes = [each.error_code for each in joined]
        assert codes == [E.NONE, E.NONE, E.COORDINATOR_NOT_AVAILABLE]
        assert broker.service.member_bytes > 2_000_000
        leaver = leave_group.LeaveGroupRequest(group_id="g0", member_id=joined[0].member_id)
        assert (await broker.call("LeaveGroup", 1, leaver)).error_code == E.NONE
        again = await broker.call("JoinGroup", 3, large_join("g2"))
        assert again.error_code == E.NONE


async def test_joins_that_wait_keep_no_other_group_from_its_coordinator(broker, monkeypatch):
    same = next(f"h{n}" for n in range(1_000) if partition_of(f"h{n}", 50) == partition_of("g", 50))
    member = await broker.member(same)
    await broker.member("g")  # this member does not join again: others wait for it
    monkeypatch.setattr(shard_module, "MAX_WAITING", 2)
    waiting = [broker.begin("JoinGroup", 3, join_request("g")) for _ in range(2)]
    refused = await broker.call("JoinGroup", 3, join_request("g"))
    assert refused.error_code == E.COORDINATOR_NOT_AVAILABLE
    beat = heartbeat.HeartbeatRequest(group_id=same, generation_id=1, member_id=member)
    assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NONE
    committed = await broker.call(
        "OffsetCommit", 8, commit_request(5, group=same, generation_id_or_member_epoch=1, member_id=member)
    )
    assert committed.topics[0].partitions[0].error_code == E.NONE
    again = join_request(same)
    again.member_id = member
    assert (await broker.call("JoinGroup", 9, again)).error_code == E.NONE
    assert not any(each.done() for each in waiting)


def large_join(group: str):
    request = join_request(group)
    request.protocols[0].metadata = bytes(1_000_000)
    return request


async def test_longest_commit_retention_never_ends(broker):
    commit = commit_request(5, retention_time_ms=2**63 - 1)
    response = await broker.call("OffsetCommit", 3, commit)
    assert response.topics[0].partitions[0].error_code == E.NONE
    await failed_shard(broker).load()
    assert await fetched(broker) == 5


@pytest.mark.parametrize("timeout_ms", [-1, -5, -(2**31)])
async def test_member_with_a_negative_rebalance_timeout_survives_a_load(broker, timeout_ms):
    request = join_request("g")
    request.rebalance_timeout_ms = timeout_ms
    joined = await broker.call("JoinGroup", 3, request)
    await broker.call("SyncGroup", 3, sync_request("g", joined))
    await failed_shard(broker).load()
    beat = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await broker.call("Heartbeat", 4, beat)).error_code == E.NONE
