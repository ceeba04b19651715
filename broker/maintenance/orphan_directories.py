"""What moves between log directories leave behind goes, in tasks: graves, and copies that came to nothing.

As long as something is on its way out, a directory may have too little room for the next copy. Called by the
directory moves, on the event loop.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.log_dir import DataDirectory

WAIT_S = 1.0
"""For something to go; then whoever waits for room looks whether that is still wanted."""


class Leftovers:
    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._removals = defaultdict[DataDirectory, set[asyncio.Task[None]]](set)

    def remove(
        self, directory: DataDirectory, path: Path, work: Coroutine[Any, Any, None] | None = None
    ) -> None:
        """`work` does it; else it is done in the directory's turn."""
        removal = self._tasks.spawn(f"remove {path.name}", work or directory.remove_in_turn(path))
        self._removals[directory].add(removal)
        removal.add_done_callback(self._removals[directory].discard)

    async def clear(self, directory: DataDirectory, name: TopicPartition) -> None:
        """What an earlier move could not take away, and the next start would have. Raises OSError."""
        grave = await directory.run(partial(directory.clear_left, name))
        if grave is not None:
            self.remove(directory, grave)

    async def something_went(self, directory: DataDirectory) -> bool:
        """After a moment, in which what moves have left there may have gone; False if nothing is to go."""
        removals = self._removals[directory]
        if removals:
            await asyncio.wait(removals, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            return True
        return False
