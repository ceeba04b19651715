"""Where the settings of a node come from: a TOML file, `TIERLOG_…` in the environment, `--set key=value`.

All of them say Kafka's names, and texts. Called by the command line.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tierlog.config.definitions import InvalidSetting, find_setting
from tierlog.config.node import ALIASES, NODE_SETTINGS, without_aliases

ENVIRONMENT_PREFIX = "TIERLOG_"
NOT_SETTINGS = frozenset(
    {
        "TIERLOG_BOOTSTRAP", "TIERLOG_ADMIN", "TIERLOG_CONFIG",
        "TIERLOG_ADMIN_CA", "TIERLOG_ADMIN_CERTIFICATE", "TIERLOG_ADMIN_KEY",
        "TIERLOG_SPARK_JAVA", "TIERLOG_CACHE", "TIERLOG_TEST_MINIO",
    }
)  # fmt: skip
"""Variables with the prefix that the command line, Spark and the tests read."""


def merged(*sources: Mapping[str, str]) -> dict[str, str]:
    """The later source wins, by whichever of its names it calls a setting."""
    texts: dict[str, str] = {}
    for source in sources:
        texts |= without_aliases(source)
    return texts


def read_toml(file: Path) -> dict[str, str]:
    """Dotted keys and tables of a TOML file, flattened to setting names and texts; raises InvalidSetting."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as failure:
        raise InvalidSetting(f"{file}: {failure}") from None
    return dict(_flatten("", tables))


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`TIERLOG_LOG_DIRS` is `log.dirs`; raises InvalidSetting for a TIERLOG_ variable that names none."""
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        if name not in ALIASES:
            try:
                find_setting(NODE_SETTINGS, name)
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
            found.append((prefix + key, _text(value)))
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
