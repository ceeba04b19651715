"""Background tasks that are never lost: each belongs to a group, and a failed one is reported."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

RETRY_S = 1.0
"""After a turn that failed. A bug that every turn meets must not fill the log; others must not wait long."""

T = TypeVar("T")
Report = Callable[[str, BaseException], None]


def _always() -> bool:
    return True


class TaskGroup:
    """Owns tasks for the lifetime of a component; `close()` cancels and awaits them all."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task; an exception other than cancellation goes to the group's report."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(
        self, name: str, turn: Callable[[], Awaitable[object]], goes_on: Callable[[], bool] = _always
    ) -> asyncio.Task[None]:
        """Starts a task that takes one turn after the other until it is cancelled, or `goes_on` says no.

        An exception ends the turn and not the task: it goes to the group's report, and the next turn comes
        after RETRY_S. A turn waits by itself for what it is to do."""
        return self.spawn(name, self._take_turns(name, turn, goes_on))

    async def _take_turns(
        self, name: str, turn: Callable[[], Awaitable[object]], goes_on: Callable[[], bool]
    ) -> None:
        while goes_on():
            try:
                await turn()
            except Exception as failure:
                self._report(f"a turn of: {name}", failure)
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Cancels what still runs and waits until all of it has ended, with what that started in the end."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # gather does not wait for those that have just ended

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(task.get_name(), failure)


async def done_before(event: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before the event came; else it was cancelled, and has ended."""
    tasks = TaskGroup(lambda name, failure: None)  # the caller hears of it
    working = tasks.spawn("start", work)
    try:
        await asyncio.wait((working, event), return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
    finally:
        await tasks.close()
    if done:
        working.result()
    return done
