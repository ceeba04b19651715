"""Broker 1 of a cluster whose other brokers exist only in the metadata. Requests go over a socket to the real
handlers, and commands to a real quorum of one.
"""

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connection_harness import Client
from opened_metadata import opened_metadata
from wire_client import message

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.context import RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.handlers.table import SERVED, build_handlers
from tierlog.broker.net.listener import Listener
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import BrokerImage
from tierlog.metadata.quorum.peers import Peers
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.raft.messages import AnyMessage
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode

COORDINATOR_APIS = (
    "AddOffsetsToTxn", "AddPartitionsToTxn", "ConsumerGroupDescribe", "ConsumerGroupHeartbeat",
    "DeleteGroups", "DescribeGroups", "DescribeTransactions", "EndTxn", "FindCoordinator", "Heartbeat",
    "InitProducerId", "JoinGroup", "LeaveGroup", "ListGroups", "ListTransactions", "OffsetCommit",
    "OffsetDelete", "OffsetFetch", "SyncGroup", "TxnOffsetCommit", "WriteTxnMarkers",
)  # fmt: skip


class MovableClock(SystemClock):
    ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class ScriptedPeers(Peers):
    """The test reports deaths and connections through its callbacks."""

    doubtful: frozenset[int] = frozenset()

    def start(
        self,
        on_unreachable: Callable[[int], None],
        on_death: Callable[[int], None],
        on_connected: Callable[[int], None],
        on_messages: Callable[[tuple[AnyMessage, ...]], None],
    ) -> None:
        self.on_death, self.on_connected = on_death, on_connected

    @property
    def suspects(self) -> frozenset[int]:
        return self.doubtful


class AdminCluster:
    def __init__(self, directory: Path, **settings: str) -> None:
        self.has_lost_quorum = False
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda _, failure: self.failures.append(failure))
        files, clock, rng = OsFiles(), MovableClock(), random.Random(1)
        self.clock, self.peers = clock, ScriptedPeers()
        self.node = opened_metadata(
            1,
            {},
            directory / "metadata",
            files,
            clock,
            rng,
            self.tasks,
            "c",
            url="http://one:9644",
            peers=self.peers,
        )
        self.metadata = self.node
        self.settings = settings_from({"log.dirs": str(directory), **settings})
        directories = LogDirectories([directory], files, rng)
        self.replicas = ReplicaManager(
            self.settings, directories, clock, self.tasks, rng, on_change=lambda name: None
        )
        self.dependencies = Dependencies(
            settings=self.settings,
            metadata=self.metadata,
            replicas=self.replicas,
            purgatory=Purgatory(10),
            fetch_sessions=FetchSessions(10, rng),
            clock=clock,
            tasks=self.tasks,
            recently_fenced=RecentlyFencedBrokers(clock),
        )

    async def start(self, *broker_ids: int) -> None:
        await self.node.start()
        self.node.publish_to([Publisher("recently fenced", self.dependencies.recently_fenced.follow)])
        await self.replicas.open_all(self.metadata.image)
        keys = [BY_NAME[name].key for name in COORDINATOR_APIS]
        handlers = build_handlers(self.dependencies, dict.fromkeys(keys, _no_coordinator))
        assert len(handlers) == len(SERVED)
        self.listener = Listener(handlers, self.tasks, lambda _, failure: self.failures.append(failure))
        self.client = await Client.connect(*(await self.listener.start())["PLAINTEXT"])
        for broker_id in broker_ids:
            await self.register(broker_id)

    async def close(self) -> None:
        self.client.close()
        await self.listener.close()
        await self.replicas.close(clean=False)
        if not self.has_lost_quorum:
            await self.node.stop()
        await self.tasks.close()
        assert self.failures == []

    # --- actions of the rest of the cluster

    async def lose_quorum(self) -> None:
        self.has_lost_quorum = True
        await self.node.stop()

    async def register(self, broker_id: int, **more: Any) -> None:
        values = {
            "incarnation": uuid.UUID(int=broker_id),
            "host": f"host-{broker_id}",
            "admin_url": "",
        } | more
        await self.metadata.submit(c.RegisterBroker(broker_id=broker_id, port=9_000 + broker_id, **values))

    async def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> None:
        """Create a topic; `replicas` are those of each partition."""
        settings = tuple((key.replace("_", "."), value) for key, value in configs.items())
        topic = c.NewTopic(name=name, assignments=tuple(enumerate(replicas)), configs=settings)
        [outcome] = (await self.metadata.submit(c.CreateTopics(topics=(topic,)))).topics
        assert outcome.error == ErrorCode.NONE, outcome

    async def fence(self, broker_id: int, fenced: bool = True) -> None:
        epoch = self.broker(broker_id).broker_epoch
        await self.metadata.submit(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))

    async def in_sync(self, name: str, number: int, *members: int) -> None:
        """Send AlterPartition as the partition's leader."""
        partition, image = self.partition(name, number), self.metadata.image
        change = c.IsrChange(
            topic_id=image.topic_ids[name],
            partition=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync=tuple(c.InSync(one, self.broker(one).broker_epoch) for one in members),
        )
        leader = self.broker(partition.leader)
        command = c.AlterPartitions(
            broker_id=leader.broker_id, broker_epoch=leader.broker_epoch, changes=(change,)
        )
        [outcome] = (await self.metadata.submit(command)).partitions
        assert outcome.error == ErrorCode.NONE, outcome

    # --- requests and the image

    async def ask(self, api: str, version: int, **request: Any) -> Any:
        return await self.client.ask(BY_NAME[api].key, version, message(api, request))

    def partition(self, name: str, number: int = 0) -> PartitionRecord:
        found = self.metadata.image.topic(name)
        assert found is not None
        return found.partitions[number]

    def broker(self, broker_id: int) -> BrokerImage:
        return self.metadata.image.brokers[broker_id]


def _no_coordinator(context: RequestContext, request: Any) -> Any:
    raise NotImplementedError("there are no groups here")
