"""Avro schemas of hostile writers and of other versions: refused, or converted to the column's schema."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tierlog.spark.options import InvalidOption
from tierlog.spark.options.values import Malformed, ValueFormat, ValueOptions
from tierlog.spark.values import MalformedValue, decoded, kernels
from tierlog.spark.values.avro import Program, decoder
from tierlog.spark.values.avro_schema import parse_schema


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def read(writer: str, reader: str, *values: bytes) -> Any:
    """Values that one schema wrote, in the column of another."""
    nothing = np.zeros(0, np.int64)
    type = Program(reader).decode(np.zeros(0, np.uint8), nothing, nothing)[0].type
    ends = np.cumsum([len(value) for value in values])
    data = np.frombuffer(b"".join(values), np.uint8)
    found, is_good = decoder(writer, reader)(data, ends - [len(value) for value in values], ends, type)
    found.validate(full=True)
    assert is_good.all()
    return found.to_pylist()


@pytest.mark.parametrize("size", ["-1", "1073741825", "true", "1.0", '"3"'])
def test_fixed_with_an_invalid_size_is_refused(size: str) -> None:
    with pytest.raises(InvalidOption, match=r"the Avro type a\.F has the size"):
        parse_schema(f'{{"type":"array","items":{{"type":"fixed","name":"a.F","size":{size}}}}}')


def test_fixed_never_moves_backwards() -> None:
    data = np.zeros(10, np.uint8)
    assert kernels.read_value(data, 5, 10, kernels.FIXED, -3)[1] == -1
    assert kernels.read_value(data, 5, 10, kernels.FIXED, 5)[1] == 10


@pytest.mark.parametrize(
    "items",
    [
        '"null"',
        '{"type":"fixed","name":"F","size":0}',
        '{"type":"record","name":"R","fields":[{"name":"n","type":"null"}]}',
    ],
)
def test_array_whose_items_have_no_bytes_is_refused(items: str) -> None:
    with pytest.raises(InvalidOption, match="items have no bytes"):
        parse_schema(f'{{"type":"map","values":{{"type":"array","items":{items}}}}}')


def test_schema_of_too_many_types_is_refused() -> None:
    """Each record has the one before it twice."""
    type: Any = "int"
    for level in range(30):
        fields = [{"name": "a", "type": type}, {"name": "b", "type": f"r{level - 1}" if level else "int"}]
        type = {"type": "record", "name": f"r{level}", "fields": fields}
    with pytest.raises(InvalidOption, match="more than 10000 types"):
        parse_schema(json.dumps(type))


@pytest.mark.parametrize(
    "schema", ["[" * 50_000, '{"type":"array","items":' * 300 + '"int"' + "}" * 300], ids=["json", "avro"]
)
def test_schema_of_too_many_levels_is_refused(schema: str) -> None:
    with pytest.raises(InvalidOption, match=r"in JSON|100 inside each other"):
        parse_schema(schema)


WRITTEN = {"name": "n", "type": "int"}
LOGICAL = {
    kind: {"type": base, "logicalType": kind}
    for kind, base in (("timestamp-millis", "long"), ("local-timestamp-millis", "long"), ("date", "int"))
}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
LINE = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "b", "type": "bytes", "default": "\u00ff"}, WRITTEN],
}


@pytest.mark.parametrize(
    ("type", "default", "expected"),
    [
        ("string", "EUR", "EUR"),
        ("bytes", "\u00ff", b"\xff"),
        ("double", 1, 1.0),
        (LOGICAL["timestamp-millis"], 1_000, datetime.fromtimestamp(1, UTC)),
        (LOGICAL["local-timestamp-millis"], 1_000, datetime(1970, 1, 1, 0, 0, 1)),
        (LOGICAL["date"], 1, date(1970, 1, 2)),
        (DECIMAL, "\u00ff\u0085", Decimal("-1.23")),
        (DECIMAL, (10**37 + 1).to_bytes(16, "big").decode("iso-8859-1"), Decimal(f"{10**35}.01")),
        (["string", "null"], "x", "x"),
        (["null", "string"], None, None),
        (["int", "string"], 5, {"member0": 5, "member1": None}),
        (["int", "long"], 5, 5),
        (LINE, {"n": 3}, {"b": b"\xff", "n": 3}),
        ({"type": "array", "items": "bytes"}, ["a"], [b"a"]),
        ({"type": "map", "values": "bytes"}, {"k": "a"}, [("k", b"a")]),
    ],
)
def test_missing_field_has_its_default(type: Any, default: Any, expected: Any) -> None:
    reader = record(WRITTEN, {"name": "added", "type": type, "default": default})
    found = read(record(WRITTEN), reader, b"\x02", b"\x04")
    assert found == [{"n": 1, "added": expected}, {"n": 2, "added": expected}]


def test_default_of_another_type_is_named() -> None:
    with pytest.raises(MalformedValue, match="default 'x' of the Avro field added"):
        read(record(WRITTEN), record(WRITTEN, {"name": "added", "type": "int", "default": "x"}), b"\x02")


def stamp(kind: str) -> dict[str, str]:
    return {"type": "long", "logicalType": kind}


LINES = [{"type": "record", "name": name, "fields": [WRITTEN]} for name in ("a.L", "b.L")]
THOUSAND, UNION_5 = b"\xd0\x0f", b"\x02\x0a"


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("long", stamp("timestamp-millis"), THOUSAND, datetime.fromtimestamp(1, UTC)),
        (stamp("timestamp-millis"), "long", THOUSAND, 1_000),
        (stamp("timestamp-millis"), stamp("timestamp-micros"), THOUSAND, datetime.fromtimestamp(1, UTC)),
        ("int", ["null", LOGICAL["date"]], b"\x02", date(1970, 1, 2)),
        ("bytes", DECIMAL, b"\x02\x7b", Decimal("1.23")),
        ("long", "double", b"\xfe" + b"\xff" * 8 + b"\x01", float(2**63 - 1)),
        ("string", "bytes", b"\x02a", b"a"),
        ("null", ["null", "int"], b"", None),
        (["null", "int", "string"], ["null", "int", "string", "long"], UNION_5, (5, None, None)),
    ],
)
def test_value_of_an_older_schema_is_converted(writer: Any, reader: Any, value: bytes, expected: Any) -> None:
    if isinstance(expected, tuple):
        expected = {f"member{number}": one for number, one in enumerate(expected)}
    assert read(json.dumps(writer), json.dumps(reader), value) == [expected]
    nested = [json.dumps({"type": "array", "items": one}) for one in (writer, reader)]
    if value:
        assert read(*nested, b"\x02" + value + b"\0") == [[expected]]


def test_field_is_found_by_its_alias() -> None:
    reader = record({"name": "count", "aliases": ["m", "n"], "type": "long"})
    assert read(record(WRITTEN), reader, b"\x02") == [{"count": 1}]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("string", "int"),
        ("long", "int"),
        ("int", ["int", "string"]),
        (["int", "string"], "string"),
        (["null", "int", "string"], ["null", "string", "int"]),
        (LINES, [LINES[1], LINES[0]]),
        (["int", "string", "bytes"], ["int", "string"]),
        (stamp("timestamp-millis"), stamp("local-timestamp-millis")),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}),
    ],
)
def test_schema_that_does_not_fit_the_column_is_named(writer: Any, reader: Any) -> None:
    wrapped = [record({"name": "f", "type": one}) for one in (writer, reader)]
    with pytest.raises(MalformedValue, match="where the column has"):
        decoder(*wrapped)


def test_decimal_with_too_many_digits_is_malformed() -> None:
    money = json.dumps({**DECIMAL, "precision": 4})
    options = ValueOptions(format=ValueFormat.AVRO, schema=money, malformed=Malformed.NULL)
    values = [b"\x02\x7b", b"\x10" + b"\x7f" * 8, b"\x04\x27\x0f", b"\x04\x27\x10"]
    found = decoded(pa.array(values, pa.binary()), options, pa.decimal128(4, 2))
    assert found.to_pylist() == [Decimal("1.23"), None, Decimal("99.99"), None]


@pytest.mark.parametrize("number", [0, -1, 123, -123, 10**38 - 1, 1 - 10**38])
def test_decimal_in_more_than_16_bytes_is_read(number: int) -> None:
    schema = json.dumps({**DECIMAL, "type": "fixed", "name": "F", "size": 20, "scale": 0})
    assert read(schema, schema, number.to_bytes(20, "big", signed=True)) == [Decimal(number)]


@pytest.mark.parametrize("number", [2**127, -(2**127) - 1, 2**150])
def test_decimal_that_needs_more_than_16_bytes_is_malformed(number: int) -> None:
    schema = json.dumps({**DECIMAL, "type": "fixed", "name": "F", "size": 20, "scale": 0})
    with pytest.raises(pa.ArrowInvalid, match="16 bytes"):
        read(schema, schema, number.to_bytes(20, "big", signed=True))
