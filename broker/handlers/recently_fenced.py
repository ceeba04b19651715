"""Which brokers Metadata names: those that live, and for a moment those that have just been fenced.

A client that hears of a new leader, and no more of the old one, drops the old one. librdkafka (2.16) does
that after it has moved the partition, takes the partition from the new leader by it, and looks for a leader
again up to a second later. If it hears of both, it just moves the partition.
"""

from tierlog.base.clock import Clock
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.image import BrokerImage, ClusterImage

NAMED_FOR_MS = 10_000
"""Clients whose connection breaks ask at once; this leaves them time to get an answer."""


class FencedLately:
    def __init__(self, metadata: MetadataClient, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[int, int] = {}
        metadata.subscribe(self._changed)

    def named(self, image: ClusterImage) -> list[BrokerImage]:
        """Brokers to name, by id."""
        if not self._until_ms:
            return image.live_brokers()
        now_ms = self._clock.monotonic_ms()
        self._until_ms = {one: until_ms for one, until_ms in self._until_ms.items() if now_ms < until_ms}
        brokers = (image.brokers[broker_id] for broker_id in sorted(image.brokers))
        return [broker for broker in brokers if not broker.fenced or broker.broker_id in self._until_ms]

    def _changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.brokers is new.brokers:
            return
        for before in old.live_brokers():
            broker = new.brokers.get(before.broker_id)
            if broker is not None and broker.fenced:
                self._until_ms[broker.broker_id] = self._clock.monotonic_ms() + NAMED_FOR_MS
