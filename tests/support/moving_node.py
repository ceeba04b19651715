"""A node with three log directories and one partition that moves between them, on a disk that can stall or
fail.
"""

import asyncio
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from connection_harness import until

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.maintenance.directory_moves import DirectoryMoves
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager, ReportEmpty
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

NAME = TopicPartition("t", 0)
EMPTY = ClusterImage(cluster_id="c")


def image_of(number: int = 1, *, leader_epoch: int = 0, **configs: str) -> ClusterImage:
    settings = {"segment.bytes": "1000", "file.delete.delay.ms": "0"}
    settings |= {name.replace("_", "."): value for name, value in configs.items()}
    topic_id = uuid.UUID(int=number)
    led = {"replicas": (1,), "in_sync": (1,), "leader": 1, "leader_epoch": leader_epoch, "partition_epoch": 0}
    changes: list[r.AnyRecord] = [
        r.TopicCreated(topic_id=topic_id, name="t"),
        r.PartitionRecord(topic_id=topic_id, partition=0, **led),  # type: ignore[arg-type]
    ]
    changes += [
        r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="t", key=key, value=value)
        for key, value in settings.items()
    ]
    return evolve_all(EMPTY, changes)


class Disk(OsFiles):
    """Writes to a future replica wait while `gate` is closed. `broken` directories fail; files in `lacks` are
    missing once, those in `gone` always; renaming a `stuck` directory fails for lack of space.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()
        self.broken: set[Path] = set()
        self.lacks: set[Path] = set()
        self.gone: set[Path] = set()
        self.stuck: set[Path] = set()
        self.closes_if: Callable[[], bool] = lambda: False
        """Called at each write to a future replica: whether to close the gate."""
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        if path in self.lacks or path in self.gone:
            self.lacks.discard(path)
            raise FileNotFoundError(2, "No such file or directory", str(path))
        fd = super().open(path, create=create, exclusive=exclusive)
        self._paths[fd] = path
        return fd

    def rename(self, source: Path, target: Path) -> None:  # type: ignore[override]
        if source in self.stuck:
            raise OSError(28, "No space left on device", str(source))
        OsFiles.rename(source, target)

    def writev_at(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        path = self._paths[fd]
        if path.parent.name.endswith("-future") and path.suffix == ".log":
            if self.closes_if():
                self.gate.clear()
            if not self.gate.is_set():
                self.waits.set()
                self.gate.wait(30)
        if any(path.is_relative_to(directory) for directory in self.broken):
            raise OSError(5, "Input/output error")
        return OsFiles.writev_at(self, fd, buffers, position)


class Node:
    """One process of a node on the directories `a`, `b` and `c`. Leaving without `stop` acts as a SIGKILL."""

    def __init__(
        self,
        path: Path,
        disk: OsFiles | None = None,
        *,
        max_hold_s: float = 30,
        retry_s: float = 0.05,
        max_retry_s: float = 0.05,
    ) -> None:
        self.disk = disk if isinstance(disk, Disk) else Disk()
        self.path = path
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda name, failure: self.failures.append(failure))
        paths = [path / name for name in "abc"]
        rng = random.Random(1)
        settings = settings_from({"log.dirs": ",".join(map(str, paths)), "metadata.log.dir": str(path / "m")})
        self.directories = LogDirectories(paths, disk or self.disk, rng)
        self.commits = GroupCommit()
        self.manager = ReplicaManager(
            settings,
            self.directories,
            SystemClock(),
            self.tasks,
            rng,
            on_change=lambda name: None,
            flusher=self.commits.request,
        )
        self.image = EMPTY
        self.moves = DirectoryMoves(
            settings,
            self.manager,
            lambda: self.image,
            SystemClock(),
            self.tasks,
            max_hold_s=max_hold_s,
            retry_s=retry_s,
            max_retry_s=max_retry_s,
        )
        self.manager.listeners = (self.moves.on_replica_event,)

    async def start(
        self, image: ClusterImage, place: str = "a", report_empty: ReportEmpty | None = None
    ) -> "Node":
        """A new partition is created in `place`."""
        self.directories.claim(1, "c")
        self.image = image
        self.moves.move(NAME, str(self.path / place))
        await self.manager.open_all(image, report_empty)
        self.moves.resume()
        return self

    async def stop(self, *, clean: bool = True) -> None:
        await self.moves.stop()
        await self.tasks.close()
        await self.commits.drain(30)
        await self.manager.close(clean=clean)
        self.directories.release()

    async def kill(self) -> None:
        self.moves._stopping = True  # its threads end without further changes
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
        """Wait until no move is in progress and the files that moves left are removed."""
        while tasks := [move.task for move in self.moves._moves.values() if move.task is not None]:
            await asyncio.wait(tasks)
        await self.idle()
        assert self.failures == []

    async def idle(self) -> None:
        """Wait until no task, such as a removal, is running."""
        await until(lambda: len(self.tasks) == 0)

    async def copying(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.disk.waits.wait)

    @property
    def replica(self) -> Replica:
        found = self.manager.get(*NAME)
        assert found is not None
        return found

    def append(self, number: int, *, producer: tuple[int, int, int] | None = None) -> int:
        """Returns the base offset. `producer`: id, epoch and first sequence."""
        now_ms = SystemClock().now_ms()
        identity = {}
        if producer is not None:
            identity = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
        batch = encode_batch([NewRecord(now_ms, b"k", b"%d" % number + b"." * 100)], **identity)
        result = self.replica.as_leader.append(memoryview(bytearray(batch)), now_ms)
        assert result.error is ErrorCode.NONE, result
        return result.base_offset

    def fill(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.append(number)

    def values(self) -> list[int]:
        """The values of all records, as a consumer reads them."""
        log = self.replica.log
        log.check()
        return [
            int((record.value or b"").split(b".")[0])
            for _, batch in log.batches(log.log_start_offset)
            for record in iter_records(batch, max_bytes=1 << 20)
            if record.offset >= log.log_start_offset
        ]

    def places(self) -> list[str]:
        """Directories of the partition, except those that are being deleted, and markers of its moves."""
        found = (str(path.relative_to(self.path)) for path in self.path.glob("?/t-0*"))
        return sorted(name for name in found if not name.endswith("-delete"))
