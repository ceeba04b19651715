"""Settings of one consumer group and of one client metrics subscription: Kafka's names, defaults and bounds.

Kafka keeps both as dynamic configs of resources of their own (KIP-848, KIP-714). Here they are checked, kept
and shown; nothing reads them yet, since neither those groups nor telemetry are served.
"""

import re

from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value
from tierlog.config.topic import NO_EFFECT_YET

INT, STRING = SettingType.INT, SettingType.STRING


def _setting(name: str, type: SettingType, default: Value, doc: str, **bounds: object) -> Setting:
    return Setting(name=name, type=type, default=default, doc=doc + NO_EFFECT_YET, **bounds)  # type: ignore[arg-type]


GROUP_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for kind, what in (
        ("consumer", "a consumer group"),
        ("share", "a share group"),
        ("streams", "a streams group"),
    )
    for setting in (
        _setting(
            f"{kind}.session.timeout.ms",
            INT,
            45_000,
            f"A member of {what} that is not heard of for this long leaves it.",
            least=45_000,
            most=60_000,
        ),
        _setting(
            f"{kind}.heartbeat.interval.ms",
            INT,
            5_000,
            f"How often a member of {what} sends a heartbeat.",
            least=5_000,
            most=15_000,
        ),
        _setting(
            f"{kind}.assignment.interval.ms",
            INT,
            1_000,
            f"Time between assignments of {what}.",
            least=0,
            most=15_000,
        ),
    )
} | {
    setting.name: setting
    for setting in (
        _setting(
            "share.auto.offset.reset", STRING, "latest", "Where a share group without an offset begins."
        ),
        _setting("share.delivery.count.limit", INT, 5, "Deliveries of one record.", least=2, most=10),
        _setting(
            "share.isolation.level",
            STRING,
            "read_uncommitted",
            "Which transactional records a share group gets.",
            choices=("read_committed", "read_uncommitted"),
        ),
        _setting(
            "share.partition.max.record.locks",
            INT,
            2_000,
            "Records locked in a partition.",
            least=100,
            most=10_000,
        ),
        _setting(
            "share.record.lock.duration.ms",
            INT,
            30_000,
            "How long a record is locked.",
            least=15_000,
            most=60_000,
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
            "How long a new streams group waits for members.",
            least=0,
        ),
        _setting("streams.num.standby.replicas", INT, 0, "Standby replicas of each task.", least=0, most=2),
    )
}
"""KIP-848, KIP-932, KIP-1071; bounds are Kafka's defaults of `group.*.min.*` and `group.*.max.*`."""

OWN_DEFAULT = frozenset(
    {"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"}
)
"""Settings whose default is not a broker's, under the name `group.<setting>`."""

CLIENT_METRICS_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _setting(
            "interval.ms",
            INT,
            300_000,
            "How often clients send their metrics (KIP-714).",
            least=100,
            most=3_600_000,
        ),
        _setting("match", SettingType.LIST, (), "Clients that are asked: selector=regular expression, ..."),
        _setting("metrics", SettingType.LIST, (), "Prefixes of the metrics that are asked for."),
    )
}

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
