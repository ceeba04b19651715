"""How fast replicas that are not in sync may catch up (KIP-73): a move must not take the network from
clients.

Each direction has a rate, `leader.` and `follower.replication.throttled.rate`, and each topic names the
replicas that it holds for, as `partition:broker` or `*`. Only what a named replica fetches while it is not in
sync is bounded, and counted: so a throttle never delays an acknowledgement, and what those in sync fetch does
not use the rate up. Called by the Fetch handler (as leader) and by replica fetchers; times are monotonic
milliseconds and must not go back.
"""

from collections.abc import Callable, Mapping

from tierlog.base.types import TopicPartition
from tierlog.broker.quotas.rates import WindowedRate, Windows
from tierlog.config.node import UNLIMITED_RATE, NodeSettings
from tierlog.config.topic import ALL_REPLICAS, TopicConfig
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

REST_MS_MAX = 1_000
"""A rate may be raised at any time: who waits for the next bytes looks again after so long."""

Named = Mapping[str, frozenset[int] | None]
"""Topic -> the partitions whose replica on this broker is meant; None: all of them."""


class Throttle:
    """One direction: a bucket that holds what may pass in a second, and how much did lately."""

    __slots__ = ("_at_ms", "_left", "_named", "_passed", "_rate")

    def __init__(self) -> None:
        self._rate = UNLIMITED_RATE
        self._named: Named = {}
        self._left = 0.0
        self._at_ms = 0
        self._passed = WindowedRate(Windows())  # Kafka's replication.quota.window.num and .size.seconds

    @property
    def is_set(self) -> bool:
        return self._rate < UNLIMITED_RATE and bool(self._named)

    def configure(self, rate: int, named: Named) -> None:
        """`rate`: bytes per second."""
        self._rate, self._named = rate, named
        self._left = min(self._left, float(rate))

    def names(self, partition: TopicPartition) -> bool:
        partitions = self._named.get(partition.topic, _NONE)
        return partitions is None or partition.partition in partitions

    def room(self, now_ms: int) -> int:
        """Bytes that may pass now; a batch that is larger than that may pass whole if there is any room."""
        refill = self._rate * (now_ms - self._at_ms) / 1000
        self._left = min(self._left + refill, float(self._rate))
        self._at_ms = now_ms
        return max(int(self._left), 0)

    def took(self, count: int) -> None:
        """Of what there was room for at the last look."""
        self._left -= count
        self._passed.record(count, self._at_ms)

    def byte_rate(self, now_ms: int) -> float:
        """Of what is bounded; nothing else is counted."""
        return self._passed.per_second(now_ms)

    def rest_ms(self) -> int:
        """Until there is room again, as of the last look."""
        if self._left >= 1:
            return 0
        return min(int((1 - self._left) * 1000 / self._rate) + 1, REST_MS_MAX) if self._rate else REST_MS_MAX


_NONE: frozenset[int] = frozenset()


class ReplicationThrottles:
    """Both directions of one broker, as the settings in the newest image say."""

    def __init__(self, settings: NodeSettings) -> None:
        self.leader = Throttle()
        """What it sends to followers."""
        self.follower = Throttle()
        """What it fetches from leaders."""
        self._settings = settings

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is new.configs:
            return
        of_node = self._settings
        self._configure(
            self.leader,
            "leader",
            of_node.leader_replication_throttled_rate,
            lambda config: config.leader_replication_throttled_replicas,
            new,
        )
        self._configure(
            self.follower,
            "follower",
            of_node.follower_replication_throttled_rate,
            lambda config: config.follower_replication_throttled_replicas,
            new,
        )

    def _configure(
        self,
        throttle: Throttle,
        direction: str,
        rate: int,
        replicas: Callable[[TopicConfig], tuple[str, ...]],
        image: ClusterImage,
    ) -> None:
        name, node_id = f"{direction}.replication.throttled.rate", str(self._settings.node_id)
        for scope, of in ((ConfigScope.CLUSTER, ""), (ConfigScope.BROKER, node_id)):
            rate = int(image.overrides(scope, of).get(name, rate))
        named: dict[str, frozenset[int] | None] = {}
        if rate < UNLIMITED_RATE:
            of_topic = f"{direction}.replication.throttled.replicas"
            for (scope, topic), values in image.configs.items():
                if scope is ConfigScope.TOPIC and of_topic in values:
                    named[topic] = _partitions(replicas(TopicConfig.parse(values)), node_id)
        throttle.configure(rate, named)


def _partitions(replicas: tuple[str, ...], node_id: str) -> frozenset[int] | None:
    if ALL_REPLICAS in replicas:
        return None
    pairs = (replica.partition(":") for replica in replicas)
    return frozenset(int(partition) for partition, _, broker_id in pairs if broker_id == node_id)
