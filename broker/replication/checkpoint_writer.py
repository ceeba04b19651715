"""Checkpoint writer: writes the checkpoint files of the log directories.

Recovery points, log start offsets and high watermarks are written together; the cleaner's checkpoint has its
own file. Rows of logs that are not open stay as they were. After a truncation the recovery point on disk may
be above the log's durable end, so it is lowered at once. Owned by the replica manager; called by log
maintenance, the cleaner, followers and DeleteRecords.
"""

import asyncio
from collections.abc import Collection, Mapping
from functools import partial

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.log_dir import CheckpointRow, LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories

RETRY_S = 1.0
"""After a checkpoint file could not be written."""

_log = structlog.get_logger("tierlog.checkpoints")


class CheckpointWriter:
    def __init__(
        self,
        directories: LogDirectories,
        replicas: Mapping[TopicPartition, Replica],
        creating: Collection[TopicPartition],
        tasks: TaskGroup,
    ) -> None:
        """`replicas` and `creating` are live: the current replicas, and those which threads are creating."""
        self._directories = directories
        self._replicas = replicas
        self._creating = creating
        self._tasks = tasks
        self._lowering: dict[LogDirectory, set[Replica]] = {}
        self.moving: dict[TopicPartition, LogDirectory] = {}
        """Target directories of moves. Checkpoints of these partitions are written to the target too."""

    async def write_for(self, names: Collection[TopicPartition]) -> set[TopicPartition]:
        """Write the current checkpoints of the directories that hold `names`; durable when this returns.
        Returns those of `names` whose directory could not be written.
        """
        places = {name: self._directories.directory_of(name) for name in names}
        directories = [directory for directory in self._directories.online if directory in places.values()]
        written = await asyncio.gather(*map(self.write, directories))
        failed = {one for one, was_written in zip(directories, written, strict=True) if not was_written}
        return {name for name, place in places.items() if place in failed}

    async def write(self, directory: LogDirectory) -> bool:
        """Write the checkpoints of all logs in a directory. Returns False if that failed."""
        truncated: list[tuple[Replica, int]] = []
        write = partial(
            directory.write_checkpoints, partial(self._rows, directory, self._replicas, truncated)
        )
        try:
            await directory.run(write)
        except OSError as failure:
            _log.error("checkpoint.write_failed", directory=str(directory.path), error=str(failure))
            return False
        for replica, truncations in truncated:
            replica.on_checkpoint_written(truncations)
        return True

    def lower(self, replica: Replica) -> None:
        """Write the checkpoint of a truncated replica soon, in a thread. Its listeners are called
        afterwards."""
        directory = self._directories.directory_of(replica.name)
        if directory is None:
            return
        if directory not in self._lowering:
            self._lowering[directory] = set()
            self._tasks.spawn(f"lower checkpoints {directory.path}", self._lower(directory))
        self._lowering[directory].add(replica)

    async def _lower(self, directory: LogDirectory) -> None:
        try:
            while directory.failure is None and any(map(self._must_write, self._lowering[directory])):
                if not await self.write(directory):
                    await asyncio.sleep(RETRY_S)
        finally:
            del self._lowering[directory]

    def _must_write(self, replica: Replica) -> bool:
        return replica.needs_checkpoint and self._replicas.get(replica.name) is replica

    def write_last(self, directory: LogDirectory, replicas: Mapping[TopicPartition, Replica]) -> None:
        """Write the checkpoints of closed replicas at shutdown. Runs in a thread. Raises OSError."""
        directory.write_checkpoints(partial(self._rows, directory, replicas, []))

    async def write_cleaned(self, directory: LogDirectory | None) -> None:
        """Write the cleaner's checkpoint of a directory; durable when this returns. Raises OSError."""
        if directory is not None:
            await directory.run(partial(directory.write_cleaned, partial(self._cleaned, directory)))

    def _rows(
        self,
        directory: LogDirectory,
        replicas: Mapping[TopicPartition, Replica],
        truncated: list[tuple[Replica, int]],
    ) -> list[CheckpointRow]:
        """May run in a thread. Adds to `truncated` the replicas that need a checkpoint, with their number of
        truncations so far."""
        unopened = self._directories.unopened_checkpoints(directory, replicas)
        rows = [row for row in unopened if row[0] not in self._creating]  # theirs are an earlier topic's
        for name in self._directories.partitions_in(directory):
            replica = replicas.get(name)
            if replica is not None:
                if replica.needs_checkpoint:
                    truncations = (
                        replica.log.flusher.truncations
                    )  # read first: the log may be truncated again
                    truncated.append((replica, truncations))
                rows.append(CheckpointRow(name, *replica.checkpoint))
        coming = [replica for name in self._moving_into(directory) if (replica := replicas.get(name))]
        rows += [CheckpointRow(replica.name, *replica.checkpoint) for replica in coming]
        return rows

    def _cleaned(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """May run in a thread."""
        cleaned = dict[TopicPartition, int]()
        for name in (*self._directories.partitions_in(directory), *self._moving_into(directory)):
            replica = self._replicas.get(name)
            offset = directory.checkpoints.cleaned_to(name) if replica is None else replica.log.cleaned_to
            if offset is not None:
                cleaned[name] = offset
        return cleaned

    def _moving_into(self, directory: LogDirectory) -> list[TopicPartition]:
        return [name for name, target in tuple(self.moving.items()) if target is directory]
