"""Replica manager after crashes, lost disks and topics created again: nothing is lost, hidden or reused."""

import asyncio
import contextlib
import errno
import os
import random
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from immutables import Map
from msgspec import structs
from structlog.testing import capture_logs

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition, TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import ReplicaEvent, ReplicasCreated
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.checkpoints import RECOVERY_POINTS, read_offsets
from tierlog.broker.storage.log_dir import CheckpointRow
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage, RemotePartition, TopicImage
from tierlog.metadata.records import ConfigScope, PartitionRecord
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
EMPTY = ClusterImage(cluster_id="c")


def with_topic(
    topic_id: int,
    name: str = "t",
    *,
    remote: RemotePartition | None = None,
    configs: dict[str, str] | None = None,
) -> ClusterImage:
    topic = TopicImage(
        topic_id=uuid.UUID(int=topic_id),
        name=name,
        partitions=(
            PartitionRecord(
                topic_id=uuid.UUID(int=topic_id),
                partition=0,
                replicas=(1,),
                in_sync=(1,),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            ),
        ),
    )
    return ClusterImage(
        cluster_id="c",
        topics=Map({topic.topic_id: topic}),
        topic_ids=Map({name: topic.topic_id}),
        configs=Map({(ConfigScope.TOPIC, name): Map(configs or {})}),
        remote=Map({TopicIdPartition(topic.topic_id, 0): remote}) if remote else Map(),
    )


class Node:
    """A manager on a directory. Leaving without `close` is a SIGKILL."""

    def __init__(self, path: Path, files: OsFiles | None = None) -> None:
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        files, rng = files or OsFiles(), random.Random(1)
        self.directories = LogDirectories([path], files, rng)
        self.directory = self.directories.all[0]
        path.mkdir(exist_ok=True)
        self.manager = ReplicaManager(
            NodeSettings(node_id=1),
            self.directories,
            SystemClock(),
            self.tasks,
            rng,
            on_change=lambda partition: None,
        )

    @property
    def replica(self) -> Replica:
        found = self.manager.get("t", 0)
        assert found is not None
        return found


async def started(path: Path, image: ClusterImage, files: OsFiles | None = None) -> Node:
    node = Node(path, files)
    await node.manager.open_all(image)
    return node


def append(replica: Replica, count: int, **options: Any) -> int:
    records = [NewRecord(NOW, b"k", b"v", ()) for _ in range(count)]
    result = replica.as_leader.append(memoryview(encode_batch(records, **options)), NOW)
    assert result.error == ErrorCode.NONE
    return result.base_offset


async def test_topic_created_again_starts_at_offset_zero(tmp_path: Path) -> None:
    old, new = with_topic(1), with_topic(2)
    node = await started(tmp_path, old)
    append(node.replica, 10)
    node.replica.raise_log_start(10)
    await node.manager.checkpoints.write_for([node.replica.name])
    node.manager.follow(old, EMPTY)
    node.manager.follow(EMPTY, new)
    await node.manager.wait_until_created()
    append(node.replica, 5)  # acknowledged, and then the process is killed
    again = await started(tmp_path, new)
    assert (again.replica.log_start_offset, again.replica.log_end_offset) == (0, 5)
    assert again.replica.log.recovery_point == 0
    await node.tasks.close()


class Syncs(OsFiles):
    """Records the syncs on the event loop, and blocks the checkpoint until released."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = threading.get_ident()
        self.on_loop = 0
        self.go = threading.Event()
        self.go.set()
        self.waits = threading.Event()

    def sync(self, fd: int) -> None:
        self.on_loop += threading.get_ident() == self.loop
        super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        if target.name == RECOVERY_POINTS:
            self.waits.set()
            self.go.wait()
        super().rename(source, target)


def recovery_point_on_disk(path: Path) -> int:
    return read_offsets(OsFiles(), path / RECOVERY_POINTS)[TopicPartition("t", 0)]


async def paid(replica: Replica) -> None:
    """Wait until it needs no checkpoint."""
    reported = asyncio.Event()
    replica.listeners.append(lambda _: None if replica.needs_checkpoint else reported.set())
    if replica.needs_checkpoint:
        await reported.wait()


@pytest.mark.parametrize("cut_meanwhile", [False, True])
async def test_segment_after_a_truncation_rolls_without_waiting_for_the_disk(
    tmp_path: Path, cut_meanwhile: bool
) -> None:
    files = Syncs()
    node = await started(tmp_path, with_topic(1, configs={"segment.bytes": "500"}), files)
    replica = node.replica
    for _ in range(30):
        append(replica, 1)
    replica.flush()
    await node.manager.checkpoints.write_for([replica.name])
    assert recovery_point_on_disk(tmp_path) == 30
    replica.become_follower(2, 1, 1)
    replica.as_follower.truncate_to(10, NOW)
    assert replica.needs_checkpoint
    if cut_meanwhile:
        files.go.clear()
    files.waits.clear()
    node.manager.checkpoints.lower(replica)
    if cut_meanwhile:  # the row that is being written does not know of it
        await asyncio.to_thread(files.waits.wait)
        replica.as_follower.truncate_to(5, NOW)
        files.go.set()
    await paid(replica)
    assert recovery_point_on_disk(tmp_path) == replica.log.recovery_point == replica.log_end_offset
    replica.become_leader(2, 2, [1])
    files.on_loop = 0
    segments = len(replica.segments)
    for _ in range(20):
        append(replica, 1)
    assert len(replica.segments) > segments
    assert (files.on_loop, node.failures) == (0, [])
    await node.tasks.close()


async def test_checkpoint_of_a_log_that_lost_its_end_is_lowered_at_start(tmp_path: Path) -> None:
    node = await started(tmp_path, with_topic(1))
    for _ in range(10):
        append(node.replica, 1)
    node.replica.flush()
    await node.manager.checkpoints.write_for([node.replica.name])
    log = node.replica.log.active.path()
    os.truncate(log, log.stat().st_size // 2)
    again = await started(tmp_path, with_topic(1))
    await paid(again.replica)
    assert recovery_point_on_disk(tmp_path) <= again.replica.log_end_offset == 5
    await again.tasks.close()


async def test_deleted_records_stay_deleted_after_a_damaged_checkpoint(tmp_path: Path) -> None:
    node = await started(tmp_path, with_topic(1))
    for _ in range(10):
        append(node.replica, 1)
    node.replica.raise_log_start(7)
    await node.manager.checkpoints.write_for([node.replica.name])
    (tmp_path / "log-start-offset-checkpoint").write_bytes(b"0\n1\n")
    again = await started(tmp_path, with_topic(1))
    assert (again.replica.log_start_offset, again.replica.log_end_offset) == (7, 10)
    await node.tasks.close()


async def test_topic_created_again_while_the_broker_was_down(tmp_path: Path) -> None:
    node = await started(tmp_path, with_topic(1))
    append(node.replica, 10)
    node.replica.raise_log_start(10)
    await node.manager.close(clean=True)
    new = with_topic(2)
    node = await started(tmp_path, new)
    assert (node.replica.log_start_offset, node.replica.log_end_offset) == (0, 0)
    append(node.replica, 5)
    again = await started(tmp_path, new)
    assert (again.replica.log_start_offset, again.replica.log_end_offset) == (0, 5)
    assert [path.name for path in tmp_path.glob("*-stray")] != []


async def test_checkpoints_of_a_deleted_topic_are_not_reused(tmp_path: Path) -> None:
    """They were being written while the topic was deleted and created again."""
    old, new = with_topic(1), with_topic(2)
    node = await started(tmp_path, old)
    append(node.replica, 10)
    node.replica.raise_log_start(10)
    rows = [CheckpointRow(node.replica.name, *node.replica.checkpoint)]
    node.directory.write_checkpoints(lambda: rows)
    node.manager.follow(old, EMPTY)
    node.manager.follow(EMPTY, new)
    await node.manager.wait_until_created()
    assert node.directory.load_checkpoints().log_starts == {}
    await node.tasks.close()


REMOTE = RemotePartition(log_start_offset=40, copied_end_offset=100)
TIERED = {"remote.storage.enable": "true"}


async def test_leader_with_a_lost_disk_starts_at_the_end_of_the_remote_log(tmp_path: Path) -> None:
    node = await started(tmp_path, with_topic(1, remote=REMOTE, configs=TIERED))
    replica = node.replica
    assert (replica.log_start_offset, replica.log_end_offset, replica.high_watermark) == (40, 100, 100)
    assert append(replica, 1) == 100


class KilledAfterMetadata(OsFiles):
    """The process ends when the partition's directory has its topic id."""

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        super().rename(source, target)
        if target.name == "partition.metadata":
            raise KeyboardInterrupt


async def test_kill_before_the_first_segment_of_a_lost_disk(tmp_path: Path) -> None:
    image = with_topic(1, remote=REMOTE, configs=TIERED)
    with contextlib.suppress(KeyboardInterrupt):
        Node(tmp_path, KilledAfterMetadata()).manager.follow(EMPTY, image)
    assert (tmp_path / "t-0" / "partition.metadata").exists()
    node = await started(tmp_path, image)
    assert append(node.replica, 1) == 100


async def test_leader_whose_log_ends_below_the_remote_log_starts_at_its_end(tmp_path: Path) -> None:
    node = await started(tmp_path, with_topic(1, configs=TIERED))
    append(node.replica, 60)
    node = await started(tmp_path, with_topic(1, remote=REMOTE, configs=TIERED))
    assert append(node.replica, 1) == 100
    node.replica.check()


async def test_directory_without_an_owner_gets_one(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()  # killed between the directory and its metadata
    await started(tmp_path, with_topic(1))
    assert Node(tmp_path).directory.partitions() == {TopicPartition("t", 0): uuid.UUID(int=1)}


async def test_longest_topic_name_can_be_renamed_to_stray(tmp_path: Path) -> None:
    name = "n" * 249
    await started(tmp_path, with_topic(1, name))
    await started(tmp_path, EMPTY)
    assert len(list(tmp_path.glob("*-stray"))) == 1


class Unmovable(OsFiles):
    """The directory of a partition cannot be renamed."""

    failure: OSError | None = None

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        if source.name == "t-0" and self.failure is not None:
            raise self.failure
        super().rename(source, target)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
async def test_topic_created_again_waits_until_the_old_directory_is_renamed(
    tmp_path: Path, code: int
) -> None:
    files, old, new = Unmovable(), with_topic(1), with_topic(2)
    node = await started(tmp_path, old, files)
    append(node.replica, 10)
    files.failure = OSError(code, os.strerror(code))
    node.manager.follow(old, EMPTY)
    with capture_logs() as reported:
        node.manager.follow(EMPTY, new)
    assert [line["event"] for line in reported if line["log_level"] == "error"][-1] == "log.open_failed"
    assert node.manager.get("t", 0) is None
    assert node.manager.is_offline(TopicPartition("t", 0))
    files.failure = None
    node.directory.mark_not_full()
    await node.manager.retry_missing()
    assert (node.replica.log_start_offset, node.replica.log_end_offset) == (0, 0)
    assert append(node.replica, 1) == 0
    await asyncio.sleep(0)
    await asyncio.gather(*(one for one in asyncio.all_tasks() if one.get_name().startswith("remove ")))
    assert node.directory.deleted_partitions() == []
    await node.tasks.close()
    again = await started(tmp_path, new)
    assert again.replica.log_end_offset == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["t-0"]


async def test_log_created_for_a_deleted_topic_is_not_used_by_a_new_topic_of_the_same_name(
    tmp_path: Path,
) -> None:
    node = await started(tmp_path, EMPTY)
    left = node.directory.create(TopicPartition("t", 0), uuid.UUID(int=1))
    (left / f"{0:020d}.log").write_bytes(encode_batch([NewRecord(NOW, b"k", b"v", ())]))
    node.manager.follow(EMPTY, with_topic(2))
    assert append(node.replica, 1) == 0
    await node.tasks.close()


class FullDisk(OsFiles):
    full = True

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        if self.full:
            raise OSError(28, "No space left on device")
        return super().writev_at(fd, buffers, position)


async def test_partition_is_created_later_after_a_full_disk(tmp_path: Path) -> None:
    files, image = FullDisk(), with_topic(1)
    node = Node(tmp_path, files)
    node.manager.follow(EMPTY, image)
    assert node.manager.get("t", 0) is None
    events: list[ReplicaEvent] = []
    node.manager.listeners = (events.append,)
    files.full = False
    node.directory.mark_not_full()
    await node.manager.retry_missing()
    assert append(node.replica, 1) == 0
    assert events == [ReplicasCreated()], "its coordinator begins without a request"


async def test_follower_with_a_lost_disk_fetches_until_it_is_elected(tmp_path: Path) -> None:
    """If its log end were moved at once, it would never restore epochs and producers from the tier."""
    alone = with_topic(1, remote=REMOTE, configs=TIERED)
    followed = led_by(alone, 2, leader_epoch=3)
    node = await started(tmp_path, followed)
    assert node.replica.log_end_offset == 40
    node.manager.follow(followed, led_by(alone, 1, leader_epoch=4))
    assert node.replica.log_end_offset == node.replica.high_watermark == 100
    assert append(node.replica, 1) == 100


class FullFor(OsFiles):
    """Creates no file while `full`."""

    full = False

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.full and (create or exclusive):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create, exclusive=exclusive)


class HeldSync(OsFiles):
    """In threads an fsync waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.entered, self.go = threading.get_ident(), threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        if threading.get_ident() != self.loop:
            self.entered.set()
            assert self.go.wait(30)
        super().sync(fd)


async def following(path: Path, files: OsFiles) -> tuple[Node, ClusterImage, ClusterImage]:
    """Its log ends at 5, the remote log at 100. Returns an image in which it follows, and one that elects
    it."""
    alone = with_topic(1, configs=TIERED)
    node = await started(path, alone, files)
    append(node.replica, 5)
    remote = with_topic(1, remote=REMOTE, configs=TIERED)
    followed, elected = led_by(remote, 2, leader_epoch=3), led_by(remote, 1, leader_epoch=4)
    node.manager.follow(alone, followed)
    assert (node.replica.is_follower, node.replica.log_end_offset) == (True, 5)
    return node, followed, elected


async def test_replica_elected_during_a_flush_leads_after_it(tmp_path: Path) -> None:
    files = HeldSync()
    node, followed, elected = await following(tmp_path, files)
    flush = asyncio.create_task(asyncio.to_thread(node.replica.flush))
    assert await asyncio.to_thread(files.entered.wait, 30)
    node.manager.follow(followed, elected)
    again = led_by(elected, 1, leader_epoch=5)
    node.manager.follow(elected, again)
    assert (node.replica.is_leader, node.replica.failed) == (False, None)
    waiting = [one for one in asyncio.all_tasks() if one.get_name().startswith("lead ")]
    assert len(waiting) == 1
    files.go.set()
    await asyncio.gather(flush, *waiting)
    assert (node.replica.is_leader, node.replica.leader_epoch) == (True, 5)
    assert append(node.replica, 1) == 100
    assert node.failures == []


@pytest.mark.parametrize("elected_again", [False, True])
async def test_replica_elected_on_a_full_disk_leads_when_there_is_space(
    tmp_path: Path, elected_again: bool
) -> None:
    files = FullFor()
    node, followed, elected = await following(tmp_path, files)
    files.full = True
    node.manager.follow(followed, elected)
    await node.manager.retry_missing()
    assert (node.replica.is_leader, node.replica.failed) == (False, None)
    epoch = 4
    if elected_again:  # it has started again by now, except for one file
        node.manager.follow(elected, led_by(elected, 1, leader_epoch=5))
        epoch = 5
        batch = encode_batch([NewRecord(NOW, b"k", b"v", ())])
        assert node.replica.as_leader.append(memoryview(batch), NOW).error is ErrorCode.KAFKA_STORAGE_ERROR
    files.full = False
    node.directory.mark_not_full()
    await node.manager.retry_missing()
    assert (node.replica.is_leader, node.replica.leader_epoch) == (True, epoch)
    assert append(node.replica, 1) == 100


async def test_log_end_of_a_failed_leader_stays_when_it_is_elected_again(tmp_path: Path) -> None:
    alone = with_topic(1, configs=TIERED)
    node = await started(tmp_path, alone)
    append(node.replica, 5)
    node.replica.failed = "fsync failed"
    node.manager.follow(alone, led_by(with_topic(1, remote=REMOTE, configs=TIERED), 1, leader_epoch=4))
    assert (node.replica.is_leader, node.replica.leader_epoch, node.replica.log_end_offset) == (False, 4, 5)


def led_by(image: ClusterImage, leader: int, *, leader_epoch: int) -> ClusterImage:
    topic = image.topics[uuid.UUID(int=1)]
    partition = PartitionRecord(
        topic_id=topic.topic_id,
        partition=0,
        replicas=(1, 2),
        in_sync=(leader,),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch,
    )
    changed = structs.replace(topic, partitions=(partition,))
    return structs.replace(image, topics=image.topics.set(topic.topic_id, changed))
