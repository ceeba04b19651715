"""Disk pressure: acts on low free space of a log directory before its disk is full.

A disk is low below `log.dir.free.bytes.min`, or when it is full. First, local segments that the object store
has are deleted, of topics whose `remote.log.disk.pressure.policy` is drop-oldest-uploaded: the oldest first,
until enough space is free. Their files go at once, without file.delete.delay.ms; responses that are being
sent keep theirs open. If the disk is still low and that has freed nothing, or if less than half of the bound
is free, the directory counts as full: it refuses appends, and other replicas lead. Log maintenance accepts
them again once there is enough space. Called by app.py.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

import structlog

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.lookups import describe
from tierlog.config.node import NodeSettings
from tierlog.config.topic import MAX_LONG

CHECK_S = 0.25
"""Time between two checks. A fast disk can write hundreds of megabytes in it, so log.dir.free.bytes.min
should be larger."""

CHECK_MAX_S = 4.0
"""Longest time between two checks while a directory is full and nothing in it may be deleted."""

REPLICAS_PER_TURN = 100
"""Number of replicas whose segments are read per turn of the event loop."""

SEGMENTS_PER_CHECK = 200
"""Most segments deleted in a directory per check: each is several renames on the event loop."""

KEPT_OPEN_S = 10
"""Bytes of an unlinked file that a response still holds open count as free for this long."""

DROP = "drop-oldest-uploaded"

_log = structlog.get_logger("tierlog.maintenance")


class _Unlinked(NamedTuple):
    """Bytes of unlinked files, and how much the free space grew. The rest is kept open by responses."""

    all_bytes: int
    free_bytes: int

    @property
    def kept_bytes(self) -> int:
        return max(0, self.all_bytes - self.free_bytes)


@dataclass(frozen=True, slots=True)
class _Droppable:
    """A segment that may be deleted together with all segments before it. `newest_ms`: the newest timestamp
    in any of them. `number`: index of the replica, so that equal ages have a fixed order."""

    newest_ms: int
    number: int
    end_offset: int
    size_bytes: int
    replica: Replica

    @property
    def order(self) -> tuple[int, int, int]:
        return self.newest_ms, self.number, self.end_offset


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
        self._low: set[LogDirectory] = set()
        self._pauses_s: dict[LogDirectory, float] = {}
        self._kept_open = defaultdict[LogDirectory, list[tuple[int, int]]](list)
        """Monotonic time and number of bytes that were unlinked and did not become free."""
        self.dropped_segments = dict.fromkeys(replicas.directories.all, 0)
        """Local segments deleted although local retention keeps them, in each directory."""
        self.dropped_bytes = dict.fromkeys(replicas.directories.all, 0)
        self.configure(settings)

    def configure(self, settings: NodeSettings) -> None:
        """Apply log.dir.free.bytes.min."""
        self._free_bytes_min = settings.log_dir_free_bytes_min
        self._replicas.directories.free_bytes_min = self._free_bytes_min

    @property
    def low(self) -> set[LogDirectory]:
        """Online directories on low disks."""
        return {directory for directory in self._low if directory.failure is None}

    def pause_s(self, directory: LogDirectory) -> float:
        """Time until the next check of a directory."""
        return self._pauses_s.get(directory, CHECK_S)

    def start(self) -> None:
        """Each directory has its own task, so one that hangs does not delay the others."""
        for directory in self._replicas.directories.all:
            self._tasks.repeat(
                f"disk pressure of {directory.path}", partial(self._check_after_pause, directory)
            )

    async def _check_after_pause(self, directory: LogDirectory) -> None:
        await asyncio.sleep(self.pause_s(directory))
        await self.check(directory)

    async def check(self, directory: LogDirectory) -> None:
        """Act if the directory is online, on a low disk. The pause until the next check doubles while the
        directory is full and nothing in it may be deleted. A low disk that still accepts appends is checked
        every CHECK_S, because it may fill up."""
        pause_s = CHECK_S
        if directory.failure is None and (
            self._free_bytes_min or directory.is_full or directory in self._low
        ):
            try:
                freed_bytes = await self._free_space(directory)
            except OSError as failure:
                directory.on_error(failure)
            else:
                if directory.is_full and not freed_bytes:
                    pause_s = min(2 * self.pause_s(directory), CHECK_MAX_S)
        self._pauses_s[directory] = pause_s

    async def _free_space(self, directory: LogDirectory) -> int:
        """Returns the number of bytes whose files were unlinked."""
        enough = self._replicas.directories.enough_free_bytes  # more, so that it is not low again at once
        usable = await _usable(directory)
        if usable >= enough:
            if directory in self._low:
                self._low.discard(directory)
                where = str(directory.path)
                _log.info("log_dir.pressure.ended", directory=where, usable_bytes=usable)
            return 0
        if usable >= self._free_bytes_min and directory not in self._low and not directory.is_full:
            return 0
        if directory not in self._low:
            self._low.add(directory)
            _log.warning(
                "log_dir.pressure",
                directory=str(directory.path),
                usable_bytes=usable,
                free_bytes_min=self._free_bytes_min,
            )
        unlinked = await self._drop(directory, enough - usable - self._kept_open_bytes(directory))
        if unlinked.kept_bytes:
            self._kept_open[directory].append((self._clock.monotonic_ms(), unlinked.kept_bytes))
        usable_now = await _usable(directory)
        # producers may have used what was freed meanwhile: the next check frees more
        least = self._free_bytes_min // 2 if unlinked.free_bytes else self._free_bytes_min
        if usable_now < least:
            directory.mark_full()
        return unlinked.all_bytes

    def _kept_open_bytes(self, directory: LogDirectory) -> int:
        """Bytes that become free once responses close their files: no other segments are deleted for them."""
        since_ms = self._clock.monotonic_ms() - 1000 * KEPT_OPEN_S
        recent = [one for one in self._kept_open[directory] if one[0] > since_ms]
        self._kept_open[directory] = recent
        return sum(size_bytes for _, size_bytes in recent)

    async def _drop(self, directory: LogDirectory, missing_bytes: int) -> _Unlinked:
        """Delete the oldest uploaded segments in a directory, with at least that many bytes."""
        replicas = [one for one in self._replicas.replicas_in(directory) if _may_drop(one)]
        before = await self._unlink_deleted(directory, replicas)
        missing_bytes -= before.all_bytes
        if missing_bytes <= 0:
            return before
        ends: dict[Replica, int] = {}
        for one in await self._oldest(replicas):
            if missing_bytes <= 0:
                break
            ends[one.replica] = one.end_offset
            missing_bytes -= one.size_bytes
        for replica, end_offset in ends.items():
            with suppress(OSError):  # the directory handles it
                self.drop_before(directory, replica, end_offset)
            await asyncio.sleep(0)  # let requests run
        after = await self._unlink_deleted(directory, replicas)
        return _Unlinked(before.all_bytes + after.all_bytes, before.free_bytes + after.free_bytes)

    async def _unlink_deleted(self, directory: LogDirectory, replicas: list[Replica]) -> _Unlinked:
        """Unlink the files of deleted segments."""
        held = [replica for replica in replicas if self._replicas.holds(replica)]
        paths = [path for replica in held for path in replica.log.take_due(MAX_LONG)]
        return await directory.run(partial(self._unlink, directory, paths)) if paths else _Unlinked(0, 0)

    async def _oldest(self, replicas: list[Replica]) -> list[_Droppable]:
        """The oldest segments that may be deleted, oldest first."""
        found: list[_Droppable] = []
        for number, replica in enumerate(replicas, 1):
            found += self._droppable(replica, number)
            if number % REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)  # let requests run
        return nsmallest(SEGMENTS_PER_CHECK, found, key=lambda one: one.order)

    def _droppable(self, replica: Replica, number: int) -> Iterator[_Droppable]:
        newest_ms = 0
        droppable = replica.log.rolled_below(self._droppable_end(replica))
        for segment in droppable[:SEGMENTS_PER_CHECK]:
            newest_ms = max(newest_ms, describe(segment, ()).newest_ms)
            yield _Droppable(newest_ms, number, segment.end_offset, segment.size, replica)

    def drop_before(self, directory: LogDirectory, replica: Replica, end_offset: int) -> None:
        """Delete the replica's segments in the directory that end at or below an offset, as far as they may
        still be deleted."""
        if not (self._replicas.holds(replica) and _may_drop(replica)):
            return
        before = replica.log.size_bytes
        end_offset = min(end_offset, self._droppable_end(replica))
        count = replica.delete_local_before(end_offset, self._clock.now_ms())
        self.dropped_segments[directory] += count
        self.dropped_bytes[directory] += before - replica.log.size_bytes if count else 0

    def _unlink(self, directory: LogDirectory, paths: list[Path]) -> _Unlinked:
        """The free space is read just before and after, so that little is written in between."""
        usable, all_bytes = directory.space().usable, 0
        for path in paths:
            try:
                size = self._files.size_of(path)
                self._files.unlink(path)
            except OSError as failure:
                _log.error("log.unlink_failed", path=str(path), error=str(failure))
            else:
                all_bytes += size
        return _Unlinked(all_bytes, max(0, directory.space().usable - usable))


async def _usable(directory: LogDirectory) -> int:
    return (await asyncio.to_thread(directory.space)).usable


def _may_drop(replica: Replica) -> bool:
    return replica.failed is None and replica.config.remote_log_disk_pressure_policy == DROP
