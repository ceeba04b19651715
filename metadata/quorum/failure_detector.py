"""Failure detector: brokers whose process seems dead, for which clients are told of no leader.

The evidence is a connection that broke and another that was refused. A firewall can forge both (ADR 0013), so
it fences no broker, and it does not count for long: a suspicion ends when the broker is connected to again,
registers again or is let in again, and at the latest after `broker.session.timeout.ms`. A broker that the
image shows unfenced by then is heard by the controller.

Each voter (`fencing`) and each broker that is none (`observer`) keeps its own.
"""

from typing import NamedTuple

from tierlog.base.clock import Clock
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.publisher import MetadataPublisher


class _Suspicion(NamedTuple):
    broker_epoch: int  # of the process that seems dead
    until_ms: int


class DeadBrokers:
    def __init__(self, publisher: MetadataPublisher, clock: Clock, session_ms: int) -> None:
        """`session_ms`: broker.session.timeout.ms."""
        self._publisher, self._clock, self._session_ms = publisher, clock, session_ms
        self._suspicions: dict[int, _Suspicion] = {}
        publisher.subscribe(self._withdraw)

    @property
    def brokers(self) -> frozenset[int]:
        """Those that are suspected now."""
        return frozenset(node_id for node_id in self._suspicions if self._holds(node_id))

    def note(self, node_id: int) -> None:
        """Its connection broke, and its host refused another."""
        broker = self._publisher.image.brokers.get(node_id)
        if broker is not None:
            until_ms = self._clock.monotonic_ms() + self._session_ms
            self._suspicions[node_id] = _Suspicion(broker.broker_epoch, until_ms)

    def lives(self, node_id: int) -> None:
        """A process of this node is connected to: the evidence was false, or a new process has started."""
        self._suspicions.pop(node_id, None)

    def _holds(self, node_id: int) -> bool:
        broker, suspicion = self._publisher.image.brokers.get(node_id), self._suspicions[node_id]
        is_same = broker is not None and broker.broker_epoch == suspicion.broker_epoch
        return is_same and self._clock.monotonic_ms() < suspicion.until_ms

    def _withdraw(self, old: ClusterImage, new: ClusterImage) -> None:
        """Only a heartbeat of that very process has it let in again under the same epoch."""
        if not self._suspicions or old.brokers is new.brokers:
            return
        for node_id in list(self._suspicions):
            before, after = old.brokers.get(node_id), new.brokers.get(node_id)
            let_in = before is not None and before.fenced and after is not None and not after.fenced
            if let_in or not self._holds(node_id):
                del self._suspicions[node_id]
