"""Carries out the examinations of large batches, so that nobody but their producers waits for them.

Decompressing and compressing go to threads, as the codecs let go of the interpreter's lock. The walk over the
records does not: it would take the lock from the event loop for milliseconds at a time, at each of its system
calls, so the loop walks itself, a slice of records in each of its turns. Owned by the composition root.
"""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

from tierlog.broker.partition.examination import Examination, Examined

EXAMINED_AT_ONCE = 4
"""Batches; the others stand in line, first come, first served. Each holds its plain records meanwhile: 8 MiB,
or 8 times max.message.bytes, at the most; and each may take a slice of every turn of the loop.
"""


class Examiner:
    def __init__(self, threads: Executor | None = None, at_once: int = EXAMINED_AT_ONCE) -> None:
        self.batches = 0
        """Under way or in line."""
        self._threads = threads or ThreadPoolExecutor(at_once, "examiner")
        self._places = asyncio.Semaphore(at_once)

    async def examine(self, examination: Examination) -> Examined:
        """Whoever is cancelled leaves the line, or his place at the next step."""
        loop = asyncio.get_running_loop()
        self.batches += 1
        try:
            async with self._places:
                for step in examination.steps():
                    if step is None:
                        await asyncio.sleep(0)
                    else:
                        await loop.run_in_executor(self._threads, step)
        finally:
            self.batches -= 1
        return examination.result

    def close(self) -> None:
        """Nothing is in line any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
