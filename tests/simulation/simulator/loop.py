"""An event loop on virtual time, on which several processes live that can be killed or paused.

Nothing waits: when no callback is due, the clock jumps to the next one. Work for threads is done inline,
after a delay that is drawn as a disk's would be, so that one seed gives one run. Every callback belongs to
the process in whose context it was scheduled (a context variable that tasks inherit); those of a killed
process never run again, those of a paused one when it goes on. That is a SIGKILL or SIGSTOP at any await.
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

WORK_S = (0.00002, 0.004)
"""What a piece of work in a thread takes: a write to the page cache, or an fsync."""

STALLED = 1_000_000
"""Callbacks in one instant of virtual time: more than that is a loop that does not end."""


class Stalled(Exception):
    """Virtual time does not go on: something is due again and again, or nothing is due at all."""


class Process:
    """One life of a node: what runs in its context stands and falls with it."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.paused = False
        self.runs = True
        self.disk_back_s = 0.0
        """Until then nothing that a thread does comes to an end."""
        self.deferred: list[Handle] = []
        """What was due while it was paused, or after it died: of that nothing may be collected, or what it
        holds would tidy up, and complain."""
        self._tasks: list[asyncio.Task[Any]] = []
        loop.processes.append(self)
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return self.loop.create_task(work, name=self.name, context=self.context.copy())

    def watch(self, work: Coroutine[Any, Any, None], failures: "list[BaseException]") -> "asyncio.Task[None]":
        """As `spawn`; what it raises is among the failures."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (failure := task.exception()) is not None:
                failures.append(failure)

        task = self.spawn(work)
        task.add_done_callback(ended)
        return task

    def call(self, callback: Callable[[], object]) -> None:
        """Runs at once, or when it goes on, as a callback of this process would."""
        if self.runs:
            self.context.run(callback)
        else:
            self.deferred.append(Handle(self.loop.time(), callback, (), self.context))

    def kill(self) -> None:
        self.alive = self.runs = False

    def pause(self) -> None:
        self.paused, self.runs = True, False

    def go_on(self) -> None:
        self.paused, self.runs = False, self.alive
        if self.alive:
            deferred, self.deferred = self.deferred, []
            self.loop.go_on_with(deferred)

    def owns(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.append(task)


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    return _process.get()


class Handle:
    """A callback that is due some time, with the process that it belongs to; as asyncio's, and lighter."""

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


class SimLoop(asyncio.BaseEventLoop):
    """Of asyncio's own loop it has the tasks and futures; what is due when is its own."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._due: deque[Handle] = deque()
        self._later: list[tuple[float, int, Handle]] = []  # a heap; of one moment, first come, first served
        self._number = 0
        self._over = False
        self.processes: list[Process] = []
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(self._unhandled)

    def _unhandled(self, _: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        if not isinstance(what.get("exception"), OSError):  # of a disk whose process ended by it
            self.unhandled.append(what)

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """Many turns, until the loop is stopped."""
        due = self._due
        at_this_time = 0
        while not self._stopping:  # type: ignore[attr-defined]
            if not due:
                self._jump()
                at_this_time = 0
            at_this_time += 1
            if at_this_time > STALLED:
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
        """To the next moment at which something is due."""
        later, due = self._later, self._due
        while later and later[0][2].callback is None:
            heappop(later)
        if not later:
            raise Stalled("nothing is due any more, and the run has not ended")
        self._now = now = max(self._now, later[0][0])
        while later and later[0][0] <= now:
            due.append(heappop(later)[2])

    def go_on_with(self, handles: Iterable[Handle]) -> None:
        self._due.extend(handles)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(self._now, callback, args, contextvars.copy_context() if context is None else context)
        if not self._over:  # what is collected after it tidies up, and nobody looks
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
            process.owns(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, work: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Done by the loop itself, a little later; a pool is not asked, so pieces of work do not overlap."""
        future: asyncio.Future[T] = self.create_future()

        def do() -> None:
            if future.cancelled():
                return
            try:
                result = work(*args)
            except Exception as failure:
                future.set_exception(failure)
            else:
                future.set_result(result)

        process = _process.get()
        hangs_s = 0.0 if process is None else max(process.disk_back_s - self._now, 0.0)
        self.call_later(hangs_s + self._rng.uniform(*WORK_S), do)
        return future

    def run_for(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs until `main` ends; the loop is this thread's meanwhile."""
        try:
            return self.run_until_complete(main)
        finally:
            self._over = True
            events.set_event_loop(None)
