"""Metadata client: the committed image for the rest of the node, its changes, and the submission of
commands. Base of a member of the quorum (MetadataNode) and of an observer of it (MetadataObserver)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from tierlog.base.tracing import NO_TRACES, Tracer
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import IncompatibleNode, MetadataUnavailable, Peers
from tierlog.metadata.quorum.publisher import MetadataPublisher, Publisher
from tierlog.metadata.quorum.status import NodeStatus, ObserverStatus
from tierlog.metadata.raft.messages import NO_NODE
from tierlog.metadata.versions import NodeVersions, own_versions

RETRY_S = 0.1

R = TypeVar("R", bound=c.Reply)
T = TypeVar("T")


class MetadataClient(ABC):
    def __init__(self, node_id: int, cluster_id: str, peers: Peers) -> None:
        self.node_id, self.cluster_id, self._peers = node_id, cluster_id, peers
        self._publisher = MetadataPublisher(ClusterImage(cluster_id=cluster_id))
        self.tracer: Tracer = NO_TRACES  # `NodeBase` sets its own
        self._watched: object = None  # `image.brokers` as last passed to the peers to watch

    @property
    def image(self) -> ClusterImage:
        """The latest committed image that this node knows."""
        return self._publisher.image

    @property
    @abstractmethod
    def dead_brokers(self) -> frozenset[int]:
        """Brokers whose process seems dead, for one session at most. Clients see their partitions without a
        leader."""

    @property
    def disk_is_low(self) -> bool:
        """Whether this node keeps the metadata log on a disk with little free space."""
        return False

    def versions_of(self, node: int) -> NodeVersions | None:
        """Versions of a node as it announced them; None if it has not."""
        return own_versions() if node == self.node_id else self._peers.versions_of(node)

    @property
    def version_problems(self) -> Mapping[int, str]:
        """Nodes that this one cannot exchange messages with, and why."""
        return self._peers.problems

    def publish_to(self, publishers: Sequence[Publisher]) -> Callable[[], None]:
        """See MetadataPublisher.publish_to."""
        return self._publisher.publish_to(publishers)

    async def submit(self, command: c.Command[R], timeout_s: float = 30.0, *, forward: bool = True) -> R:
        """Have the leader decide and commit the command, and wait until this node's image includes the
        result. Errors of the command itself are in the reply.

        Raises MetadataUnavailable if no quorum responds; NotTheLeader if not `forward` and another node is
        the leader.
        """
        with self.tracer.span("metadata commit", **{"tierlog.command": type(command).__name__}):
            return await self._run_on_leader(
                lambda leader: self._submit_to(leader, command), timeout_s, forward
            )

    async def heartbeat(
        self, heartbeat: c.Heartbeat, timeout_s: float = 2.0, *, forward: bool = True
    ) -> c.HeartbeatReply:
        """Send a heartbeat to the leader. The broker's lease ends `lease_ms` after this call.

        The heartbeat is repeated after half of the time, to a new leader if there is one. Raises
        MetadataUnavailable after the timeout; the previous lease still holds.
        """
        return await self._run_on_leader(
            lambda leader: self._heartbeat_to(leader, heartbeat, timeout_s / 2), timeout_s, forward
        )

    async def quorum(self, timeout_s: float = 30.0) -> NodeStatus:
        """The status of the metadata quorum, from its leader. Raises MetadataUnavailable."""
        return await self._run_on_leader(self._status_of, timeout_s)

    async def current(self, timeout_s: float = 30.0) -> ClusterImage:
        """An image with everything that was committed before the call. Raises MetadataUnavailable.

        It submits a command that changes nothing: the leader confirms its leadership, and `submit` returns
        once this node's image has reached the leader's.
        """
        await self.submit(c.Reassign(changes=()), timeout_s)
        return self.image

    @property
    @abstractmethod
    def started(self) -> bool:
        """Whether the node knows its image and the voters."""

    @abstractmethod
    def status(self) -> NodeStatus | ObserverStatus:
        """The quorum as this node sees it."""

    # --- requests to the leader

    @abstractmethod
    def _request_target(self, forward: bool) -> int:
        """The leader, or NO_NODE while none is known.

        Raises MetadataUnavailable if this node has failed, and NotTheLeader if another node leads and
        `forward` is false.
        """

    @abstractmethod
    async def _wait_for_leader(self, at_most_s: float | None) -> None:
        """Wait until this node learns which node leads, or the timeout (None: without limit)."""

    async def _run_on_leader(
        self, send: Callable[[int], Awaitable[T]], timeout_s: float, forward: bool = True
    ) -> T:
        """Try again as long as the request certainly had no effect."""
        sent, why = False, ""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if (leader := self._request_target(forward)) == NO_NODE:
                        await self._wait_for_leader(None)
                        continue
                    sent = True
                    try:
                        return await send(leader)
                    except MetadataUnavailable as unavailable:
                        self._on_unavailable(leader, unavailable)
                        why = f": {unavailable}" if isinstance(unavailable, IncompatibleNode) else ""
                    sent = False
                    await self._wait_for_leader(RETRY_S)
        except TimeoutError:
            raise MetadataUnavailable(
                f"no quorum of metadata nodes responded in time{why}", applied_unknown=sent
            ) from None

    def _on_unavailable(self, leader: int, unavailable: MetadataUnavailable) -> None:
        """Called after each failed attempt. Raises the failure if the request may have had an effect."""
        if unavailable.applied_unknown:
            raise unavailable

    async def _submit_to(self, leader: int, command: c.Command[R]) -> R:
        reply, index = await self._peers.submit(leader, command)
        while self.image.index < index:
            self._raise_failure()
            await self._publisher.changed.wait()
        return reply

    async def _heartbeat_to(self, leader: int, heartbeat: c.Heartbeat, timeout_s: float) -> c.HeartbeatReply:
        return await self._peers.heartbeat(leader, heartbeat, timeout_s)

    async def _status_of(self, leader: int) -> NodeStatus:
        return await self._peers.status(leader)

    def _raise_failure(self) -> None:
        """Raises MetadataUnavailable if this node's image cannot advance any more."""
        return

    def _watch_brokers(self) -> None:
        """Have the peers watch the other brokers of the image."""
        if self._watched is not self.image.brokers:
            self._watched = brokers = self.image.brokers
            self._peers.watch({n: brokers[n].admin_url for n in sorted(brokers) if n != self.node_id})
