"""Request statistics: latencies and error codes of each API, which the gateway exports as metrics.

Requests that wait are recorded separately and added when the metrics are read. Filled in by `handlers.chain`.
"""

from collections import Counter

from tierlog.base.histogram import Histogram

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ApiStats:
    """Statistics of one API. `errors`: error code -> occurrences in responses."""

    __slots__ = ("_at_once", "_total", "_until_waiting", "_waiting", "errors", "observe")

    def __init__(self) -> None:
        self.errors: Counter[int] = Counter()
        self._at_once = Histogram(BUCKETS_S)
        self._total, self._until_waiting, self._waiting = (Histogram(BUCKETS_S) for _ in range(3))
        self.observe = self._at_once.observe

    @property
    def count(self) -> int:
        return self._at_once.count + self._total.count

    def observe_pending(self, begun: float, waiting_from: float, ended: float) -> None:
        self._total.observe(ended - begun)
        self._until_waiting.observe(waiting_from - begun)
        self._waiting.observe(ended - waiting_from)

    def total(self) -> Histogram:
        return self._at_once + self._total

    def local(self) -> Histogram:
        return self._at_once + self._until_waiting

    def remote(self) -> Histogram:
        """As in Kafka, a request that did not wait counts with a waiting time of 0."""
        nothing = Histogram(BUCKETS_S)
        nothing.buckets[0] = nothing.count = self._at_once.count
        return nothing + self._waiting


class RequestStats:
    def __init__(self) -> None:
        self.by_api: dict[int, ApiStats] = {}

    def of(self, api: int) -> ApiStats:
        return self.by_api.setdefault(api, ApiStats())
