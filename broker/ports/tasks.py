"""Background tasks that are never lost: each belongs to a group, and a failed one is reported. And work that
is given up when something else has happened.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Report = Callable[[str, BaseException], None]


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

    async def close(self) -> None:
        """Cancels what still runs and waits until all of it has ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(task.get_name(), failure)


class Abandoned(Exception):
    """What it waited for will not come."""


@asynccontextmanager
async def abandoned_with(event: "asyncio.Future[Any]") -> AsyncIterator[None]:
    """Once the event has happened, what still waits inside is cancelled; raises Abandoned then."""
    task, cancel, inside = asyncio.current_task(), canceller(), True

    def give_up(_: object) -> None:
        if inside:  # callbacks of a future that is done cannot be taken back
            cancel()

    event.add_done_callback(give_up)
    try:
        yield
    except asyncio.CancelledError:
        if task is None or not event.done() or task.uncancel() > 0:
            raise  # somebody else wants it to end
        raise Abandoned from None
    finally:
        inside = False
        event.remove_done_callback(give_up)


def canceller() -> Callable[[], object]:
    """Cancels the task that called this."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("only a task can be cancelled")
    return task.cancel
