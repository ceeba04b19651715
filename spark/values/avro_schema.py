"""Avro schemas: the tree of nodes that a program decodes, and the types of Spark for it. Pure.

Types are those of Spark's `from_avro`. A union of null and one type is this type; of int and long it is
bigint; of float and double it is double. Any other union is a struct with a field for each branch: member0,
member1, …. A schema that refers to itself has no type in Spark, and is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tierlog.spark.options import InvalidOption
from tierlog.spark.options.table import similar
from tierlog.spark.values import MalformedValue

PRIMITIVES = {
    "null": "void",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
COMPLEX = ("record", "enum", "array", "map", "fixed")
LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}
WIDENED = {frozenset(("int", "long")): "bigint", frozenset(("float", "double")): "double"}
PROMOTIONS = {
    "int": ("bigint", "float", "double"),
    "bigint": ("float", "double"),
    "float": ("double",),
    "string": ("binary",),
    "binary": ("string",),
}
"""Types in Spark to which Avro's schema resolution changes another one."""

MOST_DIGITS = 38
NODES_MOST, DEPTH_MOST = 10_000, 100
"""Size of a tree. A named type has nodes at each place where it is used: a short schema can have many."""

FIXED_MOST = 1 << 30
"""Bytes of a `fixed`: a larger one fits into no value."""


@dataclass(slots=True)
class Node:
    """A type of the schema at one place. `kind`: Avro's name of the type. `spark`: type in Spark.
    `name`: full name of a record, enum or fixed. `fields`: names of a record's fields, of which `children`
    has the types; `defaults`, `aliases`: by name. An array and a map have one child, a union one for each
    branch."""

    kind: str
    spark: str
    name: str = ""
    logical: str = ""
    children: list["Node"] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    aliases: dict[str, Sequence[str]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    symbols: Sequence[str] = ()
    size: int = 0
    scale: int = 0
    precision: int = 0
    column: int = -1
    """Column in the program. The keys of a map have the next one."""

    @property
    def branches(self) -> list["Node"]:
        """The types of a union other than null."""
        return [child for child in self.children if child.kind != "null"]


def parse_schema(text: str) -> Node:
    """The tree of a schema. Raises InvalidOption."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"`value.schema` is not an Avro schema in JSON: {error}") from None
    try:
        return _Parser().parse(document, "")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(f"`value.schema` is not an Avro schema: {type(error).__name__} {error}") from None


def resolve(writer: Node, reader: Node) -> None:
    """Give the schema that wrote values the names of fields and the logical types of the column's schema.
    Raises MalformedValue if its values do not fit into the column."""
    writer, reader = _sole(writer), _sole(reader)
    if writer.kind == "null":
        return
    if _has_members(writer) or _has_members(reader):
        _resolve_members(writer, reader)
    elif writer.kind == reader.kind == "record":
        for name, child in zip(reader.fields, reader.children, strict=True):
            known = (one for one in (name, *reader.aliases.get(name, ())) if one in writer.fields)
            source = next(known, None)
            if source is not None:
                place = writer.fields.index(source)
                writer.fields[place] = name
                resolve(writer.children[place], child)
    elif writer.kind == reader.kind and writer.kind in ("array", "map"):
        resolve(writer.children[0], reader.children[0])
    else:
        if writer.kind == reader.kind and "" in (writer.logical, reader.logical):
            writer.logical, writer.spark = reader.logical, reader.spark
            writer.precision, writer.scale = reader.precision, reader.scale
        are_decimals = writer.logical == reader.logical == "decimal"
        allowed = (writer.spark, *PROMOTIONS.get(writer.spark, ()))
        if reader.spark not in allowed and not are_decimals:
            raise _mismatch(writer, reader)


def _resolve_members(writer: Node, reader: Node) -> None:
    """The same for unions of several types: those of the writer must be the first ones of the column's."""
    if not (_has_members(writer) and _has_members(reader)) or len(writer.branches) > len(reader.branches):
        raise _mismatch(writer, reader)
    for one, other in zip(writer.branches, reader.branches, strict=False):
        if (one.kind, one.name) != (other.kind, other.name):
            raise _mismatch(writer, reader)
        resolve(one, other)


def _sole(node: Node) -> Node:
    """The type of a union that has one type and perhaps null."""
    return node.branches[0] if node.kind == "union" and len(node.branches) == 1 else node


def _has_members(node: Node) -> bool:
    return node.kind == "union" and node.spark.startswith("struct<")


def _mismatch(writer: Node, reader: Node) -> MalformedValue:
    return MalformedValue(f"the Avro schema of values has {writer.spark} where the column has {reader.spark}")


class _Parser:
    """Resolves names of types."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self._nodes = self._depth = 0

    def parse(self, schema: Any, namespace: str) -> Node:
        self._nodes += 1
        self._depth += 1
        if self._nodes > NODES_MOST or self._depth > DEPTH_MOST:
            raise InvalidOption(
                f"the Avro schema has more than {NODES_MOST} types, or {DEPTH_MOST} inside each other"
            )
        found = self._parse(schema, namespace)
        self._depth -= 1
        return found

    def _parse(self, schema: Any, namespace: str) -> Node:
        if isinstance(schema, list):
            return self._union([self.parse(branch, namespace) for branch in schema])
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace)
        match kind:
            case "record" | "error" | "enum" | "fixed":
                return self._define(schema, namespace)
            case "array":
                item = self.parse(schema["items"], namespace)
                if _has_no_bytes(item):  # a value of few bytes could have any number of items
                    raise InvalidOption("an Avro array whose items have no bytes is not supported")
                return Node("array", f"array<{item.spark}>", children=[item])
            case "map":
                item = self.parse(schema["values"], namespace)
                return Node("map", f"map<string,{item.spark}>", children=[item])
        found = self._by_name(kind, namespace)
        return _with_logical(found, schema) if kind in PRIMITIVES else found

    def _by_name(self, name: str, namespace: str) -> Node:
        if name in PRIMITIVES:
            return Node(name, PRIMITIVES[name])
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named and name in self._named:
            full = name
        if full in self._open:
            raise InvalidOption(f"the Avro type {full} contains itself, for which Spark has no type")
        if full not in self._named:
            known = {*PRIMITIVES, *COMPLEX, *self._named}
            raise InvalidOption(
                f"`value.schema` refers to the unknown Avro type {full}.{similar(name, known)} The types are "
                f"{', '.join((*PRIMITIVES, *COMPLEX))}, and those that the schema has defined before"
            )
        schema, inside = self._named[full]
        return self._build(schema, full, inside)

    def _define(self, schema: dict[str, Any], namespace: str) -> Node:
        name = schema["name"]
        inside = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace)
        full = name if "." in name or not inside else f"{inside}.{name}"
        self._named[full] = schema, inside
        for alias in schema.get("aliases", ()):
            self._named.setdefault(
                alias if "." in alias or not inside else f"{inside}.{alias}", (schema, inside)
            )
        return self._build(schema, full, inside)

    def _build(self, schema: dict[str, Any], full: str, namespace: str) -> Node:
        if schema["type"] == "enum":
            return Node("enum", "string", full, symbols=list(schema["symbols"]))
        if schema["type"] == "fixed":
            size = schema["size"]
            if type(size) is not int or not 0 <= size <= FIXED_MOST:
                raise InvalidOption(f"the Avro type {full} has the size {size!r}")
            return _with_logical(Node("fixed", "binary", full, size=size), schema)
        self._open.append(full)
        names = [one["name"] for one in schema["fields"]]
        children = [self.parse(one["type"], namespace) for one in schema["fields"]]
        self._open.pop()
        if not names:
            raise InvalidOption(f"the Avro record {full} has no fields, for which Spark has no type")
        types = ",".join(f"`{name}`:{child.spark}" for name, child in zip(names, children, strict=True))
        defaults = {one["name"]: one["default"] for one in schema["fields"] if "default" in one}
        aliases = {one["name"]: one["aliases"] for one in schema["fields"] if "aliases" in one}
        return Node(
            "record",
            f"struct<{types}>",
            full,
            children=children,
            fields=names,
            defaults=defaults,
            aliases=aliases,
        )

    def _union(self, children: list[Node]) -> Node:
        found = Node("union", "void", children=children)
        branches = found.branches
        widened = WIDENED.get(frozenset(branch.kind for branch in branches if not branch.logical))
        if len(branches) == 1:
            found.spark = branches[0].spark
        elif widened and len(branches) == 2:
            found.spark = widened
        elif branches:
            types = ",".join(f"`member{number}`:{one.spark}" for number, one in enumerate(branches))
            found.spark = f"struct<{types}>"
        return found


def _has_no_bytes(node: Node) -> bool:
    is_empty = node.kind == "null" or (node.kind == "fixed" and not node.size)
    return is_empty or (node.kind == "record" and all(map(_has_no_bytes, node.children)))


def _with_logical(node: Node, schema: dict[str, Any]) -> Node:
    """An unknown or invalid logical type is ignored, as Avro demands."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if 0 < precision <= MOST_DIGITS and 0 <= scale <= precision:
            node.logical, node.precision, node.scale = logical, precision, scale
            node.spark = f"decimal({precision},{scale})"
    elif (node.kind, logical) in LOGICAL:
        node.logical, node.spark = logical, LOGICAL[node.kind, logical]
    return node
