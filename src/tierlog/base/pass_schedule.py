"""Pass schedule: when the next pass of a scrubber begins.

A pass begins an interval after the last one, or on request. The first one begins after a random part of the
interval: brokers scrub at different times, and one that restarts often scrubs as often on average, without
any stored state. Called by the scrubbers of local logs and of the bucket.
"""

import asyncio
import random


class PassSchedule:
    """`interval_ms`: 0 for passes on request only."""

    def __init__(self, interval_ms: int, rng: random.Random) -> None:
        self._interval_ms = interval_ms
        self._part = rng.random()
        """The next pass begins after this part of the interval."""
        self._changed = asyncio.Event()
        self._is_requested = False

    def set_interval(self, interval_ms: int) -> None:
        """A changed interval restarts the wait for the next pass."""
        if interval_ms != self._interval_ms:
            self._interval_ms = interval_ms
            self._changed.set()

    def request(self) -> None:
        self._is_requested = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait until a pass is due. One that is requested between two waits is due at once."""
        while not self._is_requested:
            self._changed.clear()
            wait_s = self._interval_ms / 1000 * self._part if self._interval_ms else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                break
        self._part, self._is_requested = 1.0, False
