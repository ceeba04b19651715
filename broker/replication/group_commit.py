"""Group commit: one fsync, in a thread, for all appends which wait.

Appends of one turn of the event loop share a flush. Appends during a flush of their log share the next one.
Invariants: a replica has at most one flush in progress, and a flush begins after the appends which it
confirms. A flush runs in the threads of the replica's directory, so a disk that hangs does not delay the
others. `Replica.flushed` is called on the event loop when it ends. Called by replicas (flush.messages), log
maintenance (flush.ms, checkpoints) and app.py.
"""

import asyncio
from collections import defaultdict
from functools import partial
from time import perf_counter

import structlog

from tierlog.base.histogram import Histogram
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_state import LogDirState
from tierlog.broker.storage.disk_threads import wait_for_disk
from tierlog.broker.storage.log_flusher import LogClosed

FLUSH_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
Waiters = list["asyncio.Future[None]"]
_log = structlog.get_logger("tierlog.flush")


class GroupCommit:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = Histogram(FLUSH_BOUNDS_S)
        """Durations of log fsyncs."""
        self._requested: dict[Replica, Waiters] = {}  # not started yet
        self._in_progress: dict[Replica, Waiters] = {}

    def request(self, replica: Replica) -> None:
        """Schedule a flush of everything appended so far. `Replica.flushed` is called when it ends."""
        if replica in self._requested:
            return
        self._requested[replica] = []
        if replica not in self._in_progress:
            self._loop.call_soon(self._begin, replica)  # after the appends of this turn

    def flush(self, replica: Replica) -> "asyncio.Future[None]":
        """Return a future that is done when everything appended before the call is durable.

        It fails with OSError, in particular SyncFailed.
        """
        self.request(replica)
        ended: asyncio.Future[None] = self._loop.create_future()
        self._requested[replica].append(ended)
        return ended

    async def drain(self, timeout_s: float) -> None:
        """Wait for all requested flushes, and ignore their failures.

        A directory in which no flush has ended for `timeout_s` is marked as hung.
        """
        flushes_in: defaultdict[LogDirState, Waiters] = defaultdict(list)
        for replica in {**self._requested, **self._in_progress}:
            flushes_in[replica.log_dir].append(self.flush(replica))
        ended = await asyncio.gather(*(wait_for_disk(futures, timeout_s) for futures in flushes_in.values()))
        for log_dir, all_ended in zip(flushes_in, ended, strict=True):
            for flush in flushes_in[log_dir]:
                if not flush.cancel() and not flush.cancelled():
                    flush.exception()  # retrieved, or the loop would report it
            if not all_ended:
                log_dir.mark_hung(timeout_s)

    def _begin(self, replica: Replica) -> None:
        self._in_progress[replica] = self._requested.pop(replica)
        work = self._loop.run_in_executor(replica.log_dir.threads, _flush, replica)
        work.add_done_callback(partial(self._ended, replica))

    def _ended(self, replica: Replica, work: "asyncio.Future[float]") -> None:
        failure = work.exception()
        if failure is None:
            self.seconds.observe(work.result())
        elif not isinstance(failure, LogClosed):
            _log.error("flush.failed", partition=str(replica.name), error=str(failure))
        try:
            replica.flushed(failure)  # may append again, and request a flush of that
        finally:
            self._complete(replica, failure)

    def _complete(self, replica: Replica, failure: BaseException | None) -> None:
        for waiter in self._in_progress.pop(replica):
            if waiter.done():  # cancelled
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(failure)
        if replica not in self._requested:
            return
        if self._requested[replica] or replica.wants_flush():
            self._begin(replica)
        else:
            del self._requested[replica]  # the flush that just ended covered it


def _flush(replica: Replica) -> float:
    """Flush in a thread; returns the duration in seconds."""
    started = perf_counter()
    replica.flush()
    return perf_counter() - started
