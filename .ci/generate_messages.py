"""Generates `src/tierlog/protocol/messages` from kio's schemas.

kio has one class for each message and version, with times as timedelta and datetime. Here they are merged
into one class for all versions, which states each field once (`schema`). Times are integers under Kafka's own
names (`throttle_time_ms`), and uuids are never None. A test fails if the files differ from its output.
"""

import dataclasses
import datetime
import importlib
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierlog.protocol import messages
from tierlog.protocol.schema import ZERO, Versions

# the quorum uses HTTP between nodes (PROTOCOL.md)
QUORUM_KEYS = frozenset({52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 80, 81, 82})
# telemetry of clients (KIP-714), share groups (KIP-932) and streams groups (KIP-1071)
UNPLANNED_KEYS = frozenset({71, 72, *range(76, 80), *range(83, 93)})
OMITTED_KEYS = QUORUM_KEYS | UNPLANNED_KEYS
TYPES = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
ANNOTATIONS = {
    "bool": "Bool",
    "bytes": "Bytes",
    "float64": "Float64",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "int8": "Int8",
    "records": "RequestRecords",
    "string": "String",
    "uint16": "UInt16",
    "uuid": "Uuid",
}


@dataclass(slots=True)
class MergedField:
    """A field with all versions that have it."""

    name: str
    type: str
    array: bool
    nested: str | None
    default: object
    tag: int | None = None
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)
    tagged: list[int] = field(default_factory=list)


@dataclass(slots=True)
class MergedClass:
    """A message or nested class with all versions; `orders`: the order of fields of each version."""

    name: str
    fields: dict[str, MergedField] = field(default_factory=dict)
    orders: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class MergedMessage:
    """A top-level message: its classes, nested ones first, its versions, and the first flexible version."""

    classes: list[MergedClass]
    versions: Versions
    flexible: int | None


def generate() -> dict[str, str]:
    """File name -> text, for every file of `messages/`."""
    from kio.schema.index import api_key_map, schema_name_map
    from kio.static.constants import EntityType

    files = {}
    rows = []
    for key, api in sorted(api_key_map.items()):
        if key in OMITTED_KEYS:
            continue
        request = merge(schema_name_map[api], EntityType.request)
        response = merge(schema_name_map[api], EntityType.response)
        _disambiguate(request, response)
        if (request.versions, request.flexible) != (response.versions, response.flexible):
            raise ValueError(f"{api}: request and response differ in versions")
        names = request.classes[-1].name, response.classes[-1].name
        name = names[0].removesuffix("Request")
        rows.append(f'    {key}: ("{name}", "{api}", {request.versions}, {request.flexible}),')
        files[f"{api}.py"] = render(f"{name} (API key {key}).", (request, response))
    files["__init__.py"] = INDEX.format(rows="\n".join(rows))
    return files


INDEX = '''"""All messages, a module per API. Written by `.ci/generate_messages.py`: do not edit."""

INDEX: dict[int, tuple[str, str, tuple[int, int], int | None]] = {{
{rows}
}}
"""API key to name, module, versions (inclusive), first flexible version."""
'''


# ---- merging the versions -------------------------------------------------------------------------


def merge(by_version: Any, entity_type: object) -> MergedMessage:
    """The message of one entity type over all of its versions."""
    versions = sorted(version for version, paths in by_version.items() if entity_type in paths)
    classes: dict[str, MergedClass] = {}
    flexible = None
    top = ""
    for version in versions:
        module_name, top = by_version[version][entity_type].split(":")
        module = importlib.import_module(module_name)
        if flexible is None and getattr(module, top).__flexible__:
            flexible = version
        for name, candidate in vars(module).items():
            if dataclasses.is_dataclass(candidate) and candidate.__module__ == module_name:
                _merge_class(classes.setdefault(name, MergedClass(name)), candidate, version)
    ordered: list[MergedClass] = []
    _nested_first(classes, top, ordered)
    return MergedMessage(ordered, _span(versions), flexible)


def _merge_class(merged: MergedClass, source: Any, version: int) -> None:
    order = []
    for source_field in dataclasses.fields(source):
        found = _read_field(source_field)
        known = merged.fields.setdefault(found.name, found)
        if (known.type, known.array, known.nested, known.default) != (
            found.type,
            found.array,
            found.nested,
            found.default,
        ):
            raise ValueError(f"{merged.name}.{found.name} changes between versions: {known} {found}")
        known.versions.append(version)
        tag = source_field.metadata.get("tag")
        if tag is not None:
            known.tag = tag
            known.tagged.append(version)
        # kio has None for the zero uuid and for the timestamp -1; neither is null on the wire
        if _is_optional(source_field.type) and found.type not in ("uuid", "int64"):
            known.nullable.append(version)
        order.append(found.name)
    merged.orders.append(order)


def _read_field(source: Any) -> MergedField:
    kafka_type = source.metadata.get("kafka_type")
    plain = _without_none(source.type)
    array = typing.get_origin(plain) is tuple
    if array:
        plain = _without_none(typing.get_args(plain)[0])
    name = source.name
    if kafka_type is None:
        kafka_type = "struct"
    elif kafka_type.startswith(("timedelta", "datetime")):
        name += "_ms"
    nested = plain.__name__ if kafka_type == "struct" else None
    return MergedField(
        name, TYPES.get(kafka_type, kafka_type), array, nested, _default(source, kafka_type, array)
    )


def _default(source: Any, kafka_type: str, array: bool) -> object:
    """Kafka's default as a Python expression; None: the type's zero value."""
    value = source.default
    if value is dataclasses.MISSING:
        return "None" if kafka_type == "records" and not array and _is_optional(source.type) else None
    if isinstance(value, datetime.timedelta):
        return repr(value // datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        raise ValueError(f"{source.name}: a default date")
    if value is None:
        return {"uuid": None if not array else "None", "datetime_i64": "-1"}.get(kafka_type, "None")
    if value == () or dataclasses.is_dataclass(value):
        return None
    return (
        repr(int(value))
        if isinstance(value, int) and not isinstance(value, bool)
        else repr(value).replace("'", '"')
    )


def _is_optional(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) and types.NoneType in typing.get_args(annotation)


def _without_none(annotation: Any) -> Any:
    if _is_optional(annotation):
        (annotation,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return annotation


def _disambiguate(request: MergedMessage, response: MergedMessage) -> None:
    """If request and response use one name for two classes, rename the response's to `…Response`."""
    ours = {merged.name: merged.fields for merged in request.classes}
    clashes: set[str] = set()
    for merged in response.classes:  # nested ones first, so that a clash spreads to the classes around it
        for merged_field in merged.fields.values():
            if merged_field.nested in clashes:
                merged_field.nested = f"{merged_field.nested}Response"
        if ours.get(merged.name, merged.fields) != merged.fields:
            clashes.add(merged.name)
            merged.name += "Response"


def _nested_first(classes: dict[str, MergedClass], name: str, ordered: list[MergedClass]) -> None:
    for merged_field in _in_wire_order(classes[name]):
        if merged_field.nested:
            _nested_first(classes, merged_field.nested, ordered)
    if classes[name] not in ordered:
        ordered.append(classes[name])


def _in_wire_order(merged: MergedClass) -> list[MergedField]:
    """An order of fields that is consistent with every version."""
    left = dict(merged.fields)
    result = []
    while left:
        for name in left:
            if not any(
                name in order and any(other in left for other in order[: order.index(name)])
                for order in merged.orders
            ):
                result.append(left.pop(name))
                break
        else:
            raise ValueError(f"{merged.name}: no common order of {list(left)}")
    return result


def _span(versions: list[int]) -> Versions:
    if versions != list(range(versions[0], versions[-1] + 1)):
        raise ValueError(f"versions with a gap: {versions}")
    return versions[0], versions[-1]


# ---- writing the text -----------------------------------------------------------------------------


def render(title: str, messages: tuple[MergedMessage, ...]) -> str:
    """The text of one module."""
    seen: dict[str, str] = {}
    blocks = []
    for message in messages:
        for merged in message.classes:
            block = _render_class(merged, message if merged is message.classes[-1] else None)
            if message is not messages[0]:  # a broker answers with slices of its log
                block = block.replace(": RequestRecords", ": Records")
            if seen.setdefault(merged.name, block) != block:
                raise ValueError(f"{title} has two classes named {merged.name}")
            if block not in blocks:
                blocks.append(block)
    body = "".join(blocks)
    names = {*ANNOTATIONS.values(), "Message", "Records", "Struct"}
    imports = sorted(name for name in names if re.search(rf"\b{name}\b", body))
    functions = ["struct", "wire"] if "= wire(" in body else ["struct"]
    return (
        f'"""{title} Written by `.ci/generate_messages.py`: do not edit."""\n\n'
        f"from tierlog.protocol.schema import {', '.join(imports + functions)}\n" + body
    )


def _render_class(merged: MergedClass, message: MergedMessage | None) -> str:
    lines = ["", "", "@struct", f"class {merged.name}({'Message' if message else 'Struct'}):"]
    if message:
        lines.append(f"    VERSIONS = {message.versions}")
        if message.flexible is not None:
            lines.append(f"    FLEXIBLE = {message.flexible}")
        if merged.fields:
            lines.append("")
    lines += [f"    {each.name}: {_annotation(each)} = {_wire(each)}" for each in _in_wire_order(merged)]
    return "\n".join(lines) + "\n"


def _annotation(merged: MergedField) -> str:
    plain = merged.nested or ANNOTATIONS[merged.type]
    text = f"list[{plain}]" if merged.array else plain
    return f"{text} | None" if merged.nullable else text


def _wire(merged: MergedField) -> str:
    versions = _span(merged.versions)
    text = f"wire({versions[0]}, {versions[1]}"
    if merged.default is not None and merged.default != repr(ZERO.get(merged.type, 0)).replace("'", '"'):
        text += f", default={merged.default}"
    if merged.nullable and _span(merged.nullable) != versions:
        text += f", nullable={_span(merged.nullable)}"
    if merged.tag is not None:
        text += f", tag={merged.tag}"
        if _span(merged.tagged) != versions:
            text += f", tagged={_span(merged.tagged)}"
    return text + ")"


def main() -> None:
    """Replace the files of `messages/`."""
    directory = Path(messages.__file__).parent
    texts = generate()
    for path in directory.glob("*.py"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    main()
