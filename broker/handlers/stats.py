"""Request statistics: latencies and error codes of each API, which the gateway exports as metrics.

Requests that wait are recorded separately and added when the metrics are read. Filled in by `handlers.chain`.
"""

from collections import Counter

from tierlog.base.histogram import Histogram

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ApiStats:
    """Statistics of one API. `errors`: error code -> occurrences in responses."""

    __slots__ = ("_before_waiting", "_immediate", "_total", "_waiting", "errors", "observe")

    def __init__(self) -> None:
        self.errors: Counter[int] = Counter()
        self._immediate = Histogram(BUCKETS_S)
        self._total, self._before_waiting, self._waiting = (Histogram(BUCKETS_S) for _ in range(3))
        self.observe = self._immediate.observe

    @property
    def count(self) -> int:
        return self._immediate.count + self._total.count

    def observe_pending(self, started_s: float, waiting_from_s: float, ended_s: float) -> None:
        self._total.observe(ended_s - started_s)
        self._before_waiting.observe(waiting_from_s - started_s)
        self._waiting.observe(ended_s - waiting_from_s)

    def total(self) -> Histogram:
        """Kafka's TotalTimeMs, in seconds."""
        return self._immediate + self._total

    def local(self) -> Histogram:
        """Kafka's LocalTimeMs, in seconds: until the request began to wait."""
        return self._immediate + self._before_waiting

    def remote(self) -> Histogram:
        """Kafka's RemoteTimeMs, in seconds. As in Kafka, a request that did not wait counts with 0."""
        nothing = Histogram(BUCKETS_S)
        nothing.buckets[0] = nothing.count = self._immediate.count
        return nothing + self._waiting


class RequestStats:
    def __init__(self) -> None:
        self.by_api: dict[int, ApiStats] = {}

    def for_api(self, api_key: int) -> ApiStats:
        return self.by_api.setdefault(api_key, ApiStats())
