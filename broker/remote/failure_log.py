"""Failure log: one line for each kind of failure and interval, with the number of partitions that had it.

A store that refuses all calls (wrong credentials, no such bucket) keeps its circuit breaker closed, because
it responds. Each partition that has something to upload would log its own failure at every attempt. Called by
the remote log manager.
"""

from dataclasses import dataclass, field

from tierlog.tiering.object_store import ObjectStoreError

INTERVAL_MS = 60_000
"""Twice the longest back-off: a failure that lasts is in each line with all of its partitions."""


@dataclass(slots=True)
class _Kind:
    logged_at_ms: int
    partitions: set[str] = field(default_factory=set)
    """Those that failed since the last line."""


class FailureLog:
    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def add(self, failure: Exception, partition: str, now_ms: int) -> int:
        """Count a failure. Returns the number of partitions for a line that is due now; 0 if none is.
        `now_ms`: monotonic."""
        kind = self._kinds.get(kind_of(failure))
        if kind is None:
            self._forget(now_ms)
            self._kinds[kind_of(failure)] = _Kind(now_ms)
            return 1
        kind.partitions.add(partition)
        if now_ms - kind.logged_at_ms < INTERVAL_MS:
            return 0
        found, kind.partitions, kind.logged_at_ms = len(kind.partitions), set(), now_ms
        return found

    def _forget(self, now_ms: int) -> None:
        self._kinds = {
            name: kind for name, kind in self._kinds.items() if now_ms - kind.logged_at_ms < 2 * INTERVAL_MS
        }


def kind_of(failure: Exception) -> str:
    """The type of a failure, with the store's error code."""
    code = failure.code if isinstance(failure, ObjectStoreError) else ""
    return f"{type(failure).__name__} {code}".strip()
