"""Several log directories: placement, failures, and refused partitions."""

import asyncio
import errno
import os
import random
import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles, Space
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.checkpoints import CLEAN_SHUTDOWN
from tierlog.broker.storage.log_dir import DirectoryUnusable, ForeignDirectory
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.storage.unclean_restart import BOOT_FILE
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

EMPTY = ClusterImage(cluster_id="c")
MIB = 1 << 20


class Disks(OsFiles):
    """Each directory is a device of its own, with its usable bytes, and an errno if its calls fail."""

    def __init__(self) -> None:
        self.usable: dict[Path, int] = {}
        self.broken: dict[Path, int] = {}
        self._paths: dict[int, Path] = {}

    def check(self, path: Path) -> None:
        for directory, error_number in self.broken.items():
            if path.is_relative_to(directory):
                raise OSError(error_number, os.strerror(error_number))

    def space(self, path: Path) -> Space:
        return Space(1 << 40, self.usable.get(path, 64 * MIB))

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        self.check(path)
        fd = super().open(path, create=create, exclusive=exclusive)
        self._paths[fd] = path
        return fd

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        self.check(self._paths[fd])
        return super().writev_at(fd, buffers, position)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        self.check(self._paths[fd])
        os.fdatasync(fd)


class UnreadableDisks(Disks):
    """A broken directory cannot be listed."""

    def list_directory(self, path: Path) -> list[str]:
        self.check(path)
        return super().list_directory(path)


def topic(number: int, partitions: int, image: ClusterImage = EMPTY) -> ClusterImage:
    """The image with one more topic, `t<number>`, whose partitions node 1 leads."""
    topic_id = uuid.UUID(int=number)
    led = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    changes = [r.TopicCreated(topic_id=topic_id, name=f"t{number}")]
    changes += [r.PartitionRecord(topic_id=topic_id, partition=n, **led) for n in range(partitions)]  # type: ignore[misc,arg-type]
    return evolve_all(image, changes)


class Run:
    """A replica manager with the log directories `a` and `b`, from its start to its stop."""

    def __init__(self, path: Path, disks: OsFiles | None = None, metadata: str = "m") -> None:
        self.a, self.b = path / "a", path / "b"
        self.disks = disks if isinstance(disks, Disks) else Disks()
        self.fatal: list[str] = []
        self.changed: list[TopicPartition] = []
        self.tasks = TaskGroup(lambda name, failure: None)
        rng = random.Random(1)
        settings = settings_from({"log.dirs": f"{self.a},{self.b}", "metadata.log.dir": str(path / metadata)})
        self.directories = LogDirectories([self.a, self.b], disks or self.disks, rng)
        self.manager = ReplicaManager(
            settings,
            self.directories,
            SystemClock(),
            self.tasks,
            rng,
            on_change=self.changed.append,
            fatal=lambda what, failure: self.fatal.append(what),
        )

    async def start(self, image: ClusterImage) -> "Run":
        self.directories.claim(1, "c")
        self.directories.read_broker_epochs()
        await self.manager.open_all(image)
        return self

    async def stop(self, *, clean: bool = True) -> None:
        await self.tasks.close()
        await self.manager.close(clean=clean)
        self.directories.release()

    async def checkpoint(self) -> None:
        for directory in self.directories.online:
            assert await self.manager.checkpoints.write(directory)

    def place(self, number: int, name: str = "t1") -> str:
        """Name of the log directory of a partition."""
        directory = self.directories.directory_of(TopicPartition(name, number))
        assert directory is not None
        return directory.path.name

    def replica(self, number: int, name: str = "t1") -> Replica:
        found = self.manager.get(name, number)
        assert found is not None
        return found

    def is_offline(self, number: int, name: str = "t1") -> bool:
        offline = self.manager.is_offline(TopicPartition(name, number))
        assert offline == (self.manager.get(name, number) is None)
        return offline


def append(replica: Replica, value: bytes = b"v") -> ErrorCode:
    now_ms = SystemClock().now_ms()
    return replica.as_leader.append(
        memoryview(bytearray(encode_batch([NewRecord(now_ms, None, value)]))), now_ms
    ).error


async def test_new_partition_is_placed_by_free_space_then_by_partition_count(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 4))
    assert sorted(run.place(number) for number in range(4)) == ["a", "a", "b", "b"]
    run.disks.usable = {run.a: 100 * MIB, run.b: 200 * MIB}
    run.manager.follow(topic(1, 4), topic(2, 3, topic(1, 4)))
    assert {run.place(number, "t2") for number in range(3)} == {"b"}
    run.directories.all[1].mark_full()
    run.manager.follow(topic(2, 3, topic(1, 4)), topic(3, 1, topic(2, 3, topic(1, 4))))
    assert run.place(0, "t3") == "a", "a full directory is the last choice"
    await run.stop()


async def test_each_directory_has_its_own_identity_checkpoints_and_marker(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    for number in range(2):
        assert append(run.replica(number)) == ErrorCode.NONE
    places = [run.place(number) for number in range(2)]
    await run.stop()
    for number, place in enumerate(places):
        text = (tmp_path / place / "recovery-point-offset-checkpoint").read_text()
        assert text == f"0\n1\nt1 {number} 1\n"
        assert (tmp_path / place / CLEAN_SHUTDOWN).exists()
    identities = {(tmp_path / place / "meta.properties").read_text().split("\n")[2] for place in "ab"}
    assert len(identities) == 2
    run = await Run(tmp_path).start(topic(1, 2))
    assert [run.place(number) for number in range(2)] == places
    assert [run.replica(number).log_end_offset for number in range(2)] == [1, 1]
    await run.stop()


@pytest.mark.parametrize("error_number", [errno.EIO, errno.EROFS])
async def test_failed_device_takes_only_its_partitions_offline(tmp_path: Path, error_number: int) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    lost, kept = (run.replica(number) for number in sorted(range(2), key=run.place))
    run.disks.broken[run.a] = error_number
    run.changed.clear()
    assert append(lost) == ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(0)
    assert run.is_offline(lost.name.partition)
    assert run.changed == [lost.name], "waiting requests are notified"
    assert append(kept) == ErrorCode.NONE
    assert not run.fatal
    assert await run.manager.checkpoints.write_for({lost.name, kept.name}) == set()
    run.manager.follow(topic(1, 2), topic(2, 2, topic(1, 2)))
    assert {run.place(number, "t2") for number in range(2)} == {"b"}
    await run.stop()
    assert not (run.a / CLEAN_SHUTDOWN).exists()
    assert (run.b / CLEAN_SHUTDOWN).exists()


async def test_failed_fsync_takes_the_directory_offline(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    lost = next(replica for replica in run.manager if run.place(replica.name.partition) == "b")
    assert append(lost) == ErrorCode.NONE
    run.disks.broken[run.b] = (
        errno.ENOSPC
    )  # an fsync that fails with ENOSPC may have lost writes, as with EIO
    with pytest.raises(OSError, match="No space"):
        await asyncio.to_thread(lost.flush)
    await asyncio.sleep(0)
    assert run.is_offline(lost.name.partition)
    await run.stop()


async def test_node_stops_when_the_last_directory_fails(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    run.disks.broken = {run.a: errno.EIO, run.b: errno.EIO}
    for replica in run.manager:
        assert append(replica) == ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(0)
    assert set(run.fatal) == {"the last log directory"}
    await run.stop()


async def test_directory_that_fails_during_recovery_goes_offline(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 4))
    for replica in run.manager:
        append(replica)
    places = {number: run.place(number) for number in range(4)}
    await run.stop(clean=False)
    disks = Disks()
    run = Run(tmp_path, disks)
    run.directories.claim(1, "c")
    disks.broken[run.a] = errno.EIO
    await run.manager.open_all(topic(1, 4))
    await asyncio.sleep(0)
    for number, place in places.items():
        assert run.is_offline(number) == (place == "a")
    await run.stop()


async def test_partitions_of_an_unusable_directory_are_not_created_again(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    for replica in run.manager:
        append(replica)
    places = {number: run.place(number) for number in range(2)}
    await run.stop()
    (tmp_path / "a").rename(tmp_path / "unplugged")
    (tmp_path / "a").write_text("not a directory")
    with_new_topic = topic(2, 1, topic(1, 2))
    run = await Run(tmp_path).start(topic(1, 2))
    for number, place in places.items():
        assert run.is_offline(number) == (place == "a")
    run.manager.follow(topic(1, 2), with_new_topic)
    assert run.place(0, "t2") == "b", "a topic created now has no log in the unusable directory"
    await run.stop()
    (tmp_path / "a").unlink()
    (tmp_path / "unplugged").rename(tmp_path / "a")
    run = await Run(tmp_path).start(with_new_topic)
    assert [run.replica(number).log_end_offset for number in range(2)] == [1, 1]
    await run.stop()


def test_start_fails_without_a_usable_directory_or_without_the_metadata_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not a directory")
    run = Run(tmp_path)
    with pytest.raises(OSError, match="exists"):
        run.directories.claim(1, "c", metadata=run.a / "__cluster_metadata")
    run.directories.claim(1, "c", metadata=run.b / "__cluster_metadata")
    run.directories.release()
    (tmp_path / "b" / "meta.properties").write_text("node.id=1\ncluster.id=c\ndirectory.id=?\n")
    with pytest.raises(OSError, match="exists"):
        Run(tmp_path).directories.claim(1, "c")


def test_start_fails_with_a_copied_or_foreign_directory(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.directories.claim(1, "c")
    run.directories.release()
    properties = (tmp_path / "a" / "meta.properties").read_text()
    (tmp_path / "b" / "meta.properties").write_text(properties)
    with pytest.raises(DirectoryUnusable, match="a copy of"):
        Run(tmp_path).directories.claim(1, "c")
    (tmp_path / "b" / "meta.properties").write_text(properties.replace("node.id=1", "node.id=7"))
    with pytest.raises(ForeignDirectory, match="belongs to node 7"):
        Run(tmp_path).directories.claim(1, "c")


async def test_partition_found_in_two_directories_is_refused(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    name = run.replica(0).name
    append(run.replica(0))
    place = run.place(0)
    await run.stop()
    other = "b" if place == "a" else "a"
    (tmp_path / other / "t1-0").mkdir()
    for file in (tmp_path / place / "t1-0").iterdir():
        (tmp_path / other / "t1-0" / file.name).write_bytes(file.read_bytes())
    run = Run(tmp_path)
    refused, _ = run.directories.find({name: uuid.UUID(int=1)})
    assert "t1-0 and " in refused[name]
    assert "found twice" in refused[name]
    run = await Run(tmp_path).start(topic(1, 2))
    assert run.is_offline(0)
    assert not run.is_offline(1)
    assert all((tmp_path / place / "t1-0").exists() for place in "ab")
    await run.stop()


def reassigned(image: ClusterImage, *, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> ClusterImage:
    """The image with other replicas of `t1-0`, led by the first in-sync one."""
    before = image.topics[uuid.UUID(int=1)].partitions[0]
    led = {"replicas": replicas, "in_sync": in_sync, "leader": in_sync[0]}
    epochs = {"leader_epoch": before.leader_epoch + 1, "partition_epoch": before.partition_epoch + 1}
    return evolve_all(image, [replace(before, **led, **epochs)])


async def created_elsewhere(path: Path, image: ClusterImage) -> tuple[str, ClusterImage]:
    """Create `t1-0` again while its directory is offline. Returns that directory, which is back, and the
    image, in which broker 2 leads the partition and broker 1 has an incomplete copy.
    """
    run = await Run(path).start(image)
    run.directories.record_broker_epoch(5)
    append(run.replica(0))
    older = run.place(0)
    await run.stop()
    disks = UnreadableDisks()
    run = Run(path, disks)
    run.directories.claim(1, "c")
    run.directories.record_broker_epoch(7)  # at the registration, which is before the logs are opened
    disks.broken[path / older] = errno.EIO
    gone = reassigned(image, replicas=(2,), in_sync=(2,))
    back = reassigned(gone, replicas=(2, 1), in_sync=(2,))
    await run.manager.open_all(gone)
    run.directories.record_broker_epoch(7)
    run.manager.follow(gone, back)
    assert run.place(0) != older
    await run.stop()
    return older, back


async def test_older_copy_is_set_aside_when_its_directory_comes_back(tmp_path: Path) -> None:
    older, image = await created_elsewhere(tmp_path, topic(1, 1))
    run = await Run(tmp_path).start(image)
    assert not run.is_offline(0)
    assert run.place(0) != older
    assert run.replica(0).log_end_offset == 0
    [aside] = (tmp_path / older).glob("t1-0.*-stray")
    assert any(file.stat().st_size for file in aside.glob("*.log")), "an operator may still need it"
    await run.stop()


async def test_older_copy_is_not_set_aside_if_no_other_broker_is_in_sync(tmp_path: Path) -> None:
    _, image = await created_elsewhere(tmp_path, topic(1, 1))
    run = await Run(tmp_path).start(reassigned(image, replicas=(2, 1), in_sync=(1,)))
    assert run.is_offline(0)
    assert all((tmp_path / place / "t1-0").exists() for place in "ab")
    await run.stop()


@pytest.mark.parametrize("clean", [True, False])
async def test_older_copy_is_still_known_after_a_start_that_refused_both(tmp_path: Path, clean: bool) -> None:
    older, image = await created_elsewhere(tmp_path, topic(1, 1))
    run = await Run(tmp_path).start(reassigned(image, replicas=(2, 1), in_sync=(1,)))
    run.directories.record_broker_epoch(9)
    assert run.is_offline(0)
    await run.stop(clean=clean)
    run = await Run(tmp_path).start(image)
    assert not run.is_offline(0)
    assert run.place(0) != older
    assert run.directories.read_broker_epochs() < 9, "its directories count as older copies once more"
    assert len(list((tmp_path / older).glob("t1-0.*-stray"))) == 1
    await run.stop()


async def test_older_copy_is_not_set_aside_if_a_broker_epoch_is_unknown(tmp_path: Path) -> None:
    older, image = await created_elsewhere(tmp_path, topic(1, 1))
    for name in (CLEAN_SHUTDOWN, BOOT_FILE):
        (tmp_path / older / name).unlink(missing_ok=True)
    run = await Run(tmp_path).start(image)
    assert run.is_offline(0)
    await run.stop()


@pytest.mark.parametrize("killed", [False, True])
def test_directory_without_a_topic_id_is_not_a_partition(tmp_path: Path, killed: bool) -> None:
    disks, name, topic_id = Disks(), TopicPartition("t1", 0), uuid.UUID(int=1)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, usable in zip(paths, (64 * MIB, 32 * MIB), strict=True):
        disks.usable[path] = usable
    first = LogDirectories(paths, disks, random.Random(1))
    first.claim(1, "c")
    place = first.choose(name)
    assert place.path == paths[0]
    if killed:
        place.directory(name).mkdir()
    else:
        disks.broken[paths[0]] = errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            place.create(name, topic_id)
        disks.broken.clear()
    disks.usable[paths[0]] = MIB
    first.choose(name).create(name, topic_id)
    first.release()
    second = LogDirectories(paths, disks, random.Random(1))
    second.claim(1, "c")
    assert second.find({name: topic_id}) == ({}, [])
    found = second.directory_of(name)
    assert found is not None and found.path == paths[1]
    assert not (paths[0] / str(name)).exists()
    second.release()


async def test_partition_directory_of_an_older_topic_of_the_same_name_becomes_a_stray(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 1))
    place = run.place(0)
    await run.stop()
    other = "b" if place == "a" else "a"
    (tmp_path / other / "t1-0").mkdir()
    text = (tmp_path / place / "t1-0" / "partition.metadata").read_text()
    (tmp_path / other / "t1-0" / "partition.metadata").write_text(text.replace("AAAAAAAAAQ", "AAAAAAAAAw"))
    run = await Run(tmp_path).start(topic(1, 1))
    assert run.place(0) == place
    assert len(list((tmp_path / other).glob("*-stray"))) == 1
    await run.stop()


async def test_unreadable_log_goes_offline_alone_and_keeps_its_log_start(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 4))
    for replica in run.manager:
        append(replica)
        replica.raise_log_start(1)
    place = run.place(0)
    await run.stop()
    metadata = tmp_path / place / "t1-0" / "partition.metadata"
    original = metadata.read_text()
    metadata.write_text("garbage")
    run = await Run(tmp_path).start(topic(1, 4))
    assert [run.is_offline(number) for number in range(4)] == [True, False, False, False]
    await run.checkpoint()
    await run.stop()
    metadata.write_text(original)
    run = await Run(tmp_path).start(topic(1, 4))
    assert run.replica(0).log_start_offset == 1
    await run.stop()


@pytest.mark.parametrize("position", range(len("version: 0\ntopic_id: "), len("version: 0\ntopic_id: ") + 22))
async def test_flipped_bit_in_a_topic_id_does_not_start_an_empty_log(tmp_path: Path, position: int) -> None:
    run = await Run(tmp_path).start(topic(1, 1))
    append(run.replica(0))
    metadata = tmp_path / run.place(0) / "t1-0" / "partition.metadata"
    await run.stop()
    original = metadata.read_bytes()
    for bit in range(8):
        metadata.write_bytes(
            original[:position] + bytes([original[position] ^ 1 << bit]) + original[position + 1 :]
        )
        run = await Run(tmp_path).start(topic(1, 1))
        assert run.is_offline(0), (position, bit)
        await run.stop()
        assert not list(tmp_path.glob("?/*-stray"))
    metadata.write_bytes(original)
    run = await Run(tmp_path).start(topic(1, 1))
    assert run.replica(0).log_end_offset == 1
    await run.stop()


async def test_full_directory_refuses_appends_until_it_has_free_space(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    full, other = (run.replica(number) for number in sorted(range(2), key=run.place))
    assert append(full) == ErrorCode.NONE
    run.disks.broken[run.a] = errno.ENOSPC
    run.disks.usable[run.a] = 0
    assert append(full) == ErrorCode.KAFKA_STORAGE_ERROR
    run.disks.broken.clear()
    assert append(full) == ErrorCode.KAFKA_STORAGE_ERROR, "the remaining space is not for records"
    assert append(other) == ErrorCode.NONE
    assert full.read(0, 1000).slice is not None
    assert not run.directories.recheck_full()
    assert append(full) == ErrorCode.KAFKA_STORAGE_ERROR
    assert run.directories.sharing_full_disks() == list(run.directories.all), (
        "both directories are on the same disk"
    )
    run.disks.usable[run.a] = 64 * MIB
    assert not run.directories.recheck_full(not_beside=tmp_path), (
        "the reserve of the metadata is restored first"
    )
    assert run.directories.recheck_full()
    assert append(full) == ErrorCode.NONE
    assert full.log_end_offset == 2
    full.check()
    await run.stop()


async def test_retry_of_an_acknowledged_batch_needs_no_space(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 1))
    now_ms = SystemClock().now_ms()
    record = NewRecord(now_ms, None, b"v")
    batch = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0)
    assert run.replica(0).as_leader.append(memoryview(bytearray(batch)), now_ms).error == ErrorCode.NONE
    run.directories.mark_full_beside(tmp_path)
    retry = run.replica(0).as_leader.append(memoryview(bytearray(batch)), now_ms)
    assert (retry.error, retry.base_offset) == (ErrorCode.NONE, 0)
    assert append(run.replica(0)) == ErrorCode.KAFKA_STORAGE_ERROR
    await run.stop()


async def test_log_that_cannot_be_opened_for_lack_of_space_keeps_its_log_start(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(topic(1, 1))
    append(run.replica(0))
    run.replica(0).raise_log_start(1)
    place = run.place(0)
    await run.stop()
    run = Run(tmp_path)
    run.directories.claim(1, "c")
    # Opening a cleanly closed log writes nothing, unless a file is missing.
    for snapshot in (tmp_path / place / "t1-0").glob("*.snapshot"):
        snapshot.unlink()
    run.disks.broken = {tmp_path / place / "t1-0": errno.ENOSPC}
    await run.manager.open_all(topic(1, 1))
    assert run.is_offline(0)
    await run.checkpoint()
    run.disks.broken.clear()
    assert run.directories.recheck_full()
    await run.manager.retry_missing()
    assert not run.is_offline(0)
    assert (run.replica(0).log_start_offset, run.replica(0).is_leader) == (1, True)
    assert append(run.replica(0)) == ErrorCode.NONE
    await run.stop()


class HalfWrites(OsFiles):
    """Once `full` is set, the disk accepts half of the next batch and then fails with ENOSPC."""

    full = False

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        if not self.full:
            return super().writev_at(fd, buffers, position)
        data = b"".join(bytes(buffer) for buffer in buffers)
        super().writev_at(fd, [data[: len(data) // 2]], position)
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_partly_written_batch_is_truncated_at_once(tmp_path: Path) -> None:
    disk = HalfWrites()
    run = await Run(tmp_path, disk).start(topic(1, 1))
    assert append(run.replica(0)) == ErrorCode.NONE
    log = tmp_path / run.place(0) / "t1-0" / f"{0:020d}.log"
    before = log.read_bytes()
    disk.full = True
    assert append(run.replica(0)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.read_bytes() == before
    await run.stop(clean=False)


async def test_node_stops_when_the_log_directory_with_the_metadata_fails(tmp_path: Path) -> None:
    run = await Run(tmp_path, metadata="a/__cluster_metadata").start(topic(1, 2))
    run.directories.all[0].fail("Input/output error")
    await asyncio.sleep(0)
    assert run.fatal == ["the log directory with the metadata"]
    await run.stop()
