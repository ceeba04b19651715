"""Metadata client: the committed image for the rest of the node, its changes, and the submission of
commands."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from tierlog.base.tasks import Report
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import Subscriber
from tierlog.metadata.quorum.status import NodeStatus

R = TypeVar("R", bound=c.Reply)


class Publisher(NamedTuple):
    """A part of the node that follows the image, as Kafka's MetadataPublisher."""

    name: str
    follow: Subscriber
    """Called with (old, new) after each change, on the event loop."""
    report: Report
    """Called with an exception of `follow`."""
    since: ClusterImage | None = None
    """The image that the part already has; None: none."""


class MetadataSource(Protocol):
    """A member of the quorum (MetadataNode), or an observer of it (MetadataObserver)."""

    @property
    def image(self) -> ClusterImage: ...
    @property
    def dead_brokers(self) -> frozenset[int]: ...
    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]: ...
    async def submit(self, command: c.AnyCommand, timeout_s: float = 30.0) -> c.AnyReply: ...
    async def heartbeat(self, heartbeat: c.Heartbeat, timeout_s: float = 2.0) -> c.HeartbeatReply: ...
    async def quorum(self, timeout_s: float = 30.0) -> NodeStatus: ...


class MetadataClient:
    def __init__(self, node: MetadataSource) -> None:
        self._node = node

    @property
    def image(self) -> ClusterImage:
        """The latest committed image."""
        return self._node.image

    @property
    def dead_brokers(self) -> frozenset[int]:
        """Brokers whose process seems dead. Either the image will show them fenced, or the suspicion ends
        with their session."""
        return self._node.dead_brokers

    def publish_to(self, publishers: Sequence[Publisher]) -> Callable[[], None]:
        """Pass the present image, and each later one, to all publishers in their order. Returns a function
        that ends it."""
        empty, now = ClusterImage(cluster_id=self.image.cluster_id), self.image
        for publisher in publishers:
            _publish(publisher, empty if publisher.since is None else publisher.since, now)

        def publish(old: ClusterImage, new: ClusterImage) -> None:
            for publisher in publishers:
                _publish(publisher, old, new)

        return self._node.subscribe(publish)

    async def wait_for(
        self, predicate: Callable[[ClusterImage], bool], timeout_s: float = 30.0
    ) -> ClusterImage:
        """The first image that satisfies the predicate. Raises MetadataUnavailable after the timeout."""
        if predicate(self.image):
            return self.image
        found: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()

        def check(_: ClusterImage, new: ClusterImage) -> None:
            if found.done():
                return
            try:
                if predicate(new):
                    found.set_result(new)
            except Exception as failure:  # raised by the caller's predicate
                found.set_exception(failure)

        unsubscribe = self._node.subscribe(check)
        try:
            async with asyncio.timeout(timeout_s):
                return await found
        except TimeoutError:
            message = f"the metadata did not reach the awaited state within {timeout_s} s"
            raise MetadataUnavailable(message, applied_unknown=True) from None
        finally:
            unsubscribe()

    async def heartbeat(self, heartbeat: c.Heartbeat, timeout_s: float = 2.0) -> c.HeartbeatReply:
        """Send a heartbeat to the leader. The broker's lease ends `lease_ms` after this call.

        The heartbeat is repeated after half of the time, to a new leader if there is one. Raises
        MetadataUnavailable after the timeout; the previous lease still holds.
        """
        return await self._node.heartbeat(heartbeat, timeout_s)

    async def quorum(self, timeout_s: float = 30.0) -> NodeStatus:
        """The status of the metadata quorum, from its leader. Raises MetadataUnavailable."""
        return await self._node.quorum(timeout_s)

    async def current(self, timeout_s: float = 30.0) -> ClusterImage:
        """An image with everything that was committed before the call. Raises MetadataUnavailable.

        It submits a command that changes nothing: the leader confirms its leadership, and `submit` returns
        once this node's image has reached the leader's.
        """
        await self._node.submit(c.Reassign(changes=()), timeout_s)
        return self.image

    async def submit(self, command: c.Command[R], timeout_s: float = 30.0) -> R:
        """Have the leader decide and commit the command, and wait until this node's image includes the
        result.

        Raises MetadataUnavailable if no quorum responds. Errors of the command itself are in the reply.
        """
        return cast(R, await self._node.submit(cast(c.AnyCommand, command), timeout_s))


def _publish(publisher: Publisher, old: ClusterImage, new: ClusterImage) -> None:
    """The image is committed: a publisher that fails must not keep it from the others."""
    try:
        publisher.follow(old, new)
    except Exception as failure:
        publisher.report(f"{publisher.name} cannot follow the metadata", failure)
