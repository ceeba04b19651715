"""Log cleaner on real logs: log selection, failures and concurrent changes."""

import asyncio
import random
import threading
import uuid
from pathlib import Path

import pytest
from compaction import records_of
from manual_clock import ManualClock
from structlog.testing import capture_logs

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.log_cleaner import LogCleaner
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.checkpoints import CLEANER_OFFSETS
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.storage.segment import Damage
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.records.batch import HEADER_SIZE, read_header
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch, with_section

TOPICS = {"t": uuid.UUID(int=1), "u": uuid.UUID(int=2)}


class Disk(OsFiles):
    """Has no space for cleaned files while `full`, or for names that end with `unnameable`; `hold` blocks the
    cleaner's thread before it writes.
    """

    def __init__(self) -> None:
        self.full = False
        self.unnameable = ""
        self.failure: Exception = OSError(28, "No space left on device")
        self.unnamed = 0
        self.hold: threading.Event | None = None
        self.held = threading.Event()

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if path.name.endswith(".cleaned"):
            if self.full:
                raise OSError(28, "No space left on device")
            if self.hold is not None:
                self.held.set()
                self.hold.wait(30)
        return super().open(path, create=create, exclusive=exclusive)

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        if self.unnameable and target.name.endswith(self.unnameable) and target.parent.name == "t-0":
            self.unnamed += 1
            raise self.failure
        OsFiles.rename(source, target)


def topic(name: str, topic_id: uuid.UUID) -> list[r.AnyRecord]:
    where = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    return [
        r.TopicCreated(topic_id=topic_id, name=name),
        r.PartitionRecord(topic_id=topic_id, partition=0, **where),  # type: ignore[arg-type]
    ]


class Node:
    """One node with two topics of one partition each."""

    def __init__(self, path: Path) -> None:
        self.path, self.disk, self.clock = path, Disk(), ManualClock()
        self.image = ClusterImage(cluster_id="c")

    def configure(self, **configs: str) -> ClusterImage:
        settings = {"cleanup.policy": "compact", "segment.bytes": "1000", "file.delete.delay.ms": "0"}
        settings |= {name.replace("_", "."): value for name, value in configs.items()}
        changes = [
            r.ConfigRecord(scope=r.ConfigScope.TOPIC, name=name, key=key, value=value)
            for name in TOPICS
            for key, value in settings.items()
        ]
        return evolve_all(self.image, changes)

    async def start(self, **configs: str) -> "Node":
        settings, rng = settings_from({"log.dirs": str(self.path)}), random.Random(1)
        if not self.image.topics:
            made = [record for name, topic_id in TOPICS.items() for record in topic(name, topic_id)]
            self.image = evolve_all(self.image, made)
        self.image = self.configure(**configs)
        tasks = TaskGroup(lambda *_: None)
        self.directories = LogDirectories([self.path], self.disk, rng)
        self.directories.claim(settings.node_id, "")
        self.commits = GroupCommit()
        self.replicas = ReplicaManager(
            settings, self.directories, self.clock, tasks, rng, on_change=lambda _: None
        )
        await self.replicas.open_all(self.image)
        self.cleaner = LogCleaner(settings, self.replicas, self.clock, tasks, self.commits)
        return self

    async def stop(self, *, clean: bool = True) -> None:
        await self.cleaner.stop()
        await self.commits.drain(30)
        await self.replicas.close(clean=clean)
        self.directories.release()

    def replica(self, topic: str = "t") -> Replica:
        found = self.replicas.get(topic, 0)
        assert found is not None
        return found

    def write(self, topic: str = "t", *, rounds: int = 30, keys: int = 3, roll: bool = True) -> None:
        replica = self.replica(topic)
        for n in range(rounds):
            batch = encode_batch([NewRecord(self.clock.now, b"key %d" % (n % keys), b"value %d" % n)])
            assert not replica.as_leader.append(memoryview(batch), self.clock.now).error
        if roll:
            replica.log.roll(self.clock.now)

    def last(self, topic: str = "t") -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in records_of(self.replica(topic).log)}


EXPECTED = {b"key 0": b"value 27", b"key 1": b"value 28", b"key 2": b"value 29"}


async def test_dirty_logs_are_compacted_and_checkpointed(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write("t")
    node.write("u", rounds=60, keys=20)
    assert await node.cleaner.clean_all() == 2
    assert len(records_of(node.replica("t").log)) == 3
    assert len(records_of(node.replica("u").log)) == 20
    assert node.last() == EXPECTED
    assert (tmp_path / CLEANER_OFFSETS).read_bytes() == b"0\n2\nt 0 30\nu 0 60\n"
    assert await node.cleaner.clean_all() == 0  # nothing is dirty
    node.write("t", rounds=1, keys=1)
    assert await node.cleaner.clean_all() == 0  # not dirty enough
    node.write("t")
    assert await node.cleaner.clean_all() == 1
    assert len(records_of(node.replica("t").log)) == 3
    assert 0 < node.cleaner.bytes_written < node.cleaner.bytes_read
    await node.stop()


async def test_active_segment_and_uncommitted_records_are_not_compacted(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write(rounds=5, roll=False)
    assert await node.cleaner.clean_all() == 0
    assert len(records_of(node.replica().log)) == 5
    await node.stop()


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("clean", [True, False])
async def test_compacted_log_opens_under_another_policy(tmp_path: Path, clean: bool, policy: str) -> None:
    node = await Node(tmp_path).start()
    node.write()
    assert await node.cleaner.clean_all() == 1
    node.write(rounds=2, keys=1, roll=False)
    await node.stop(clean=clean)
    again = await Node(tmp_path).start(cleanup_policy=policy)
    replica = again.replica()
    assert (replica.log_end_offset, replica.log.cleaned_to) == (32, 30)
    assert again.last() == {**EXPECTED, b"key 0": b"value 1"}
    await again.stop()


async def test_unreadable_cleaner_checkpoint_allows_gaps_anywhere(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write()
    assert await node.cleaner.clean_all() == 1
    node.write(rounds=2, keys=1, roll=False)
    await node.stop(clean=False)
    (tmp_path / CLEANER_OFFSETS).write_bytes(b"0\n7\nt 0 30\n")
    again = await Node(tmp_path).start(cleanup_policy="delete")  # else a gap would be where a log is cut
    assert (again.replica().log_end_offset, again.replica().log.cleaned_to) == (32, 0)
    assert again.last() == {**EXPECTED, b"key 0": b"value 1"}
    again.replicas.follow(again.image, again.configure(cleanup_policy="compact"))
    again.replica().log.roll(again.clock.now)
    assert await again.cleaner.clean_all() == 1
    assert (tmp_path / CLEANER_OFFSETS).read_bytes() == b"0\n2\nt 0 32\nu 0 0\n"
    await again.stop()


async def test_recreated_topic_does_not_inherit_the_cleaner_checkpoint(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write()
    assert await node.cleaner.clean_all() == 1
    old = node.image
    gone = evolve_all(old, [r.TopicDeleted(topic_id=TOPICS["t"], at_ms=0)])
    node.replicas.follow(old, gone)
    recreated = evolve_all(gone, topic("t", uuid.UUID(int=9)))
    node.replicas.follow(gone, recreated)
    await node.replicas.wait_until_created()
    assert node.replica().log.cleaned_to is None
    assert b"t 0" not in (tmp_path / CLEANER_OFFSETS).read_bytes()
    await node.stop()


async def test_uncleanable_log_is_skipped_and_others_are_compacted(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write("t")
    node.write("u")
    damaged = node.replica("t").log.segments[0].path_log
    whole = Path(damaged).read_bytes()
    data = bytearray(whole)
    data[70] ^= 1
    Path(damaged).write_bytes(data)
    assert await node.cleaner.clean_all() == 1
    assert node.cleaner.uncleanable == 1
    assert node.last("u") == EXPECTED
    assert node.replica("t").log.log_end_offset == 30
    node.write("t")
    assert await node.cleaner.clean_all() == 0
    assert not list(tmp_path.glob("t-0/*.cleaned"))
    log, damage = node.replica("t").log, Damage(0, len(whole), 0, 1)
    log.add_damage(log.segment_files[0], damage)
    Path(damaged).write_bytes(whole)
    log.mark_repaired(log.segment_files[0], damage)
    assert await node.cleaner.clean_all() == 1, "it is repaired"
    assert (node.cleaner.uncleanable, node.last("t")) == (0, EXPECTED)
    await node.stop()


async def test_malformed_batch_is_kept_and_the_rest_is_compacted(tmp_path: Path) -> None:
    """The batch was appended before the topic was compacted, when only its first records were checked."""
    node = await Node(tmp_path).start(cleanup_policy="delete", retention_ms="-1")
    node.write()
    good = encode_batch([NewRecord(node.clock.now, b"key 1", b"v", ()) for _ in range(10)])
    header, plain = read_header(good), bytearray(good[HEADER_SIZE:])
    plain[8 * len(plain) // 10 + 4] = 0x7E  # the key of the ninth is longer than the record
    batch = with_section(header, plain, Codec.NONE)
    offset = node.replica().log_end_offset
    assert not node.replica().as_leader.append(memoryview(batch), node.clock.now).error
    before = node.image
    node.image = node.configure(cleanup_policy="compact")
    node.replicas.follow(before, node.image)
    with capture_logs() as logged:
        for _ in range(3):
            node.write()
            assert await node.cleaner.clean_all() == 1
    assert node.cleaner.uncleanable == 0
    log = node.replica().log
    kept = log.read(offset, 1, log.log_end_offset, min_one=True)
    part = kept.parts[0]
    assert isinstance(part, FileSlice) and part.read()[HEADER_SIZE:] == bytes(plain)
    assert sum(segment.size_bytes for segment in log.segments) < 3 * 200 + len(batch)
    reported = [entry for entry in logged if entry["event"] == "compaction.batch.kept"]
    assert [entry["offset"] for entry in reported] == [offset]
    await node.stop()


async def test_full_disk_only_delays_a_cleaning(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write()
    node.disk.full = True
    assert await node.cleaner.clean_all() == 0
    assert (node.cleaner.uncleanable, len(records_of(node.replica().log))) == (0, 30)
    node.disk.full = False
    assert await node.cleaner.clean_all() == 1
    assert node.last() == EXPECTED
    await node.stop()


@pytest.mark.parametrize(
    "unnameable", [".timeindex.swap", ".log.swap", ".index.deleted", ".timeindex", ".log"]
)
async def test_failed_swap_is_completed_by_the_next_cleaning(tmp_path: Path, unnameable: str) -> None:
    node = await Node(tmp_path).start()
    node.write()
    node.disk.unnameable = unnameable
    assert await node.cleaner.clean_all() == 0
    assert node.replica().log.swaps.pending is not None
    assert await node.cleaner.clean_all() == 0  # still no room
    node.disk.unnameable = ""
    assert await node.cleaner.clean_all() == 1
    assert (node.replica().log.swaps.pending, node.cleaner.uncleanable) == (None, 0)
    assert (node.last(), len(records_of(node.replica().log))) == (EXPECTED, 3)
    assert not [*tmp_path.glob("t-0/*.swap"), *tmp_path.glob("t-0/*.cleaned")]
    await node.stop()


@pytest.mark.parametrize("failure", [OSError(1, "Operation not permitted"), RuntimeError("a mistake")])
async def test_permanently_failing_swap_does_not_block_other_logs(tmp_path: Path, failure: Exception) -> None:
    node = await Node(tmp_path).start()
    node.write("t")
    node.disk.unnameable = ".log"
    assert await node.cleaner.clean_all() == 0
    node.directories.all[0].mark_not_full()
    node.write("u")
    node.disk.failure = failure
    assert await node.cleaner.clean_all() == 1
    assert (node.cleaner.uncleanable, node.last("u")) == (1, EXPECTED)
    tries = node.disk.unnamed
    assert await node.cleaner.clean_all() == 0
    assert node.disk.unnamed == tries, "it is left alone until the next start"
    await node.stop()


async def test_pending_swap_is_completed_although_its_log_is_clean(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write()
    node.disk.unnameable = ".log"
    assert await node.cleaner.clean_all() == 0
    node.disk.unnameable = ""
    node.replicas.follow(node.image, node.configure(cleanup_policy="delete"))
    assert await node.cleaner.clean_all() == 0
    assert node.replica().log.swaps.pending is None
    await node.stop()


async def test_segments_deleted_during_compaction_do_not_make_a_log_uncleanable(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(cleanup_policy="compact,delete")
    node.write(rounds=60)
    replica = node.replica()
    node.disk.hold = threading.Event()
    cleaner = TaskGroup(lambda *_: None).spawn("clean", node.cleaner.clean_all())
    await reached(node.disk.held)
    replica.raise_log_start(40)
    assert replica.apply_retention(node.clock.now) > 2
    for path in replica.log.take_due(node.clock.now):
        node.disk.unlink(path)
    node.disk.hold.set()
    assert await cleaner == 0
    assert (node.cleaner.uncleanable, replica.log_start_offset) == (0, 40)
    assert not list(tmp_path.glob("t-0/*.cleaned"))
    assert await node.cleaner.clean_all() == 1
    assert node.last() == {b"key 0": b"value 57", b"key 1": b"value 58", b"key 2": b"value 59"}
    await node.stop()


async def test_appends_continue_during_compaction(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write()
    node.disk.hold = threading.Event()
    cleaner = TaskGroup(lambda *_: None).spawn("clean", node.cleaner.clean_all())
    await reached(node.disk.held)
    node.write(rounds=3, roll=False)  # the loop is free: a writer and a reader have their turn
    assert len(records_of(node.replica().log)) == 33
    node.disk.hold.set()
    assert await cleaner == 1
    assert node.last() == {b"key 0": b"value 0", b"key 1": b"value 1", b"key 2": b"value 2"}
    await node.stop()


async def test_topic_can_be_deleted_during_compaction(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write("t")
    node.disk.hold = threading.Event()
    cleaner = TaskGroup(lambda *_: None).spawn("clean", node.cleaner.clean_all())
    await reached(node.disk.held)
    gone = evolve_all(node.image, [r.TopicDeleted(topic_id=TOPICS["t"], at_ms=0)])
    node.replicas.follow(node.image, gone)
    node.disk.hold.set()
    assert await cleaner == 0
    assert node.cleaner.uncleanable == 0
    node.write("u")
    assert await node.cleaner.clean_all() == 1
    await node.stop()


async def test_stop_interrupts_a_cleaning(tmp_path: Path) -> None:
    node = await Node(tmp_path).start()
    node.write(rounds=3000)
    node.disk.hold = threading.Event()
    node.cleaner.start()
    await reached(node.disk.held)
    stopping = TaskGroup(lambda *_: None).spawn("stop", node.cleaner.stop())
    node.disk.hold.set()
    await stopping
    assert len(records_of(node.replica().log)) > 3
    assert not list(tmp_path.glob("t-0/*.cleaned"))
    await node.stop()


async def test_tiered_topic_is_not_compacted(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(remote_storage_enable="true")
    node.write()
    assert await node.cleaner.clean_all() == 0
    await node.stop()


async def reached(event: threading.Event) -> None:

    assert await asyncio.to_thread(event.wait, 30)
