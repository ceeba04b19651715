"""Storage thread: the single thread that writes a node's files, and how long its present job has taken.

A disk may hang: a write neither fails nor ends. It cannot be cancelled, so callers need to know. Used by the
metadata node.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from tierlog.base.clock import Clock

R = TypeVar("R")


class StorageThread:
    def __init__(self, clock: Clock, executor: Executor | None, name: str) -> None:
        """`executor`: single-threaded; None: create one with this thread name."""
        self._clock = clock
        self._own = None if executor else ThreadPoolExecutor(1, name)
        self._executor = executor or self._own
        self._waiting = 0
        self._since_ms = 0

    @property
    def busy_ms(self) -> int:
        """How long the present job has been running; 0 if there is none."""
        return self._clock.monotonic_ms() - self._since_ms if self._waiting else 0

    async def run(self, job: Callable[[], R]) -> R:
        """Waits for the job to end even if the caller is cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)
        if not self._waiting:
            self._since_ms = self._clock.monotonic_ms()
        self._waiting += 1
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.gather(future, return_exceptions=True)
            raise
        finally:
            self._waiting -= 1
            self._since_ms = self._clock.monotonic_ms()

    def close(self) -> None:
        if self._own is not None:
            self._own.shutdown()
