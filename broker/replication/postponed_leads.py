"""Replicas that are elected and cannot lead yet, as their log could not be moved behind what is remote.

Each stays what it was: to its clients it is a broker that has not heard of its election yet. It is tried
again once the flush that was in the way has ended, or when there may be room. A broken disk takes its
directory offline, and these with it. Others are not asked: whoever was in sync has all that is remote, so
none of them was to be had. Owned by the replica manager, on the event loop.
"""

import asyncio
from collections.abc import Callable

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica

_log = structlog.get_logger("tierlog.replicas")


class PostponedLeads:
    def __init__(self, tasks: TaskGroup, lead_again: Callable[[TopicPartition], None]) -> None:
        """`lead_again` takes the role that the newest image gives, or postpones it again."""
        self._tasks = tasks
        self._lead_again = lead_again
        self._waiting: dict[Replica, bool] = {}  # whether for the end of a flush

    def postpone(self, replica: Replica, why: OSError) -> None:
        _log.warning("cannot lead behind what is remote yet", partition=str(replica.name), error=str(why))
        if self._waiting.get(replica):
            return
        self._waiting[replica] = isinstance(why, BlockingIOError)
        if self._waiting[replica]:
            self._tasks.spawn(f"lead {replica.name} after a flush", self._lead_after_flush(replica))

    def settled(self, replica: Replica) -> None:
        """It has its role, or is here no more."""
        self._waiting.pop(replica, None)

    def try_again(self) -> None:
        for replica in list(self._waiting):
            self._lead_again(replica.name)

    async def _lead_after_flush(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(replica.room.threads, replica.log.flusher.wait)
        if replica in self._waiting:
            self._waiting[replica] = False
            self._lead_again(replica.name)
