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
LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}
WIDENED = {frozenset(("int", "long")): "bigint", frozenset(("float", "double")): "double"}
MOST_DIGITS = 38
FIXED_MOST = 1 << 30
"""Bytes of a `fixed`: a larger one fits into no value."""


@dataclass(slots=True)
class Node:
    """A type of the schema at one place. `kind`: Avro's name of the type. `spark`: type in Spark.
    `fields`: names of a record's fields, of which `children` has the types; `defaults`: by name. An array and
    a map have one child, a union one for each branch."""

    kind: str
    spark: str
    logical: str = ""
    children: list["Node"] = field(default_factory=list)
    fields: Sequence[str] = ()
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
    except ValueError as error:
        raise InvalidOption(f"`value.schema` is not an Avro schema in JSON: {error}") from None
    try:
        return _Parser().parse(document, "")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(f"`value.schema` is not an Avro schema: {type(error).__name__} {error}") from None


class _Parser:
    """Resolves names of types."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def parse(self, schema: Any, namespace: str) -> Node:
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
            raise InvalidOption(f"`value.schema` refers to the unknown Avro type {full}")
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
            return Node("enum", "string", symbols=list(schema["symbols"]))
        if schema["type"] == "fixed":
            size = schema["size"]
            if type(size) is not int or not 0 <= size <= FIXED_MOST:
                raise InvalidOption(f"the Avro type {full} has the size {size!r}")
            return _with_logical(Node("fixed", "binary", size=size), schema)
        self._open.append(full)
        names = [one["name"] for one in schema["fields"]]
        children = [self.parse(one["type"], namespace) for one in schema["fields"]]
        self._open.pop()
        if not names:
            raise InvalidOption(f"the Avro record {full} has no fields, for which Spark has no type")
        types = ",".join(f"`{name}`:{child.spark}" for name, child in zip(names, children, strict=True))
        defaults = {one["name"]: one["default"] for one in schema["fields"] if "default" in one}
        return Node("record", f"struct<{types}>", children=children, fields=names, defaults=defaults)

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
