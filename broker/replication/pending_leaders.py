"""Pending leaders: elected replicas whose log end could not be moved to the end of the remote log yet.

Until then each keeps its previous role, as if the broker had not received the election yet. It is retried
when the flush that prevented it has ended, or when the disk may have space. A failed disk takes its directory
offline, with these replicas. The controller is not asked for another leader: an in-sync replica has
everything that is remote, so no replica was in sync. Owned by the replica manager, on the event loop.
"""

import asyncio
from collections.abc import Callable

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica

_log = structlog.get_logger("tierlog.replicas")


class PendingLeaders:
    def __init__(self, tasks: TaskGroup, retry: Callable[[TopicPartition], None]) -> None:
        """`retry` applies the role of the newest image, or postpones it again."""
        self._tasks = tasks
        self._retry = retry
        self._waiting: dict[Replica, bool] = {}  # True: for the end of a flush

    def postpone(self, replica: Replica, why: OSError) -> None:
        _log.warning(
            "cannot lead yet: the log end is below the end of the remote log",
            partition=str(replica.name),
            error=str(why),
        )
        if self._waiting.get(replica):
            return
        self._waiting[replica] = isinstance(why, BlockingIOError)
        if self._waiting[replica]:
            self._tasks.spawn(f"lead {replica.name} after a flush", self._lead_after_flush(replica))

    def remove(self, replica: Replica) -> None:
        """The replica has its role, or is removed."""
        self._waiting.pop(replica, None)

    def retry_all(self) -> None:
        for replica in list(self._waiting):
            self._retry(replica.name)

    async def _lead_after_flush(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(replica.log_dir.threads, replica.log.flusher.wait)
        if replica in self._waiting:
            self._waiting[replica] = False
            self._retry(replica.name)
