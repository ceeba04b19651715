"""Group commit: fsync in worker threads, and one of them for all who wait.

Appends of one turn of the event loop share a flush, and so do all that arrive while a flush of their log is
under way: theirs is the next one. Invariants: of one replica at most one flush is under way; a flush begins
after what it confirms was appended, and the replica hears of its end on the event loop; it runs in the
threads of the replica's directory, so that a disk that hangs delays no other. Called by replicas
(flush.messages), log maintenance (flush.ms, checkpoints) and the composition root.
"""

import asyncio
from collections import defaultdict
from functools import partial
from time import perf_counter

import structlog

from tierlog.base.histogram import Histogram
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_roles import Room
from tierlog.broker.storage.disk_threads import all_done
from tierlog.broker.storage.log_flusher import LogClosed

FLUSH_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
Waiters = list["asyncio.Future[None]"]
_log = structlog.get_logger("tierlog.flush")


class GroupCommit:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = Histogram(FLUSH_BOUNDS_S)
        """How long fsyncs of logs took."""
        self._asked: dict[Replica, Waiters] = {}  # not begun
        self._under_way: dict[Replica, Waiters] = {}

    def request(self, replica: Replica) -> None:
        """Soon a flush begins that covers all that was appended; `Replica.flushed` hears of its end."""
        if replica in self._asked:
            return
        self._asked[replica] = []
        if replica not in self._under_way:
            self._loop.call_soon(self._begin, replica)  # after what the sockets of this turn bring

    async def flush(self, replica: Replica) -> None:
        """Returns when all that was appended before the call is durable. Raises OSError, above all
        SyncFailed.
        """
        await self._next_flush(replica)

    async def drain(self, timeout_s: float) -> None:
        """Waits for all that was asked for so far, its failures are its askers'; a directory in which no
        flush has ended for `timeout_s` is told that it hangs.
        """
        works: defaultdict[Room, Waiters] = defaultdict(list)
        for replica in {**self._asked, **self._under_way}:
            works[replica.room].append(self._next_flush(replica))
        ended = await asyncio.gather(*(all_done(of_one, timeout_s) for of_one in works.values()))
        for room, all_ended in zip(works, ended, strict=True):
            for work in works[room]:
                _ = work.exception() if work.done() else work.cancel()
            if not all_ended:
                room.mark_hung(timeout_s)

    def _next_flush(self, replica: Replica) -> "asyncio.Future[None]":
        self.request(replica)
        ended: asyncio.Future[None] = self._loop.create_future()
        self._asked[replica].append(ended)
        return ended

    def _begin(self, replica: Replica) -> None:
        self._under_way[replica] = self._asked.pop(replica)
        work = self._loop.run_in_executor(replica.room.threads, _flush, replica)
        work.add_done_callback(partial(self._ended, replica))

    def _ended(self, replica: Replica, work: "asyncio.Future[float]") -> None:
        waiters, failure = self._under_way.pop(replica), work.exception()
        if failure is None:
            self.seconds.observe(work.result())
        elif not isinstance(failure, LogClosed):
            _log.error("flush failed", partition=str(replica.name), error=str(failure))
        try:
            replica.flushed(failure)
        finally:
            self._settle(replica, waiters, failure)

    def _settle(self, replica: Replica, waiters: Waiters, failure: BaseException | None) -> None:
        for waiter in waiters:
            if waiter.done():  # cancelled
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(failure)
        if replica not in self._asked:
            return
        if self._asked[replica] or replica.wants_flush:
            self._begin(replica)
        else:
            del self._asked[replica]  # the flush that has ended confirmed that too


def _flush(replica: Replica) -> float:
    """How many seconds it took; in a thread."""
    begun = perf_counter()
    replica.flush()
    return perf_counter() - begun
