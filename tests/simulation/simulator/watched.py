"""Ports of a simulated broker that report each call to the run before they forward it."""

from typing import TYPE_CHECKING, Any

from tierlog.base.types import TopicIdPartition
from tierlog.broker.lifecycle import BrokerLifecycle
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
            self._observer.on_serving(self._broker)
        return holds


def report_log_starts(
    node: MetadataNode | MetadataObserver, broker: "SimBroker", observer: "Observer"
) -> None:
    """Report the broker's own requests to move a log start."""
    submit = node.submit

    async def reporting(command: Any, timeout_s: float = 30.0, *, forward: bool = True) -> Any:
        if isinstance(command, MoveLogStart) and forward:
            where = TopicIdPartition(command.topic_id, command.partition)
            replica = None if broker.replicas is None else broker.replicas.get(*where)
            if replica is not None:
                observer.on_log_start_request(broker, replica, command.log_start_offset)
        return await submit(command, timeout_s, forward=forward)

    node.submit = reporting  # type: ignore[method-assign]
