"""Orphan directories: removes in tasks what moves between log directories leave behind, such as old
directories and unused copies.

Until they are removed, a directory may have too little space for the next copy. Called by the directory
moves, on the event loop.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.log_dir import LogDirectory

WAIT_S = 1.0
"""Longest wait for a removal; then the caller checks whether its move is still wanted."""


class OrphanDirectories:
    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._removals = defaultdict[LogDirectory, set[asyncio.Task[None]]](set)

    def remove(
        self, directory: LogDirectory, path: Path, work: Coroutine[Any, Any, None] | None = None
    ) -> None:
        """Remove a directory with `work`, or with the directory's own queue."""
        removal = self._tasks.spawn(f"remove {path.name}", work or directory.remove_later(path))
        self._removals[directory].add(removal)
        removal.add_done_callback(self._removals[directory].discard)

    async def clear(self, directory: LogDirectory, name: TopicPartition) -> None:
        """Remove what an earlier move could not remove. Raises OSError."""
        renamed = await directory.run(partial(directory.remove_moved, name))
        if renamed is not None:
            self.remove(directory, renamed)

    async def wait_for_removal(self, directory: LogDirectory) -> bool:
        """Wait a moment for a removal. Returns False if none is pending."""
        removals = self._removals[directory]
        if removals:
            await asyncio.wait(removals, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            return True
        return False
