"""Log shutdown: closes all logs of a broker, in the threads of their directories.

A directory is marked clean if all its logs closed cleanly and its checkpoints were written. Then the next
start needs no recovery. A directory that hangs is left as it is. Called by the replica manager.
"""

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial

import structlog

from tierlog.base.types import TopicPartition
from tierlog.broker.replication.checkpoint_writer import CheckpointWriter
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.disk_threads import wait_for_disk
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories

_log = structlog.get_logger("tierlog.replicas")


@dataclass(frozen=True, slots=True)
class LogShutdown:
    directories: LogDirectories
    checkpoints: CheckpointWriter
    replicas: Mapping[TopicPartition, Replica]
    not_open: Set[TopicPartition]
    """Partitions that failed, or could not be opened on a full disk. Their directory is not marked clean."""
    timeout_s: float

    async def close_directory(self, directory: LogDirectory, *, clean: bool) -> None:
        loop = asyncio.get_running_loop()
        closing = {
            name: loop.run_in_executor(directory.threads, partial(replica.close, clean=clean))
            for name, replica in self.replicas.items()
            if replica.log_dir is directory
        }
        hangs = not await wait_for_disk(closing.values(), self.timeout_s)
        unclean = set(self.not_open)
        for name, end in closing.items():
            if end.done() and (failure := end.exception()) is not None:
                _log.error("log.close_failed", partition=str(name), error=str(failure))
                unclean.add(name)
        if clean and not hangs:
            mark = partial(self._mark_clean, directory, unclean)
            hangs = not await wait_for_disk([loop.run_in_executor(directory.threads, mark)], self.timeout_s)
        if hangs:
            directory.mark_hung(self.timeout_s)
            _log.error("log_dir.close_hangs", directory=str(directory.path))

    def _mark_clean(self, directory: LogDirectory, unclean: Set[TopicPartition]) -> None:
        """Runs in a thread."""
        try:
            self.checkpoints.write_last(directory, self.replicas)
            if directory.failure is None and unclean.isdisjoint(self.directories.partitions_in(directory)):
                directory.mark_clean()
        except OSError as failure:
            _log.error("log_dir.close_failed", directory=str(directory.path), error=str(failure))
