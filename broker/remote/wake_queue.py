"""Wake queue: handles many items a few at a time, so that requests run on the event loop in between.

An item is handled once, however often it was added before. Called by the remote log manager: an image or its
timer may concern thousands of partitions at once.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from tierlog.base.tasks import TaskGroup

Item = TypeVar("Item", bound=Hashable)


class WakeQueue(Generic[Item]):
    def __init__(self, name: str, tasks: TaskGroup, handle: Callable[[Item], None], per_turn: int) -> None:
        """`per_turn`: items that are handled in one turn of the event loop."""
        self._name = name
        self._tasks = tasks
        self._handle = handle
        self._per_turn = per_turn
        self._waiting: dict[Item, None] = {}  # in order
        self._run: asyncio.Task[None] | None = None

    def add(self, items: Iterable[Item]) -> None:
        self._waiting.update(dict.fromkeys(items))
        if self._waiting and self.task is None:
            self._run = self._tasks.spawn(self._name, self._handle_all())

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The running task; None if no item is waiting."""
        return None if self._run is None or self._run.done() else self._run

    async def _handle_all(self) -> None:
        while self._waiting:
            for item in list(islice(self._waiting, self._per_turn)):
                del self._waiting[item]
                self._handle(item)
            await asyncio.sleep(0)
