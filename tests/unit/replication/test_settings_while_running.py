"""Topic settings: each takes effect on the next append or read, and ends when it is unset."""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from manual_clock import ManualClock

from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.leader_role import AppendResult
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = uuid.UUID(int=1)
DAY_MS = 86_400_000


class Node:
    """One partition, whose topic's settings a test changes."""

    def __init__(self, path: Path) -> None:
        rng = random.Random(1)
        self.clock = ManualClock()
        self.directories = LogDirectories([path], OsFiles(), rng)
        self.manager = ReplicaManager(
            settings_from({"log.dirs": str(path)}),
            self.directories,
            self.clock,
            TaskGroup(lambda *_: None),
            rng,
            on_change=lambda _: None,
        )
        self.image = ClusterImage(cluster_id="c")

    async def start(self) -> "Node":
        await self.manager.open_all(self.image)
        led = {"replicas": (1, 2), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
        self.change(
            r.TopicCreated(topic_id=TOPIC, name="t"),
            r.PartitionRecord(topic_id=TOPIC, partition=0, **led),  # type: ignore[arg-type]
        )
        return self

    def change(self, *records: r.AnyRecord) -> None:
        old, self.image = self.image, evolve_all(self.image, records)
        self.manager.follow(old, self.image)

    def set(self, name: str, value: str | None) -> None:
        self.change(r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="t", key=name, value=value))

    @property
    def replica(self) -> Replica:
        found = self.manager.get("t", 0)
        assert found is not None
        return found

    def append(self, *, size: int = 100, age_ms: int = 0, key: bytes | None = b"k") -> AppendResult:
        now_ms = self.clock.now_ms()
        batch = encode_batch([NewRecord(now_ms - age_ms, key, b"v" * size)])
        return self.replica.as_leader.append(memoryview(batch), now_ms)

    def segments(self) -> int:
        return len(self.replica.segments)


Effect = Callable[[Node], object]


def refusal(**options: int | bytes | None) -> Effect:
    return lambda node: node.append(**options).error  # type: ignore[arg-type]


def rolls(node: Node) -> bool:
    before = node.segments()
    node.append(), node.append()
    return node.segments() > before


def rolls_by_age(node: Node) -> bool:
    node.append()
    node.clock.now += 3_600_000
    return node.replica.log.maybe_roll(node.clock.now)


def deletes(node: Node) -> bool:
    """Whether retention deletes the oldest segment of a log of one day."""
    node.append()
    node.replica.log.roll(node.clock.now)
    node.clock.now += DAY_MS
    node.append()
    return node.replica.apply_retention(node.clock.now) > 0


def is_durable(node: Node) -> bool:
    node.append()
    return node.replica.log.recovery_point == node.replica.log_end_offset


def must_flush(node: Node) -> bool:
    node.append()
    node.clock.now += 1000
    return node.replica.log.must_flush(node.clock.now)


def codec(node: Node) -> Codec:
    result = node.append(size=1000)
    found = node.replica.read(result.base_offset, 1 << 20)
    assert found.slice is not None
    data = b"".join(part.read() for part in found.slice.parts)  # type: ignore[union-attr]
    return next(iter(iter_batches(data)))[1].codec


def append_time(node: Node) -> bool:
    return node.append(age_ms=5).log_append_time_ms == node.clock.now


def index_entries(node: Node) -> bool:
    for _ in range(3):
        node.append()
    return node.replica.log.active.index_entries > 0


def waits_before_unlinking(node: Node) -> bool:
    deletes(node)
    node.replica.delete_local_before(node.replica.log_end_offset, node.clock.now)
    return node.replica.log.take_due(node.clock.now) == []


@dataclass(frozen=True)
class Change:
    name: str
    value: str
    effect: Effect
    before: object = False
    after: object = True


CHANGES = [
    Change("segment.bytes", "150", rolls),
    Change("segment.index.bytes", "4", rolls),
    Change("segment.ms", "1000", rolls_by_age),
    Change("retention.ms", "1000", deletes),
    Change("retention.bytes", "1", deletes),
    Change("flush.messages", "1", is_durable),
    Change("flush.ms", "1000", must_flush),
    Change("index.interval.bytes", "0", index_entries),
    Change("compression.type", "zstd", codec, Codec.NONE, Codec.ZSTD),
    Change("message.timestamp.type", "LogAppendTime", append_time),
    Change("max.message.bytes", "500", refusal(size=1000), ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE),
    Change("cleanup.policy", "compact", refusal(key=None), ErrorCode.NONE, ErrorCode.INVALID_RECORD),
    Change("min.insync.replicas", "2", refusal(), ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS),
    Change(
        "message.timestamp.before.max.ms",
        "1000",
        refusal(age_ms=5000),
        ErrorCode.NONE,
        ErrorCode.INVALID_TIMESTAMP,
    ),
    Change(
        "message.timestamp.after.max.ms",
        "1000",
        refusal(age_ms=-5000),
        ErrorCode.NONE,
        ErrorCode.INVALID_TIMESTAMP,
    ),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
async def test_setting_takes_effect_at_once_and_ends_when_unset(tmp_path: Path, change: Change) -> None:
    node = await Node(tmp_path).start()
    assert change.effect(node) == change.before
    node.set(change.name, change.value)
    assert change.effect(node) == change.after
    node.set(change.name, None)
    if change.effect is must_flush:
        node.replica.flush()
    if change.effect in (rolls, index_entries):
        node.replica.log.roll(node.clock.now)
    assert change.effect(node) == change.before
    await node.manager.close(clean=True)


async def test_deleted_files_are_kept_for_file_delete_delay_ms(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.set("retention.ms", "1000")
    assert waits_before_unlinking(node)
    node.set("file.delete.delay.ms", "0")
    assert not waits_before_unlinking(node)
    await node.manager.close(clean=True)
