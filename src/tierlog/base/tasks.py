"""Task groups: own background tasks, report their failures, and cancel them at shutdown."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

RETRY_S = 1.0
"""Pause after a failed run: a permanent bug must not fill the log, and other failures should recover soon."""

T = TypeVar("T")
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

        An exception is reported and does not end the task; the next run follows after RETRY_S. A run waits
        for its work by itself.
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
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # done callbacks of tasks that have just ended run

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(task.get_name(), failure)


async def done_before(event: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> bool:
    """Run the work until it or the event is done. Returns whether the work was; else it is cancelled."""
    tasks = TaskGroup(lambda name, failure: None)  # raised to the caller
    working = tasks.spawn("start", work)
    try:
        await asyncio.wait((working, event), return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
    finally:
        await tasks.close()
    if done:
        working.result()
    return done
