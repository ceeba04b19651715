"""Failure detector: tracks brokers whose process seems to have died.

The evidence is a broken connection followed by a refused one. A firewall can forge both (ADR 0013), so a
suspicion fences no broker: it only hides the broker's leaderships from clients. It ends when the broker
accepts a connection, registers again or is unfenced, and after `broker.session.timeout.ms` at the latest. A
broker that is still unfenced by then has sent heartbeats to the controller.

Each controller node (`heartbeat_manager`) and each observer (`observer`) keeps its own tracker.
"""

from typing import NamedTuple

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.publisher import MetadataPublisher, Publisher


class _Suspicion(NamedTuple):
    broker_epoch: int  # epoch of the process that seems dead
    until_ms: int


class DeadBrokers:
    def __init__(self, publisher: MetadataPublisher, clock: Clock, session_ms: int) -> None:
        """`session_ms`: broker.session.timeout.ms."""
        self._publisher, self._clock, self._session_ms = publisher, clock, session_ms
        self._suspicions: dict[int, _Suspicion] = {}
        publisher.publish_to([Publisher("failure detector", self._withdraw)])

    @property
    def brokers(self) -> frozenset[int]:
        """Brokers that seem dead now."""
        return frozenset(broker_id for broker_id in self._suspicions if self._holds(broker_id))

    def mark_dead(self, broker_id: int) -> None:
        """Record that the broker's current process seems dead. Ignored if no such broker is registered."""
        broker = self._publisher.image.brokers.get(broker_id)
        if broker is not None:
            until_ms = self._clock.monotonic_ms() + self._session_ms
            self._suspicions[broker_id] = _Suspicion(broker.broker_epoch, until_ms)

    def mark_alive(self, broker_id: int) -> None:
        """Withdraw the suspicion after a successful connection.

        Either the evidence was false or a new process has started.
        """
        self._suspicions.pop(broker_id, None)

    @safeguard("a broker's suspected failure is cleared when its session ends")
    def _holds(self, broker_id: int) -> bool:
        broker, suspicion = self._publisher.image.brokers.get(broker_id), self._suspicions[broker_id]
        is_same = broker is not None and broker.broker_epoch == suspicion.broker_epoch
        return is_same and self._clock.monotonic_ms() < suspicion.until_ms

    def _withdraw(self, old: ClusterImage, new: ClusterImage) -> None:
        """A broker is unfenced under the same epoch only after a heartbeat of that very process."""
        if not self._suspicions or old.brokers is new.brokers:
            return
        for broker_id in list(self._suspicions):
            before, after = old.brokers.get(broker_id), new.brokers.get(broker_id)
            unfenced = before is not None and before.fenced and after is not None and not after.fenced
            if unfenced or not self._holds(broker_id):
                del self._suspicions[broker_id]
