"""Brokers in Metadata responses: those that are not fenced, and for a moment those that were just fenced.

librdkafka (2.16) removes a broker that is missing from a Metadata response only after it has moved the
broker's partitions to their new leaders. That takes the partitions from the new leaders, and it looks for a
leader again up to a second later. If the response still contains the broker, it just moves the partitions.
"""

from tierlog.base.clock import Clock
from tierlog.metadata.image import BrokerImage, ClusterImage

LISTED_FOR_MS = 10_000
"""Clients send Metadata as soon as their connection breaks; this leaves time for a response."""


class RecentlyFencedBrokers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[int, int] = {}

    def listed_brokers(self, image: ClusterImage) -> list[BrokerImage]:
        """Brokers for a Metadata response, by id."""
        if not self._until_ms:
            return image.live_brokers()
        now_ms = self._clock.monotonic_ms()
        self._until_ms = {one: until_ms for one, until_ms in self._until_ms.items() if now_ms < until_ms}
        brokers = (image.brokers[broker_id] for broker_id in sorted(image.brokers))
        return [broker for broker in brokers if not broker.fenced or broker.broker_id in self._until_ms]

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.brokers is new.brokers:
            return
        for before in old.live_brokers():
            broker = new.brokers.get(before.broker_id)
            if broker is not None and broker.fenced:
                self._until_ms[broker.broker_id] = self._clock.monotonic_ms() + LISTED_FOR_MS
