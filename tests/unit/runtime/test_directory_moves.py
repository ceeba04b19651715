"""Replicas that move between log directories: what they carry along, what comes in between, where it ends."""

import asyncio
import random
import shutil
import threading
import uuid
from functools import partial
from pathlib import Path

import pytest
from power_loss import Killed
from power_loss_tree import PowerLossTree
from pump import until

from tierlog.broker.ports.clock import SystemClock
from tierlog.broker.ports.files import OsFiles
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.ports.types import TopicPartition
from tierlog.broker.records.record import iter_records
from tierlog.broker.records.writer import NewRecord, encode_batch
from tierlog.broker.runtime.data_directories import DataDirectories
from tierlog.broker.runtime.directory_moves import DirectoryMoves
from tierlog.broker.runtime.group_commit import GroupCommit
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.broker.settings.node import settings_from
from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage

NAME = TopicPartition("t", 0)
EMPTY = ClusterImage(cluster_id="c")


def image_of(number: int = 1, **configs: str) -> ClusterImage:
    settings = {"segment.bytes": "1000", "file.delete.delay.ms": "0"}
    settings |= {name.replace("_", "."): value for name, value in configs.items()}
    topic_id = uuid.UUID(int=number)
    led = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    changes: list[r.AnyRecord] = [
        r.CreateTopic(topic_id=topic_id, name="t"),
        r.PartitionRecord(topic_id=topic_id, partition=0, **led),  # type: ignore[arg-type]
    ]
    changes += [
        r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="t", key=key, value=value)
        for key, value in settings.items()
    ]
    return evolve_all(EMPTY, changes)


class Disk(OsFiles):
    """While `gate` is closed, whoever writes into a copy waits; `broken` directories fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()
        self.broken: set[Path] = set()
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        fd = super().open(path, create=create, exclusive=exclusive)
        self._paths[fd] = path
        return fd

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        path = self._paths[fd]
        if path.parent.name.endswith("-future") and path.suffix == ".log" and not self.gate.is_set():
            self.waits.set()
            self.gate.wait(30)
        if any(path.is_relative_to(directory) for directory in self.broken):
            raise OSError(5, "Input/output error")
        return OsFiles.writev_at(self, fd, buffers, position)


class Node:
    """One life of a node on the directories `a`, `b` and `c`. Leaving without `stop` is a SIGKILL."""

    def __init__(self, path: Path, disk: OsFiles | None = None) -> None:
        self.disk = Disk()
        self.path = path
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        paths = [path / name for name in "abc"]
        rng = random.Random(1)
        settings = settings_from({"log.dirs": ",".join(map(str, paths)), "metadata.log.dir": str(path / "m")})
        self.directories = DataDirectories(paths, disk or self.disk, rng)
        self.commits = GroupCommit()
        self.manager = ReplicaManager(
            settings,
            self.directories,
            SystemClock(),
            self.tasks,
            rng,
            moved=lambda name: None,
            flusher=self.commits.request,
        )
        self.image = EMPTY
        self.moves = DirectoryMoves(settings, self.manager, lambda: self.image, SystemClock(), self.tasks)

    async def start(self, image: ClusterImage, place: str = "a") -> "Node":
        """The partition is made in `place` if it is new."""
        self.directories.claim(1, "c")
        self.image = image
        self.moves.move(NAME, str(self.path / place))
        await self.manager.open_all(image)
        self.moves.resume()
        return self

    async def stop(self, *, clean: bool = True) -> None:
        await self.moves.stop()
        await self.tasks.close()
        await self.commits.drain(30)
        await self.manager.close(clean=clean)
        self.directories.release()

    async def kill(self) -> None:
        self.moves._stopping = True  # its threads end, and change nothing
        for move in self.moves._moves.values():
            move.stop.set()
        await self.tasks.close()
        self.directories.release()

    def follow(self, image: ClusterImage) -> None:
        self.image, old = image, self.image
        self.manager.follow(old, image)

    def to(self, place: str) -> ErrorCode:
        return self.moves.move(NAME, str(self.path / place))

    async def moved(self) -> None:
        """No move is under way or leaves anything behind."""
        while tasks := [move.task for move in self.moves._moves.values() if move.task is not None]:
            await asyncio.wait(tasks)
        assert self.failures == []

    async def copying(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.disk.waits.wait)

    @property
    def replica(self) -> Replica:
        found = self.manager.get(*NAME)
        assert found is not None
        return found

    def append(self, number: int, *, producer: tuple[int, int, int] | None = None) -> int:
        """Base offset; `producer`: id, epoch and first sequence."""
        now_ms = SystemClock().now_ms()
        identity = {}
        if producer is not None:
            identity = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
        batch = encode_batch([NewRecord(now_ms, b"k", b"%d" % number + b"." * 100)], **identity)
        result = self.replica.append(memoryview(bytearray(batch)), now_ms)
        assert result.error is ErrorCode.NONE, result
        return result.base_offset

    def fill(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.append(number)

    def values(self) -> list[int]:
        """What a reader of all of it gets."""
        log = self.replica.log
        log.check()
        return [
            int((record.value or b"").split(b".")[0])
            for _, batch in log.batches(log.log_start_offset)
            for record in iter_records(batch, max_bytes=1 << 20)
            if record.offset >= log.log_start_offset
        ]

    def places(self) -> list[str]:
        """Directories of the partition, but for graves, and notes about it."""
        found = (str(path.relative_to(self.path)) for path in self.path.glob("?/t-0*"))
        return sorted(name for name in found if not name.endswith("-delete"))


async def test_a_log_moves_with_all_that_it_knows_while_appends_go_on(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 30)
    assert node.append(30, producer=(7, 0, 0)) == 30
    await node.commits.flush(node.replica)
    node.fill(31, 5)
    assert node.replica.delete_records(12) == 12
    node.replica.log.cleaned_to = 3
    log = node.replica.log
    before = [segment.base_offset for segment in node.replica.segments]
    node.disk.gate.clear()
    assert node.to("b") is ErrorCode.NONE
    await node.copying()
    node.fill(36, 4)
    (move,) = node.moves.under_way
    assert (move.copied_bytes, move.offset_lag) == (0, 40 - 12)
    assert node.to("b") is ErrorCode.NONE
    assert node.moves.under_way == [move]
    node.disk.gate.set()
    for number in range(40, 60):
        node.append(number)
        await asyncio.sleep(0)
    await node.moved()
    count = node.replica.log_end_offset
    assert node.replica.log is log
    assert log.directory == tmp_path / "b" / "t-0"
    assert node.append(30, producer=(7, 0, 0)) == 30, "a retry is still known"
    assert node.values() == list(range(12, count))
    assert [segment.base_offset for segment in node.replica.segments][: len(before)] == before
    await asyncio.sleep(0)
    await node.kill()
    node = await Node(tmp_path).start(image_of())
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    assert (node.replica.log_start_offset, node.replica.log.cleaned_to) == (12, 3)
    assert node.values() == list(range(12, count))
    assert node.append(30, producer=(7, 0, 0)) == 30
    assert node.replica.log.epochs.entries[0].epoch == 0
    assert node.places() == ["b/t-0"]
    node.append(count)
    await node.stop()
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(12, count + 1))
    await node.stop()


async def test_what_is_cut_dropped_or_rolled_during_the_copy_is_so_in_the_copy(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 40)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    log = node.replica.log
    now_ms = SystemClock().now_ms()
    node.replica.delete_records(14)
    assert log.delete_local_before(14, now_ms) > 0
    node.replica.become_follower(2, 1, 1)
    node.replica.truncate_to(29, now_ms)
    node.replica.become_leader(2, 2, [1])
    node.fill(100, 15)
    node.disk.gate.set()
    await node.moved()
    expected = [*range(14, 29), *range(100, 115)]
    assert log.directory == tmp_path / "b" / "t-0"
    assert node.values() == expected
    node.fill(115, 10)
    await node.kill()
    node = await Node(tmp_path).start(image_of())
    assert node.values() == [*expected, *range(115, 125)]
    assert node.replica.log.recovered_dropped_segments == 0
    await node.stop()


async def test_an_acknowledgement_that_waits_for_a_flush_gets_it_from_the_new_directory(
    tmp_path: Path,
) -> None:
    node = await Node(tmp_path).start(image_of(flush_messages="1", segment_bytes="10000"))
    node.fill(0, 20)
    node.to("b")
    while node.moves.under_way:
        offset = node.append(node.replica.log_end_offset)
        await until(partial(_is_answered, node, offset + 1))
    await node.moved()
    await node.commits.flush(node.replica)
    assert node.replica.acknowledgement(offset + 1, 1) is ErrorCode.NONE
    assert node.replica.recovery_point == node.replica.log_end_offset
    assert node.values() == list(range(node.replica.log_end_offset))
    await node.stop()


def _is_answered(node: Node, end_offset: int) -> bool:
    return not node.moves.under_way or node.replica.acknowledgement(end_offset, 1) is not None


async def test_another_target_replaces_a_move_and_the_present_one_ends_it(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    assert node.to("c") is ErrorCode.NONE
    assert [move.target.path.name for move in node.moves.under_way] == ["c"]
    node.disk.gate.set()
    await node.moved()
    assert node.values() == list(range(20))
    await node.stop()
    assert node.places() == ["c/t-0"]
    node = await Node(tmp_path).start(image_of())
    node.disk.gate.clear()
    node.to("a")
    await node.copying()
    assert node.to("c") is ErrorCode.NONE
    assert node.moves.under_way == []
    node.disk.gate.set()
    await node.moved()
    assert node.places() == ["c/t-0"]
    assert node.values() == list(range(20))
    await node.stop()


async def test_a_deleted_topic_takes_its_copy_along_and_its_namesake_stays(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.follow(EMPTY)
    assert node.moves.under_way == []
    node.follow(image_of(2))
    await node.manager.made()
    node.disk.gate.set()
    await node.moved()
    node.append(500)
    assert node.values() == [500]
    node.to("b")
    await node.moved()
    assert node.values() == [500]
    await node.stop()
    assert node.places() == ["b/t-0"]


async def test_a_topic_deleted_just_after_the_switch_leaves_nothing_behind(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.to("b")
    await until(lambda: node.directories.directory_of(NAME) is node.directories.all[1])
    node.follow(EMPTY)
    node.directories.prefer(NAME, node.directories.all[0])
    node.follow(image_of(2))
    await node.manager.made()
    node.append(500)
    await node.moved()
    node.append(501)
    assert node.values() == [500, 501]
    await node.stop(clean=False)
    node = await Node(tmp_path).start(image_of(2))
    assert node.values() == [500, 501]
    await node.stop()


async def test_a_broken_target_costs_the_copy_and_not_the_partition(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.disk.broken.add(tmp_path / "b")
    node.disk.gate.set()
    await node.moved()
    assert [directory.path.name for directory in node.directories.offline] == ["b"]
    node.append(20)
    assert node.to("c") is ErrorCode.KAFKA_STORAGE_ERROR, "a start could not tell where it is"
    assert node.to("b") is ErrorCode.KAFKA_STORAGE_ERROR
    await node.stop()
    node = await Node(tmp_path).start(image_of())
    await node.moved()
    assert node.directories.directory_of(NAME) is node.directories.all[1], "it is back, and so is the move"
    assert node.values() == list(range(21))
    await node.stop()


async def test_a_broken_source_takes_the_partition_offline(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.directories.all[0].fail("broken")
    await asyncio.sleep(0)
    assert node.manager.is_offline(NAME)
    assert node.moves.under_way == []
    assert node.to("b") is ErrorCode.KAFKA_STORAGE_ERROR
    node.disk.gate.set()
    await node.moved()
    await node.stop()
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(20))
    await node.stop()
    assert node.places() == ["a/t-0"]


async def test_a_move_that_a_stop_ended_begins_anew_at_the_next_start(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    node.disk.gate.set()
    await node.stop()
    assert [place[:4] for place in node.places()] == ["a/t-", "b/t-"]
    node = await Node(tmp_path).start(image_of())
    await node.moved()
    assert node.values() == list(range(20))
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    await node.stop()
    assert node.places() == ["b/t-0"]


async def test_what_is_asked_in_vain_is_answered_as_kafka_does(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    path = str(tmp_path / "b")
    assert node.moves.move(NAME, "b") is ErrorCode.LOG_DIR_NOT_FOUND, "a path is absolute"
    assert node.moves.move(NAME, str(tmp_path / "d")) is ErrorCode.LOG_DIR_NOT_FOUND
    nobody = TopicPartition("u", 0)
    assert node.moves.move(nobody, path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.moves.move(TopicPartition("t", 1), path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.moves.move(TopicPartition("t", -1), path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    long = TopicPartition("t" * 214, 0)
    assert node.moves.move(long, path) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert node.to("a") is ErrorCode.NONE
    assert node.moves.under_way == []
    await node.stop()


async def test_a_partition_is_made_in_the_directory_that_it_was_given_before(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.directories.claim(1, "c")
    await node.manager.open_all(EMPTY)
    for place in ("b", "c"):
        assert node.to(place) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.image = image_of()
    assert node.to("b") is ErrorCode.REPLICA_NOT_AVAILABLE
    node.manager.follow(EMPTY, image_of())
    assert node.directories.directory_of(NAME) is node.directories.all[1]
    await node.stop()


async def test_a_rate_holds_a_copy_back_until_it_is_raised(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of(segment_bytes="1000000"))
    node.fill(0, 100)
    key = "replica.alter.log.dirs.io.max.bytes.per.second"

    def rate(value: str) -> ClusterImage:
        record = r.ConfigRecord(scope=r.ConfigScope.BROKER, name="1", key=key, value=value)
        return evolve_all(node.image, [record])

    node.follow(rate("1"))
    node.to("b")
    await until(lambda: node.moves.under_way[0].copied_bytes > 0)
    (move,) = node.moves.under_way
    assert move.copied_bytes < node.replica.log.size_bytes
    node.to("a")
    await node.moved()
    node.follow(rate("100000000"))
    node.to("b")
    await node.moved()
    assert node.values() == list(range(100))
    assert node.places() == ["b/t-0"]
    await node.stop()


@pytest.mark.parametrize("place", ["a", "b"])
async def test_found_twice_it_is_where_it_was_not_left(tmp_path: Path, place: str) -> None:
    node = await Node(tmp_path).start(image_of(), place)
    node.fill(0, 20)
    await node.stop()
    other = "b" if place == "a" else "a"
    shutil.copytree(tmp_path / place / "t-0", tmp_path / other / "t-0")
    (tmp_path / other / "t-0.moved-away").touch()
    (tmp_path / "c").rename(tmp_path / "unplugged")
    (tmp_path / "c").write_text("no directory")
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(20)), "whatever is offline"
    assert node.directories.directory_of(NAME) is node.directories.all["abc".index(place)]
    await node.stop()
    assert node.places() == [f"{place}/t-0"]


async def test_what_was_being_moved_stays_shut_while_the_target_may_be_offline(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    await node.stop()
    (tmp_path / "a" / "t-0.moved-away").touch()
    (tmp_path / "c").rename(tmp_path / "unplugged")
    (tmp_path / "c").write_text("no directory")
    node = await Node(tmp_path).start(image_of())
    assert node.manager.is_offline(NAME)
    await node.stop()
    (tmp_path / "c").unlink()
    (tmp_path / "unplugged").rename(tmp_path / "c")
    node = await Node(tmp_path).start(image_of())
    assert node.values() == list(range(20))
    await node.stop()
    assert node.places() == ["a/t-0"]


class Unsynced(OsFiles):
    """Spares the real disk."""

    def sync(self, fd: int) -> None:  # type: ignore[override]
        return

    def sync_directory(self, path: Path) -> None:
        return


async def live(path: Path, disk: PowerLossTree, limit: int) -> tuple[int, int]:
    """Moves a partition while records are appended, until it has moved or the disk is gone; how many were
    appended, and how many are promised to be durable."""
    node = await Node(path, disk).start(image_of(flush_messages="3", segment_bytes="1500"))
    node.fill(0, 12)
    await node.commits.flush(node.replica)
    node.replica.delete_records(3)
    await node.manager.checkpoints.write(node.directories.all[0])
    disk.left, disk.spent = limit, 0
    count = 12
    node.to("b")
    try:
        while node.moves._moves and not node.failures:
            if count < 25:
                node.append(count)
                count += 1
            await asyncio.sleep(0)
        for _ in range(5):
            await node.commits.flush(node.replica)
    except (Killed, OSError, AssertionError):
        pass
    durable = node.replica.recovery_point
    node.moves._stopping = True
    disk.left = 0
    await node.tasks.close()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)  # type: ignore[arg-type]
    node.directories.release()
    return count, durable


@pytest.mark.slow
@pytest.mark.parametrize("power", [True, False])
async def test_wherever_it_is_cut_short_there_is_one_log_with_all_that_was_promised(
    tmp_path: Path, power: bool
) -> None:
    outcomes = set[str]()
    limit = 1
    while True:
        path = tmp_path / str(limit)
        roots = [path / name for name in "abc"]
        for root in roots:
            root.mkdir(parents=True)
        disk = PowerLossTree(roots)
        count, durable = await live(path, disk, limit)
        whole = disk.spent < limit
        if power:
            disk.lose_power()
        disk.close_held()
        node = await Node(path, Unsynced()).start(image_of())
        end = node.replica.log_end_offset
        assert node.values() == list(range(3, end)), limit
        assert durable <= end <= count, limit
        outcomes.add(node.directories.directory_of(NAME).path.name)  # type: ignore[union-attr]
        await node.moved()
        assert node.values() == list(range(3, end)), limit
        node.append(end)
        await node.stop()
        assert len([place for place in node.places() if place.endswith("t-0")]) == 1
        if whole:
            break
        limit += 1 if power else 3
    assert outcomes == {"a", "b"}
    assert limit > 50
