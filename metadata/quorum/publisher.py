"""Metadata publisher: holds the latest committed image and shows each new one to the parts that follow it."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from tierlog.base.tasks import Report
from tierlog.base.types import TopicIdPartition
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import RemoteSegment

_log = structlog.get_logger("tierlog.metadata")

ENTRIES_FREED_PER_TURN = 5_000
"""Manifest entries of deleted topics that are freed in one turn of the event loop, in about 1 ms. A topic of
500 partitions may have 192,000, which takes 40 ms."""


def _log_failure(what: str, failure: BaseException) -> None:
    _log.error("metadata.publisher.failed", what=what, exc_info=failure)


class Publisher(NamedTuple):
    """A part of the node that follows the image, as Kafka's MetadataPublisher."""

    name: str
    follow: Callable[[ClusterImage, ClusterImage], None]
    """Called with (old, new) after each change, on the event loop."""
    report: Report = _log_failure
    """Called with an exception of `follow`."""
    since: ClusterImage | None = None
    """The image that the part already has; None: none."""


class MetadataPublisher:
    """One per node. `term`: of the last entry applied to the image."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.term = 0
        self.changed = asyncio.Event()  # set when `image` is replaced; each image has an event of its own
        self._publishers: list[Publisher] = []
        self._released: deque[tuple[RemoteSegment, ...]] = deque()

    def publish_to(self, publishers: Sequence[Publisher]) -> Callable[[], None]:
        """Pass the present image, and each later one, to all publishers in their order. Returns a function
        that ends it."""
        empty = ClusterImage(cluster_id=self.image.cluster_id)
        for publisher in publishers:
            _publish(publisher, empty if publisher.since is None else publisher.since, self.image)
        self._publishers += publishers

        def end() -> None:
            self._publishers = [
                one for one in self._publishers if not any(one is ended for ended in publishers)
            ]

        return end

    def publish(self, new: ClusterImage, term: int) -> None:
        old, self.image, self.term = self.image, new, term
        self.wake()
        for publisher in tuple(self._publishers):
            _publish(publisher, old, new)
        self._release(_deleted_entries(old, new))

    def _release(self, manifests: Sequence[tuple[RemoteSegment, ...]]) -> None:
        """Drop these manifests, over several turns of the event loop if they are large."""
        if sum(map(len, manifests)) <= ENTRIES_FREED_PER_TURN:
            return
        if not self._released:
            asyncio.get_running_loop().call_soon(self._free)
        self._released += manifests

    def _free(self) -> None:
        left = ENTRIES_FREED_PER_TURN
        while self._released and left > 0:
            left -= len(self._released.popleft())
        if self._released:
            asyncio.get_running_loop().call_soon(self._free)

    def wake(self) -> None:
        """Make all waiters on `changed` check their condition again."""
        self.changed.set()
        self.changed = asyncio.Event()


def _deleted_entries(old: ClusterImage, new: ClusterImage) -> list[tuple[RemoteSegment, ...]]:
    """The manifests of topics that the new image does not have."""
    if len(new.remote) >= len(old.remote):
        return []
    deleted = [topic for topic_id, topic in old.topics.items() if topic_id not in new.topics]
    return [
        remote.entries
        for topic in deleted
        for partition in topic.partitions
        if (remote := old.remote.get(TopicIdPartition(topic.topic_id, partition.partition))) is not None
    ]


def _publish(publisher: Publisher, old: ClusterImage, new: ClusterImage) -> None:
    """The image is committed: a publisher that fails must not keep it from the others, nor stop a voter."""
    try:
        publisher.follow(old, new)
    except Exception as failure:
        publisher.report(f"{publisher.name} cannot follow the metadata", failure)


async def wait_for_event(event: asyncio.Event, at_most_s: float | None) -> None:
    """Wait for the event, at most this long. (asyncio.wait_for of Python 3.11 may swallow a cancellation.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
