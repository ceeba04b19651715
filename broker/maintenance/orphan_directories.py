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
from tierlog.broker.storage.log_dir import LogDirectory

WAIT_S = 1.0
"""For something to go; then whoever waits for room looks whether that is still wanted."""


class OrphanDirectories:
    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._removals = defaultdict[LogDirectory, set[asyncio.Task[None]]](set)

    def remove(
        self, directory: LogDirectory, path: Path, work: Coroutine[Any, Any, None] | None = None
    ) -> None:
        """`work` does it; else it is done in the directory's turn."""
        removal = self._tasks.spawn(f"remove {path.name}", work or directory.remove_later(path))
        self._removals[directory].add(removal)
        removal.add_done_callback(self._removals[directory].discard)

    async def clear(self, directory: LogDirectory, name: TopicPartition) -> None:
        """What an earlier move could not take away, and the next start would have. Raises OSError."""
        grave = await directory.run(partial(directory.remove_moved, name))
        if grave is not None:
            self.remove(directory, grave)

    async def wait_for_removal(self, directory: LogDirectory) -> bool:
        """After a moment, in which what moves have left there may have gone; False if nothing is to go."""
        removals = self._removals[directory]
        if removals:
            await asyncio.wait(removals, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            return True
        return False
