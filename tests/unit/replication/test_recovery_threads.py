"""Start of the replica manager: logs are opened in parallel, with progress messages; it can be cancelled."""

import asyncio
import random
import threading
import uuid
from pathlib import Path

import pytest
from manual_clock import ManualClock
from structlog.testing import capture_logs

from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.replica_manager import PROGRESS_EVERY, ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage


class Meeting(OsFiles):
    """Opening a log waits until this many are being opened; `most` is the largest number of them."""

    def __init__(self, parties: int) -> None:
        self.all_here = threading.Barrier(parties, timeout=30)
        self.counting = threading.Lock()
        self.opening = self.most = 0

    def list_directory(self, path: Path) -> list[str]:
        if path.name.startswith("t-"):
            with self.counting:
                self.opening += 1
                self.most = max(self.most, self.opening)
            self.all_here.wait()
            with self.counting:
                self.opening -= 1
        return super().list_directory(path)


class Held(OsFiles):
    """Opening a log waits for `go_on`; `begun` counts the starts, `held_up` those which timed out."""

    def __init__(self) -> None:
        self.begun = self.held_up = 0
        self.entered, self.go_on = threading.Event(), threading.Event()

    def list_directory(self, path: Path) -> list[str]:
        if path.name.startswith("t-"):
            self.begun += 1
            self.entered.set()
            self.held_up += not self.go_on.wait(5)
        return super().list_directory(path)


def image_of(partitions: int) -> ClusterImage:
    topic_id = uuid.UUID(int=1)
    led = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": 0, "partition_epoch": 0}
    changes: list[r.AnyRecord] = [r.TopicCreated(topic_id=topic_id, name="t")]
    changes += [
        r.PartitionRecord(topic_id=topic_id, partition=n, **led)  # type: ignore[arg-type]
        for n in range(partitions)
    ]
    return evolve_all(ClusterImage(cluster_id="c"), changes)


def manager_on(path: Path, files: OsFiles, threads: int) -> ReplicaManager:
    rng = random.Random(1)
    settings = settings_from({"log.dirs": str(path), "num.recovery.threads.per.data.dir": str(threads)})
    return ReplicaManager(
        settings,
        LogDirectories([path], files, rng),
        ManualClock(),
        TaskGroup(lambda *_: None),
        rng,
        on_change=lambda _: None,
    )


@pytest.mark.parametrize("threads", [1, 3])
async def test_logs_are_opened_in_num_recovery_threads_per_data_dir_threads(
    tmp_path: Path, threads: int
) -> None:
    manager = manager_on(tmp_path, OsFiles(), 1)
    await manager.open_all(image_of(6))
    await manager.close(clean=False)
    disk = Meeting(threads)
    again = manager_on(tmp_path, disk, threads)
    await again.open_all(image_of(6))
    assert (len(again), disk.most) == (6, threads)
    disk.all_here.abort()
    await again.close(clean=False)


async def test_progress_is_logged(tmp_path: Path) -> None:
    count = 2 * PROGRESS_EVERY + 5
    manager = manager_on(tmp_path, OsFiles(), 2)
    with capture_logs() as reported:
        await manager.open_all(image_of(count))
    lines = [(line["opened"], line["of"]) for line in reported if line["event"] == "logs.opened"]
    assert lines == [(PROGRESS_EVERY, count), (2 * PROGRESS_EVERY, count), (count, count)]
    await manager.close(clean=False)


async def test_cancelled_start_opens_no_more_logs_and_keeps_the_loop_running(tmp_path: Path) -> None:
    manager = manager_on(tmp_path, OsFiles(), 1)
    await manager.open_all(image_of(6))
    await manager.close(clean=False)
    disk = Held()
    again = manager_on(tmp_path, disk, 1)
    start = asyncio.create_task(again.open_all(image_of(6)))
    assert await asyncio.to_thread(disk.entered.wait, 30)
    start.cancel()
    for _ in range(5):  # turns of the loop, which it would not have if it were held up
        await asyncio.sleep(0)
    disk.go_on.set()
    await asyncio.wait([start])
    assert (start.cancelled(), disk.begun, disk.held_up) == (True, 1, 0)
    await again.close(clean=False)
