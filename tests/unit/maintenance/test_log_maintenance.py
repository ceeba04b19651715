"""Log maintenance: a full disk delays only its own replicas, and a failed fsync takes the
directory offline.
"""

import asyncio
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import ManualClock
from structlog.testing import capture_logs

from tierlog.base.files import OsFiles, Space
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.log_maintenance import LogMaintenance
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.records.writer import NewRecord, encode_batch

DAY_MS = 86_400_000
TOPIC = uuid.UUID(int=1)


class Disk(OsFiles):
    """Has no space for small files in the directory `full`; every fsync fails while `broken`."""

    full, broken, snapshots = "", False, True
    usable = 1 << 39
    on_exclusive: Callable[[], object] = staticmethod(lambda: None)
    """Called before a small file is created."""

    def space(self, path: Path) -> Space:
        return Space(1 << 40, self.usable)

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if create and path.suffix == ".snapshot" and not self.snapshots:
            raise OSError(28, "No space left on device")
        if exclusive and path.parent.name == self.full:
            raise OSError(28, "No space left on device")
        if exclusive:
            self.on_exclusive()
        return super().open(path, create=create, exclusive=exclusive)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        if self.broken:
            raise OSError(5, "Input/output error")
        OsFiles.sync(fd)


class Jumping(ManualClock):
    """`now` is the monotonic clock."""

    jumped_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jumped_ms


class Node:
    def __init__(self, path: Path) -> None:
        self.disk, self.fatal = Disk(), []  # type: ignore[var-annotated]
        settings, rng, clock = settings_from({"log.dirs": str(path)}), random.Random(1), Jumping()
        self.clock = clock
        tasks = TaskGroup(lambda name, failure: self.fatal.append((name, failure)))
        directories = LogDirectories([path], self.disk, rng)
        self.directory = directories.all[0]
        self.replicas = ReplicaManager(
            settings,
            directories,
            clock,
            tasks,
            rng,
            on_change=lambda name: None,
            fatal=lambda name, failure: self.fatal.append((name, failure)),
        )
        self.maintenance = LogMaintenance(
            settings,
            self.replicas,
            self.disk,
            clock,
            tasks,
            GroupCommit(),
            self,
        )

    async def ensure_reserve(self) -> bool:
        return True

    async def start(self, **configs: str) -> "Node":
        partition = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
        changes = [r.TopicCreated(topic_id=TOPIC, name="t")]
        changes += [r.PartitionRecord(topic_id=TOPIC, partition=n, **partition) for n in range(2)]  # type: ignore[misc,arg-type]
        changes += [
            r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="t", key=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        await self.replicas.open_all(evolve_all(ClusterImage(cluster_id="c"), changes))
        for replica in self.replicas:
            self.append(replica)
        return self

    def append(self, replica: Replica) -> None:
        now_ms = self.clock.now_ms()
        batch = encode_batch([NewRecord(now_ms, None, b"v" * 100)])
        assert not replica.as_leader.append(memoryview(bytearray(batch)), now_ms).error

    def replica(self, number: int) -> Replica:
        found = self.replicas.get("t", number)
        assert found is not None
        return found


async def test_flush_on_a_full_disk_does_not_delay_other_replicas(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.disk.full = "t-0"
    await node.maintenance.checkpoint(node.directory)
    assert (node.replica(0).log.recovery_point, node.replica(1).log.recovery_point) == (0, 1)
    node.disk.full = ""
    await node.maintenance.checkpoint(node.directory)
    assert node.replica(0).log.recovery_point == 1
    assert node.fatal == []


async def test_flush_ms_bounds_how_long_records_wait_for_an_fsync(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(flush_ms="50")
    node.clock.now += 49
    await node.maintenance.flush_due(node.directory)
    assert [replica.log.recovery_point for replica in node.replicas] == [0, 0]
    node.clock.now += 1
    await node.maintenance.flush_due(node.directory)
    assert [replica.log.recovery_point for replica in node.replicas] == [1, 1]


async def test_segment_jitter_spreads_rolls_of_a_topic(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(segment_ms="100000", segment_jitter_ms="90000")
    rolled_at: dict[int, int] = {}
    for elapsed_ms in range(5_000, 100_001, 5_000):
        for number in (0, 1):
            replica = node.replica(number)
            if number not in rolled_at and replica.log.maybe_roll(node.clock.now_ms() + elapsed_ms):
                rolled_at[number] = elapsed_ms
    assert len(set(rolled_at.values())) == 2
    assert all(10_000 <= elapsed_ms <= 100_000 for elapsed_ms in rolled_at.values())


async def test_retention_skips_partitions_deleted_during_its_run(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(segment_ms="1", retention_ms="1")
    node.clock.now += 10_000

    async def reopen() -> None:
        image = node.replicas._image
        assert image is not None
        node.replicas.follow(image, evolve_all(image, [r.TopicDeleted(topic_id=TOPIC, at_ms=0)]))
        for number in (0, 1):
            (tmp_path / f"t-{number}").mkdir()
            (tmp_path / f"t-{number}" / f"{0:020d}.log").write_bytes(b"of the new topic")

    await asyncio.gather(node.maintenance.apply_retention(), reopen())
    for number in (0, 1):
        assert [path.name for path in (tmp_path / f"t-{number}").iterdir()] == [f"{0:020d}.log"]


async def test_failed_fsync_takes_the_directory_offline_and_the_last_one_stops_the_node(
    tmp_path: Path,
) -> None:
    node = await Node(tmp_path).start()
    node.disk.broken = True
    kept = list(node.replicas)
    await node.maintenance.checkpoint(node.directory)
    assert [name for name, _ in node.fatal] == ["the last log directory"]
    assert list(node.replicas) == []
    assert all(replica.failed and "fsync failed" in replica.failed for replica in kept)


async def test_flush_of_a_deleted_replica_fails_silently(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    kept = list(node.replicas)
    await node.replicas.close(clean=False)
    for replica in kept:
        await node.maintenance._flush(replica)
    assert node.fatal == []


async def test_retention_continues_where_rolls_fail(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(segment_bytes="1048576", segment_ms="1", retention_bytes="0")
    replica = node.replica(0)
    replica.log.roll(node.clock.now_ms())
    node.append(replica)
    node.disk.snapshots = False
    node.clock.now += 10
    with capture_logs() as logged:
        await node.maintenance.apply_retention()
    assert (replica.log_start_offset, len(replica.segments)) == (1, 1)
    assert {entry["what"] for entry in logged if entry["event"] == "log.maintenance.failed"} == {"roll"}


async def test_retention_quietly_retries_while_a_flush_writes_the_leader_epochs(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(segment_ms="1", retention_ms="1")
    replica, writes, may_end = node.replica(0), threading.Event(), threading.Event()
    node.disk.on_exclusive = lambda: (writes.set(), may_end.wait())  # type: ignore[method-assign]
    flush = asyncio.ensure_future(asyncio.to_thread(replica.log.flush))
    node.clock.now += 10_000
    try:
        await asyncio.to_thread(writes.wait)
        replica.log.roll(node.clock.now_ms())
        node.disk.on_exclusive = lambda: None  # type: ignore[method-assign]
        with capture_logs() as logged:
            await node.maintenance.apply_retention()
    finally:
        may_end.set()
        await flush
    assert [entry for entry in logged if entry["event"] == "log.maintenance.failed"] == []
    assert replica.log_start_offset == 0
    await node.maintenance.apply_retention()
    assert replica.log_start_offset == 1


async def test_unexpected_error_in_one_partition_does_not_stop_retention_of_others(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(segment_ms="1", retention_ms="1")
    bug = KeyError("a bug")
    first, second = node.replicas

    retain = node.maintenance._retain

    def fail(replica: Replica, now_ms: int) -> None:
        if replica is first:
            raise bug
        retain(replica, now_ms)

    node.maintenance._retain = fail  # type: ignore[method-assign]
    node.clock.now += 10_000
    with pytest.raises(ExceptionGroup) as met:
        await node.maintenance.apply_retention()
    assert met.value.exceptions == (bug,) and bug.__notes__ == [f"partition {first.name}"]
    assert (first.log_start_offset, second.log_start_offset) == (0, 1)


async def test_retention_of_a_partition_that_was_tiered_is_left_to_the_remote_log_manager(
    tmp_path: Path,
) -> None:
    """The quorum has its log start."""
    node = await Node(tmp_path).start(segment_ms="1", retention_ms="1")
    first, second = node.replicas
    config = first.config
    first.update_config(replace(config, remote_storage_enable=True))
    first.update_config(config)
    node.clock.now += 10_000
    await node.maintenance.apply_retention()
    assert (first.log_start_offset, second.log_start_offset) == (0, 1)


async def test_idle_producers_of_tiered_partitions_expire(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(remote_storage_enable="true")
    replica, now_ms = node.replica(0), node.clock.now_ms()
    batch = encode_batch([NewRecord(now_ms, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=0)
    assert not replica.as_leader.append(memoryview(batch), now_ms).error
    await node.maintenance.apply_retention()
    node.clock.now += DAY_MS - 1
    await node.maintenance.apply_retention()
    assert replica.log.producers.get(7) is not None
    node.clock.now += 1
    await node.maintenance.apply_retention()
    assert replica.log.producers.get(7) is None


async def test_wall_clock_jump_expires_no_producer(tmp_path: Path) -> None:
    """Otherwise a retry would be appended again."""
    node = await Node(tmp_path).start(retention_ms="-1", message_timestamp_after_max_ms=str(1 << 60))
    replica, now_ms = node.replica(0), node.clock.now_ms()
    batch = encode_batch([NewRecord(now_ms, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=0)
    first = replica.as_leader.append(memoryview(bytearray(batch)), now_ms)
    for jump_ms in (10 * DAY_MS, -20 * DAY_MS):
        node.clock.jumped_ms += jump_ms
        await node.maintenance.apply_retention()
        again = replica.as_leader.append(memoryview(bytearray(batch)), node.clock.now_ms())
        assert (again.error, again.base_offset) == (first.error, first.base_offset)


async def test_reserved_space_is_released_on_a_full_disk(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(preallocate="true", segment_bytes="1048576")
    files = [replica.segments[0].path_log for replica in node.replicas]

    def reserved() -> list[bool]:
        return [path.stat().st_blocks * 512 >= 1 << 20 for path in files]

    await node.maintenance.recheck_full()
    assert reserved() == [True, True]
    node.disk.usable = 0
    node.directory.mark_full()
    await node.maintenance.recheck_full()
    assert (node.directory.is_full, reserved()) == (True, [False, False])
    node.disk.usable = 1 << 39
    await node.maintenance.recheck_full()
    for replica in node.replicas:
        node.append(replica)


async def test_checkpoint_writes_restart_points_of_logs_that_have_grown(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    for _ in range(100):
        node.append(node.replica(0))
    await node.maintenance.checkpoint(node.directory)
    assert [path.name for path in tmp_path.glob("*/*.snapshot")] == [f"{101:020d}.snapshot"]
    node.replica(0).log.flush()
    for _ in range(100):
        node.append(node.replica(0))
    node.directory.mark_full()
    await node.maintenance.checkpoint(node.directory)
    assert [path.parent.name for path in tmp_path.glob("*/*.snapshot")] == ["t-0"]
    assert (tmp_path / "t-0" / f"{101:020d}.snapshot").exists()
