"""Producer ids of idempotent producers, from blocks that the controller allocates (KIP-730)."""

import asyncio
from collections.abc import Awaitable, Callable

from tierlog.protocol.errors import ErrorCode, KafkaError

Allocate = Callable[[], Awaitable[tuple[ErrorCode, int, int]]]
"""Requests a block from the controller: (error, first id, count)."""


class ProducerIds:
    """One block at a time; concurrent callers share one request for the next."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """An id that is unique in the cluster. Raises KafkaError if none is available."""
        async with self._lock:
            if self._next == self._end:
                error, first, count = await self._allocate()
                if error is not ErrorCode.NONE or count < 1:
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {error.name}")
                self._next, self._end = first, first + count
            self._next += 1
            return self._next - 1
