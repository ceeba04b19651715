"""Work on many partitions (metrics, log cleaner, log maintenance) yields to the event loop."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from manual_clock import ManualClock

from tierlog.base.files import OsFiles
from tierlog.base.tasks import ITEMS_PER_TURN, TaskGroup
from tierlog.broker.gateway import metrics
from tierlog.broker.gateway.exposition import PARTITIONS_PER_TURN, exposition
from tierlog.broker.maintenance import log_cleaner
from tierlog.broker.maintenance.log_cleaner import LogCleaner
from tierlog.broker.maintenance.log_maintenance import LogMaintenance
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.records.writer import NewRecord, encode_batch

PARTITIONS = 2_000


class Node:
    def __init__(self, path: Path) -> None:
        settings = settings_from({"log.dirs": str(path), "log.cleanup.policy": "compact"})
        files, clock, rng = OsFiles(), ManualClock(), random.Random(1)
        self.tasks = TaskGroup(lambda *_: None)
        self.directories = LogDirectories([path], files, rng)
        commits = GroupCommit()
        self.replicas = ReplicaManager(
            settings, self.directories, clock, self.tasks, rng, on_change=lambda _: None
        )
        self.cleaner = LogCleaner(settings, self.replicas, clock, self.tasks, commits)
        self.log_maintenance = LogMaintenance(
            settings, self.replicas, files, clock, self.tasks, commits, self
        )

    async def ensure_reserve(self) -> bool:
        return True


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    topic_id = uuid.UUID(int=1)
    led = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    made: list[r.AnyRecord] = [r.TopicCreated(topic_id=topic_id, name="t")]
    made += [r.PartitionRecord(topic_id=topic_id, partition=n, **led) for n in range(PARTITIONS)]  # type: ignore[arg-type]
    node = Node(tmp_path)
    await node.replicas.open_all(evolve_all(ClusterImage(cluster_id="c"), made))
    yield node
    await node.tasks.close()
    await node.replicas.close(clean=False)
    node.directories.release()


LOOKS: dict[str, tuple[Callable[[Node], Awaitable[object]], int]] = {
    "traffic": (lambda node: exposition(metrics.topic_families(node.replicas)), PARTITIONS_PER_TURN),
    "cleaner": (lambda node: node.cleaner.clean_all(), log_cleaner.LOGS_PER_TURN),
    "flush.ms": (
        lambda node: node.log_maintenance.flush_due(node.directories.all[0]),
        ITEMS_PER_TURN,
    ),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_work_on_many_partitions_yields_to_the_loop(node: Node, look: str) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    work, at_a_turn = LOOKS[look]
    await work(node)
    running.cancel()
    assert turns >= PARTITIONS // at_a_turn


async def test_traffic_is_summed_over_all_slices(node: Node) -> None:
    for replica in node.replicas:
        if replica.name.partition % 100 == 0:
            replica.as_leader.append(memoryview(bytearray(encode_batch([NewRecord(0, b"k", b"v")]))), 0)
    text = (await exposition(metrics.topic_families(node.replicas))).decode()
    assert f'kafka_server_brokertopicmetrics_messagesin_total{{topic="t"}} {PARTITIONS // 100}' in text
    assert f"kafka_server_brokertopicmetrics_messagesin_total {PARTITIONS // 100}" in text
    text = (await exposition(metrics.log_families(node.replicas))).decode()
    assert f"kafka_server_replicamanager_leadercount {PARTITIONS}" in text
