"""Replica reporter: reports of offline, emptied and full replicas, over real directories."""

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
from inline_controller import InlineController
from power_loss_tree import PowerLossTree

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles, Space
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.replication.replica_reporter import ReplicaReporter
from tierlog.broker.storage.log_dir import DirectoryUnusable
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

PARTITIONS = 4


class RecordingController(InlineController):
    """A controller which keeps the reports, and publishes images to its subscribers."""

    def __init__(self, *brokers: int) -> None:
        super().__init__(*brokers)
        self.submitted = 0  # also while the quorum is unavailable
        self.reports: list[c.ReportReplicas] = []
        self.forgets_full = False  # like a controller older than these reports

    async def submit(self, command: c.AnyCommand, timeout_s: float = 30.0) -> Any:
        self.submitted += 1
        return await super().submit(command, timeout_s)

    def do(self, command: c.AnyCommand) -> Any:
        if isinstance(command, c.ReportReplicas):
            self.reports.append(command)
            if self.forgets_full:
                command = msgspec.structs.replace(command, full=())
        return super().do(command)


class Process:
    """A process of broker 1 with the log directories `a` and `b`."""

    def __init__(
        self,
        path: Path,
        controller: RecordingController,
        space_lasts_s: float = 0,
        files: OsFiles | None = None,
    ) -> None:
        self.path, self.controller = path, controller
        self.tasks = TaskGroup(lambda name, failure: None)
        self.directories = LogDirectories([path / "a", path / "b"], files or OsFiles(), random.Random())
        self.directories.claim(1, "c")
        settings = settings_from({"log.dirs": f"{path / 'a'},{path / 'b'}"})
        self.replicas = ReplicaManager(
            settings,
            self.directories,
            SystemClock(),
            self.tasks,
            random.Random(1),
            on_change=lambda name: None,
        )
        self.reporter = ReplicaReporter(
            1,
            controller,
            self.replicas,
            self.tasks,
            broker_epoch=lambda: controller.image.brokers[1].broker_epoch,
            space_lasts_s=space_lasts_s,
        )

    async def start(self) -> "Process":
        await self.replicas.open_all(self.controller.image, self.reporter.report_empty)
        self.replicas.listeners = (self.reporter.on_replica_event,)
        self.controller.publish_to([Publisher("test", self.replicas.follow)])
        self.controller.publish_to([Publisher("test", self.reporter.follow)])
        await self.reporter.report_at_start()
        self.reporter.start()
        return self

    async def stop(self) -> None:
        await self.reporter.stop()
        await self.tasks.close()
        await self.replicas.close(clean=False)
        self.directories.release()

    def numbers_in(self, name: str) -> list[int]:
        return sorted(int(path.name[2:]) for path in (self.path / name).glob("t-?"))


@pytest.fixture
def controller() -> RecordingController:
    return RecordingController(1, 2)


async def start_first(path: Path, controller: RecordingController, space_lasts_s: float = 0) -> Process:
    """Broker 1 leads all partitions of a new topic, in sync with 2."""
    broker = await Process(path, controller, space_lasts_s).start()
    controller.create("t", *[(1, 2)] * PARTITIONS)
    return broker


async def numbers_in_b(path: Path, controller: RecordingController) -> list[int]:
    """The partitions in `b` after a first process has stopped; nothing is reported yet."""
    broker = await start_first(path, controller)
    there = broker.numbers_in("b")
    await broker.stop()
    controller.reports.clear()
    return there


def emptied(controller: RecordingController) -> list[list[int]]:
    """The emptied partitions of each report."""
    topic_id = controller.image.topic_ids["t"]
    return [
        [number for topic, number in report.emptied if topic == topic_id] for report in controller.reports
    ]


def leaders(controller: RecordingController) -> dict[int, int]:
    topic = controller.image.topic("t")
    assert topic is not None
    return {number: partition.leader for number, partition in enumerate(topic.partitions)}


def offline(controller: RecordingController) -> list[int]:
    topic = controller.image.topic("t")
    assert topic is not None
    return [number for number, partition in enumerate(topic.partitions) if 1 in partition.offline]


def full(controller: RecordingController, topic: str = "t") -> list[int]:
    found = controller.image.topic(topic)
    assert found is not None
    return [number for number, partition in enumerate(found.partitions) if 1 in partition.full]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if holds():
                return
            await asyncio.sleep(0)


async def test_other_brokers_lead_the_partitions_of_a_failed_directory(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    lost, kept = broker.numbers_in("b"), broker.numbers_in("a")
    assert lost and kept
    broker.directories.all[1].on_error(OSError(errno.EIO, os.strerror(errno.EIO)))
    await until(lambda: offline(controller) == lost)
    assert leaders(controller) == {**dict.fromkeys(lost, 2), **dict.fromkeys(kept, 1)}
    assert all(broker.replicas.get("t", number) is not None for number in kept)
    await broker.stop()


async def test_failed_directory_is_reported_when_the_quorum_is_available_again(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    controller.available = False
    broker.directories.all[1].fail("Input/output error")
    await until(lambda: bool(broker.replicas.failed_partitions))
    assert offline(controller) == []
    controller.available = True
    await until(lambda: offline(controller) == broker.numbers_in("b"))
    await broker.stop()


async def test_failed_directory_is_reported_again_after_a_new_registration(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    lost = broker.numbers_in("b")
    broker.directories.all[1].fail("Input/output error")
    await until(lambda: offline(controller) == lost)
    controller.fence(1)
    controller.do(c.UnregisterBroker(broker_id=1))
    controller.register(1)
    await until(lambda: offline(controller) == lost)
    await broker.stop()


async def test_other_brokers_lead_the_partitions_of_a_full_directory(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    directory, held = broker.directories.all[1], broker.numbers_in("b")
    await asyncio.to_thread(directory.on_error, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    await until(lambda: full(controller) == held)
    assert {number for number, leader in leaders(controller).items() if leader == 2} == set(held)
    await asyncio.to_thread(directory.mark_not_full)
    await until(lambda: full(controller) == [])
    assert {number for number, leader in leaders(controller).items() if leader == 2} == set(held)
    await broker.stop()


async def test_partition_moved_off_a_full_disk_is_reported_at_once(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    held = broker.numbers_in("b")
    broker.directories.all[1].mark_full()
    await until(lambda: full(controller) == held)
    await until(lambda: not broker.reporter._due.is_set())  # nothing is left to report
    broker.directories.set_directory(TopicPartition("t", held[0]), broker.directories.all[0])
    await until(lambda: full(controller) == held[1:])
    await broker.stop()


async def test_new_partition_on_full_disks_is_led_by_another_broker(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    for directory in broker.directories.all:
        directory.mark_full()
    await until(lambda: full(controller) == list(range(PARTITIONS)))
    controller.create("later", (1, 2))
    await until(lambda: full(controller, "later") == [0])
    await broker.stop()


async def test_directory_with_space_for_a_short_time_stays_full(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller, space_lasts_s=3600)
    held = broker.numbers_in("b")
    broker.directories.all[1].mark_full()
    await until(lambda: full(controller) == held)
    broker.directories.all[1].mark_not_full()
    broker.directories.all[0].fail("Input/output error")  # a report follows
    await until(lambda: offline(controller) == broker.numbers_in("a"))
    assert full(controller) == held
    await broker.stop()


class Short(OsFiles):
    """Little space is left on the paths in `short`."""

    def __init__(self, *short: Path) -> None:
        super().__init__()
        self.short = set(short)

    def space(self, path: Path) -> Space:
        return Space(1 << 40, 1 << 20 if path in self.short else 1 << 30)


async def fill_b(path: Path, controller: RecordingController) -> list[int]:
    """Fills `b` in a first process, which has stopped."""
    broker = await start_first(path, controller)
    held = broker.numbers_in("b")
    broker.directories.all[1].mark_full()
    await until(lambda: full(controller) == held)
    await broker.stop()
    return held


async def test_disk_that_was_full_and_is_short_of_space_is_full_after_a_restart(
    tmp_path: Path, controller: RecordingController
) -> None:
    held = await fill_b(tmp_path, controller)
    (tmp_path / "a" / "t-0").rename(tmp_path / "b" / "t-0")  # new there, so not reported yet
    broker = await Process(tmp_path, controller, files=Short(tmp_path / "b")).start()
    assert [directory.is_full for directory in broker.directories.all] == [False, True]
    await until(lambda: full(controller) == [0, *held])
    broker.directories.all[1].mark_not_full()
    await until(lambda: full(controller) == [])
    await broker.stop()


async def test_disk_that_was_full_and_has_space_is_not_full_after_a_restart(
    tmp_path: Path, controller: RecordingController
) -> None:
    await fill_b(tmp_path, controller)
    broker = await Process(tmp_path, controller, files=Short(tmp_path / "a")).start()
    assert not broker.directories.some_full, "a was not full before"
    await until(lambda: full(controller) == [])
    await broker.stop()


async def test_older_controller_without_full_replicas_is_not_sent_reports_forever(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = await start_first(tmp_path, controller)
    controller.reports.clear()
    controller.forgets_full = True
    broker.directories.all[1].mark_full()
    await until(lambda: len(controller.reports) == 1)
    broker.directories.all[0].fail("Input/output error")
    await until(lambda: offline(controller) == broker.numbers_in("a"))
    assert len(controller.reports) <= 3
    await broker.stop()


async def test_unreadable_log_is_reported_before_the_broker_is_unfenced(
    tmp_path: Path, controller: RecordingController
) -> None:
    await (await start_first(tmp_path, controller)).stop()
    controller.reports.clear()
    lost = next(tmp_path.glob("?/t-0/partition.metadata"))
    lost.write_text("version: 7\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    broker = Process(tmp_path, controller)
    await broker.replicas.open_all(controller.image, broker.reporter.report_empty)
    await broker.reporter.report_at_start()
    assert offline(controller) == [0]
    await broker.stop()


async def test_partitions_of_an_erased_directory_are_reported_and_no_others(
    tmp_path: Path, controller: RecordingController
) -> None:
    wiped = await numbers_in_b(tmp_path, controller)
    shutil.rmtree(tmp_path / "b")
    broker = await Process(tmp_path, controller).start()
    assert emptied(controller) == [wiped]
    assert [report.failed for report in controller.reports] == [()]
    assert list(broker.replicas.failed_partitions) == []
    await broker.stop()


async def test_missing_logs_are_reported_by_the_next_start_if_this_one_fails(
    tmp_path: Path, controller: RecordingController
) -> None:
    wiped = await numbers_in_b(tmp_path, controller)
    shutil.rmtree(tmp_path / "b")
    controller.submitted, controller.available = 0, False
    broker = Process(tmp_path, controller)
    start = broker.tasks.spawn("start", broker.start())
    await until(lambda: controller.submitted > 0)
    start.cancel()
    await asyncio.wait([start])
    assert broker.numbers_in("b") == []
    await broker.stop()
    controller.available = True
    broker = await Process(tmp_path, controller).start()
    assert emptied(controller) == [wiped]
    assert all(leader == 2 for number, leader in leaders(controller).items() if number in wiped)
    await broker.stop()


async def test_logs_that_may_be_in_an_unavailable_directory_are_not_reported_as_emptied(
    tmp_path: Path, controller: RecordingController
) -> None:
    away = await numbers_in_b(tmp_path, controller)
    (tmp_path / "b").rename(tmp_path / "unplugged")
    (tmp_path / "b").write_text("not a directory")
    broker = await Process(tmp_path, controller).start()
    assert emptied(controller) == [[]]
    assert offline(controller) == away
    await broker.stop()


async def kill_after_appends(path: Path, controller: RecordingController) -> Path:
    """Append a batch to each of two segments of partition 0, and kill the broker. Returns the last segment;
    nothing is reported yet."""
    broker = await start_first(path, controller)
    replica = broker.replicas.get("t", 0)
    assert replica is not None
    for value in (b"one", b"two"):
        batch = encode_batch([NewRecord(0, None, value, ())])
        replica.log.roll(0)
        assert replica.as_leader.append(memoryview(batch), 0, acks=1).error == ErrorCode.NONE
    await broker.stop()
    controller.reports.clear()
    return max(path.glob("?/t-0/*.log"))


async def test_damaged_log_is_reported_as_emptied(tmp_path: Path, controller: RecordingController) -> None:
    log = await kill_after_appends(tmp_path, controller)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    broker = await Process(tmp_path, controller).start()
    assert emptied(controller)[-1] == [0]
    assert leaders(controller)[0] == 2
    await broker.stop()


async def test_unreported_damage_is_reported_once_by_the_next_start(
    tmp_path: Path, controller: RecordingController
) -> None:
    log = await kill_after_appends(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    broker = Process(tmp_path, controller)
    await broker.replicas.open_all(controller.image, broker.reporter.report_empty)
    await broker.stop()
    assert not any(emptied(controller))
    await (await Process(tmp_path, controller).start()).stop()
    assert emptied(controller)[-1] == [0]
    controller.reports.clear()
    await (await Process(tmp_path, controller).start()).stop()
    assert not any(emptied(controller))


class NoSnapshots(OsFiles):
    """While `full`, no producer snapshot can be written, which recovery does after a truncation."""

    full = True

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if self.full and create and path.suffix == ".snapshot":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create, exclusive=exclusive)


async def test_damaged_log_that_opens_late_leads_only_after_it_is_reported(
    tmp_path: Path, controller: RecordingController
) -> None:
    log = await kill_after_appends(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    controller.fence(2)  # only 1 is in sync
    files = NoSnapshots()
    broker = await Process(tmp_path, controller, files=files).start()
    assert broker.replicas.is_offline(TopicPartition("t", 0))
    assert not any(emptied(controller))
    controller.available, files.full = False, False
    for directory in broker.directories.all:
        directory.mark_not_full()
    await broker.replicas.retry_missing(broker.reporter.report_late)  # does not wait for the quorum
    assert broker.replicas.get("t", 0) is None
    controller.available = True
    await until(lambda: broker.replicas.get("t", 0) is not None)
    assert [0] in emptied(controller)
    replica = broker.replicas.get("t", 0)
    assert replica is not None and not replica.is_leader
    assert leaders(controller)[0] == -1
    await broker.stop()
    controller.reports.clear()
    await (await Process(tmp_path, controller).start()).stop()
    assert not any(emptied(controller))


async def test_batch_half_written_by_a_killed_process_is_not_damage(
    tmp_path: Path, controller: RecordingController
) -> None:
    log = await kill_after_appends(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1])
    broker = await Process(tmp_path, controller).start()
    assert not any(emptied(controller))
    await broker.stop()


async def start_after_power_failure(path: Path, controller: RecordingController) -> Process:
    """A broker with open logs, after a power failure."""
    broker = Process(path, controller)
    broker.directories.may_have_lost = True
    await broker.replicas.open_all(controller.image, broker.reporter.report_empty)
    return broker


async def test_log_torn_by_a_power_failure_is_never_reported(
    tmp_path: Path, controller: RecordingController
) -> None:
    log = await kill_after_appends(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    await (await start_after_power_failure(tmp_path, controller)).stop()  # before it could report
    await (await Process(tmp_path, controller).start()).stop()
    assert not any(emptied(controller))


async def test_unreported_damage_is_reported_after_a_power_failure(
    tmp_path: Path, controller: RecordingController
) -> None:
    log = await kill_after_appends(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    broker = Process(tmp_path, controller)
    await broker.replicas.open_all(controller.image, broker.reporter.report_empty)
    await broker.stop()
    for _ in range(2):  # the power may fail again and again
        await (await start_after_power_failure(tmp_path, controller)).stop()
    broker = await start_after_power_failure(tmp_path, controller)
    assert not any(emptied(controller))
    await broker.reporter.report_at_start()
    assert emptied(controller)[-1] == [0]
    assert leaders(controller)[0] == 2
    await broker.stop()


async def test_reported_damage_is_not_reported_again_after_a_power_failure(
    tmp_path: Path, controller: RecordingController
) -> None:
    log = await kill_after_appends(tmp_path, controller)
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    disk = PowerLossTree([tmp_path / "a", tmp_path / "b"])
    broker = await Process(tmp_path, controller, files=disk).start()
    assert emptied(controller)[-1] == [0]
    await broker.stop()
    disk.lose_power()
    disk.close_held()
    assert not list(tmp_path.rglob("damaged"))


async def test_start_fails_if_every_directory_has_failed(
    tmp_path: Path, controller: RecordingController
) -> None:
    broker = Process(tmp_path, controller)
    for directory in broker.directories.all:
        directory.fail("Input/output error")
    with pytest.raises(DirectoryUnusable, match="is offline: Input/output error"):
        await broker.replicas.open_all(controller.image)
    broker.directories.release()
