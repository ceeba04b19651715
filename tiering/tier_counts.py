"""Counts of the remote tier since the start of the process, for all topics and for each existing one.

Each part of the tier fills in its own; the gateway exports them under the names of Kafka's metrics. A topic
that is deleted keeps its share of the total only, so the number of values is bounded by the topics.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from tierlog.base.histogram import Histogram

READ_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds from a hit in the chunk cache (1 ms) to a read from a slow object store (30 s)."""


class TopicCount:
    """A number that only grows, in total and by topic."""

    __slots__ = ("_by_topic", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_topic: dict[UUID, int] = {}

    def add(self, topic_id: UUID, count: int = 1) -> None:
        self.total += count
        self._by_topic[topic_id] = self._by_topic.get(topic_id, 0) + count

    def __iter__(self) -> Iterator[tuple[UUID, int]]:
        return iter(list(self._by_topic.items()))

    def retain(self, topics: Container[UUID]) -> None:
        """Forget all other topics."""
        self._by_topic = {one: count for one, count in self._by_topic.items() if one in topics}


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests, and those that failed."""

    requests: TopicCount = field(default_factory=TopicCount)
    errors: TopicCount = field(default_factory=TopicCount)

    def retain(self, topics: Container[UUID]) -> None:
        self.requests.retain(topics)
        self.errors.retain(topics)


@dataclass(frozen=True, slots=True)
class TransferCounts(RequestCounts):
    """Requests that transfer records. `bytes`: bytes transferred by successful requests."""

    bytes: TopicCount = field(default_factory=TopicCount)

    def retain(self, topics: Container[UUID]) -> None:
        # no super(): a dataclass with slots is a new class
        RequestCounts.retain(self, topics)
        self.bytes.retain(topics)


@dataclass(frozen=True, slots=True)
class FetchCounts(TransferCounts):
    """Remote reads of Fetch requests. `seconds`: duration of each read, including the wait for a download
    slot."""

    seconds: Histogram = field(default_factory=lambda: Histogram(READ_BUCKETS_S))
