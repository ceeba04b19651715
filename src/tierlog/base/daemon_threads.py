"""Thread pool whose threads are daemons: neither `shutdown` nor process exit waits for them.

A thread that hangs in the kernel cannot be stopped, and the threads of a ThreadPoolExecutor are joined at
exit. At most `max_threads` run at a time; further work is queued. Used for disks and object stores; work is
submitted on the event loop.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Raises RuntimeError after a `shutdown` with `cancel_futures`. Called in one thread."""
        if self._closed:
            raise RuntimeError(f"{self._name} is closed")
        future: Future[T] = Future()
        self._queue.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._count < self._max_threads:
            self._count += 1
            name = f"{self._name}-{self._count}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Work that has begun ends if the disk responds, and other work is done too unless it is cancelled.
        Nothing waits for it."""
        self._closed = cancel_futures
        while cancel_futures:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if item is not None:
                item[0].cancel()
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
