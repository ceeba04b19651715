"""Rate limit of bytes, which may change while callers wait (KIP-956). Callers get their turn in order.
They pay for large transfers in portions."""

import asyncio

from tierlog.config.background import UNLIMITED_RATE


class RateLimit:
    def __init__(self, bytes_per_second: int = UNLIMITED_RATE) -> None:
        self._rate = bytes_per_second
        self._owed_bytes = 0.0
        self._owed_at = 0.0  # on the event loop's clock
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    def change(self, bytes_per_second: int) -> None:
        """Apply another rate, also to callers that wait now."""
        self._pay()
        self._rate = bytes_per_second
        self._changed.set()
        self._changed = asyncio.Event()

    async def take(self, size_bytes: int) -> None:
        """Wait until the bytes of earlier callers have been paid off, then owe these. So one transfer that is
        larger than the rate starts at once, and the next one waits."""
        if self._rate == UNLIMITED_RATE:
            return
        async with self._turn:
            self._pay()
            while self._owed_bytes > 0:
                try:
                    async with asyncio.timeout(self._owed_bytes / self._rate):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                self._pay()
            self._owed_bytes = size_bytes

    def _pay(self) -> None:
        now = asyncio.get_running_loop().time()
        paid = self._rate * (now - self._owed_at)
        left = self._owed_bytes - paid
        self._owed_bytes, self._owed_at = left if left >= 1 else 0.0, now
