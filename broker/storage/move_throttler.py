"""Throttle for copies between log directories (replica.alter.log.dirs.io.max.bytes.per.second). Called by the
directory moves.
"""

import threading
from collections.abc import Callable

from tierlog.base.clock import Clock
from tierlog.broker.storage.future_log import CHUNK_BYTES

LEAST_CHUNK_BYTES = 4 << 10

CLOCK_TICK_S = 0.001
"""The resolution of the clock. Shorter waits are added up until they reach it."""


class MoveStopped(Exception):
    """The move was cancelled, its replica is gone, or the node stops."""


class MoveThrottler:
    """Keeps all copies of this broker together below a rate that may change. Thread-safe."""

    def __init__(self, clock: Clock, rate: Callable[[], int]) -> None:
        self.rate = rate
        """Bytes per second."""
        self.copied_bytes = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._owed_bytes = 0.0  # copied ahead of the rate
        self._at_ms = clock.monotonic_ms()

    def spend(self, stop: threading.Event, count: int) -> None:
        """Wait until the rate allows `count` more bytes. Raises MoveStopped."""
        while wait_s := self._wait_s(count):
            if stop.wait(min(wait_s, 1.0)):  # the rate may change
                raise MoveStopped
        self.count_unthrottled(stop, count)

    def count_unthrottled(self, stop: threading.Event, count: int) -> None:
        """Count bytes that are copied without a limit, since flushes wait for them. Raises MoveStopped."""
        if stop.is_set():
            raise MoveStopped
        with self._lock:
            self.copied_bytes += count

    def _wait_s(self, count: int) -> float:
        """Seconds to wait; 0 if the bytes may be copied now."""
        rate = self.rate()
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._owed_bytes = max(0.0, self._owed_bytes - rate * (now_ms - self._at_ms) / 1000)
            self._at_ms = now_ms
            if self._owed_bytes > rate * CLOCK_TICK_S:
                return self._owed_bytes / rate
            self._owed_bytes += count
            return 0.0

    @property
    def chunk_bytes(self) -> int:
        """Bytes that take at most a second, so that a changed rate soon takes effect."""
        return max(LEAST_CHUNK_BYTES, min(CHUNK_BYTES, self.rate()))
