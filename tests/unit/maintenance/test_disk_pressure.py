"""Disk pressure with a real replica manager: uploaded segments go, the oldest first, and only where the topic
allows it; else appends are refused before the disk is full.
"""

import random
import uuid
from pathlib import Path

import pytest
from manual_clock import ManualClock
from structlog.testing import capture_logs

from tierlog.base.files import OsFiles, Space
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance import disk_pressure
from tierlog.broker.maintenance.disk_pressure import CHECK_S, DROP, KEPT_OPEN_S, DiskPressure
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import NOT_FULL_BYTES, LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

LEAST = 10_000
ENOUGH = LEAST + NOT_FULL_BYTES
VALUE = b"v" * 60_000
SEGMENT_BATCHES, SEGMENT_BYTES = 4, 250_000
TIERED = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}


class Disk(OsFiles):
    """A disk on which `free` bytes were free at the start; deleted files add to them."""

    def __init__(self) -> None:
        super().__init__()
        self.free = ENOUGH
        self.kept_open: int | None = None
        """Bytes of unlinked files that are not free yet; None while deleted files are free at once."""

    def space(self, path: Path) -> Space:
        return Space(1 << 40, self.free)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        size = path.stat().st_size if path.exists() else 0
        if self.kept_open is None:
            self.free += size
        else:
            self.kept_open += size
        super().unlink(path, missing_ok=missing_ok)


class Node:
    """Two topics of one partition each: `dropped` may lose what is uploaded, `kept` may not."""

    def __init__(self, path: Path) -> None:
        self.disk, self.failures = Disk(), []  # type: ignore[var-annotated]
        settings = settings_from({"log.dirs": str(path), "log.dir.free.bytes.min": str(LEAST)})
        rng, self.clock = random.Random(1), ManualClock()
        tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        self.directories = LogDirectories([path], self.disk, rng)
        [self.directory] = self.directories.all
        self.replicas = ReplicaManager(
            settings,
            self.directories,
            self.clock,
            tasks,
            rng,
            on_change=lambda name: None,
            fatal=lambda name, failure: self.failures.append(failure),
        )
        self.uploaded: dict[str, int] = {}
        """Topic -> end offset of what the object store has; by default all."""
        self.pressure = DiskPressure(
            settings, self.replicas, self.disk, self.clock, tasks, lambda one: self.end_of(one.name.topic)
        )

    def end_of(self, topic: str) -> int:
        return self.uploaded.get(topic, 1 << 40)

    async def start(self, *topics: str) -> "Node":
        partition = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
        changes: list[object] = []
        for number, topic in enumerate(topics, 1):
            topic_id = uuid.UUID(int=number)
            policy = "reject" if topic == "kept" else DROP
            configs = {**TIERED, "remote.log.disk.pressure.policy": policy}
            changes.append(r.TopicCreated(topic_id=topic_id, name=topic))
            changes.append(r.PartitionRecord(topic_id=topic_id, partition=0, **partition))  # type: ignore[arg-type]
            changes += [
                r.ConfigRecord(scope=r.ConfigScope.TOPIC, name=topic, key=key, value=value)
                for key, value in configs.items()
            ]
        await self.replicas.open_all(evolve_all(ClusterImage(cluster_id="c"), changes))  # type: ignore[arg-type]
        for _ in range(60):
            for topic in topics:
                assert self.append(topic) is ErrorCode.NONE
        return self

    def replica(self, topic: str) -> Replica:
        found = self.replicas.get(topic, 0)
        assert found is not None
        return found

    def append(self, topic: str) -> ErrorCode:
        self.clock.now += 1
        batch = encode_batch([NewRecord(self.clock.now, None, VALUE)])
        return self.replica(topic).as_leader.append(memoryview(bytearray(batch)), self.clock.now).error

    def starts(self, *topics: str) -> list[int]:
        return [self.replica(topic).local_log_start_offset for topic in topics]


async def test_nothing_happens_while_enough_is_free(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped", "kept")
    node.disk.free = LEAST
    await node.pressure.check(node.directory)
    assert node.starts("dropped", "kept") == [0, 0]
    assert not node.directory.is_full and not node.pressure.low


async def test_oldest_uploaded_segments_go_until_enough_is_free(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped", "other", "kept")
    node.disk.free = LEAST - 1
    with capture_logs() as logs:
        await node.pressure.check(node.directory)
        await node.pressure.check(node.directory)
    assert ENOUGH <= node.disk.free < ENOUGH + SEGMENT_BYTES
    dropped, other, kept = node.starts("dropped", "other", "kept")
    assert kept == 0
    assert dropped > 0 and abs(dropped - other) <= SEGMENT_BATCHES, "they were written in turn"
    assert node.pressure.dropped_bytes[node.directory] > NOT_FULL_BYTES
    assert node.pressure.dropped_segments[node.directory] == (dropped + other) // SEGMENT_BATCHES
    assert not node.directory.is_full and not node.pressure.low
    assert [line["log_level"] for line in logs] == ["warning", "info"], "once, and once at its end"
    assert node.append("kept") is node.append("dropped") is ErrorCode.NONE


async def test_only_rolled_segments_go_that_the_object_store_has(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped")
    node.uploaded["dropped"] = 2 * SEGMENT_BATCHES + 1
    node.disk.free = LEAST - 1
    await node.pressure.check(node.directory)
    assert node.starts("dropped") == [2 * SEGMENT_BATCHES]
    node.uploaded["dropped"] = 1 << 40
    node.disk.free = -2 * NOT_FULL_BYTES
    await node.pressure.check(node.directory)
    assert node.starts("dropped") == [node.replica("dropped").log.active_base_offset]


async def test_appends_are_refused_if_nothing_may_be_deleted(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped", "kept")
    node.uploaded["dropped"] = 0
    node.disk.free = LEAST - 1
    with capture_logs() as logs:
        for _ in range(3):
            await node.pressure.check(node.directory)
    assert node.directory.is_full and node.pressure.low == {node.directory}
    assert len(logs) == 2, "low, and full"
    for topic in ("dropped", "kept"):
        assert node.append(topic) is ErrorCode.KAFKA_STORAGE_ERROR
    node.disk.free = ENOUGH - 1
    assert not node.directories.recheck_full()
    node.disk.free = ENOUGH
    assert node.directories.recheck_full()
    await node.pressure.check(node.directory)
    assert not node.pressure.low
    assert node.append("kept") is ErrorCode.NONE


async def test_full_disk_is_relieved_without_a_bound(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped", "kept")
    node.pressure.configure(settings_from({}))
    node.disk.free = 0
    await node.pressure.check(node.directory)
    assert node.starts("dropped") == [0], "the setting has no effect"
    node.directory.mark_full()
    await node.pressure.check(node.directory)
    assert node.starts("dropped")[0] > 0 and node.starts("kept") == [0]
    assert node.directories.recheck_full()


async def test_segments_that_local_retention_has_deleted_are_unlinked_first(tmp_path: Path) -> None:
    """Their files would wait for file.delete.delay.ms."""
    node = await Node(tmp_path).start("dropped")
    node.replica("dropped").delete_local_before(12 * SEGMENT_BATCHES, node.clock.now)
    node.disk.free = LEAST - 1
    await node.pressure.check(node.directory)
    assert node.disk.free >= ENOUGH
    assert not list(tmp_path.rglob("*.deleted"))
    assert node.starts("dropped") == [12 * SEGMENT_BATCHES]


async def test_no_more_segments_go_while_responses_keep_deleted_files_open(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped")
    node.disk.free, node.disk.kept_open = LEAST - 1, 0
    await node.pressure.check(node.directory)
    [start], kept_open = node.starts("dropped"), node.disk.kept_open
    assert start > 0 and kept_open >= NOT_FULL_BYTES
    assert node.directory.is_full, "they are not free yet"
    for _ in range(3):
        await node.pressure.check(node.directory)
    assert node.starts("dropped") == [start]
    node.clock.now += 1000 * KEPT_OPEN_S
    await node.pressure.check(node.directory)
    assert node.starts("dropped")[0] > start, "they were kept open for too long"


async def test_appends_during_a_check_do_not_make_a_directory_full(tmp_path: Path) -> None:
    """They use what the check frees. More segments go, and no file counts as kept open by a response."""
    for name in ("alone", "node"):
        (tmp_path / name).mkdir()
    alone = await Node(tmp_path / "alone").start("dropped")
    alone.disk.free = LEAST - 1
    await alone.pressure.check(alone.directory)
    freed = alone.disk.free - (LEAST - 1)
    node = await Node(tmp_path / "node").start("dropped")
    node.disk.free, writes = LEAST - 1, [freed]

    def write(replica: Replica) -> None:
        node.disk.free -= writes.pop() if writes else 0

    node.replica("dropped").listeners.append(write)
    await node.pressure.check(node.directory)
    assert node.disk.free == LEAST - 1 and not writes and not node.directory.is_full
    [start] = node.starts("dropped")
    await node.pressure.check(node.directory)
    assert node.disk.free > LEAST and node.starts("dropped")[0] > start


async def test_a_check_deletes_a_bounded_number_of_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_pressure, "SEGMENTS_PER_CHECK", 3)
    node = await Node(tmp_path).start("dropped", "other")
    node.disk.free = LEAST - 1
    await node.pressure.check(node.directory)
    assert node.pressure.dropped_segments[node.directory] == 3
    await node.pressure.check(node.directory)
    assert node.pressure.dropped_segments[node.directory] == 6


async def test_each_replica_is_changed_once_per_check(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped", "other")
    changes = dict.fromkeys(("dropped", "other"), 0)

    def count(replica: Replica) -> None:
        changes[replica.name.topic] += 1

    for topic in changes:
        node.replica(topic).listeners.append(count)
    node.disk.free = LEAST - 1
    await node.pressure.check(node.directory)
    assert node.pressure.dropped_segments[node.directory] > 2
    assert changes == {"dropped": 1, "other": 1}


async def test_a_low_disk_needs_a_share_of_a_large_bound_beyond_it(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("kept")
    node.pressure.configure(settings_from({"log.dir.free.bytes.min": str(1 << 30)}))
    node.disk.free = (1 << 30) - 1
    await node.pressure.check(node.directory)
    node.disk.free = (1 << 30) + NOT_FULL_BYTES
    assert not node.directories.recheck_full()
    await node.pressure.check(node.directory)
    assert node.pressure.low
    node.disk.free = (1 << 30) * 11 // 10
    assert node.directories.recheck_full()
    await node.pressure.check(node.directory)
    assert not node.pressure.low


async def test_a_failed_directory_is_not_low(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("kept")
    node.disk.free = LEAST - 1
    await node.pressure.check(node.directory)
    node.directory.fail("gone")
    await node.pressure.check(node.directory)
    assert not node.pressure.low


async def test_a_full_disk_is_checked_less_often_while_nothing_may_go(tmp_path: Path) -> None:
    node = await Node(tmp_path).start("dropped")
    node.uploaded["dropped"] = 0
    node.disk.free = LEAST - 1
    for _ in range(3):
        await node.pressure.check(node.directory)
    assert node.pressure.pause_s(node.directory) == 8 * CHECK_S
    node.uploaded["dropped"] = 1 << 40
    await node.pressure.check(node.directory)
    assert node.pressure.pause_s(node.directory) == CHECK_S
