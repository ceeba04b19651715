"""Rates over sliding windows, and token buckets: the meters of quotas, computed as in Kafka.

A rate is the sum of samples divided by the time that they span. A sample covers one window; the span is at
least all windows but one, so that a first burst is averaged over that time. The burst, which an idle client
may use at once, is the bound times (windows - 1) times the window size. Samples older than all windows are
dropped and allow another burst, so a client that sends large pieces may reach twice its bound, as in Kafka.
"""

from collections import deque
from dataclasses import dataclass

WAIT_MS_MAX = 2**53
"""Maximum wait: with a bound near 0 it would be infinite."""


@dataclass(frozen=True, slots=True)
class Windows:
    """`quota.window.num` windows of `quota.window.size.seconds`."""

    count: int = 11
    size_ms: int = 1_000

    @property
    def total_ms(self) -> int:
        """The time without use after which a rate is 0."""
        return self.count * self.size_ms

    @property
    def min_span_ms(self) -> int:
        """The minimum span: all windows but one. For a single window it is one millisecond."""
        return max((self.count - 1) * self.size_ms, 1)


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_ms: int
    total: float


class WindowedRate:
    """A rate per second. Times must not go back."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()

    def record(self, value: float, now_ms: int) -> None:
        last = self._samples[-1] if self._samples else None
        if last is None or now_ms - last.start_ms >= self._windows.size_ms:
            self._forget(now_ms)
            last = _Sample(now_ms, now_ms, 0.0)
            self._samples.append(last)
        last.total += value
        last.last_ms = now_ms

    def per_second(self, now_ms: int, more: float = 0.0) -> float:
        """The rate as if `more` were recorded now."""
        self._forget(now_ms)
        return (self._total() + more) * 1000 / self._span_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: int, more: float = 0.0) -> int:
        """How long to wait until the rate falls to its bound; 0 if it is not above. `more` as in
        `per_second`."""
        rate = self.per_second(now_ms, more)
        if rate <= bound:
            return 0
        return round(min((rate - bound) / bound * self._span_ms(now_ms), WAIT_MS_MAX))

    def check(self) -> bool:
        """Whether samples are in order, a window apart, and not too many."""
        samples = self._samples
        in_order = all(
            one.last_ms < following.start_ms and one.start_ms + self._windows.size_ms <= following.start_ms
            for one, following in zip(samples, list(samples)[1:], strict=False)
        )
        return in_order and len(samples) <= self._windows.count + 1

    def _total(self) -> float:
        return sum(sample.total for sample in self._samples)

    def _span_ms(self, now_ms: int) -> int:
        elapsed = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = self._windows.count - 1 - elapsed // self._windows.size_ms
        return max(elapsed + max(missing, 0) * self._windows.size_ms, 1)

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= self._windows.total_ms:
            self._samples.popleft()


class TokenBucket:
    """Bucket of controller mutations (KIP-599): it is full at first and is refilled with `bound` tokens per
    second. A request may take more than it has, and then it is below zero. Times must not go back.
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
        """Time until the bucket is not below zero."""
        left = self.left(bound, now_ms)
        return round(min(-left / bound * 1000, WAIT_MS_MAX)) if left < 0 else 0
