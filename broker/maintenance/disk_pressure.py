"""Disk pressure: acts on low free space of a log directory before its disk is full.

A disk is low below `log.dir.free.bytes.min`, or when it is full. First, local segments that the object store
has are deleted, of topics whose `remote.log.disk.pressure.policy` is drop-oldest-uploaded: the oldest first,
until enough space is free. Their files go at once, without file.delete.delay.ms; responses that are being
sent keep theirs open. If the disk is still low after that, the directory counts as full: it refuses appends,
and other replicas lead. Log maintenance accepts them again once there is enough space. Called by app.py.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.log_dirs import NOT_FULL_BYTES
from tierlog.config.node import NodeSettings
from tierlog.config.topic import MAX_LONG

CHECK_S = 0.25
"""A fast disk takes hundreds of megabytes in this time."""

REPLICAS_PER_TURN = 100
"""Number of replicas whose segments are read per turn of the event loop."""

DROP = "drop-oldest-uploaded"

_log = structlog.get_logger("tierlog.maintenance")


class DiskPressure:
    def __init__(
        self,
        settings: NodeSettings,
        replicas: ReplicaManager,
        files: Files,
        clock: Clock,
        tasks: TaskGroup,
        droppable_end: Callable[[Replica], int],
    ) -> None:
        """`droppable_end`: end of a replica's offsets that stay readable without its local log."""
        self._replicas = replicas
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._droppable_end = droppable_end
        self.low: set[LogDirectory] = set()
        """Directories on low disks."""
        self.dropped_segments = self.dropped_bytes = 0
        """Local segments deleted although local retention keeps them."""
        self.configure(settings)

    def configure(self, settings: NodeSettings) -> None:
        """Apply log.dir.free.bytes.min."""
        self._free_bytes_min = settings.log_dir_free_bytes_min
        self._replicas.directories.free_bytes_min = self._free_bytes_min

    def start(self) -> None:
        self._tasks.repeat("disk pressure", self._turn)

    async def _turn(self) -> None:
        await asyncio.sleep(CHECK_S)
        await self.check()

    async def check(self) -> None:
        """Act on every online directory on a low disk."""
        for directory in self._replicas.directories.online:
            if self._free_bytes_min or directory.is_full or directory in self.low:
                try:
                    await self._check(directory)
                except OSError as failure:
                    directory.on_error(failure)

    async def _check(self, directory: LogDirectory) -> None:
        wanted = self._free_bytes_min + NOT_FULL_BYTES  # a little more, so that it is not low again at once
        usable = await _usable(directory)
        if usable >= wanted:
            if directory in self.low:
                self.low.discard(directory)
                _log.info("a disk has enough free space again", directory=str(directory.path), free=usable)
            return
        if usable >= self._free_bytes_min and directory not in self.low and not directory.is_full:
            return
        if directory not in self.low:
            self.low.add(directory)
            _log.warning(
                "free space is below log.dir.free.bytes.min, or the disk is full: local segments of topics "
                f"with remote.log.disk.pressure.policy={DROP} are deleted",
                directory=str(directory.path),
                free=usable,
                least=self._free_bytes_min,
            )
        await self._drop(directory, wanted - usable)
        if await _usable(directory) < self._free_bytes_min:
            directory.mark_full()

    async def _drop(self, directory: LogDirectory, missing_bytes: int) -> None:
        """Delete the oldest uploaded segments in a directory, with at least that many bytes."""
        replicas = [one for one in self._replicas.replicas_in(directory) if _may_drop(one)]
        missing_bytes -= await self._unlink_deleted(directory, replicas)
        droppable: list[tuple[int, int, int, Replica]] = []
        for number, replica in enumerate(replicas if missing_bytes > 0 else (), 1):
            droppable += self._droppable(replica, number)
            if number % REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)  # let requests run
        for _, _, end_offset, replica in sorted(droppable, key=lambda one: one[:3]):
            if missing_bytes <= 0:
                break
            with suppress(OSError):  # the directory handles it
                missing_bytes -= self._drop_segment(replica, end_offset)
        await self._unlink_deleted(directory, replicas)

    async def _unlink_deleted(self, directory: LogDirectory, replicas: list[Replica]) -> int:
        """Unlink the files of deleted segments. Returns their bytes."""
        held = [replica for replica in replicas if self._replicas.holds(replica)]
        paths = [path for replica in held for path in replica.log.take_due(MAX_LONG)]
        return await directory.run(partial(self._unlink, paths)) if paths else 0

    def _droppable(self, replica: Replica, number: int) -> list[tuple[int, int, int, Replica]]:
        """Age of each segment that may be deleted, the replica's number, and the end of the segment."""
        end = self._droppable_end(replica)
        found: list[tuple[int, int, int, Replica]] = []
        newest_ms = 0
        for segment in replica.segments:
            if not segment.rolled or segment.end_offset > end:
                break
            newest_ms = max(newest_ms, segment.newest_ms)  # a segment goes only with all before it
            found.append((newest_ms, number, segment.end_offset, replica))
        return found

    def _drop_segment(self, replica: Replica, end_offset: int) -> int:
        """Delete a segment and those before it. Returns their bytes; 0 if they may no longer be deleted."""
        if not (self._replicas.holds(replica) and _may_drop(replica)):
            return 0
        if end_offset > self._droppable_end(replica):
            return 0
        before = replica.log.size_bytes
        count = replica.delete_local_before(end_offset, self._clock.now_ms())
        dropped_bytes = before - replica.log.size_bytes if count else 0
        self.dropped_segments += count
        self.dropped_bytes += dropped_bytes
        return dropped_bytes

    def _unlink(self, paths: list[Path]) -> int:
        freed_bytes = 0
        for path in paths:
            try:
                size = self._files.size_of(path)
                self._files.unlink(path)
            except OSError as failure:
                _log.error("cannot unlink", path=str(path), error=str(failure))
            else:
                freed_bytes += size
        return freed_bytes


async def _usable(directory: LogDirectory) -> int:
    return (await asyncio.to_thread(directory.space)).usable


def _may_drop(replica: Replica) -> bool:
    return replica.failed is None and replica.config.remote_log_disk_pressure_policy == DROP
