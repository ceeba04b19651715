"""Task groups: own background tasks, report their failures, and cancel them at shutdown. Wake queues: handle
many items in several turns of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

RETRY_S = 1.0
"""Pause after a failed run: a permanent bug must not fill the log, and other failures should recover soon."""

CANCEL_AGAIN_S = 10.0
"""Time after which a task that still runs is cancelled again. A library can lose a cancellation: aiohttp does
if one comes together with a timeout of its own (its issue 5979)."""

ITEMS_PER_TURN = 1_000
"""Items that are handled in one turn of the event loop when that is a look at a field of most of them: half a
millisecond to a millisecond."""

T = TypeVar("T")
Item = TypeVar("Item", bound=Hashable)
Report = Callable[[str, BaseException], None]


def _always() -> bool:
    return True


class TaskGroup:
    """Owns the tasks of a component; `close()` cancels and awaits them."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task. An exception other than cancellation is reported."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(
        self, name: str, turn: Callable[[], Awaitable[object]], should_continue: Callable[[], bool] = _always
    ) -> asyncio.Task[None]:
        """Start a task that runs `turn` repeatedly until it is cancelled or `should_continue` returns False.

        An exception is reported and does not end the task; the next run follows after RETRY_S. Otherwise runs
        follow without a delay: `turn` must wait for its next work itself.
        """
        return self.spawn(name, self._run_repeatedly(name, turn, should_continue))

    async def _run_repeatedly(
        self, name: str, turn: Callable[[], Awaitable[object]], should_continue: Callable[[], bool]
    ) -> None:
        while should_continue():
            try:
                await turn()
            except Exception as failure:
                self._report(f"repeated task: {name}", failure)
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end, including tasks that they start while ending."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            _, going_on = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
            if going_on:
                _log_running(sorted(task.get_name() for task in going_on))
            await asyncio.sleep(0)  # done callbacks of tasks that have just ended run

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(task.get_name(), failure)


def _log_running(names: list[str]) -> None:
    import structlog  # Spark's executors, which use the rest of this module, do not have it

    _log = structlog.get_logger("tierlog")
    _log.warning("node.task.goes_on", tasks=names)


async def done_before(event: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it or `event` is done. Returns True if the work finished; otherwise cancels it and
    returns False."""
    tasks = TaskGroup(lambda name, failure: None)  # raised to the caller
    working = tasks.spawn("done before", work)
    try:
        await asyncio.wait((working, event), return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
    finally:
        await tasks.close()
    if done:
        working.result()
    return done


class WakeQueue(Generic[Item]):
    """Handles many items a few at a time, so that requests run on the event loop in between.

    Adding an item that is already queued has no effect. If `handle` raises, the failure is reported, and the
    remaining items stay queued until the next `add`.
    """

    def __init__(self, name: str, tasks: TaskGroup, handle: Callable[[Item], None], per_turn: int) -> None:
        """`per_turn`: items that are handled in one turn of the event loop."""
        self._name = name
        self._tasks = tasks
        self._handle = handle
        self._per_turn = per_turn
        self._queued: dict[Item, None] = {}  # in order
        self._run: asyncio.Task[None] | None = None

    def add(self, items: Iterable[Item]) -> None:
        self._queued.update(dict.fromkeys(items))
        if self._queued and self.task is None:
            self._run = self._tasks.spawn(self._name, self._handle_all())

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The running task; None if no item is waiting."""
        return None if self._run is None or self._run.done() else self._run

    async def _handle_all(self) -> None:
        while self._queued:
            for item in list(islice(self._queued, self._per_turn)):
                del self._queued[item]
                self._handle(item)
            await asyncio.sleep(0)


async def in_turns(items: Iterable[T], per_turn: int = ITEMS_PER_TURN) -> AsyncIterator[T]:
    """The items, with a pause after each `per_turn` of them in which other work runs. They must not change
    while this runs: pass a copy."""
    for number, item in enumerate(items, 1):
        yield item
        if number % per_turn == 0:
            await asyncio.sleep(0)


async def gather_at_most(limit: int, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order, of at most `limit` calls at a time. After a failure, none of them runs."""
    places = asyncio.Semaphore(limit)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await call

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        for call in calls:
            call.close()  # one that has not begun
