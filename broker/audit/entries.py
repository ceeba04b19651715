"""Entries of the audit log: their events and fields, and how an entry becomes a line.

A line is one JSON object with ASCII characters only. Names of clients, topics and users come from clients, so
control characters and other scripts are escaped: no name can end a line or look like another one. Texts are
cut at TEXT_CHARACTERS_MAX. Entries hold neither values of settings nor keys, passwords, tokens or records.
docs/reference/audit-log.md is generated from EVENTS.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tierlog.metadata.acls import TEXT_MAX

TEXT_CHARACTERS_MAX = TEXT_MAX
"""Names of resources and principals in ACLs have at most this length, so they are never cut."""

RESOURCES_MAX = 100
"""Resources in one entry. A request that names more has several entries."""

VALUES_MAX = 100
"""Values in a list of a resource, such as the settings of a topic. A resource with more is listed again."""

ENTRY_CHARACTERS_MAX = 128 << 10
"""Characters in the resources of one entry; a single resource may have more. A character takes at most twelve
bytes, so that the queue of `audit.log` has room for each line."""

CUT = "…"

Entry = dict[str, Any]
"""Field -> value, in the order of the line, without time and node."""

ACTION, FAILED_ACTION = "action", "failed_action"
DENIED_ACCESS, DENIED_LOGIN = "denied_access", "denied_login"


@dataclass(frozen=True, slots=True)
class Event:
    """A kind of entry: when it is written, and its fields besides those of all entries."""

    doc: str
    fields: Mapping[str, str]


COMMON_FIELDS: Mapping[str, str] = {
    "time": "when the entry was made, in UTC",
    "node": "the node that received the request (`node.id`)",
    "event": "the kind of entry",
    "principal": "the authenticated client, such as `User:ada`; `User:ANONYMOUS` without a login",
    "client": "the client's address",
    "listener": "name of the listener, or `admin` for the admin HTTP API",
}
"""Fields of all entries. Collapsed entries may lack the last three."""

_REPEATS: Mapping[str, str] = {
    "count": "how often this happened. The first time has an entry of its own, with 1",
    "first": "the first time, in entries with a larger count",
    "collapsed": "`client` or `node`: stands for different entries of that client, or of many clients",
}

EVENTS: Mapping[str, Event] = {
    ACTION: Event(
        "A request that changes the cluster was carried out, at least in part. Written before the client "
        "gets the response.",
        {
            "client_id": "the client's name for itself",
            "api": "API of the Kafka protocol, or method and path of the admin API",
            "validate_only": "`true`: the client asked what would happen, and nothing was changed",
            "resources": "what was changed: a list of objects with `type`, `name`, `outcome`, and details "
            "of the API. The outcome is `OK` or an error. `REQUEST_TIMED_OUT` may have been carried out",
            "omitted": "how many topics and partitions of a refused request to the admin API are not listed",
        },
    ),
    FAILED_ACTION: Event(
        "A request that changes the cluster changed nothing, for another reason than access.",
        {
            "client_id": "the client's name for itself, in the first of several requests",
            "api": "API of the Kafka protocol",
            "validate_only": "`true`: the client asked what would happen",
            "outcome": "the error of the first resource",
            "resource_type": "type of the first resource, as in actions",
            "resource_name": "its name",
            "resources": "how many resources the request named",
            **_REPEATS,
        },
    ),
    DENIED_ACCESS: Event(
        "A request, or a part of it, was refused because the principal has no permission.",
        {
            "client_id": "the client's name for itself, in the first of several requests",
            "api": "API of the Kafka protocol, or method and path of the admin API",
            "operation": "the operation that an ACL would have to allow, or the role that is missing",
            "resource_type": "type of the resource, by the names of ACLs",
            "resource_name": "name of the resource",
            **_REPEATS,
        },
    ),
    DENIED_LOGIN: Event(
        "A client could not prove its identity: a wrong password or token, or a certificate that is not "
        "accepted.",
        {
            "mechanism": "SASL mechanism, `TLS`, or the scheme of the admin API",
            "user": "the name that the client gave, if such a user exists. Other names are left out: people "
            "type passwords into the wrong field",
            "reason": "why the login failed",
            **_REPEATS,
        },
    ),
}


def line_of(entry: Mapping[str, Any], now_ms: int, node_id: int) -> bytes:
    """The entry as a line of the file."""
    whole = {"time": timestamp(now_ms), "node": node_id, **entry}
    return json.dumps(cut(whole), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def in_parts(entry: Entry, resources: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    """The entry with the resources, divided so that each has RESOURCES_MAX and ENTRY_CHARACTERS_MAX at most.
    No resource and no value is left out: else a long list could hide what else the request changes."""
    part: list[Mapping[str, Any]] = []
    size = 0
    for resource in resources:
        for one in _divided(resource):
            characters = _characters(one)
            if part and (len(part) == RESOURCES_MAX or size + characters > ENTRY_CHARACTERS_MAX):
                yield {**entry, "resources": part}
                part, size = [], 0
            part.append(one)
            size += characters
    if part:
        yield {**entry, "resources": part}


def _divided(resource: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The resource, as often as a list or mapping of it has VALUES_MAX values or ENTRY_CHARACTERS_MAX."""
    for name, values in resource.items():
        if isinstance(values, list | dict) and _is_long(values):
            items = list(values.items()) if isinstance(values, dict) else values
            for some in _slices(items):
                yield {**resource, name: dict(some) if isinstance(values, dict) else some}
            return
    yield resource


def _is_long(values: list[Any] | dict[str, Any]) -> bool:
    return len(values) > VALUES_MAX or _characters(values) > ENTRY_CHARACTERS_MAX


def _slices(items: list[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    size = 0
    for item in items:
        characters = _characters(item)
        if some and (len(some) == VALUES_MAX or size + characters > ENTRY_CHARACTERS_MAX):
            yield some
            some, size = [], 0
        some.append(item)
        size += characters
    if some:
        yield some


def _characters(value: Any) -> int:
    """About how long the value is in an entry."""
    match value:
        case str():
            return min(len(value), TEXT_CHARACTERS_MAX)
        case Mapping():
            return sum(_characters(name) + _characters(one) for name, one in value.items())
        case list() | tuple():
            return sum(map(_characters, value))
    return 8


def timestamp(now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03}Z"


def cut(value: Any) -> Any:
    """The value of a field with each of its texts cut to TEXT_CHARACTERS_MAX."""
    match value:
        case str():
            return value if len(value) <= TEXT_CHARACTERS_MAX else value[:TEXT_CHARACTERS_MAX] + CUT
        case Mapping():
            return {cut(name): cut(one) for name, one in value.items()}
        case list() | tuple():
            return [cut(one) for one in value]
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no NaN
    return value


def reference_page() -> str:
    """Events and fields, as Markdown."""
    lines = ["Fields of all entries:", "", *_table(COMMON_FIELDS)]
    for name, event in EVENTS.items():
        lines += ["", f"## {name}", "", event.doc, "", *_table(event.fields)]
    return "\n".join(lines)


def _table(fields: Mapping[str, str]) -> list[str]:
    rows = (f"| `{name}` | {meaning} |" for name, meaning in fields.items())
    return ["| field | meaning |", "| --- | --- |", *rows]
