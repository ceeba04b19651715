"""Event loop on virtual time that runs several processes, which can be killed or paused.

When no callback is due, the clock jumps to the next one. Work for threads runs inline after a random delay,
so a seed always gives the same run. Every callback belongs to the process in whose context it was scheduled
(a context variable that tasks inherit). Callbacks of a killed process never run again; those of a paused
process run when it resumes. This simulates SIGKILL and SIGSTOP at any await.
"""

import asyncio
import contextvars
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")

THREAD_WORK_S = (0.00002, 0.004)
"""Duration of work in a thread: a write to the page cache, or an fsync."""

MAX_CALLBACKS_AT_ONE_TIME = 1_000_000
"""More callbacks without progress of virtual time mean an endless loop."""


class Stalled(Exception):
    """Virtual time makes no progress: callbacks schedule each other endlessly, or none is due."""


class Process:
    """One process of a node. All that runs in its context ends with it."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.paused = False
        self.runs = True
        self.disk_hangs_until_s = 0.0
        """No work of a thread completes before this time."""
        self.deferred: list[Handle] = []
        """Callbacks that were due while the process was paused or dead. Those of a dead process are kept,
        because garbage collection would run their finalizers."""
        self._tasks: list[asyncio.Task[Any]] = []
        loop.processes.append(self)
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return self.loop.create_task(work, name=self.name, context=self.context.copy())

    def watch(self, work: Coroutine[Any, Any, None], failures: "list[BaseException]") -> "asyncio.Task[None]":
        """Like `spawn`. Adds an exception of the task to `failures`."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (failure := task.exception()) is not None:
                failures.append(failure)

        task = self.spawn(work)
        task.add_done_callback(ended)
        return task

    def call(self, callback: Callable[[], object]) -> None:
        """Run the callback now, or when the process resumes."""
        if self.runs:
            self.context.run(callback)
        else:
            self.deferred.append(Handle(self.loop.time(), callback, (), self.context))

    def kill(self) -> None:
        self.alive = self.runs = False

    def pause(self) -> None:
        self.paused, self.runs = True, False

    def resume(self) -> None:
        self.paused, self.runs = False, self.alive
        if self.alive:
            deferred, self.deferred = self.deferred, []
            self.loop.resume_handles(deferred)

    def own(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.append(task)


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    return _process.get()


class Handle:
    """A scheduled callback and its process. A lighter version of asyncio's TimerHandle."""

    __slots__ = ("args", "callback", "context", "process", "when_s")

    def __init__(
        self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.when_s = when_s
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process = context.get(_process)

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.when_s


class LockIsHeld(BaseException):
    """Raised where a thread would wait for a lock: its work begins again later."""


class SimLock:
    """The lock of a file port. The simulation has one thread, which must not wait for itself."""

    def __init__(self) -> None:
        self._is_held = False

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_held and blocking:
            raise LockIsHeld
        taken, self._is_held = not self._is_held, True
        return taken

    def release(self) -> None:
        self._is_held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimLoop(asyncio.BaseEventLoop):
    """Uses asyncio's tasks and futures with its own scheduling."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._due: deque[Handle] = deque()
        self._later: list[tuple[float, int, Handle]] = []  # a heap, FIFO for equal times
        self._number = 0
        self._over = False
        self.processes: list[Process] = []
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(self._unhandled)

    def _unhandled(self, _: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        if not isinstance(what.get("exception"), OSError):  # disk errors end the process
            self.unhandled.append(what)

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """Run callbacks until the loop is stopped."""
        due = self._due
        at_this_time = 0
        while not self._stopping:  # type: ignore[attr-defined]
            if not due:
                self._jump()
                at_this_time = 0
            at_this_time += 1
            if at_this_time > MAX_CALLBACKS_AT_ONE_TIME:
                raise Stalled(f"time stands still at {self._now:.6f} s")
            handle = due.popleft()
            callback, process = handle.callback, handle.process
            if callback is None:
                continue
            if process is None or process.runs:
                try:
                    handle.context.run(callback, *handle.args)
                except Exception as failure:
                    self.call_exception_handler({"message": f"in {callback!r}", "exception": failure})
            else:
                process.deferred.append(handle)

    def _jump(self) -> None:
        """Advance the clock to the next due callback."""
        later, due = self._later, self._due
        while later and later[0][2].callback is None:
            heappop(later)
        if not later:
            raise Stalled("nothing is due any more, and the run has not ended")
        self._now = now = max(self._now, later[0][0])
        while later and later[0][0] <= now:
            due.append(heappop(later)[2])

    def resume_handles(self, handles: Iterable[Handle]) -> None:
        self._due.extend(handles)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(self._now, callback, args, contextvars.copy_context() if context is None else context)
        if not self._over:  # ignore finalizers that run after the end
            self._due.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(when, callback, args, contextvars.copy_context() if context is None else context)
        if not self._over:
            self._number += 1
            heappush(self._later, (when, self._number, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def create_task(  # type: ignore[override]
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        task = asyncio.Task(work, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # those of killed processes never end
        process = _process.get() if context is None else context.get(_process)
        if process is not None:
            process.own(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, work: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run the work in the loop after a short delay. No pool is used, so pieces of work do not overlap.
        Work that finds a lock held is repeated, so it takes its lock before it does anything.
        """
        future: asyncio.Future[T] = self.create_future()

        def do() -> None:
            if future.cancelled():
                return
            try:
                result = work(*args)
            except LockIsHeld:
                self.call_later(self._rng.uniform(*THREAD_WORK_S), do)
            except Exception as failure:
                future.set_exception(failure)
            else:
                future.set_result(result)

        process = _process.get()
        hangs_s = 0.0 if process is None else max(process.disk_hangs_until_s - self._now, 0.0)
        self.call_later(hangs_s + self._rng.uniform(*THREAD_WORK_S), do)
        return future

    def run_for(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` ends."""
        try:
            return self.run_until_complete(main)
        finally:
            self._over = True
            events.set_event_loop(None)
