"""Dynamic settings (KIP-226): those that can change while nodes run, Kafka's update mode `cluster-wide`.

A value for one node overrides a value for all nodes, which overrides the value that the node started with.
The controller and the handlers validate changes; each node applies them (`replication.dynamic_settings`).
Like Kafka, tierlog also keeps names that it does not know.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value
from tierlog.config.kafka_names import INERT_SETTINGS, NO_EFFECT, THREAD_COUNTS, why_not_settable
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.sources import ALIASES
from tierlog.config.topic import check_local_retention
from tierlog.config.topic_defaults import TOPIC_DEFAULTS

REPLICATION_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})

QUORUM_SETTINGS = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
"""Topic defaults that elections depend on. They belong to the cluster, and the quorum keeps them
(`metadata.controller.rules.cluster_defaults`). A node's file only sets them for a new cluster."""

DYNAMIC_SETTINGS = REPLICATION_RATES | {
    *TOPIC_DEFAULTS,
    "auto.rebalance.enable",
    "auto.rebalance.interval.seconds",
    "auto.rebalance.max.bytes.per.second",
    "auto.rebalance.max.moves",
    "group.consumer.assignment.interval.ms",
    "log.dir.free.bytes.min",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.max.bytes.per.second",
    "log.scrub.interval.ms",
    "log.scrub.max.bytes.per.second",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "producer.id.expiration.ms",
    "remote.fetch.max.wait.ms",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.fetch.max.bytes.per.second",
    "remote.log.merge.max.bytes.per.second",
    "remote.log.merge.min.segments",
    "remote.log.reader.threads",
    "remote.log.scrub.interval.ms",
    "remote.log.scrub.max.bytes.per.second",
    "remote.log.scrub.max.requests.per.second",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "transaction.partition.verification.enable",
}


def effective_settings(
    at_start: NodeSettings, of_cluster: Mapping[str, str], of_node: Mapping[str, str]
) -> NodeSettings:
    """Effective settings of a node that was started with `at_start`.

    Values that this node does not understand, because a newer node accepted them, count as not set.
    `QUORUM_SETTINGS` come from the cluster only.
    """
    values: dict[str, Value] = {}
    for source, names in ((of_cluster, DYNAMIC_SETTINGS), (of_node, DYNAMIC_SETTINGS - QUORUM_SETTINGS)):
        for name in names.intersection(source):
            with suppress(InvalidSetting):
                values[name] = NODE_SETTINGS[name].parse(source[name])
    explicit = (at_start.explicit - QUORUM_SETTINGS).union(values)
    values = {name: NODE_SETTINGS[name].default for name in QUORUM_SETTINGS} | values
    changes = {name.replace(".", "_"): value for name, value in values.items()}
    return replace(at_start, explicit=explicit, **changes)  # type: ignore[arg-type]


def ignored_settings(
    at_start: NodeSettings, now: NodeSettings, of_node: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """`QUORUM_SETTINGS` that this node's file, or a value for this node, sets differently and without effect:
    name -> (ignored value, effective value)."""
    found = {}
    for name in sorted(QUORUM_SETTINGS & at_start.explicit.union(of_node)):
        own, counts = (
            NODE_SETTINGS[name].text(getattr(each, name.replace(".", "_"))) for each in (at_start, now)
        )
        own = of_node.get(name, own)
        if own != counts:
            found[name] = own, counts
    return found


def thread_counts(
    settings: NodeSettings, of_cluster: Mapping[str, str], of_node: Mapping[str, str]
) -> dict[str, int]:
    """Kafka's thread counts on a node with these settings, whether they have an effect or not."""
    counts = {}
    for name in THREAD_COUNTS:
        if name in DYNAMIC_SETTINGS:
            value: Value = getattr(settings, name.replace(".", "_"))
        else:
            value = INERT_SETTINGS[name].default
            for source in (of_cluster, of_node):
                with suppress(InvalidSetting):  # an older version took any number
                    value = INERT_SETTINGS[name].parse(source[name]) if name in source else value
        counts[name] = int(value) if isinstance(value, int) else 0
    return counts


def check_thread_counts(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Kafka's rule for changes of thread counts, deletions included. Raises InvalidSetting."""
    for name, count in after.items():
        current = before[name]
        why = (
            f"value should be at least half the current value {current}"
            if count < current // 2
            else f"value should not be greater than double the current value {current}"
            if count > current * 2
            else None
        )
        if why is not None:
            raise InvalidSetting(f"Dynamic thread count update validation failed for {name}={count}, {why}")


def check_together(settings: NodeSettings, before: NodeSettings | None = None) -> None:
    """Check conditions within and between dynamic settings. Raises InvalidSetting.

    A condition that was already violated `before` the change, such as by the node's file, does not reject it.
    """
    for check in (_check_connections, _check_local_retention, NodeSettings.check_consumer_groups):
        try:
            check(settings)
        except InvalidSetting:
            if before is None or _holds(check, before):
                raise


def _check_connections(settings: NodeSettings) -> None:
    _ = settings.connections_per_address


def _check_local_retention(settings: NodeSettings) -> None:
    check_local_retention(settings.topic_config({}), prefix="log.")


def _holds(check: Callable[[NodeSettings], None], settings: NodeSettings) -> bool:
    try:
        check(settings)
    except InvalidSetting:
        return False
    return True


def why_not_dynamic(name: str) -> str | None:
    """Why a setting cannot change while nodes run; None: it can, though it may have no effect."""
    if name in DYNAMIC_SETTINGS or name in INERT_SETTINGS:
        return None
    if name in ALIASES and (other := ALIASES[name][0]) in DYNAMIC_SETTINGS:
        return f"{name}: set {other} instead"
    if name == "listeners" or name not in NODE_SETTINGS.keys() | ALIASES.keys():
        why = why_not_settable(name)
        return None if why is None else f"{name}: {why}"
    return f"{name}: read by a node at startup"


def dynamic_setting(name: str) -> Setting:
    """The definition of a dynamic setting. An unknown name accepts any text: in Kafka, plug-ins define their
    own settings."""
    known = INERT_SETTINGS if name in INERT_SETTINGS else NODE_SETTINGS
    return known.get(name) or Setting(
        name=name, type=SettingType.UNKNOWN, default="", doc="Not a setting of tierlog." + NO_EFFECT
    )
