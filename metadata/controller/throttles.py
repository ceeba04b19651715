"""Replication throttles: settings that limit the rate of a partition move, and their removal (KIP-73).

As with kafka-reassign-partitions, the rate applies to each broker that takes part in the move: brokers that
have a replica are limited as leaders, brokers that get one as followers. The functions only build the
command; the caller applies it like any other change of settings. Called for `tierlog partition move
--throttle`, `partition unthrottle` and balancing by load (`balance_plans`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tierlog.config.dynamic import REPLICATION_RATES
from tierlog.config.topic import ALL_REPLICAS
from tierlog.metadata.controller.commands import AlterConfigs, ConfigChange, ConfigOperation, ConfigResource
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.primitives import STRING_BYTES_MAX

LEADER_REPLICAS, FOLLOWER_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
REPLICAS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

Move = tuple[str, int, Sequence[int] | None]
"""Topic, partition, and its new replicas; None if the move is cancelled."""


def throttle(image: ClusterImage, moves: Iterable[Move], bytes_per_second: int) -> AlterConfigs:
    """Settings for moves that have not begun. Skips partitions that do not exist, and moves that copy
    nothing."""
    replicas_of: dict[str, tuple[list[str], list[str]]] = {}
    brokers: set[int] = set()
    for topic, partition, target in moves:
        topic_image = image.topic(topic)
        if topic_image is None or target is None or not 0 <= partition < len(topic_image.partitions):
            continue
        current = topic_image.partitions[partition].replicas
        if not set(target) - set(current):
            continue
        senders, receivers = replicas_of.setdefault(topic, ([], []))
        senders += [f"{partition}:{broker_id}" for broker_id in current]
        receivers += [f"{partition}:{broker_id}" for broker_id in target if broker_id not in current]
        brokers.update(current, target)
    topics = [
        ConfigResource(
            scope=ConfigScope.TOPIC,
            name=topic,
            changes=tuple(
                _append_replicas(key, image.topic_overrides(topic).get(key, ""), ",".join(replicas))
                for key, replicas in zip(REPLICAS, lists, strict=True)
            ),
        )
        for topic, lists in replicas_of.items()
    ]
    registered = brokers.intersection(image.brokers)  # other brokers copy nothing
    return AlterConfigs(resources=(*topics, *_rates(registered, str(bytes_per_second))))


def _append_replicas(key: str, before: str, added: str) -> ConfigChange:
    """Append replicas to the list, or throttle all replicas if the list would be too long for a value."""
    if len(before) + len(",") + len(added) > STRING_BYTES_MAX:
        return ConfigChange(key=key, operation=ConfigOperation.SET, value=ALL_REPLICAS)
    return ConfigChange(key=key, operation=ConfigOperation.APPEND, value=added)


def unthrottle(
    image: ClusterImage,
    partitions: Collection[tuple[str, int]] | None,
    rate: str | None = None,
    whole: Collection[str] = (),
) -> AlterConfigs:
    """Remove the throttles of these partitions, or of all (None).

    A throttle of all replicas of a topic goes if the topic is one of `whole`. The rates are removed too if no
    throttled replica remains: all, or those with this value.
    """
    still_throttled = False
    topics = []
    for topic, overrides in _throttled_topics(image):
        changes = []
        for key in REPLICAS:
            if key not in overrides:
                continue
            remaining = [] if partitions is None else _without(overrides[key], topic, partitions, whole)
            still_throttled = still_throttled or bool(remaining)
            changes.append(
                ConfigChange(key=key, operation=ConfigOperation.SET, value=",".join(remaining))
                if remaining
                else ConfigChange(key=key, operation=ConfigOperation.DELETE)
            )
        topics.append(ConfigResource(scope=ConfigScope.TOPIC, name=topic, changes=tuple(changes)))
    brokers = {
        int(name)
        for name, rates in _throttled_brokers(image)
        if rate is None or set(rates.values()) == {rate}
    }
    return AlterConfigs(resources=(*topics, *(() if still_throttled else _rates(brokers, None))))


def is_throttled(image: ClusterImage) -> bool:
    """Whether a topic or broker has a throttle, or only a part of one."""
    return any(_throttled_topics(image)) or any(_throttled_brokers(image))


def _throttled_brokers(image: ClusterImage) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Ids of brokers, and the rates that they have."""
    for (scope, name), overrides in image.configs.items():
        if scope is ConfigScope.BROKER and not REPLICATION_RATES.isdisjoint(overrides):
            yield name, {key: overrides[key] for key in REPLICATION_RATES if key in overrides}


def _throttled_topics(image: ClusterImage) -> Iterator[tuple[str, Mapping[str, str]]]:
    found = {
        name: overrides
        for (scope, name), overrides in image.configs.items()
        if scope is ConfigScope.TOPIC and any(key in overrides for key in REPLICAS)
    }
    yield from sorted(found.items())


def _without(
    replicas: str, topic: str, partitions: Collection[tuple[str, int]], whole: Collection[str]
) -> list[str]:
    def stays(item: str) -> bool:
        if item == ALL_REPLICAS:
            return topic not in whole
        return (topic, int(item.partition(":")[0])) not in partitions

    return [item for item in map(str.strip, replicas.split(",")) if item and stays(item)]


def _rates(brokers: Iterable[int], value: str | None) -> Iterator[ConfigResource]:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    for broker_id in sorted(brokers):
        changes = tuple(
            ConfigChange(key=key, operation=operation, value=value) for key in sorted(REPLICATION_RATES)
        )
        yield ConfigResource(scope=ConfigScope.BROKER, name=str(broker_id), changes=changes)
