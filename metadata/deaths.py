"""Which brokers' processes seem dead, until one turns out to live or there is another by now.

Every node that watches brokers has its own: a voter (`fencing`), and a broker that is none (`observer`).
"""

from tierlog.metadata.feed import ImageFeed
from tierlog.metadata.image import ClusterImage


class Deaths:
    def __init__(self, feed: ImageFeed) -> None:
        self._feed = feed
        self._epochs: dict[int, int] = {}  # of the broker when its process was proven dead
        feed.subscribe(self._withdraw)

    @property
    def brokers(self) -> frozenset[int]:
        """Those that have registered since are not among them."""
        return frozenset(node_id for node_id in self._epochs if self.epoch(node_id) is not None)

    def note(self, node_id: int) -> None:
        """Its connection broke, and its host refuses another."""
        broker = self._feed.image.brokers.get(node_id)
        if broker is not None:
            self._epochs[node_id] = broker.broker_epoch

    def lives(self, node_id: int) -> None:
        """A process of this node is connected to: the proof was none (a firewall can forge it), or there is
        another by now, which registers."""
        self._epochs.pop(node_id, None)

    def epoch(self, node_id: int) -> int | None:
        """Of a broker that is proven dead; None: it is not, or has registered since."""
        broker, epoch = self._feed.image.brokers.get(node_id), self._epochs.get(node_id)
        return epoch if broker is not None and broker.broker_epoch == epoch else None

    def _withdraw(self, old: ClusterImage, new: ClusterImage) -> None:
        """Only a heartbeat of that very process has it let in again under the same epoch."""
        if not self._epochs or old.brokers is new.brokers:
            return
        for node_id, epoch in list(self._epochs.items()):
            before, after = old.brokers.get(node_id), new.brokers.get(node_id)
            let_in = before is not None and before.fenced and after is not None and not after.fenced
            if let_in or after is None or after.broker_epoch != epoch:
                del self._epochs[node_id]
