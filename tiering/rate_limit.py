"""Rate limit of bytes, which may change while callers wait (KIP-956). Callers get their turn in order.
They pay for large transfers in portions."""

import asyncio
from dataclasses import dataclass

from tierlog.config.background import UNLIMITED_RATE

WINDOW_S = 30.0
"""Length of one window of the statistics, as in Kafka (metrics.sample.window.ms)."""


@dataclass(slots=True)
class _Window:
    began_s: float = -2 * WINDOW_S
    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0


class ThrottleTimes:
    """Times of the waits that ended in the current and the previous window, on the event loop's clock."""

    def __init__(self) -> None:
        self._previous, self._current = _Window(), _Window()

    def record(self, seconds: float) -> None:
        self._advance()
        self._current.count += 1
        self._current.sum_s += seconds
        self._current.max_s = max(self._current.max_s, seconds)

    @property
    def average_s(self) -> float:
        """Mean wait; 0 if none ended."""
        self._advance()
        count = self._previous.count + self._current.count
        return (self._previous.sum_s + self._current.sum_s) / count if count else 0.0

    @property
    def max_s(self) -> float:
        self._advance()
        return max(self._previous.max_s, self._current.max_s)

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        age_s = now - self._current.began_s
        if age_s >= WINDOW_S:
            self._previous = self._current if age_s < 2 * WINDOW_S else _Window()
            self._current = _Window(now)


class RateLimit:
    def __init__(self, bytes_per_second: int = UNLIMITED_RATE) -> None:
        self._rate = bytes_per_second
        self._owed_bytes = 0.0
        self._owed_at = 0.0  # on the event loop's clock
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self.throttles = ThrottleTimes()
        """The waits of transfers that had to wait."""

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
        began = asyncio.get_running_loop().time()
        must_wait = self._turn.locked()
        async with self._turn:
            self._pay()
            must_wait = must_wait or self._owed_bytes > 0
            while self._owed_bytes > 0:
                try:
                    async with asyncio.timeout(self._owed_bytes / self._rate):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                self._pay()
            self._owed_bytes = size_bytes
        if must_wait:
            self.throttles.record(asyncio.get_running_loop().time() - began)

    def _pay(self) -> None:
        now = asyncio.get_running_loop().time()
        paid = self._rate * (now - self._owed_at)
        left = self._owed_bytes - paid
        self._owed_bytes, self._owed_at = left if left >= 1 else 0.0, now
