"""Ports of a simulated broker that report each call to the run before they forward it."""

from typing import TYPE_CHECKING, Any

from tierlog.base.types import TopicIdPartition
from tierlog.broker.lifecycle import BrokerLifecycle
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller.commands import MoveLogStart
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.observer import MetadataObserver

if TYPE_CHECKING:
    from simulator.broker import Observer, SimBroker


class ReportingLease:
    def __init__(self, broker: "SimBroker", lifecycle: BrokerLifecycle, observer: "Observer") -> None:
        self._broker, self._lifecycle, self._observer = broker, lifecycle, observer

    def holds_lease(self) -> bool:
        holds = self._lifecycle.holds_lease()
        if holds:
            self._observer.serves(self._broker)
        return holds


class ReportingMetadata(MetadataClient):
    """Reports requests to move a log start."""

    def __init__(
        self,
        node: MetadataNode | MetadataObserver,
        broker: "SimBroker",
        observer: "Observer",
    ) -> None:
        super().__init__(node)
        self._broker, self._observer = broker, observer

    async def submit(self, command: Any, timeout_s: float = 30.0) -> Any:
        if isinstance(command, MoveLogStart):
            where = TopicIdPartition(command.topic_id, command.partition)
            replicas = self._broker.replicas
            replica = None if replicas is None else replicas.get(*where)
            if replica is not None:
                self._observer.log_start_requested(self._broker, replica, command.log_start_offset)
        return await super().submit(command, timeout_s)
