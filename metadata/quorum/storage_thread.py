"""The one thread that a node's files are written in, and how long what it does at present has taken.

A disk may hang: no error, and no end. Nobody can call such a write back, so who waits for it has to know.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from tierlog.base.clock import Clock

R = TypeVar("R")


class StorageThread:
    def __init__(self, clock: Clock, executor: Executor | None, name: str) -> None:
        """`executor`: of one thread; its own, with that name, if not given."""
        self._clock = clock
        self._own = None if executor else ThreadPoolExecutor(1, name)
        self._executor = executor or self._own
        self._waiting = 0
        self._since_ms = 0

    @property
    def busy_ms(self) -> int:
        """For how long it has been at the same piece of work; 0 if it has none."""
        return self._clock.monotonic_ms() - self._since_ms if self._waiting else 0

    async def run(self, work: Callable[[], R]) -> R:
        """Not given up half way: a cancelled caller still waits for the disk."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
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
