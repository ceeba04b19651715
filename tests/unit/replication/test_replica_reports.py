"""What a broker of a cluster tells the controller of replicas that it cannot serve, over real directories."""

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from controlled import Controlled
from power_loss_tree import PowerLossTree

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles, Space
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.replication.replica_reports import ReplicaReports
from tierlog.broker.storage.log_dir import DirectoryUnusable
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.node import settings_from
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

PARTITIONS = 4


class Told(Controlled):
    """A controller that tells its subscribers, and keeps what it was told."""

    def __init__(self, *brokers: int) -> None:
        super().__init__(*brokers)
        self.asked = 0  # also while no quorum answers
        self.reports: list[c.ReportReplicas] = []
        self.forgets_full = False  # as one that is older than these reports
        self.subscribers: list[Callable[[ClusterImage, ClusterImage], None]] = []

    def subscribe(self, subscriber: Callable[[ClusterImage, ClusterImage], None]) -> Callable[[], None]:
        self.subscribers.append(subscriber)
        return lambda: self.subscribers.remove(subscriber)

    async def submit(self, command: c.AnyCommand, timeout_s: float = 30.0) -> Any:
        self.asked += 1
        return await super().submit(command, timeout_s)

    def do(self, command: c.AnyCommand) -> Any:
        before = self.image
        if isinstance(command, c.ReportReplicas):
            self.reports.append(command)
            if self.forgets_full:
                command = msgspec.structs.replace(command, full=())
        reply = super().do(command)
        for subscriber in getattr(self, "subscribers", ()):
            subscriber(before, self.image)
        return reply


class Life:
    """One life of broker 1 on the directories `a` and `b`."""

    def __init__(
        self, path: Path, controller: Told, room_lasts_s: float = 0, files: OsFiles | None = None
    ) -> None:
        self.path, self.controller = path, controller
        self.tasks = TaskGroup(lambda name, failure: None)
        self.directories = LogDirectories([path / "a", path / "b"], files or OsFiles(), random.Random())
        self.directories.claim(1, "c")
        settings = settings_from({"log.dirs": f"{path / 'a'},{path / 'b'}"})
        self.replicas = ReplicaManager(
            settings, self.directories, SystemClock(), self.tasks, random.Random(1), moved=lambda name: None
        )
        self.reports = ReplicaReports(
            1,
            MetadataClient(controller),
            self.replicas,
            self.tasks,
            broker_epoch=lambda: controller.image.brokers[1].broker_epoch,
            room_lasts_s=room_lasts_s,
        )

    async def start(self) -> "Life":
        await self.replicas.open_all(self.controller.image, self.reports.tell_empty)
        self.controller.subscribe(self.replicas.follow)
        await self.reports.tell_first()
        self.reports.start()
        return self

    async def stop(self) -> None:
        await self.reports.stop()
        await self.tasks.close()
        await self.replicas.close(clean=False)
        self.directories.release()

    def lies_in(self, name: str) -> list[int]:
        return sorted(int(path.name[2:]) for path in (self.path / name).glob("t-?"))


@pytest.fixture
def controller() -> Told:
    return Told(1, 2)


async def first_life(path: Path, controller: Told, room_lasts_s: float = 0) -> Life:
    """Broker 1 leads all partitions of a new topic, in sync with 2."""
    life = await Life(path, controller, room_lasts_s).start()
    controller.create("t", *[(1, 2)] * PARTITIONS)
    return life


async def lay_in_b(path: Path, controller: Told) -> list[int]:
    """After a first life that has ended; nothing is told yet."""
    life = await first_life(path, controller)
    there = life.lies_in("b")
    await life.stop()
    controller.reports.clear()
    return there


def emptied(controller: Told) -> list[list[int]]:
    """Of each report, the partitions of which nothing is left."""
    topic_id = controller.image.topic_ids["t"]
    return [[number for topic, number in told.emptied if topic == topic_id] for told in controller.reports]


def leaders(controller: Told) -> dict[int, int]:
    topic = controller.image.topic("t")
    assert topic is not None
    return {number: partition.leader for number, partition in enumerate(topic.partitions)}


def offline(controller: Told) -> list[int]:
    topic = controller.image.topic("t")
    assert topic is not None
    return [number for number, partition in enumerate(topic.partitions) if 1 in partition.offline]


def full(controller: Told, topic: str = "t") -> list[int]:
    found = controller.image.topic(topic)
    assert found is not None
    return [number for number, partition in enumerate(found.partitions) if 1 in partition.full]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if holds():
                return
            await asyncio.sleep(0)


async def test_others_lead_what_lay_on_a_disk_that_failed(tmp_path: Path, controller: Told) -> None:
    life = await first_life(tmp_path, controller)
    lost, kept = life.lies_in("b"), life.lies_in("a")
    assert lost and kept
    life.directories.all[1].on_error(OSError(errno.EIO, os.strerror(errno.EIO)))
    await until(lambda: offline(controller) == lost)
    assert leaders(controller) == {**dict.fromkeys(lost, 2), **dict.fromkeys(kept, 1)}
    assert all(life.replicas.get("t", number) is not None for number in kept)
    await life.stop()


async def test_it_is_told_once_a_quorum_is_there_again(tmp_path: Path, controller: Told) -> None:
    life = await first_life(tmp_path, controller)
    controller.available = False
    life.directories.all[1].fail("Input/output error")
    await until(lambda: bool(life.replicas.given_up))
    assert offline(controller) == []
    controller.available = True
    await until(lambda: offline(controller) == life.lies_in("b"))
    await life.stop()


async def test_it_is_told_again_when_the_broker_had_to_register_again(
    tmp_path: Path, controller: Told
) -> None:
    life = await first_life(tmp_path, controller)
    lost = life.lies_in("b")
    life.directories.all[1].fail("Input/output error")
    await until(lambda: offline(controller) == lost)
    controller.fence(1)
    controller.do(c.UnregisterBroker(broker_id=1))
    controller.register(1)
    await until(lambda: offline(controller) == lost)
    await life.stop()


async def test_others_lead_what_lies_on_a_full_disk_until_it_has_room(
    tmp_path: Path, controller: Told
) -> None:
    life = await first_life(tmp_path, controller)
    directory, held = life.directories.all[1], life.lies_in("b")
    await asyncio.to_thread(directory.note, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    await until(lambda: full(controller) == held)
    assert {number for number, leader in leaders(controller).items() if leader == 2} == set(held)
    await asyncio.to_thread(directory.mark_not_full)
    await until(lambda: full(controller) == [])
    assert {number for number, leader in leaders(controller).items() if leader == 2} == set(held)
    await life.stop()


async def test_a_partition_that_moves_off_a_full_disk_is_told_at_once(
    tmp_path: Path, controller: Told
) -> None:
    life = await first_life(tmp_path, controller)
    held = life.lies_in("b")
    life.directories.all[1].mark_full()
    await until(lambda: full(controller) == held)
    await until(lambda: not life.reports._due.is_set())  # nothing is left to tell
    life.directories.moved(TopicPartition("t", held[0]), life.directories.all[0])
    await until(lambda: full(controller) == held[1:])
    await life.stop()


async def test_a_partition_that_is_made_on_full_disks_is_led_elsewhere(
    tmp_path: Path, controller: Told
) -> None:
    life = await first_life(tmp_path, controller)
    for directory in life.directories.all:
        directory.mark_full()
    await until(lambda: full(controller) == list(range(PARTITIONS)))
    controller.create("later", (1, 2))
    await until(lambda: full(controller, "later") == [0])
    await life.stop()


async def test_room_that_does_not_last_is_not_told(tmp_path: Path, controller: Told) -> None:
    life = await first_life(tmp_path, controller, room_lasts_s=3600)
    held = life.lies_in("b")
    life.directories.all[1].mark_full()
    await until(lambda: full(controller) == held)
    life.directories.all[1].mark_not_full()
    life.directories.all[0].fail("Input/output error")  # after it, it is told too
    await until(lambda: offline(controller) == life.lies_in("a"))
    assert full(controller) == held
    await life.stop()


class Short(OsFiles):
    """Of the paths in `short` the disk has next to no room."""

    def __init__(self, *short: Path) -> None:
        super().__init__()
        self.short = set(short)

    def space(self, path: Path) -> Space:
        return Space(1 << 40, 1 << 20 if path in self.short else 1 << 30)


async def fill_b(path: Path, controller: Told) -> list[int]:
    """In a first life that has ended."""
    life = await first_life(path, controller)
    held = life.lies_in("b")
    life.directories.all[1].mark_full()
    await until(lambda: full(controller) == held)
    await life.stop()
    return held


async def test_a_disk_that_was_full_and_is_short_is_taken_for_full_after_a_restart(
    tmp_path: Path, controller: Told
) -> None:
    held = await fill_b(tmp_path, controller)
    (tmp_path / "a" / "t-0").rename(tmp_path / "b" / "t-0")  # new there, so it is not told yet
    life = await Life(tmp_path, controller, files=Short(tmp_path / "b")).start()
    assert [directory.is_full for directory in life.directories.all] == [False, True]
    await until(lambda: full(controller) == [0, *held])
    life.directories.all[1].mark_not_full()
    await until(lambda: full(controller) == [])
    await life.stop()


async def test_a_disk_that_was_full_and_has_room_is_not_taken_for_full_after_a_restart(
    tmp_path: Path, controller: Told
) -> None:
    await fill_b(tmp_path, controller)
    life = await Life(tmp_path, controller, files=Short(tmp_path / "a")).start()
    assert not life.directories.some_full, "nobody said of a that it was full"
    await until(lambda: full(controller) == [])
    await life.stop()


async def test_a_controller_that_knows_no_full_disks_is_not_told_over_and_over(
    tmp_path: Path, controller: Told
) -> None:
    life = await first_life(tmp_path, controller)
    controller.reports.clear()
    controller.forgets_full = True
    life.directories.all[1].mark_full()
    await until(lambda: len(controller.reports) == 1)
    life.directories.all[0].fail("Input/output error")
    await until(lambda: offline(controller) == life.lies_in("a"))
    assert len(controller.reports) <= 3
    await life.stop()


async def test_a_log_that_cannot_be_read_is_told_before_the_broker_is_let_in(
    tmp_path: Path, controller: Told
) -> None:
    await (await first_life(tmp_path, controller)).stop()
    controller.reports.clear()
    lost = next(tmp_path.glob("?/t-0/partition.metadata"))
    lost.write_text("version: 7\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    life = Life(tmp_path, controller)
    await life.replicas.open_all(controller.image, life.reports.tell_empty)
    await life.reports.tell_first()
    assert offline(controller) == [0]
    await life.stop()


async def test_partitions_of_a_wiped_directory_are_told_and_no_others(
    tmp_path: Path, controller: Told
) -> None:
    wiped = await lay_in_b(tmp_path, controller)
    shutil.rmtree(tmp_path / "b")
    life = await Life(tmp_path, controller).start()
    assert emptied(controller) == [wiped]
    assert [report.failed for report in controller.reports] == [()]
    assert list(life.replicas.given_up) == []
    await life.stop()


async def test_a_start_that_ends_before_it_could_tell_leaves_the_next_one_to_tell_it(
    tmp_path: Path, controller: Told
) -> None:
    wiped = await lay_in_b(tmp_path, controller)
    shutil.rmtree(tmp_path / "b")
    controller.asked, controller.available = 0, False
    life = Life(tmp_path, controller)
    start = life.tasks.spawn("start", life.start())
    await until(lambda: controller.asked > 0)
    start.cancel()
    await asyncio.wait([start])
    assert life.lies_in("b") == []
    await life.stop()
    controller.available = True
    life = await Life(tmp_path, controller).start()
    assert emptied(controller) == [wiped]
    assert all(leader == 2 for number, leader in leaders(controller).items() if number in wiped)
    await life.stop()


async def test_what_may_lie_in_a_directory_that_is_away_is_not_told_as_empty(
    tmp_path: Path, controller: Told
) -> None:
    away = await lay_in_b(tmp_path, controller)
    (tmp_path / "b").rename(tmp_path / "unplugged")
    (tmp_path / "b").write_text("not a directory")
    life = await Life(tmp_path, controller).start()
    assert emptied(controller) == [[]]
    assert offline(controller) == away
    await life.stop()


async def written(path: Path, controller: Told) -> Path:
    """The last of two segments of partition 0, a batch in each, after a life that was killed; nothing is told
    yet."""
    life = await first_life(path, controller)
    replica = life.replicas.get("t", 0)
    assert replica is not None
    for value in (b"one", b"two"):
        batch = encode_batch([NewRecord(0, None, value, ())])
        replica.roll(0)
        assert replica.append(memoryview(batch), 0, acks=1).error == ErrorCode.NONE
    await life.stop()
    controller.reports.clear()
    return max(path.glob("?/t-0/*.log"))


async def test_a_log_that_is_damaged_is_told_as_if_nothing_of_it_were_left(
    tmp_path: Path, controller: Told
) -> None:
    log = await written(tmp_path, controller)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    life = await Life(tmp_path, controller).start()
    assert emptied(controller)[-1] == [0]
    assert leaders(controller)[0] == 2
    await life.stop()


async def test_damage_that_a_start_found_and_could_not_tell_is_told_by_the_next_one_and_only_by_that(
    tmp_path: Path, controller: Told
) -> None:
    log = await written(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    life = Life(tmp_path, controller)
    await life.replicas.open_all(controller.image, life.reports.tell_empty)
    await life.stop()
    assert not any(emptied(controller))
    await (await Life(tmp_path, controller).start()).stop()
    assert emptied(controller)[-1] == [0]
    controller.reports.clear()
    await (await Life(tmp_path, controller).start()).stop()
    assert not any(emptied(controller))


class NoSnapshots(OsFiles):
    """While `full` there is no room for a producer snapshot, which a recovery writes after it has cut."""

    full = True

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.full and create and path.suffix == ".snapshot":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create, exclusive=exclusive)


async def test_a_damaged_log_that_opens_late_leads_only_once_the_controller_knows(
    tmp_path: Path, controller: Told
) -> None:
    log = await written(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    controller.fence(2)  # 1 is alone in sync
    files = NoSnapshots()
    life = await Life(tmp_path, controller, files=files).start()
    assert life.replicas.is_offline(TopicPartition("t", 0))
    assert not any(emptied(controller))
    controller.available, files.full = False, False
    for directory in life.directories.all:
        directory.mark_not_full()
    await life.replicas.make_missing()  # which waits for no quorum
    assert life.replicas.get("t", 0) is None
    controller.available = True
    await until(lambda: life.replicas.get("t", 0) is not None)
    assert [0] in emptied(controller)
    replica = life.replicas.get("t", 0)
    assert replica is not None and not replica.leads
    assert leaders(controller)[0] == -1
    await life.stop()
    controller.reports.clear()
    await (await Life(tmp_path, controller).start()).stop()
    assert not any(emptied(controller))


async def test_a_batch_that_a_killed_process_was_writing_is_no_damage(
    tmp_path: Path, controller: Told
) -> None:
    log = await written(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1])
    life = await Life(tmp_path, controller).start()
    assert not any(emptied(controller))
    await life.stop()


async def after_power(path: Path, controller: Told) -> Life:
    """One that is open, after a loss of power."""
    life = Life(path, controller)
    life.directories.may_have_lost = True
    await life.replicas.open_all(controller.image, life.reports.tell_empty)
    return life


async def test_what_a_loss_of_power_tore_is_no_news_then_and_later(tmp_path: Path, controller: Told) -> None:
    log = await written(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    await (await after_power(tmp_path, controller)).stop()  # before it could tell
    await (await Life(tmp_path, controller).start()).stop()
    assert not any(emptied(controller))


async def test_damage_that_was_found_and_not_told_is_told_though_power_failed_since(
    tmp_path: Path, controller: Told
) -> None:
    log = await written(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    life = Life(tmp_path, controller)
    await life.replicas.open_all(controller.image, life.reports.tell_empty)
    await life.stop()
    for _ in range(2):  # the power may fail again and again
        await (await after_power(tmp_path, controller)).stop()
    life = await after_power(tmp_path, controller)
    assert not any(emptied(controller))
    await life.reports.tell_first()
    assert emptied(controller)[-1] == [0]
    assert leaders(controller)[0] == 2
    await life.stop()


async def test_damage_that_was_told_is_not_told_again_though_power_fails_then(
    tmp_path: Path, controller: Told
) -> None:
    log = await written(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    disk = PowerLossTree([tmp_path / "a", tmp_path / "b"])
    life = await Life(tmp_path, controller, files=disk).start()
    assert emptied(controller)[-1] == [0]
    await life.stop()
    disk.lose_power()
    disk.close_held()
    assert not list(tmp_path.rglob("damaged"))


async def test_nothing_is_opened_where_every_directory_has_failed(tmp_path: Path, controller: Told) -> None:
    life = Life(tmp_path, controller)
    for directory in life.directories.all:
        directory.fail("Input/output error")
    with pytest.raises(DirectoryUnusable, match="is offline: Input/output error"):
        await life.replicas.open_all(controller.image)
    life.directories.release()
