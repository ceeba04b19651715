"""Settings that change while nodes run (KIP-226): those of Kafka's update mode `cluster-wide`.

What is set for one node wins over what is set for all of them, and that over what the node was started with.
The controller and the handlers check changes, and each node takes them in (`runtime.running_settings`). Kafka
also keeps names that it does not know, and so does tierlog.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value
from tierlog.config.kafka_names import INERT_SETTINGS, NO_EFFECT, THREAD_COUNTS, why_not_settable
from tierlog.config.node import ALIASES, NODE_SETTINGS, NodeSettings
from tierlog.config.topic import TOPIC_DEFAULTS, check_local_retention

REPLICATION_RATES = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})

QUORUM_SETTINGS = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
"""Topic defaults that the controller elects by: settings of the cluster, which the quorum keeps
(`metadata.controller.rules.cluster_defaults`). A node's file gives them to a new cluster, and no more."""

RUN_TIME_SETTINGS = REPLICATION_RATES | {
    *TOPIC_DEFAULTS,
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
    "remote.log.reader.threads",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}


def settings_now(
    at_start: NodeSettings, of_cluster: Mapping[str, str], of_node: Mapping[str, str]
) -> NodeSettings:
    """Those of a node that was started with `at_start`. What it does not understand, as a newer one took it,
    counts as not set. `QUORUM_SETTINGS` are the cluster's alone."""
    values: dict[str, Value] = {}
    for source, names in ((of_cluster, RUN_TIME_SETTINGS), (of_node, RUN_TIME_SETTINGS - QUORUM_SETTINGS)):
        for name in names.intersection(source):
            with suppress(InvalidSetting):
                values[name] = NODE_SETTINGS[name].parse(source[name])
    explicit = (at_start.explicit - QUORUM_SETTINGS).union(values)
    values = {name: NODE_SETTINGS[name].default for name in QUORUM_SETTINGS} | values
    changes = {name.replace(".", "_"): value for name, value in values.items()}
    return replace(at_start, explicit=explicit, **changes)  # type: ignore[arg-type]


def without_effect(
    at_start: NodeSettings, now: NodeSettings, of_node: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Settings that the quorum keeps for all nodes, and that this node's file, or what was set for it alone,
    gives another value: name -> (its own value, the one that counts)."""
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
    """Kafka's numbers of threads as they are on a node with these settings, with an effect or without."""
    counts = {}
    for name in THREAD_COUNTS:
        if name in RUN_TIME_SETTINGS:
            value: Value = getattr(settings, name.replace(".", "_"))
        else:
            value = INERT_SETTINGS[name].default
            for source in (of_cluster, of_node):
                with suppress(InvalidSetting):  # an older version took any number
                    value = INERT_SETTINGS[name].parse(source[name]) if name in source else value
        counts[name] = int(value) if isinstance(value, int) else 0
    return counts


def check_thread_counts(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Kafka's rule for each change of a number of threads, deletions included. Raises InvalidSetting."""
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
    """What must hold between those that change, and within them. Raises InvalidSetting. `before` a change:
    what did not hold then, as by the node's own file, is no reason to refuse this one."""
    for check in (_check_connections, _check_local_retention):
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


def why_fixed(name: str) -> str | None:
    """Why a name cannot be set while nodes run, in words; None: it can, though it may have no effect."""
    if name in RUN_TIME_SETTINGS or name in INERT_SETTINGS:
        return None
    if name in ALIASES and (other := ALIASES[name][0]) in RUN_TIME_SETTINGS:
        return f"{name}: set {other} instead"
    if name == "listeners" or name not in NODE_SETTINGS.keys() | ALIASES.keys():
        why = why_not_settable(name)
        return None if why is None else f"{name}: {why}"
    return f"{name}: read by a node when it starts"


def dynamic_setting(name: str) -> Setting:
    """The definition of what may be set while nodes run. An unknown name takes any text: in Kafka, plug-ins
    have settings of their own."""
    known = INERT_SETTINGS if name in INERT_SETTINGS else NODE_SETTINGS
    return known.get(name) or Setting(
        name=name, type=SettingType.UNKNOWN, default="", doc="No setting of tierlog." + NO_EFFECT
    )
