"""A rate over sliding windows, and a bucket of tokens: what quotas measure with. Figures as in Kafka's.

A rate is the sum of some samples by the time that they span. A sample covers one window of time; the span
counts as all windows but the last at least, so that a first burst is set against the whole time. Such a
burst is how much a client may have at once: its bound times (windows - 1) times their size. As what is older
than all windows is forgotten, and a burst allowed again, one that waits as told may still get up to twice its
bound in large pieces. So it is in Kafka; shorter waits would leave no bound at all.
"""

from collections import deque
from dataclasses import dataclass

NEVER_MS = 2**53
"""The longest wait that is told: by a bound that is next to nothing it would be infinite, which no int is."""


@dataclass(frozen=True, slots=True)
class Windows:
    """`quota.window.num` windows of `quota.window.size.seconds`."""

    count: int = 11
    size_ms: int = 1_000

    @property
    def total_ms(self) -> int:
        """After so long a silence a rate is 0."""
        return self.count * self.size_ms

    @property
    def least_ms(self) -> int:
        """The shortest time that a sum is set against; of one window, a millisecond."""
        return max((self.count - 1) * self.size_ms, 1)


@dataclass(slots=True)
class _Sample:
    begun_ms: int
    last_ms: int
    total: float


class WindowedRate:
    """Something per second. Times must not go back."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()

    def record(self, value: float, now_ms: int) -> None:
        last = self._samples[-1] if self._samples else None
        if last is None or now_ms - last.begun_ms >= self._windows.size_ms:
            self._forget(now_ms)
            last = _Sample(now_ms, now_ms, 0.0)
            self._samples.append(last)
        last.total += value
        last.last_ms = now_ms

    def per_second(self, now_ms: int, more: float = 0.0) -> float:
        """The rate, as it would be with `more` recorded now."""
        self._forget(now_ms)
        return (self._total() + more) * 1000 / self._span_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: int, more: float = 0.0) -> int:
        """How much longer the span would have to be for the rate to be at its bound; 0 if it is not above."""
        rate = self.per_second(now_ms, more)
        if rate <= bound:
            return 0
        return round(min((rate - bound) / bound * self._span_ms(now_ms), NEVER_MS))

    def check(self) -> bool:
        """Samples follow each other, each begun a window after the one before; there are few."""
        samples = self._samples
        in_order = all(
            one.last_ms < following.begun_ms and one.begun_ms + self._windows.size_ms <= following.begun_ms
            for one, following in zip(samples, list(samples)[1:], strict=False)
        )
        return in_order and len(samples) <= self._windows.count + 1

    def _total(self) -> float:
        return sum(sample.total for sample in self._samples)

    def _span_ms(self, now_ms: int) -> int:
        elapsed = now_ms - self._samples[0].begun_ms if self._samples else 0
        missing = self._windows.count - 1 - elapsed // self._windows.size_ms
        return max(elapsed + max(missing, 0) * self._windows.size_ms, 1)

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= self._windows.total_ms:
            self._samples.popleft()


class TokenBucket:
    """What controller mutations are paid from (KIP-599): full at first, refilled at `bound` a second, and
    below zero after a request that cost more than it held. Times must not go back.
    """

    __slots__ = ("_refilled_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens: float | None = None
        self._refilled_ms = 0

    def take(self, tokens: float, bound: float, now_ms: int) -> None:
        self._tokens = self.left(bound, now_ms) - tokens

    def left(self, bound: float, now_ms: int) -> float:
        burst = bound * self._windows.total_ms / 1000
        if self._tokens is None:
            self._tokens = burst
        refill = bound * (now_ms - self._refilled_ms) / 1000
        self._tokens = min(self._tokens + refill, burst)
        self._refilled_ms = now_ms
        return self._tokens

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Until it is not below zero."""
        left = self.left(bound, now_ms)
        return round(min(-left / bound * 1000, NEVER_MS)) if left < 0 else 0
