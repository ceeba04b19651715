"""The committed image as it moves on: who follows it is told, who waits for it is woken."""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from tierlog.metadata.image import ClusterImage

_log = structlog.get_logger("tierlog.metadata")
Subscriber = Callable[[ClusterImage, ClusterImage], None]


class MetadataPublisher:
    """One per node. `term` is that of the entry with which the image ends."""

    def __init__(self, image: ClusterImage, node_id: int) -> None:
        self.image = image
        self.term = 0
        self.changed = asyncio.Event()  # of this image; the next one has another
        self._node_id = node_id
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls subscriber(old, new) after each change, on the loop; what it raises is only logged."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def publish(self, new: ClusterImage, term: int) -> None:
        old, self.image, self.term = self.image, new, term
        self.wake()
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(old, new)
            except Exception:
                # what is committed stands: one follower that fails must not cost the quorum a voter
                _log.exception("a subscriber of the metadata failed", node=self._node_id, index=new.index)

    def wake(self) -> None:
        """Whoever waits for a change looks again."""
        self.changed.set()
        self.changed = asyncio.Event()


async def wait_for_event(event: asyncio.Event, at_most_s: float | None) -> None:
    """Waits for it, or so long. (asyncio.wait_for of Python 3.11 loses a cancellation that meets it.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
