"""Batch validator: validates and recompresses large batches without blocking other clients.

Codecs release the interpreter lock, so threads decompress and compress. The walk over the records would hold
the lock for milliseconds at a time. It runs on the event loop instead, a slice of records in each turn. Owned
by the composition root; called by the Produce and ListOffsets handlers.
"""

import asyncio
from collections.abc import Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from tierlog.broker.storage.core.record_validation import BatchValidation, ValidationResult
from tierlog.records.window import Step

CONCURRENT_VALIDATIONS = 4
"""Maximum number of batches validated at once; others wait in order of arrival. Each uses part of every turn
of the event loop and keeps a piece of its decompressed records in memory. One additional batch that needs
more memory may run (`records.unpacking`).
"""

T = TypeVar("T")


class BatchValidator:
    def __init__(self, threads: Executor | None = None, concurrency: int = CONCURRENT_VALIDATIONS) -> None:
        self.pending_batches = 0
        """Number of batches that are being validated or wait for a slot."""
        self._threads = threads or ThreadPoolExecutor(concurrency, "batch-validator")
        self._slots = asyncio.Semaphore(concurrency)
        self._exclusive = asyncio.Lock()

    async def validate(self, validation: BatchValidation) -> ValidationResult:
        """Wait for a free slot, then run the validation. Cancellation takes effect at the next step."""
        self.pending_batches += 1
        try:
            async with self._slots:
                await self.run(validation.steps())
            if validation.needs_exclusive_memory:  # the first run stopped: it needs more than a slot may use
                async with self._exclusive:
                    await self.run(validation.steps())
        finally:
            self.pending_batches -= 1
        return validation.result

    async def run(self, steps: Generator[Step, None, T]) -> T:
        """Run the remaining steps, each in a thread or in a turn of the event loop. Returns their result."""
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
        """Called when no batch is waiting."""
        self._threads.shutdown(wait=False, cancel_futures=True)
