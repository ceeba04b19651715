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
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
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
        self._deferred: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        loop.processes.append(self)  # of a dead one nothing may be collected: its coroutines would tidy up
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task: asyncio.Task[T] = self.context.run(self.loop.create_task, work, name=self.name)
        return task

    def call(self, callback: Callable[..., T], *args: Any) -> T:
        """Runs at once, as a callback of this process would."""
        return self.context.run(callback, *args)

    def kill(self) -> None:
        self.alive = False
        self._deferred.clear()

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for callback, args, context in deferred:
            self.loop.call_soon(callback, *args, context=context)

    def run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.paused:
            self._deferred.append((callback, args, contextvars.copy_context()))
        else:
            callback(*args)

    def owns(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.append(task)


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    return _process.get()


class _Jump:
    """The selector of BaseEventLoop, which waits until something is due: here that time passes at once."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []

    def close(self) -> None:
        return


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._selector = _Jump(self)
        self._at_this_time = 0
        self._over = False
        self.processes: list[Process] = []
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(self._unhandled)
        self.set_task_factory(_make_task)

    def _unhandled(self, _: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        if not isinstance(what.get("exception"), OSError):  # of a disk whose process ended by it
            self.unhandled.append(what)

    def time(self) -> float:
        return self._now

    def jump(self, timeout: float | None) -> None:
        if timeout:
            self._now += timeout
            self._at_this_time = 0
            return
        self._at_this_time += 1
        if timeout is None:
            raise Stalled("nothing is due any more, and the run has not ended")
        if self._at_this_time > STALLED:
            raise Stalled(f"time stands still at {self._now:.6f} s")

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._over:  # what is collected now tidies up, and nobody looks
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(*self._guarded(callback, args, context), context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._over:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, *self._guarded(callback, args, context), context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

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

        self.call_later(self._rng.uniform(*WORK_S), do)
        return future

    def run_for(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs until `main` ends; the loop is this thread's meanwhile."""
        try:
            return self.run_until_complete(main)
        finally:
            self._over = True
            events.set_event_loop(None)

    def _guarded(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> tuple[Any, ...]:
        process = _process.get() if context is None else context.get(_process)
        return (callback, *args) if process is None else (process.run, callback, args)

    # --- what BaseEventLoop leaves to those that wait for sockets

    def _process_events(self, event_list: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any
) -> "asyncio.Task[T]":
    task = asyncio.Task(work, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # those of killed processes never end
    process = _process.get()
    if process is not None:
        process.owns(task)
    return task
