"""Simulated node: tierlog's Broker on a simulated platform. The run checks the events that it reports."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.broker.app import Broker
from tierlog.broker.lifecycle import BrokerLifecycle
from tierlog.broker.net.listener import Listener
from tierlog.broker.platform import Platform
from tierlog.broker.replication.replica_events import DamageFound, ReplicaEvent
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.commands import DropRemoteLog, MoveLogStart, StartCopy
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.publisher import Publisher

if TYPE_CHECKING:
    from simulator.broker import Observer, SimBroker


class MemoryListener(Listener):
    """Listener without sockets: the simulated network passes request frames to the owner's dispatcher."""

    def __init__(self, owner: "SimBroker", *arguments: Any, **bounds: Any) -> None:
        super().__init__(*arguments, **bounds)
        self._owner = owner

    async def bind(self) -> dict[str, tuple[str, int]]:
        return {"PLAINTEXT": (self._owner.name, 9092)}

    async def start(self) -> dict[str, tuple[str, int]]:
        self._owner.dispatcher = self.dispatcher
        return await self.bind()

    def stop_accepting(self) -> None:
        self._owner.dispatcher = None

    async def close(self) -> None:
        self._owner.dispatcher = None


class NoAdminServer:
    """Replaces the admin API's server, because the simulation has no HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def start(self, host: str, port: int) -> str:
        return self._url

    async def keep_certificates(self) -> None:
        return

    async def close(self) -> None:
        return


class SimSentinel:
    """Notifies the other nodes of the end of this process. `notify` is called with its broker epoch."""

    def __init__(self, notify: Callable[[int], None]) -> None:
        self._notify, self._broker_epoch = notify, -1

    def update(self, broker_epoch: int) -> None:
        self._broker_epoch = broker_epoch

    def close(self) -> None:
        """Called at a clean stop, after the broker's lease has ended."""
        self._notify(self._broker_epoch)


class SimNode(Broker):
    """Reports to the owner's observer, which is the run. The owner ends the process if a disk fails."""

    def __init__(self, owner: "SimBroker", settings: NodeSettings, platform: Platform) -> None:
        super().__init__(settings, platform)
        self._owner = owner

    async def _build_metadata(self, tasks: TaskGroup) -> Any:
        node, routes = await super()._build_metadata(tasks)
        owner = self._owner
        node.publish_to([Publisher("observer", lambda _, image: owner.observer.on_published(image))])
        report_remote_requests(node, owner, owner.observer)
        return node, routes

    async def _start_metadata(self) -> None:
        await super()._start_metadata()
        node, owner = self.metadata, self._owner
        if isinstance(node, MetadataNode):
            owner.observer.quorum.on_start(node.core)
        owner.metadata = node

    def _lease(self) -> "ReportingLease":
        return ReportingLease(self._owner, self.lifecycle, self._owner.observer)

    def _connect(self) -> None:
        super()._connect()
        self.replicas.listeners = (self._on_damage, *self.replicas.listeners)

    def _on_damage(self, event: ReplicaEvent) -> None:
        if isinstance(event, DamageFound):
            self._owner.observer.on_damage_found(self._owner, event.segment, event.cause)

    async def _open_logs(self, image: ClusterImage) -> None:
        await self._owner.open_logs(self, lambda: super(SimNode, self)._open_logs(image))

    async def _start_serving(self) -> None:
        self._owner.on_logs_open(self)
        await super()._start_serving()

    def _report(self, name: str, failure: BaseException) -> None:
        self._owner.on_failure(failure)

    def _fatal(self, name: str, failure: BaseException) -> None:
        self._owner.on_fatal(failure)


class ReportingLease:
    def __init__(self, broker: "SimBroker", lifecycle: BrokerLifecycle, observer: "Observer") -> None:
        self._broker, self._lifecycle, self._observer = broker, lifecycle, observer

    def holds_lease(self) -> bool:
        holds = self._lifecycle.holds_lease()
        if holds:
            self._observer.on_serving(self._broker)
        return holds


def report_remote_requests(
    node: MetadataNode | MetadataObserver, broker: "SimBroker", observer: "Observer"
) -> None:
    """Report the broker's own requests to copy a segment, to move a log start, and to drop what is remote."""
    submit = node.submit

    async def reporting(command: Any, timeout_s: float = 30.0, *, forward: bool = True) -> Any:
        if isinstance(command, MoveLogStart | DropRemoteLog | StartCopy) and forward:
            where = TopicIdPartition(command.topic_id, command.partition)
            replica = None if broker.replicas is None else broker.replicas.get(*where)
            if replica is not None:
                observer.on_remote_request(broker, replica, command)
        return await submit(command, timeout_s, forward=forward)

    node.submit = reporting  # type: ignore[method-assign]
