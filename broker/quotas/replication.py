"""Replication throttles (KIP-73): limit how fast replicas catch up, so that moves leave bandwidth to clients.

Each direction has a rate, `leader.` and `follower.replication.throttled.rate`; topic settings list the
replicas that it applies to, as `partition:broker` or `*`. Only fetches of listed replicas that are not in
sync are limited and counted, so a throttle never delays an acknowledgement. Called by the Fetch handler (as
leader) and by replica fetchers. Times are monotonic milliseconds and must not go back.
"""

from collections.abc import Mapping

from tierlog.base.types import TopicPartition
from tierlog.broker.quotas.rates import WindowedRate, Windows
from tierlog.config.background import UNLIMITED_RATE
from tierlog.config.node import NodeSettings
from tierlog.config.topic import ALL_REPLICAS, TopicConfig
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

WAIT_MS_MAX = 1_000
"""Maximum wait before the next check, since the rate may be raised at any time."""

Throttled = Mapping[str, frozenset[int] | None]
"""Topic -> partitions whose replica on this broker is throttled; None: all."""


class Throttle:
    """One direction: a token bucket of one second, and the current rate."""

    __slots__ = ("_available", "_measured", "_rate", "_refilled_ms", "_throttled")

    def __init__(self) -> None:
        self._rate = UNLIMITED_RATE
        self._throttled: Throttled = {}
        self._available = 0.0
        self._refilled_ms = 0
        self._measured = WindowedRate(Windows())  # Kafka's replication.quota.window.num and .size.seconds

    @property
    def is_set(self) -> bool:
        return self._rate < UNLIMITED_RATE and bool(self._throttled)

    def configure(self, rate: int, throttled: Throttled) -> None:
        """`rate`: bytes per second."""
        self._rate, self._throttled = rate, throttled
        self._available = min(self._available, float(rate))

    def is_throttled(self, partition: TopicPartition) -> bool:
        partitions = self._throttled.get(partition.topic, _NONE)
        return partitions is None or partition.partition in partitions

    def available_bytes(self, now_ms: int) -> int:
        """Bytes allowed now. If there are any, a larger batch may pass as a whole."""
        refill = self._rate * (now_ms - self._refilled_ms) / 1000
        self._available = min(self._available + refill, float(self._rate))
        self._refilled_ms = now_ms
        return max(int(self._available), 0)

    def record(self, count: int) -> None:
        """Count bytes that the last call of `available_bytes` allowed."""
        self._available -= count
        self._measured.record(count, self._refilled_ms)

    def byte_rate(self, now_ms: int) -> float:
        """Rate of throttled replicas; others are not counted."""
        return self._measured.per_second(now_ms)

    def wait_ms(self) -> int:
        """Time until bytes are allowed again, from the last call of `available_bytes` on."""
        if self._available >= 1:
            return 0
        if not self._rate:
            return WAIT_MS_MAX
        return min(int((1 - self._available) * 1000 / self._rate) + 1, WAIT_MS_MAX)


_NONE: frozenset[int] = frozenset()


class ReplicationThrottles:
    """Both directions of this broker, with the settings of the current image."""

    def __init__(self, settings: NodeSettings) -> None:
        self.leader = Throttle()
        """Limits bytes sent to followers."""
        self.follower = Throttle()
        """Limits bytes fetched from leaders."""
        self._settings = settings

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is new.configs:
            return
        settings = self._settings
        self._configure(self.leader, "leader", settings.leader_replication_throttled_rate, new)
        self._configure(self.follower, "follower", settings.follower_replication_throttled_rate, new)

    def _configure(self, throttle: Throttle, direction: str, rate: int, image: ClusterImage) -> None:
        name, node_id = f"{direction}.replication.throttled.rate", str(self._settings.node_id)
        for scope, resource in ((ConfigScope.CLUSTER, ""), (ConfigScope.BROKER, node_id)):
            rate = int(image.overrides(scope, resource).get(name, rate))
        throttled: dict[str, frozenset[int] | None] = {}
        if rate < UNLIMITED_RATE:
            replicas_setting = f"{direction}.replication.throttled.replicas"
            for (scope, topic), values in image.configs.items():
                if scope is ConfigScope.TOPIC and replicas_setting in values:
                    config = TopicConfig.parse(values)
                    replicas = config.follower_replication_throttled_replicas
                    if throttle is self.leader:
                        replicas = config.leader_replication_throttled_replicas
                    throttled[topic] = _partitions(replicas, node_id)
        throttle.configure(rate, throttled)


def _partitions(replicas: tuple[str, ...], node_id: str) -> frozenset[int] | None:
    if ALL_REPLICAS in replicas:
        return None
    pairs = (replica.partition(":") for replica in replicas)
    return frozenset(int(partition) for partition, _, broker_id in pairs if broker_id == node_id)
