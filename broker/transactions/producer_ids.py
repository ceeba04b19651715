"""Producer ids: unique in the cluster, from blocks that the controller allocates to this broker (KIP-730)."""

import asyncio
from collections.abc import Awaitable, Callable

from tierlog.protocol.errors import ErrorCode, KafkaError

Allocate = Callable[[], Awaitable[tuple[ErrorCode, int, int]]]
"""Requests a block from the controller. Returns (error, first id, number of ids)."""


class ProducerIds:
    """Gives out the ids of one block, then requests the next. Callers that wait for it share the request."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return a producer id that is unique in the cluster.

        Raises KafkaError (COORDINATOR_LOAD_IN_PROGRESS, which clients retry) if the controller gives no
        block.
        """
        async with self._lock:
            if self._next == self._end:
                error, first, count = await self._allocate()
                if error is not ErrorCode.NONE or count < 1:
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {error.name}")
                self._next, self._end = first, first + count
            self._next += 1
            return self._next - 1
