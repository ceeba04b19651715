"""Sources of a node's settings: a TOML file, `TIERLOG_…` environment variables, `--set key=value`.

All of them use Kafka's setting names, and values are strings. Called by the command line.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value, find_setting
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.tls import listener_setting

ENVIRONMENT_PREFIX = "TIERLOG_"
NOT_SETTINGS = frozenset(
    {
        "TIERLOG_BOOTSTRAP", "TIERLOG_CLIENT_CONFIG", "TIERLOG_ADMIN", "TIERLOG_CONFIG",
        "TIERLOG_PROFILE",
        "TIERLOG_ADMIN_CA", "TIERLOG_ADMIN_CERTIFICATE", "TIERLOG_ADMIN_KEY",
        "TIERLOG_ADMIN_USER", "TIERLOG_ADMIN_PASSWORD", "TIERLOG_ADMIN_PASSWORD_FILE", "TIERLOG_ADMIN_TOKEN",
        "TIERLOG_SPARK_JAVA", "TIERLOG_CACHE", "TIERLOG_TEST_MINIO",
    }
)  # fmt: skip
"""Variables with this prefix that are no settings: they configure the command line, Spark or the tests."""


ALIASES: dict[str, tuple[str, int]] = {
    "log.dir": ("log.dirs", 1),
    "broker.id": ("node.id", 1),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}
"""Kafka's alias of a setting -> the name used here, and the factor from the alias's unit to this one's."""


def settings_from(texts: Mapping[str, str]) -> NodeSettings:
    """Parse settings, given as names and strings. Raises InvalidSetting."""
    texts = without_aliases(texts)
    values: dict[str, Value] = {}
    overrides: list[tuple[str, str, Value]] = []
    for name, text in texts.items():
        of_listener = listener_setting(name)
        if of_listener is None:
            values[name.replace(".", "_")] = find_setting(NODE_SETTINGS, name).accept(text)
        else:
            overrides.append((*of_listener, find_setting(NODE_SETTINGS, of_listener[1]).accept(text)))
    settings = NodeSettings(**values)  # type: ignore[arg-type]
    explicit, of_listeners = frozenset(texts), tuple(overrides)
    return replace(settings, explicit=explicit, listener_overrides=of_listeners).validate()


def without_aliases(texts: Mapping[str, str]) -> dict[str, str]:
    """Replace aliases by the names used here.

    If a setting is given under several names, the name with the finest unit wins, as in Kafka.
    """
    found: dict[str, str] = {}
    for name in sorted(texts, key=_coarseness, reverse=True):
        real, factor = ALIASES.get(name, (name, 1))
        found[real] = texts[name] if factor == 1 else _convert_unit(name, texts[name], factor)
    return found


def _coarseness(name: str) -> int:
    return ALIASES[name][1] if name in ALIASES else 0


def _convert_unit(name: str, text: str, factor: int) -> str:
    number = int(Setting(name=name, type=SettingType.LONG, default=0, doc="").accept(text))  # type: ignore[arg-type]
    return str(number if number < 0 else number * factor)


def merged(*sources: Mapping[str, str]) -> dict[str, str]:
    """Merge sources; the later one wins, whichever alias of a setting it uses."""
    texts: dict[str, str] = {}
    for source in sources:
        texts |= without_aliases(source)
    return texts


def read_toml(file: Path) -> dict[str, str]:
    """Dotted keys and tables of a TOML file, flattened to setting names and strings. Raises
    InvalidSetting."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as failure:
        raise InvalidSetting(f"{file}: {failure}") from None
    return dict(_flatten("", tables))


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`TIERLOG_LOG_DIRS` sets `log.dirs`. Raises InvalidSetting for an unknown TIERLOG_ variable."""
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        if name not in ALIASES:
            try:
                of_listener = listener_setting(name)
                find_setting(NODE_SETTINGS, of_listener[1] if of_listener else name)
            except InvalidSetting as unknown:
                raise InvalidSetting(f"{variable} in the environment: {unknown}") from None
        found[name] = text
    return found


def _flatten(prefix: str, tables: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found += _flatten(f"{prefix}{key}.", value)
        else:
            found.append((prefix + key, as_text(value)))
    return found


def as_text(value: object) -> str:
    """Format a Python value as the string of a setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
