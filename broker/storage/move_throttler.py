"""The pace at which logs are copied between log directories. Called by the directory moves."""

import threading
from collections.abc import Callable

from tierlog.base.clock import Clock
from tierlog.broker.storage.future_log import CHUNK_BYTES

LEAST_CHUNK_BYTES = 4 << 10


class MoveStopped(Exception):
    """It was cancelled, its replica is gone, or the node stops."""


class MoveThrottler:
    """Holds all copies of this broker together below a rate, which may change; in any thread."""

    def __init__(self, clock: Clock, rate: Callable[[], int]) -> None:
        self.rate = rate
        """Bytes per second."""
        self.copied_bytes = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._owed_bytes = 0.0  # of the rate, for what was copied
        self._at_ms = clock.monotonic_ms()

    def spend(self, stop: threading.Event, count: int) -> None:
        """Waits until what was copied before has been paid for. Raises MoveStopped."""
        while rest_s := self._rest_s(count):
            if stop.wait(min(rest_s, 1.0)):  # the rate may change meanwhile
                raise MoveStopped
        self.pass_by(stop, count)

    def pass_by(self, stop: threading.Event, count: int) -> None:
        """Of what others wait for: at no rate. Raises MoveStopped."""
        if stop.is_set():
            raise MoveStopped
        with self._lock:
            self.copied_bytes += count

    def _rest_s(self, count: int) -> float:
        """0: the bytes are taken."""
        rate = self.rate()
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._owed_bytes = max(0.0, self._owed_bytes - rate * (now_ms - self._at_ms) / 1000)
            self._at_ms = now_ms
            if self._owed_bytes > 0:
                return self._owed_bytes / rate
            self._owed_bytes = float(count)
            return 0.0

    @property
    def chunk_bytes(self) -> int:
        """What takes a second at the most, so that a rate that is raised is soon noticed."""
        return max(LEAST_CHUNK_BYTES, min(CHUNK_BYTES, self.rate()))
