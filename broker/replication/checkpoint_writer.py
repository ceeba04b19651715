"""Writes what the replicas of a log directory know of themselves into its checkpoint files.

Recovery points, log starts and high watermarks go together; up to where a log is compacted has a file of its
own. Rows of logs that are not open are kept as they were. Once a log was cut, its row on disk may call
durable what is not: that is put right at once. Owned by the replica manager; called by log maintenance,
the cleaner, followers and DeleteRecords.
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

AGAIN_S = 1.0
"""After a file could not be written, which is logged."""

_log = structlog.get_logger("tierlog.checkpoints")


class CheckpointWriter:
    def __init__(
        self,
        directories: LogDirectories,
        replicas: Mapping[TopicPartition, Replica],
        making: Collection[TopicPartition],
        tasks: TaskGroup,
    ) -> None:
        """`replicas` and `making` (by threads, under a name that had another log) are those of the moment."""
        self._directories = directories
        self._replicas = replicas
        self._making = making
        self._tasks = tasks
        self._lowering: dict[LogDirectory, set[Replica]] = {}
        self.moving: dict[TopicPartition, LogDirectory] = {}
        """Into which directory: what is known of them is kept there too, before they are there."""

    async def write_for(self, names: Collection[TopicPartition]) -> set[TopicPartition]:
        """All of it as it is now, durable when this returns, in the directories that hold `names`. Returns
        those of `names` whose directory could not be written.
        """
        places = {name: self._directories.directory_of(name) for name in names}
        directories = [directory for directory in self._directories.online if directory in places.values()]
        written = await asyncio.gather(*map(self.write, directories))
        failed = {one for one, was_written in zip(directories, written, strict=True) if not was_written}
        return {name for name, place in places.items() if place in failed}

    async def write(self, directory: LogDirectory) -> bool:
        """Of all logs in a directory; False if it could not be written."""
        cut: list[tuple[Replica, int]] = []
        write = partial(directory.write_checkpoints, partial(self._rows, directory, self._replicas, cut))
        try:
            await directory.run(write)
        except OSError as failure:
            _log.error("cannot write checkpoints", directory=str(directory.path), error=str(failure))
            return False
        for replica, cuts in cut:
            replica.checkpointed(cuts)
        return True

    def lower(self, replica: Replica) -> None:
        """Soon, off the loop, for a replica that owes a checkpoint; its listeners hear of it."""
        directory = self._directories.directory_of(replica.name)
        if directory is None:
            return
        if directory not in self._lowering:
            self._lowering[directory] = set()
            self._tasks.spawn(f"lower checkpoints {directory.path}", self._lower(directory))
        self._lowering[directory].add(replica)

    async def _lower(self, directory: LogDirectory) -> None:
        try:
            while directory.failure is None and any(map(self._owes, self._lowering[directory])):
                if not await self.write(directory):
                    await asyncio.sleep(AGAIN_S)
        finally:
            del self._lowering[directory]

    def _owes(self, replica: Replica) -> bool:
        return replica.owes_checkpoint and self._replicas.get(replica.name) is replica

    def write_last(self, directory: LogDirectory, replicas: Mapping[TopicPartition, Replica]) -> None:
        """In a thread, of replicas that are closed. Raises OSError."""
        directory.write_checkpoints(partial(self._rows, directory, replicas, []))

    async def write_cleaned(self, replica: Replica) -> None:
        """Up to where the logs of a replica's directory are compacted, durable when this returns. Raises
        OSError.
        """
        directory = self._directories.directory_of(replica.name)
        if directory is not None:
            await self.write_cleaned_of(directory)

    async def write_cleaned_of(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        await directory.run(partial(directory.write_cleaned, partial(self._cleaned, directory)))

    def _rows(
        self,
        directory: LogDirectory,
        replicas: Mapping[TopicPartition, Replica],
        cut: list[tuple[Replica, int]],
    ) -> list[CheckpointRow]:
        """May run in a thread. `cut` gets those that owe a checkpoint, and how often they had been cut."""
        left = self._directories.unopened_checkpoints(directory, replicas)
        rows = [row for row in left if row[0] not in self._making]  # of theirs the rows are a namesake's
        for name in self._directories.partitions_in(directory):
            replica = replicas.get(name)
            if replica is not None:
                if replica.owes_checkpoint:
                    cuts = replica.log.flusher.truncations  # first: the next cut is another one
                    cut.append((replica, cuts))
                rows.append(CheckpointRow(name, *replica.checkpoint))
        coming = [replica for name in self._moving_into(directory) if (replica := replicas.get(name))]
        rows += [CheckpointRow(replica.name, *replica.checkpoint) for replica in coming]
        return rows

    def _cleaned(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """May run in a thread."""
        found = dict[TopicPartition, int]()
        for name in (*self._directories.partitions_in(directory), *self._moving_into(directory)):
            replica = self._replicas.get(name)
            at = directory.checkpoints.cleaned_to(name) if replica is None else replica.log.cleaned_to
            if at is not None:
                found[name] = at
        return found

    def _moving_into(self, directory: LogDirectory) -> list[TopicPartition]:
        return [name for name, target in tuple(self.moving.items()) if target is directory]
