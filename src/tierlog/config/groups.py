"""Settings of a group and of a client metrics subscription: Kafka's names, defaults and bounds.

Kafka keeps both as dynamic configs of their own resource types (KIP-848, KIP-714). Those of consumer groups
replace the broker's `group.consumer.*`, within its bounds. The others are validated, kept and shown, but have
no effect yet: neither share groups, streams groups nor telemetry are supported.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tierlog.config.coordinators import CoordinatorSettings
from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value
from tierlog.config.topic import NO_EFFECT_YET

INT, STRING = SettingType.INT, SettingType.STRING


def _setting(name: str, type: SettingType, default: Value, doc: str, **bounds: Any) -> Setting:
    return Setting(name=name, type=type, default=default, doc=doc + NO_EFFECT_YET, **bounds)


CONSUMER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            name="consumer.session.timeout.ms",
            type=INT,
            default=45_000,
            doc="How long, in milliseconds, a member of a consumer group may send no heartbeat before it is "
            "removed.",
            minimum=1,
        ),
        Setting(
            name="consumer.heartbeat.interval.ms",
            type=INT,
            default=5_000,
            doc="How often, in milliseconds, a member of a consumer group sends a heartbeat.",
            minimum=1,
        ),
        Setting(
            name="consumer.assignment.interval.ms",
            type=INT,
            default=1_000,
            doc="Minimum time in milliseconds between two assignments of a consumer group.",
            minimum=0,
        ),
    )
}
"""KIP-848. The broker's settings `group.<setting>` are their defaults, and its `group.consumer.min.*` and
`group.consumer.max.*` their bounds."""

GROUP_SETTINGS: dict[str, Setting] = (
    CONSUMER_SETTINGS
    | {
        setting.name: setting
        for kind, what in (
            ("share", "a share group"),
            ("streams", "a streams group"),
        )
        for setting in (
            _setting(
                f"{kind}.session.timeout.ms",
                INT,
                45_000,
                f"How long, in milliseconds, a member of {what} may send no heartbeat before it is removed.",
                minimum=45_000,
                maximum=60_000,
            ),
            _setting(
                f"{kind}.heartbeat.interval.ms",
                INT,
                5_000,
                f"How often, in milliseconds, a member of {what} sends a heartbeat.",
                minimum=5_000,
                maximum=15_000,
            ),
            _setting(
                f"{kind}.assignment.interval.ms",
                INT,
                1_000,
                f"Minimum time in milliseconds between two assignments of {what}.",
                minimum=0,
                maximum=15_000,
            ),
        )
    }
    | {
        setting.name: setting
        for setting in (
            _setting(
                "share.auto.offset.reset",
                STRING,
                "latest",
                "Where a share group without an offset starts: earliest, latest or by_duration:PnDTnHnMn.nS.",
            ),
            _setting(
                "share.delivery.count.limit",
                INT,
                5,
                "Maximum number of deliveries of a record, after which it is given up.",
                minimum=2,
                maximum=10,
            ),
            _setting(
                "share.isolation.level",
                STRING,
                "read_uncommitted",
                "Which transactional records a share group reads.",
                choices=("read_committed", "read_uncommitted"),
            ),
            _setting(
                "share.partition.max.record.locks",
                INT,
                2_000,
                "Maximum number of locked records in a partition.",
                minimum=100,
                maximum=10_000,
            ),
            _setting(
                "share.record.lock.duration.ms",
                INT,
                30_000,
                "How long, in milliseconds, a record stays locked.",
                minimum=15_000,
                maximum=60_000,
            ),
            _setting(
                "share.renew.acknowledge.enable",
                SettingType.BOOLEAN,
                True,
                "Whether locks of records can be renewed.",
            ),
            _setting(
                "streams.initial.rebalance.delay.ms",
                INT,
                3_000,
                "How long, in milliseconds, a new streams group waits for members.",
                minimum=0,
            ),
            _setting(
                "streams.num.standby.replicas",
                INT,
                0,
                "Number of standby replicas of each task.",
                minimum=0,
                maximum=2,
            ),
        )
    }
)
"""KIP-848, KIP-932, KIP-1071. The bounds of share and streams groups are Kafka's defaults of `group.*.min.*`
and `group.*.max.*`."""

OWN_DEFAULT = frozenset(
    {"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"}
)
"""Settings without a broker setting `group.<setting>` that gives their default."""

CLIENT_METRICS_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _setting(
            "interval.ms",
            INT,
            300_000,
            "How often, in milliseconds, clients push their metrics (KIP-714).",
            minimum=100,
            maximum=3_600_000,
        ),
        _setting(
            "match",
            SettingType.LIST,
            (),
            "Clients that the subscription applies to, as selector=regular expression, ...",
        ),
        _setting("metrics", SettingType.LIST, (), "Prefixes of the metrics that clients push."),
    )
}

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


def consumer_settings(node: CoordinatorSettings, overrides: Mapping[str, str]) -> dict[str, int]:
    """Effective settings of a consumer group by name. A value beyond a bound of this broker, which was stored
    while the bounds were others, counts as the bound."""
    found = {}
    for name, (default, minimum, maximum) in _bounds(node).items():
        found[name] = default
        with suppress(InvalidSetting):  # a newer node may accept other values
            if name in overrides:
                found[name] = min(max(_int(name, overrides), minimum), maximum)
    return found


def check_consumer_settings(node: CoordinatorSettings, overrides: Mapping[str, str]) -> None:
    """Check a group's settings against the bounds of this broker. Raises InvalidSetting, in Kafka's words."""
    values = {}
    for name, (default, minimum, maximum) in _bounds(node).items():
        values[name] = _int(name, overrides) if name in overrides else default
        kind, _, rest = name.partition(".")
        if name in overrides and values[name] < minimum:
            raise InvalidSetting(f"{name} must be greater than or equal to group.{kind}.min.{rest}")
        if name in overrides and values[name] > maximum:
            raise InvalidSetting(f"{name} must be less than or equal to group.{kind}.max.{rest}")
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise InvalidSetting(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")


def _bounds(node: CoordinatorSettings) -> dict[str, tuple[int, int, int]]:
    """Setting -> the broker's default, minimum and maximum."""
    return {
        HEARTBEAT_INTERVAL: (
            node.group_consumer_heartbeat_interval_ms,
            node.group_consumer_min_heartbeat_interval_ms,
            node.group_consumer_max_heartbeat_interval_ms,
        ),
        SESSION_TIMEOUT: (
            node.group_consumer_session_timeout_ms,
            node.group_consumer_min_session_timeout_ms,
            node.group_consumer_max_session_timeout_ms,
        ),
        ASSIGNMENT_INTERVAL: (
            node.group_consumer_assignment_interval_ms,
            node.group_consumer_min_assignment_interval_ms,
            node.group_consumer_max_assignment_interval_ms,
        ),
    }


def _int(name: str, overrides: Mapping[str, str]) -> int:
    value = CONSUMER_SETTINGS[name].parse(overrides[name])
    return value if isinstance(value, int) else 0


_SELECTORS = frozenset(
    {
        "client_id", "client_instance_id", "client_software_name", "client_software_version",
        "client_source_address", "client_source_port",
    }
)  # fmt: skip
_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def check_match(text: str) -> None:
    """Raises InvalidSetting. The expressions are Java's, so they are not compiled here."""
    for pattern in filter(None, text.split(",")):
        selector, equals, expression = pattern.strip().partition("=")
        if selector not in _SELECTORS or not equals or not expression:
            raise InvalidSetting(f"Illegal client matching pattern: {pattern}")


def check_offset_reset(text: str) -> None:
    if text not in ("earliest", "latest") and not _DURATION.fullmatch(text):
        raise InvalidSetting(
            f"share.auto.offset.reset: {text!r} is not earliest, latest or by_duration:PnDTnHnMn.nS"
        )
