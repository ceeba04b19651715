"""Replica manager: creates, configures and removes replicas as the image says, and recovers them at start."""

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from connection_harness import until
from remote_segments import remote_segment

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.remote.diverged_segments import DivergedSegments
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageSuspected, RemoteLogDiverges, ReplicaEvent
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.records.writer import NewRecord, encode_batch

EMPTY = ClusterImage(cluster_id="c")
ORDERS, AGAIN = uuid.UUID(int=1), uuid.UUID(int=2)


def created(image: ClusterImage, topic_id: uuid.UUID, partitions: int = 1, **configs: str) -> ClusterImage:
    """The image after the topic `orders` was created."""
    changes: list[Any] = [r.TopicCreated(topic_id=topic_id, name="orders")]
    changes += [
        r.PartitionRecord(
            topic_id=topic_id,
            partition=number,
            replicas=(1,),
            in_sync=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        )
        for number in range(partitions)
    ]
    changes += [
        r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="orders", key=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    return evolve_all(image, changes)


def deleted(image: ClusterImage, topic_id: uuid.UUID) -> ClusterImage:
    return evolve_all(image, [r.TopicDeleted(topic_id=topic_id, at_ms=0)])


class Run:
    """A replica manager on a directory."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.failures: list[BaseException] = []
        self.moved: list[TopicPartition] = []
        self.tasks = TaskGroup(lambda _, failure: self.failures.append(failure))
        files, rng = OsFiles(), random.Random(1)
        self.manager = ReplicaManager(
            settings_from({"log.dirs": str(path), **settings}),
            LogDirectories([path], files, rng),
            SystemClock(),
            self.tasks,
            rng,
            on_change=self.moved.append,
        )

    async def start(self, image: ClusterImage) -> "Run":
        await self.manager.open_all(image)
        return self

    async def stop(self, *, clean: bool = True) -> None:
        await self.tasks.close()
        await self.manager.close(clean=clean)
        assert not self.failures

    def replica(self, number: int = 0) -> Replica:
        found = self.manager.get("orders", number)
        assert found is not None
        return found


def append(replica: Replica, values: Sequence[bytes]) -> int:
    batch = encode_batch([NewRecord(SystemClock().now_ms(), None, value, ()) for value in values])
    result = replica.as_leader.append(memoryview(batch), SystemClock().now_ms())
    assert not result.error, result
    return result.base_offset


async def test_created_topic_is_led_and_found_by_name_and_id(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    image = created(EMPTY, ORDERS, 2, retention_ms="5")
    run.manager.follow(EMPTY, image)
    assert run.manager.get("orders", 1) is run.manager.get(ORDERS, 1)
    assert run.manager.get("orders", 2) is None
    assert run.replica().config.retention_ms == 5
    assert append(run.replica(), [b"a", b"b"]) == 0
    assert run.moved[-1] == TopicPartition("orders", 0)
    await run.stop()


async def test_changed_topic_setting_applies_to_the_log(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    image = created(EMPTY, ORDERS)
    run.manager.follow(EMPTY, image)
    change = r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="orders", key="segment.bytes", value="1234")
    run.manager.follow(image, evolve_all(image, [change]))
    assert run.replica().config.segment_bytes == 1234
    await run.stop()


async def test_changed_defaults_apply_to_topics_without_an_override(tmp_path: Path) -> None:
    run = await Run(tmp_path, **{"log.segment.bytes": "9000"}).start(EMPTY)
    images = [EMPTY, created(EMPTY, ORDERS, retention_ms="5")]
    cluster, broker = r.ConfigScope.CLUSTER, r.ConfigScope.BROKER
    seen = []
    for scope, name, key, value in (
        (cluster, "", "log.segment.bytes", "2000"),
        (broker, "1", "log.segment.bytes", "3000"),
        (broker, "2", "log.segment.bytes", "4000"),
        (cluster, "", "log.retention.ms", "6"),
        (broker, "1", "log.segment.bytes", None),
        (cluster, "", "log.segment.bytes", None),
    ):
        run.manager.follow(*images[-2:])
        change = r.ConfigRecord(scope=scope, name=name, key=key, value=value)
        images.append(evolve_all(images[-1], [change]))
        seen.append((run.replica().config.segment_bytes, run.replica().config.retention_ms))
    run.manager.follow(*images[-2:])
    seen.append((run.replica().config.segment_bytes, run.replica().config.retention_ms))
    assert seen == [(9000, 5), (2000, 5), (3000, 5), (3000, 5), (3000, 5), (2000, 5), (9000, 5)]
    await run.stop()


async def test_logs_survive_clean_and_unclean_stops(tmp_path: Path) -> None:
    image = created(EMPTY, ORDERS)
    run = await Run(tmp_path).start(image)
    append(run.replica(), [b"a", b"b"])
    await run.stop(clean=True)
    run = await Run(tmp_path).start(image)
    assert run.replica().high_watermark == 2
    append(run.replica(), [b"c"])
    await run.stop(clean=False)
    run = await Run(tmp_path).start(image)
    assert run.replica().log_end_offset == 3
    await run.stop()


async def test_topic_created_again_starts_empty(tmp_path: Path) -> None:
    image = created(EMPTY, ORDERS)
    run = await Run(tmp_path).start(image)
    append(run.replica(), [b"a"])
    old = run.replica()
    without = deleted(image, ORDERS)
    run.manager.follow(image, without)
    assert run.manager.get("orders", 0) is None
    assert not run.manager.holds(old)
    run.manager.follow(without, created(without, AGAIN))
    assert run.replica().log_end_offset == 0
    assert len(list(run.manager.directories.deleted_partitions())) == 1, (
        "the old files wait for file.delete.delay.ms"
    )
    await run.stop()


async def test_files_of_an_unknown_topic_are_renamed(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(created(EMPTY, ORDERS))
    append(run.replica(), [b"a"])
    await run.stop()
    run = await Run(tmp_path).start(created(EMPTY, AGAIN))
    assert run.replica().log_end_offset == 0
    assert len(list(tmp_path.glob("*-stray/*.log"))) == 1
    await run.stop()


async def test_log_start_of_a_topic_that_was_tiered_is_that_of_the_quorum(tmp_path: Path) -> None:
    """A restart does not move it to the local log start: the leader has yet to delete what is remote."""
    off = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    image = created(EMPTY, ORDERS, **off)
    remote = RemotePartition(log_start_offset=40, entries=(remote_segment(0, 99),), copied_end_offset=100)
    image = msgspec.structs.replace(image, remote=image.remote.set(TopicIdPartition(ORDERS, 0), remote))
    for _ in range(2):
        run = await Run(tmp_path).start(image)
        replica = run.replica()
        assert (replica.log_start_offset, replica.local_log_start_offset) == (40, 100)
        assert replica.is_tiered and replica.read(50, 100).remote
        append(replica, [b"a"])
        await run.stop()


async def test_leader_on_a_new_disk_starts_at_the_end_of_the_remote_log(tmp_path: Path) -> None:
    image = created(EMPTY, ORDERS, remote_storage_enable="true")
    remote = RemotePartition(log_start_offset=40, entries=(remote_segment(0, 99),))
    image = msgspec.structs.replace(image, remote=image.remote.set(TopicIdPartition(ORDERS, 0), remote))
    run = await Run(tmp_path).start(image)
    replica = run.replica()
    assert (replica.log_start_offset, replica.local_log_start_offset, replica.log_end_offset) == (
        40,
        100,
        100,
    )
    assert replica.read(50, 100).remote
    assert append(replica, [b"a"]) == 100
    await run.stop()


FIRST = remote_segment(0, 9)
SECOND = remote_segment(
    10, 19, leader_epochs=((0, 0), (1, 15)), leader_epoch=1
)  # another leader's, from 15 on


def with_remote(image: ClusterImage, *entries: r.RemoteSegment) -> ClusterImage:
    remote = RemotePartition(entries=entries, copied_end_offset=entries[-1].end_offset)
    return msgspec.structs.replace(image, remote=image.remote.set(TopicIdPartition(ORDERS, 0), remote))


def with_leader(image: ClusterImage, leader: int, epoch: int) -> ClusterImage:
    before = image.topics[ORDERS].partitions[0]
    changes = {"leader": leader, "leader_epoch": epoch, "partition_epoch": epoch, "in_sync": (leader,)}
    return evolve_all(image, [msgspec.structs.replace(before, replicas=(1, 2), **changes)])


class Quorum:
    """Keeps what is submitted to it, and commits nothing."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.submitted: list[object] = []

    async def submit(self, command: object) -> None:
        self.submitted.append(command)
        raise MetadataUnavailable("down", applied_unknown=False)


async def elected_uncleanly(
    run: Run, *entries: r.RemoteSegment, local_from: int = 0
) -> tuple[ClusterImage, list[ReplicaEvent]]:
    """Broker 1 has offsets 0 to 29 of leader epoch 0. Broker 2 led epoch 1, in which these entries were
    committed; then broker 1 is elected again. Returns the image and the events since."""
    image = created(EMPTY, ORDERS, remote_storage_enable="true")
    run.manager.follow(EMPTY, image)
    for _ in range(6):
        append(run.replica(), [b"%d" % number for number in range(5)])
    if local_from:
        run.replica().log.roll(0)
        run.replica().log.delete_local_before(local_from, 0)
    away = with_remote(with_leader(image, 2, 1), *entries)
    run.manager.follow(image, away)
    events: list[ReplicaEvent] = []
    run.manager.listeners = (events.append,)
    again = with_leader(away, 1, 2)
    run.manager.follow(away, again)
    return again, events


async def test_leader_whose_log_differs_from_the_manifest_leads_once_those_entries_are_removed(
    tmp_path: Path,
) -> None:
    run = await Run(tmp_path).start(EMPTY)
    image, events = await elected_uncleanly(run, FIRST, SECOND)
    assert events == [RemoteLogDiverges(run.replica(), 2, 10)]
    assert not run.replica().is_leader
    run.manager.follow(image, image)
    removed = r.RemoteLogDiverged(topic_id=ORDERS, partition=0, from_offset=10, at_ms=1)
    after = evolve_all(image, [removed])
    assert after.remote_partition(ORDERS, 0).entries == (FIRST,)
    assert list(after.delete_queue) == [SECOND.uuid]
    run.manager.follow(image, after)
    assert run.replica().is_leader
    assert (run.replica().log_start_offset, append(run.replica(), [b"new"])) == (0, 30)
    await run.stop()


async def test_leader_whose_log_does_not_reach_back_to_the_divergence_continues_the_remote_log(
    tmp_path: Path,
) -> None:
    run = await Run(tmp_path, **{"log.segment.bytes": "400"}).start(EMPTY)
    image, events = await elected_uncleanly(run, FIRST, SECOND, local_from=15)
    assert (events, run.replica().is_leader) == ([], True)
    assert image.remote_partition(ORDERS, 0).entries == (FIRST, SECOND)
    assert append(run.replica(), [b"new"]) == SECOND.end_offset
    await run.stop()


async def test_leader_whose_log_is_damaged_where_it_may_differ_waits_for_the_repair(tmp_path: Path) -> None:
    """Its epoch cache differs from the manifest, and only the damaged batch tells which one is right."""
    run = await Run(tmp_path).start(EMPTY)
    image = created(EMPTY, ORDERS, remote_storage_enable="true")
    run.manager.follow(EMPTY, image)
    for _ in range(6):
        append(run.replica(), [b"%d" % number for number in range(5)])
    [path] = tmp_path.rglob("*.log")
    intact = path.read_bytes()
    away = with_remote(with_leader(image, 2, 1), FIRST, SECOND)
    run.manager.follow(image, away)
    events: list[ReplicaEvent] = []
    run.manager.listeners = (events.append,)
    path.write_bytes(bytes(len(intact)))
    run.manager.follow(away, with_leader(away, 1, 2))
    assert not run.replica().is_leader
    [suspected] = events
    assert isinstance(suspected, DamageSuspected) and suspected.offset == SECOND.last_offset
    path.write_bytes(intact)
    await run.manager.retry_missing()
    assert events[1:] == [RemoteLogDiverges(run.replica(), 2, 10)]
    await run.stop()


async def test_entries_stay_if_the_local_log_lost_their_records_before_the_removal(tmp_path: Path) -> None:
    """The local log is given up then: without the entries no tier would have the offsets."""
    run = await Run(tmp_path, **{"log.segment.bytes": "400"}).start(EMPTY)
    image, events = await elected_uncleanly(run, FIRST, SECOND)
    run.replica().log.roll(0)
    run.replica().log.delete_local_before(15, 0)
    quorum = Quorum(image)
    removal = DivergedSegments(1, cast(MetadataClient, quorum), run.tasks)
    removal.on_replica_event(events[0])
    await until(lambda: not len(run.tasks))
    assert not quorum.submitted and not run.replica().is_leader
    await run.manager.retry_missing()
    assert run.replica().is_leader
    assert append(run.replica(), [b"new"]) == SECOND.end_offset
    await run.stop()


async def test_leader_whose_log_agrees_with_the_manifest_leads_at_once(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    _, events = await elected_uncleanly(run, FIRST, remote_segment(10, 19))
    assert (events, run.replica().is_leader) == ([], True)
    assert append(run.replica(), [b"new"]) == 30
    await run.stop()


async def test_manifest_stays_if_only_the_epoch_cache_differs(tmp_path: Path) -> None:
    """The records have the manifest's epoch; the cache was rebuilt after its file was lost."""
    run = await Run(tmp_path).start(EMPTY)
    image = created(EMPTY, ORDERS, remote_storage_enable="true")
    run.manager.follow(EMPTY, image)
    append(run.replica(), [b"%d" % number for number in range(30)])
    away = with_remote(with_leader(image, 2, 5), FIRST, remote_segment(10, 19))
    run.manager.follow(image, away)
    run.replica().log.epochs.restart([(3, 0)])
    events: list[ReplicaEvent] = []
    run.manager.listeners = (events.append,)
    run.manager.follow(away, with_leader(away, 1, 6))
    assert (events, run.replica().is_leader) == ([], True)
    await run.stop()
