"""Thread pool of one log directory: a slow disk delays only the work on its own directory.

At most DISK_THREADS run at a time; further work is queued. A thread that hangs in the kernel cannot be
stopped, so the threads are daemons, and neither `shutdown` nor process exit waits for them (threads of a
ThreadPoolExecutor are joined at exit). Owned by a LogDirectory; work is submitted on the event loop.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

DISK_THREADS = 8
"""Per directory; a file system commits several fsyncs together."""

P = ParamSpec("P")
T = TypeVar("T")


class DiskThreads(Executor):
    def __init__(self, name: str, max_threads: int = DISK_THREADS) -> None:
        self._name = name
        self._max_threads = max_threads
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        self._queue.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._count < self._max_threads:
            self._count += 1
            name = f"{self._name}-{self._count}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Submitted work is still done if the disk responds, but nothing waits for it."""
        for _ in range(self._count):
            self._queue.put(None)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as failure:
                    future.set_exception(failure)
                else:
                    future.set_result(result)
                    del result
            del item, future, work  # so that an idle thread keeps no references
            self._idle.release()


async def wait_for_disk(tasks: "Collection[asyncio.Future[Any]]", timeout_s: float) -> bool:
    """Wait until all tasks of one disk are done. Returns False once no task has completed for `timeout_s`:
    the disk hangs.
    """
    pending = set(tasks)
    while pending:
        ended, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not ended:
            return False
    return True


def chunks(work: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split work into chunks of at most `size` items."""
    for at in range(0, len(work), size):
        yield work[at : at + size]
