"""Dynamic settings of a cluster as a document: a file in YAML or properties, and its difference to a cluster.

A document has the settings of all brokers, and those of single brokers, which override them. Pure but for
reading the file; the commands send the requests.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tierlog.cli.errors import usage
from tierlog.cli.options import INT32_MAX
from tierlog.cli.yaml_text import InvalidYaml, Mappings, read_mappings, yaml_text
from tierlog.client.properties import parse_properties, properties_text
from tierlog.config.definitions import InvalidSetting, find_setting
from tierlog.config.dynamic import dynamic_setting, why_not_dynamic
from tierlog.config.kafka_names import INERT_SETTINGS
from tierlog.config.node import NODE_SETTINGS

Scope = int | None
"""A broker, or None for all brokers."""

Document = dict[Scope, dict[str, str]]
FORMATS = ("yaml", "properties")
_ALL, _SINGLE = "cluster", "brokers"
_OF_BROKER = re.compile(r"broker\.([0-9]+)\.(.+)")
_ID = re.compile(r"0|[1-9][0-9]{0,9}")
FILE_HINT = "`tierlog cluster config export` writes a file of the right form."


class Change(NamedTuple):
    """`before`, `after`: None: not set."""

    scope: Scope
    name: str
    before: str | None
    after: str | None


def scope_name(scope: Scope) -> str:
    return "all brokers" if scope is None else f"broker {scope}"


def text_of(document: Document, kind: str) -> str:
    """The document as text, in one of FORMATS."""
    scopes = sorted(document, key=lambda scope: -1 if scope is None else scope)
    if kind == "yaml":
        singles = {scope: document[scope] for scope in scopes if scope is not None and document[scope]}
        return yaml_text({_ALL: document.get(None, {}), _SINGLE: singles})
    return properties_text(
        {
            name if scope is None else f"broker.{scope}.{name}": value
            for scope in scopes
            for name, value in document[scope].items()
        }
    )


def read_document(file: Path, kind: str | None) -> Document:
    """`file` - is standard input. `kind` None: by the name of the file. Raises CliError."""
    kind = kind or ("properties" if file.suffix == ".properties" else "yaml")
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        return _from_yaml(read_mappings(text)) if kind == "yaml" else _from_properties(text)
    except OSError as failure:
        raise usage(f"cannot read {file}: {failure.strerror}", hint=FILE_HINT) from None
    except (InvalidYaml, InvalidSetting, UnicodeDecodeError) as wrong:
        raise usage(f"{file}: {wrong}", hint=FILE_HINT) from None


def check(changes: Iterable[Change]) -> None:
    """Raises CliError for a change that no broker accepts, so that nothing of a file is applied."""
    for change in changes:
        if change.after is None:
            continue
        where = f"{scope_name(change.scope)}: "
        try:
            if (why := why_not_dynamic(change.name)) is not None:
                raise InvalidSetting(why)
            find_setting({**NODE_SETTINGS, **INERT_SETTINGS}, change.name)
            dynamic_setting(change.name).accept(change.after)
        except InvalidSetting as wrong:
            hint = "The column `dynamic` of docs/reference/settings.md has the settings that can change."
            raise usage(f"{where}{wrong}", hint=hint) from None


def changes_to(wanted: Document, current: Document, *, complete: bool) -> list[Change]:
    """The changes that turn `current` into `wanted`. `complete`: also remove what `wanted` does not name."""
    found = []
    scopes = wanted.keys() | current.keys() if complete else wanted.keys()
    for scope in sorted(scopes, key=lambda scope: -1 if scope is None else scope):
        after, before = wanted.get(scope, {}), current.get(scope, {})
        names = after.keys() | before.keys() if complete else after.keys()
        found += [
            Change(scope, name, before.get(name), after.get(name))
            for name in sorted(names)
            if not is_same(name, before.get(name), after.get(name))
        ]
    return found


def is_same(name: str, one: str | None, other: str | None) -> bool:
    """Whether two values of a setting mean the same: `1,2` and `1, 2`."""
    if one is None or other is None or one == other:
        return one == other
    try:
        return dynamic_setting(name).parse(one) == dynamic_setting(name).parse(other)
    except InvalidSetting:
        return False


def row(change: Change) -> dict[str, Any]:
    return {
        "scope": scope_name(change.scope),
        "broker": change.scope,
        "name": change.name,
        "before": change.before,
        "after": change.after,
    }


def _from_yaml(top: Mappings) -> Document:
    for name in top.keys() - {_ALL, _SINGLE}:
        raise InvalidSetting(f"unknown part {name!r}: expected {_ALL} and {_SINGLE}")
    document: Document = {None: _settings(_ALL, top.get(_ALL, {}))}
    for broker, settings in _mapping(_SINGLE, top.get(_SINGLE, {})).items():
        document[_broker_id(broker)] = _settings(f"{_SINGLE}.{broker}", settings)
    return document


def _broker_id(text: str) -> int:
    """Raises InvalidSetting. An id has one form, so that no broker is there twice."""
    if _ID.fullmatch(text) is None or int(text) > INT32_MAX:
        raise InvalidSetting(f"{_SINGLE}: {text[:40]!r} is not the id of a broker")
    return int(text)


def _mapping(name: str, found: str | Mappings) -> Mappings:
    if not found:
        return {}
    if isinstance(found, str):
        raise InvalidSetting(f"{name}: expected a mapping, not {found!r}")
    return found


def _settings(name: str, found: str | Mappings) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in _mapping(name, found).items():
        if isinstance(value, Mapping) and value:
            raise InvalidSetting(f"{name}.{key}: expected a value, not a mapping")
        settings[key] = value if isinstance(value, str) else ""
    return settings


def _from_properties(text: str) -> Document:
    document: Document = {None: {}}
    for name, value in parse_properties(text).items():
        found = _OF_BROKER.fullmatch(name)
        scope, name = (None, name) if found is None else (_broker_id(found[1]), found[2])
        document.setdefault(scope, {})[name] = value
    return document
