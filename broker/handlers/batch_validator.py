"""Carries out the examinations of large batches, so that nobody but their producers waits for them.

Decompressing and compressing go to threads, as the codecs let go of the interpreter's lock. The walk over the
records does not: it would take the lock from the event loop for milliseconds at a time, at each of its system
calls, so the loop walks itself, a slice of records in each of its turns. Owned by the composition root.
"""

import asyncio
from collections.abc import Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from tierlog.broker.storage.core.record_validation import BatchValidation, ValidationResult
from tierlog.records.window import Step

EXAMINED_AT_ONCE = 4
"""Batches; the others stand in line, first come, first served. Each may take a slice of every turn of the
loop, and holds a piece of its plain records meanwhile. Beside them is one that must hold more of it than that
at once (`records.unpacking` says when).
"""

T = TypeVar("T")


class Examiner:
    def __init__(self, threads: Executor | None = None, at_once: int = EXAMINED_AT_ONCE) -> None:
        self.batches = 0
        """Under way or in line."""
        self._threads = threads or ThreadPoolExecutor(at_once, "examiner")
        self._places = asyncio.Semaphore(at_once)
        self._alone = asyncio.Lock()

    async def examine(self, examination: BatchValidation) -> ValidationResult:
        """Whoever is cancelled leaves the line, or his place at the next step."""
        self.batches += 1
        try:
            async with self._places:
                await self.carry_out(examination.steps())
            if examination.needs_exclusive_memory:
                async with self._alone:
                    await self.carry_out(examination.steps())
        finally:
            self.batches -= 1
        return examination.result

    async def carry_out(self, steps: Generator[Step, None, T]) -> T:
        """The steps that are left, each in a thread or as a turn of the event loop; what they find."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                found: T = end.value
                return found
            if step is None:
                await asyncio.sleep(0)
            else:
                await loop.run_in_executor(self._threads, step)

    def close(self) -> None:
        """Nothing is in line any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
