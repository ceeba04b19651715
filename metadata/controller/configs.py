"""Incremental changes of settings by scope (KIP-339). Invalid values are refused.

- Topics: config/topic.py.
- Brokers and the cluster: dynamic settings (config/dynamic.py, KIP-226): defaults of topic settings,
  a few settings of their own, and names without effect.
- Groups and client metrics subscriptions: config/groups.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from tierlog.base.safeguards import safeguard
from tierlog.config.definitions import InvalidSetting, Setting, SettingType, find_setting
from tierlog.config.dynamic import dynamic_setting, why_not_dynamic
from tierlog.config.groups import (
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    check_match,
    check_offset_reset,
)
from tierlog.config.topic import INTERNAL_TOPICS, TOPIC_SETTINGS, TopicConfig, check_local_retention
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.controller.election import election_settings_changed
from tierlog.metadata.controller.rules import MIN_IN_SYNC, UNCLEAN
from tierlog.metadata.evolve import evolve
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import AnyRecord, ConfigRecord, ConfigScope
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.primitives import STRING_BYTES_MAX

NAMED_RESOURCES_MAX = 10_000
"""Maximum number of groups with settings, and of client metrics subscriptions. Clients choose their names, so
without a bound any client could fill the metadata, which every node keeps in memory."""

UNKNOWN_NAMES_MAX = 100
"""Maximum number of names that are no setting, for one broker and for all brokers."""

SCOPE_BYTES_MAX = 8 << 20
"""Maximum size of all settings of one scope, with names of resources and settings. The scope of topics has no
such bound: the number of topics bounds it. 10,000 groups with every setting take less than half of this."""

_OF_NODES = frozenset({ConfigScope.BROKER, ConfigScope.CLUSTER})
_NAMED = frozenset({ConfigScope.GROUP, ConfigScope.CLIENT_METRICS})
_INVALID = {
    ConfigScope.TOPIC: ErrorCode.INVALID_CONFIG,
    ConfigScope.GROUP: ErrorCode.INVALID_CONFIG,
    ConfigScope.CLIENT_METRICS: ErrorCode.INVALID_REQUEST,
    ConfigScope.BROKER: ErrorCode.INVALID_REQUEST,  # Kafka calls the whole request invalid (KAFKA-13609)
    ConfigScope.CLUSTER: ErrorCode.INVALID_REQUEST,
}
"""Error code for an invalid name or value, by scope."""


def alter(image: ClusterImage, command: c.AlterConfigs) -> Decision[c.ConfigsAltered]:
    """Each resource changes completely or not at all."""
    before, usage = image, _ScopeUsage(image)
    records: list[AnyRecord] = []
    outcomes: list[c.Outcome] = []
    named = Counter((resource.scope, resource.name) for resource in command.resources)
    for resource in command.resources:
        try:
            if named[resource.scope, resource.name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"{_title(resource)} is named twice in the request")
            changes = _alter(image, resource, usage)
        except Refusal as refusal:
            outcomes.append(c.Outcome(error=refusal.error, message=refusal.message))
            continue
        for record in changes:
            image = evolve(image, record)
        records += changes
        outcomes.append(c.OK)
    if any(isinstance(record, ConfigRecord) and record.key in (MIN_IN_SYNC, UNCLEAN) for record in records):
        records += election_settings_changed(before, image)
    reply = c.ConfigsAltered(resources=tuple(outcomes))
    return Decision(() if command.validate_only else tuple(records), reply)


def check_topic_settings(
    topic: str, overrides: Mapping[str, str], before: Mapping[str, str] | None = None
) -> None:
    """Check a topic's overrides: each new value, and the relations between all. Raises Refusal. `before`:
    those that are stored, perhaps by an earlier version that accepted other forms of numbers."""
    known = before or {}
    try:
        for name, text in overrides.items():
            if known.get(name) != text:
                find_setting(TOPIC_SETTINGS, name).accept(text)
        config = TopicConfig.parse(overrides)
        if config.remote_storage_enable:
            check_local_retention(config)
    except InvalidSetting as invalid:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(invalid)) from None
    if config.remote_storage_enable and topic in INTERNAL_TOPICS:
        _refuse(f"{topic} cannot be tiered: its coordinator reads it from local disks")
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        _refuse("min.compaction.lag.ms must not be above max.compaction.lag.ms")


def overrides_after(image: ClusterImage, resource: c.ConfigResource) -> dict[str, str]:
    """The resource's overrides after the change. Raises Refusal."""
    after = dict(image.configs.get((resource.scope, resource.name), {}))
    if len({change.key for change in resource.changes}) < len(resource.changes):
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"{_title(resource)}: a setting is changed twice in the request"
        )
    for change in resource.changes:
        _check_min_in_sync_is_uniform(resource.scope, change)
        try:
            value = _changed(resource.scope, after.get(change.key), change)
        except InvalidSetting as invalid:
            raise Refusal(_INVALID[resource.scope], str(invalid)) from None
        if value is None:
            after.pop(change.key, None)
        else:
            check_size(change.key)
            check_size(value)
            after[change.key] = value
    return after


def check_size(text: str) -> None:
    """A longer text fits into no DescribeConfigs response. The message is Kafka's. Raises Refusal."""
    if len(text) > STRING_BYTES_MAX or len(text.encode()) > STRING_BYTES_MAX:
        _refuse(
            "The configuration value cannot be added because it exceeds the maximum value size of"
            f" {STRING_BYTES_MAX} bytes."
        )


def _alter(image: ClusterImage, resource: c.ConfigResource, usage: "_ScopeUsage") -> list[AnyRecord]:
    _check_exists(image, resource)
    before = dict(image.configs.get((resource.scope, resource.name), {}))
    after = overrides_after(image, resource)
    if resource.scope is ConfigScope.TOPIC:
        check_topic_settings(resource.name, after, before)
        _check_tiering_stays(before, after)
    else:
        _check_others(resource, before, after)
        usage.change(resource, before, after)
    return [
        ConfigRecord(scope=resource.scope, name=resource.name, key=key, value=after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _check_min_in_sync_is_uniform(scope: ConfigScope, change: c.ConfigChange) -> None:
    """The controller must use the same min.insync.replicas as the leaders, to know which replicas are
    eligible (KIP-966). Unclean election as a setting of one broker is stored, as in Kafka, without effect
    (ADR 0010)."""
    if scope is ConfigScope.BROKER and change.key == MIN_IN_SYNC:
        _refuse(
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            " Set it for all brokers, or for a topic."
        )
    if (
        scope is ConfigScope.CLUSTER
        and change.key == MIN_IN_SYNC
        and change.operation is c.ConfigOperation.DELETE
    ):
        _refuse(
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled. Set another value."
        )


def _definition(scope: ConfigScope, name: str) -> Setting:
    """Raises InvalidSetting."""
    if scope in _OF_NODES:
        if not name or (why := why_not_dynamic(name)) is not None:
            raise InvalidSetting(f"Cannot update these configs dynamically: {why if name else repr(name)}")
        return dynamic_setting(name)
    if scope is ConfigScope.TOPIC:
        return find_setting(TOPIC_SETTINGS, name)
    return find_setting(GROUP_SETTINGS if scope is ConfigScope.GROUP else CLIENT_METRICS_SETTINGS, name)


def _changed(scope: ConfigScope, before: str | None, change: c.ConfigChange) -> str | None:
    """The setting's new value; None removes it. Raises InvalidSetting, Refusal."""
    if change.operation is c.ConfigOperation.DELETE:
        return None  # also for unknown names, so that they can be removed
    setting = _definition(scope, change.key)
    if change.value is None:
        raise InvalidSetting(f"{change.key}: a value is needed")
    if change.operation is c.ConfigOperation.SET:
        setting.accept(change.value)
        return change.value
    return _listed(setting, before, change)


def _listed(setting: Setting, before: str | None, change: c.ConfigChange) -> str:
    """APPEND and SUBTRACT change a list, starting from the default if it is not set."""
    if setting.type is not SettingType.LIST:
        operation = change.operation.name.lower()
        _refuse(
            f"Config value {operation} is not allowed for config key: {setting.name}, which is not a list"
        )
    items = _items(setting.default if before is None else setting.parse(before))
    requested = _items(setting.parse(change.value or ""))
    if change.operation is c.ConfigOperation.APPEND:
        known = set(items)
        return ",".join([*items, *(item for item in dict.fromkeys(requested) if item not in known)])
    unwanted = set(requested)
    return ",".join(item for item in items if item not in unwanted)


def _items(value: object) -> Sequence[str]:
    return value if isinstance(value, tuple) else ()


def _check_others(resource: c.ConfigResource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check the settings of anything but a topic. Raises Refusal."""
    try:
        check_match(after.get("match", "") if resource.scope is ConfigScope.CLIENT_METRICS else "")
        if resource.scope is ConfigScope.GROUP and "share.auto.offset.reset" in after:
            check_offset_reset(after["share.auto.offset.reset"])
    except InvalidSetting as invalid:
        _refuse(str(invalid))
    if resource.scope in _OF_NODES and len(after) > len(before):
        unknown = sum(dynamic_setting(name).type is SettingType.UNKNOWN for name in after)
        if unknown > UNKNOWN_NAMES_MAX:
            message = (
                f"{unknown} names are unknown; at most {UNKNOWN_NAMES_MAX} are stored: delete some first"
            )
            raise Refusal(ErrorCode.POLICY_VIOLATION, message)


def _check_exists(image: ClusterImage, resource: c.ConfigResource) -> None:
    if resource.scope is ConfigScope.TOPIC and resource.name not in image.topic_ids:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {resource.name}")
    if resource.scope is ConfigScope.BROKER:
        _check_broker(image, resource)
    if resource.scope is ConfigScope.GROUP and not resource.name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if resource.scope is ConfigScope.CLIENT_METRICS and not resource.name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    if resource.scope is ConfigScope.CLUSTER and resource.name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "the cluster's settings have no name")


def _check_broker(image: ClusterImage, resource: c.ConfigResource) -> None:
    """Only a registered broker can get settings. Those of a former broker can be deleted."""
    name = resource.name
    if not (name.isascii() and name.isdigit()):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    only_deletes = all(change.operation is c.ConfigOperation.DELETE for change in resource.changes)
    if not only_deletes and name not in map(str, image.brokers):  # compares text: 01 does not name broker 1
        message = f"No broker with id {name} found. `tierlog broker list` shows those that are registered."
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, message)


@safeguard("switching tiering off needs remote.log.delete.on.disable")
def _check_tiering_stays(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Switching tiering off deletes the remote data, so it must be requested explicitly (KIP-950, ADR 0025).
    The message is Kafka's."""
    old, new = TopicConfig.parse(before), TopicConfig.parse(after)
    if old.remote_storage_enable and not new.remote_storage_enable and not new.remote_log_delete_on_disable:
        _refuse(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the"
            " remote data and turn to read only, please set"
            " `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote"
            " storage and delete all remote data, please set"
            " `remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )


def _refuse(message: str) -> None:
    raise Refusal(ErrorCode.INVALID_CONFIG, message)


class _ScopeUsage:
    """Number and size of the resources of each scope, updated while a command changes them.

    Counting reads every resource, so it happens once per command and scope: a command may change 10,000
    resources.
    """

    def __init__(self, image: ClusterImage) -> None:
        self._configs = image.configs
        self._counted: dict[ConfigScope, tuple[int, int]] = {}

    def change(self, resource: c.ConfigResource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Count the change. Raises Refusal if it exceeds a limit of the scope."""
        resources, size = self._now(resource.scope)
        resources += bool(after) - bool(before)
        growth = _settings_bytes(resource.name, after) - _settings_bytes(resource.name, before)
        size += growth
        if resource.scope in _NAMED and after and not before and resources > NAMED_RESOURCES_MAX:
            message = f"settings of {resources - 1} resources of this type are stored: delete some first"
            raise Refusal(ErrorCode.POLICY_VIOLATION, message)
        if size > SCOPE_BYTES_MAX and growth > 0:
            message = (
                f"settings of this type would take {size} bytes; at most {SCOPE_BYTES_MAX} are stored in"
                " the metadata: delete some first"
            )
            raise Refusal(ErrorCode.POLICY_VIOLATION, message)
        self._counted[resource.scope] = resources, size

    def _now(self, scope: ConfigScope) -> tuple[int, int]:
        if scope not in self._counted:
            sizes = [
                _settings_bytes(name, settings)
                for (of, name), settings in self._configs.items()
                if of is scope
            ]
            self._counted[scope] = len(sizes), sum(sizes)
        return self._counted[scope]


def _settings_bytes(name: str, settings: Mapping[str, str]) -> int:
    """0 without settings: such a resource is not stored."""
    own = sum(len(key.encode()) + len(value.encode()) for key, value in settings.items())
    return len(name.encode()) + own if settings else 0


def _title(resource: c.ConfigResource) -> str:
    return f"{resource.scope} {resource.name}".strip()
