"""The parts of a broker that groups need, on a real metadata node and real replicas, and requests to it."""

import asyncio
import random
import uuid
from pathlib import Path

from opened_metadata import opened_metadata
from opened_replica import opened_replica

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.shards import Host
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.consumer_groups import consumer_group_handlers
from tierlog.broker.handlers.context import Connection, Pending, RawReply, RequestContext
from tierlog.broker.handlers.find_coordinator import GROUP_KEY_TYPE, find_coordinator_handler
from tierlog.broker.handlers.groups import group_handlers
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller.commands import (
    CreateTopics,
    NewTopic,
    RegisterBroker,
)
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import decode, encode
from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.messages import join_group, offset_commit, offset_fetch, sync_group

SETTINGS = NodeSettings(
    node_id=1,
    group_initial_rebalance_delay_ms=0,
    offsets_topic_num_partitions=2,
    offsets_topic_replication_factor=1,
)
INCARNATION = uuid.UUID(int=9)
METADATA = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


class Lease:
    held = True

    def holds_lease(self) -> bool:
        return self.held


class OneBroker:
    """Metadata, replicas, the group coordinator service and its handlers."""

    def __init__(
        self, directory: Path, settings: NodeSettings = SETTINGS, lease: Lease | None = None
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        self.rng = random.Random(7)
        self.clock = SystemClock()
        self.node = opened_metadata(
            1, {}, directory / "metadata", OsFiles(), self.clock, self.rng, self.tasks, "cluster"
        )
        self.metadata = self.node
        self.replicas: dict[TopicPartition, Replica] = {}
        self.offline: set[TopicPartition] = set()
        host = Host(settings.node_id, self.metadata, self, self.clock, self.tasks, lease)
        self.service = GroupService(settings, host, self.rng)
        find_coordinator = find_coordinator_handler({GROUP_KEY_TYPE: self.service.shards})
        self.handlers = {
            BY_NAME["FindCoordinator"].key: find_coordinator,
            **group_handlers(self.service),
            **consumer_group_handlers(self.service),
        }
        self.connection = Connection(1, "127.0.0.1", 5000)

    def is_offline(self, name: TopicPartition) -> bool:
        return name in self.offline

    def get(self, topic: str, partition: int) -> Replica | None:
        return self.replicas.get(TopicPartition(topic, partition))

    async def __aenter__(self) -> "OneBroker":
        await self.node.start()
        await self.register(1)
        report = lambda name, failure: self.failures.append(failure)  # noqa: E731
        self.metadata.publish_to(
            [
                Publisher("replicas", lambda old, new: self._open_replicas(), report),
                Publisher("groups", self.service.follow, report),
            ]
        )
        self.service.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.close()
        await self.node.stop()
        await self.tasks.close()
        for replica in self.replicas.values():
            replica.close(clean=False)
        assert not self.failures

    async def register(self, broker_id: int) -> None:
        await self.metadata.submit(
            RegisterBroker(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=INCARNATION.int + broker_id - 1),
                host="127.0.0.1",
                port=9091 + broker_id,
                admin_url=f"http://127.0.0.1:{broker_id}",
            )
        )

    async def create(self, name: str) -> None:
        reply = await self.metadata.submit(CreateTopics(topics=(NewTopic(name=name, partitions=1),)))
        assert reply.topics[0].error == E.NONE

    async def call(self, api: str, version: int, request: object):
        """Encodes and decodes both ways, so that fields which a version lacks are dropped as on the wire."""
        answer = await self.begin(api, version, request)
        body = b"".join(answer.parts) if isinstance(answer, RawReply) else encode(answer, version)
        return decode(BY_NAME[api].response, version, body, 0, len(body))

    def begin(self, api: str, version: int, request: object) -> "asyncio.Future[object]":
        body = encode(request, version)
        request = decode(type(request), version, body, 0, len(body))
        context = RequestContext(BY_NAME[api].key, version, 1, "client", self.connection)
        answer = self.handlers[BY_NAME[api].key](context, request)
        if isinstance(answer, Pending):
            return asyncio.ensure_future(answer.work)
        future = asyncio.get_running_loop().create_future()
        future.set_result(answer)
        return future

    async def member(self, group: str = "g", instance: str | None = None) -> str:
        """Join as the only member, lead and sync. Returns the member id."""
        request = join_request(group, instance)
        joined = await self.call("JoinGroup", 9, request)
        if joined.error_code == E.MEMBER_ID_REQUIRED:
            request.member_id = joined.member_id
            joined = await self.call("JoinGroup", 9, request)
        assert joined.error_code == E.NONE
        synced = await self.call("SyncGroup", 5, sync_request(group, joined, instance))
        assert (synced.error_code, bytes(synced.assignment)) == (E.NONE, b"mine")
        return joined.member_id

    def _open_replicas(self) -> None:
        for topic in self.metadata.image.topics.values():
            for index, partition in enumerate(topic.partitions):
                name = TopicPartition(topic.name, index)
                if name not in self.replicas:
                    replica = opened_replica(
                        name,
                        topic.topic_id,
                        1,
                        self.directory / str(name),
                        TopicConfig(),
                        OsFiles(),
                        self.clock.now_ms(),
                        clean=False,
                        rng=self.rng,
                    )
                    replica.become_leader(partition.leader_epoch, partition.partition_epoch, [1])
                    self.replicas[name] = replica


def join_request(group: str, instance: str | None = None) -> join_group.JoinGroupRequest:
    return join_group.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=METADATA)],
    )


def sync_request(group: str, joined: join_group.JoinGroupResponse, instance: str | None = None):
    mine = sync_group.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    return sync_group.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[mine],
    )


def commit_request(offset: int, *, group: str = "g", topic: str = "t", topic_id=None, **more):
    fields = {"topic_id": topic_id} if topic_id else {"name": topic}
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="note"
    )
    topics = [offset_commit.OffsetCommitRequestTopic(partitions=[partition], **fields)]
    return offset_commit.OffsetCommitRequest(group_id=group, topics=topics, **more)


async def fetched_error(broker: OneBroker) -> int:
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)]
    answer = await broker.call("OffsetFetch", 9, offset_fetch.OffsetFetchRequest(groups=groups))
    return answer.groups[0].error_code


async def fetched(broker: OneBroker, group: str = "g", topic: str = "t") -> int:
    topics = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)]
    )
    answer = await broker.call("OffsetFetch", 9, request)
    return answer.groups[0].topics[0].partitions[0].committed_offset
