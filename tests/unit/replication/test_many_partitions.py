"""Many partitions: created in threads, deleted during that, closed without fsyncs, half created by a
crash."""

import asyncio
import random
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import CREATED_ON_LOOP_MAX, ReplicaManager
from tierlog.broker.storage.checkpoints import PARTITION_METADATA, encode_uuid
from tierlog.broker.storage.log_dir import CONCURRENT_REMOVALS
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage, changed_topics
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

EMPTY = ClusterImage(cluster_id="c")
MANY = CREATED_ON_LOOP_MAX + 60


def topic(
    number: int, partitions: int = MANY, image: ClusterImage = EMPTY, name: str = "t", node_id: int = 1
) -> ClusterImage:
    topic_id, at = uuid.UUID(int=number), (node_id,)
    led = {"replicas": at, "in_sync": at, "leader": node_id, "leader_epoch": 0, "partition_epoch": 0}
    changes = [r.TopicCreated(topic_id=topic_id, name=name)]
    changes += [r.PartitionRecord(topic_id=topic_id, partition=n, **led) for n in range(partitions)]  # type: ignore[misc,arg-type]
    return evolve_all(image, changes)


class Counted(OsFiles):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def sync(self, fd: int) -> None:  # type: ignore[override]
        self.calls["sync"] += 1
        OsFiles.sync(fd)

    def sync_directory(self, path: Path) -> None:
        self.calls["sync"] += 1
        super().sync_directory(path)

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        self.calls["open"] += 1
        return super().open(path, create=create, exclusive=exclusive)


class Run:
    def __init__(self, path: Path, files: Counted | None = None) -> None:
        self.failures: list[BaseException] = []
        self.files = files or Counted()
        self.tasks = TaskGroup(lambda _, failure: self.failures.append(failure))
        self.directories = LogDirectories([path / "data"], self.files, random.Random(1))
        self.manager = ReplicaManager(
            settings_from({"log.dirs": str(path / "data")}),
            self.directories,
            SystemClock(),
            self.tasks,
            random.Random(1),
            on_change=lambda partition: None,
        )
        self.directories.claim(1, "c")

    async def start(self, image: ClusterImage) -> "Run":
        await self.manager.open_all(image)
        return self

    async def stop(self, *, clean: bool = True) -> None:
        await self.tasks.close()
        await self.manager.close(clean=clean)
        self.directories.release()
        assert self.failures == []

    def replica(self, number: int) -> Replica:
        found = self.manager.get("t", number)
        assert found is not None
        return found


def append(replica: Replica) -> ErrorCode:
    now_ms = SystemClock().now_ms()
    return replica.as_leader.append(
        memoryview(bytearray(encode_batch([NewRecord(now_ms, None, b"v")]))), now_ms
    ).error


async def test_many_partitions_are_created_in_threads(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    created: list[int] = []
    run.manager.listeners = (lambda event: created.append(len(run.manager)),)
    run.manager.follow(EMPTY, topic(1))
    assert len(run.manager) == 0
    assert not run.manager.is_offline(TopicPartition("t", 0))
    await run.manager.wait_until_created()
    assert len(run.manager) == MANY
    assert all(append(replica) is ErrorCode.NONE for replica in run.manager)
    assert created == [MANY]
    await run.stop()


async def test_few_partitions_are_created_before_handlers_see_the_image(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    run.manager.follow(EMPTY, topic(1, CREATED_ON_LOOP_MAX))
    assert len(run.manager) == CREATED_ON_LOOP_MAX
    await run.stop()


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_topic_deleted_and_created_again_while_threads_create_it(tmp_path: Path, turns: int) -> None:
    run = await Run(tmp_path).start(EMPTY)
    first, second = topic(1), topic(2, MANY + 5)
    run.manager.follow(EMPTY, first)
    for _ in range(turns):
        await asyncio.sleep(0)
    run.manager.follow(first, EMPTY)
    run.manager.follow(EMPTY, second)
    await run.manager.wait_until_created()
    assert len(run.manager) == MANY + 5
    for number in range(MANY + 5):
        content = tmp_path / "data" / f"t-{number}" / PARTITION_METADATA
        assert encode_uuid(uuid.UUID(int=2)) in content.read_text()
        assert append(run.replica(number)) is ErrorCode.NONE
    await run.stop()


async def test_topic_deleted_while_threads_create_it(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    run.manager.follow(EMPTY, topic(1))
    run.manager.follow(topic(1), EMPTY)
    await run.manager.wait_until_created()
    assert len(run.manager) == 0
    assert [path for path in (tmp_path / "data").iterdir() if path.name.startswith("t-0")] == [
        path for path in (tmp_path / "data").iterdir() if path.name.endswith("-delete") and "t-0" in path.name
    ]
    await run.stop()


async def test_topic_created_again_on_another_broker_while_threads_create_it(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    run.manager.follow(EMPTY, topic(1))
    run.manager.follow(topic(1), EMPTY)
    run.manager.follow(EMPTY, topic(2, node_id=2))
    syncs = run.files.calls["sync"]
    await run.manager.wait_until_created()
    assert len(run.manager) == 0
    assert not list((tmp_path / "data").glob("t-?"))
    assert run.files.calls["sync"] > syncs, "else the old directories would come back after a power failure"
    await run.stop()


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_old_checkpoints_of_the_same_name_are_removed_off_the_loop(tmp_path: Path, policy: str) -> None:
    run = await Run(tmp_path).start(topic(1, 2))
    for replica in run.manager:
        append(replica)
        if policy == "compact":
            replica.log.cleaned_to = 0
            await run.manager.checkpoints.write_cleaned(replica.log_dir)
    await run.manager.checkpoints.write_for([replica.name for replica in run.manager])
    run.manager.follow(topic(1, 2), EMPTY)
    syncs = run.files.calls["sync"]
    run.manager.follow(EMPTY, topic(2, 2))
    assert run.files.calls["sync"] == syncs
    await run.manager.wait_until_created()
    assert run.files.calls["sync"] > syncs
    assert [run.replica(number).log_end_offset for number in range(2)] == [0, 0]
    await run.stop()


class SlowToUnlink(Counted):
    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Semaphore(0), threading.Event()

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if "-delete" in path.parent.name:
            self.entered.release()
            assert self.go_on.wait(30)
        super().unlink(path, missing_ok=missing_ok)


async def test_removals_leave_threads_for_flushes(tmp_path: Path) -> None:
    files = SlowToUnlink()
    run = await Run(tmp_path, files).start(topic(1, 20))
    log_dir = run.directories.all[0]
    run.manager.follow(topic(1, 20), EMPTY)
    removing = [
        run.tasks.spawn("remove", log_dir.remove_later(path)) for path in log_dir.deleted_partitions()
    ]
    assert len(removing) == 20
    for _ in range(CONCURRENT_REMOVALS):
        assert await asyncio.to_thread(files.entered.acquire, timeout=30)
    assert await asyncio.wait_for(log_dir.run(lambda: "synced"), 30) == "synced"
    assert not files.entered.acquire(blocking=False)
    files.go_on.set()
    await asyncio.gather(*removing)
    assert log_dir.deleted_partitions() == []
    await run.stop()


async def test_creating_and_closing_many_partitions_needs_no_fsync_each(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    before = run.files.calls.copy()
    run.manager.follow(EMPTY, topic(1))
    await run.manager.wait_until_created()
    assert run.files.calls - before == {"open": MANY}  # only partition.metadata
    append(run.replica(3))
    await run.stop()
    syncs = run.files.calls["sync"]
    assert syncs < 40
    again = await Run(tmp_path).start(topic(1))
    assert again.replica(3).log_end_offset == 1
    assert again.replica(4).log_end_offset == 0
    opened = again.files.calls["open"]
    assert opened < 30
    assert append(again.replica(4)) is ErrorCode.NONE
    await again.stop()


async def test_first_flush_makes_the_directory_and_its_topic_id_durable(tmp_path: Path) -> None:
    run = await Run(tmp_path).start(EMPTY)
    run.manager.follow(EMPTY, topic(1, 1))
    append(run.replica(0))
    before = run.files.calls["sync"]
    run.replica(0).flush()
    # log, its directory, partition.metadata, the directory above, leader epochs and their rename
    assert run.files.calls["sync"] - before == 6
    append(run.replica(0))
    run.replica(0).flush()
    assert run.files.calls["sync"] - before == 7
    await run.stop()


@pytest.mark.parametrize(
    "content", [b"", bytes(44), b"version: 0\ntopic_id: AAAAA", b"version: 0" + bytes(34)]
)
@pytest.mark.parametrize("with_log", [False, True])
async def test_directory_without_a_durable_topic_id_is_set_aside(
    tmp_path: Path, content: bytes, with_log: bool
) -> None:
    """A power failure before the first flush. The directory's files may belong to an earlier topic of the
    same name."""
    run = await Run(tmp_path).start(topic(1, 1))
    if with_log:
        append(run.replica(0))
    await run.stop(clean=False)
    (tmp_path / "data" / "t-0" / PARTITION_METADATA).write_bytes(content)
    again = await Run(tmp_path).start(topic(2, 1))
    assert again.replica(0).log_end_offset == 0
    assert append(again.replica(0)) is ErrorCode.NONE
    assert len(list((tmp_path / "data").glob("t-0.*-stray"))) == with_log
    await again.stop()


def test_changed_topics_are_found_by_identity() -> None:
    one = topic(1, 2, name="a")
    two = topic(2, 3, one, name="b")
    assert changed_topics(one, one) == ([], [])
    gone, changed = changed_topics(one, two)
    assert (gone, [t.name for t in changed]) == ([], ["b"])
    grown = evolve_all(
        two,
        [
            r.PartitionRecord(
                topic_id=uuid.UUID(int=1), partition=2, replicas=(1,), in_sync=(1,), leader=1,
                leader_epoch=0, partition_epoch=0,
            )
        ],
    )  # fmt: skip
    assert [t.name for t in changed_topics(two, grown)[1]] == ["a"]
    less = evolve_all(grown, [r.TopicDeleted(topic_id=uuid.UUID(int=2), at_ms=0)])
    gone, changed = changed_topics(grown, less)
    assert ([t.name for t in gone], changed) == (["b"], [])
