"""Metadata publisher: holds the latest committed image and notifies subscribers of each new one."""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from tierlog.metadata.image import ClusterImage

_log = structlog.get_logger("tierlog.metadata")
Subscriber = Callable[[ClusterImage, ClusterImage], None]


class MetadataPublisher:
    """One per node. `term`: of the last entry applied to the image."""

    def __init__(self, image: ClusterImage, node_id: int) -> None:
        self.image = image
        self.term = 0
        self.changed = asyncio.Event()  # set when `image` is replaced; each image has an event of its own
        self._node_id = node_id
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call subscriber(old, new) after each change, on the event loop. Exceptions are logged only.

        Returns a function that cancels the subscription.
        """
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def publish(self, new: ClusterImage, term: int) -> None:
        old, self.image, self.term = self.image, new, term
        self.wake()
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(old, new)
            except Exception:
                # the image is committed: a subscriber that fails must not cost the quorum a voter
                _log.exception("metadata subscriber failed", node=self._node_id, index=new.index)

    def wake(self) -> None:
        """Make all waiters on `changed` check their condition again."""
        self.changed.set()
        self.changed = asyncio.Event()


async def wait_for_event(event: asyncio.Event, at_most_s: float | None) -> None:
    """Wait for the event, at most this long. (asyncio.wait_for of Python 3.11 may swallow a cancellation.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
