"""JSON values: types that JSON does not have, and texts that are not one value."""

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tierlog.spark.options import InvalidOption
from tierlog.spark.options.values import Malformed, ValueFormat, ValueOptions
from tierlog.spark.values import MalformedValue, column_type, decoded, json_values


def options(schema: str, malformed: Malformed = Malformed.NULL) -> ValueOptions:
    return ValueOptions(format=ValueFormat.JSON, schema=schema, malformed=malformed)


def read(schema: str, type: Any, *values: str) -> Any:
    return decoded(
        pa.array([value.encode() for value in values], pa.binary()), options(schema), type
    ).to_pylist()


@pytest.mark.parametrize(
    ("schema", "type"),
    [
        ("a:array<int>", "struct<a:array<int>>"),
        ("a ARRAY<INT>, b INT", "struct<a ARRAY<INT>, b INT>"),
        ("STRUCT<a: INT>", "STRUCT<a: INT>"),
        ("array <int>", "array <int>"),
    ],
)
def test_columns_and_types_are_schemas(schema: str, type: str) -> None:
    assert column_type(options(schema)) == type


@pytest.mark.parametrize("schema", ["m MAP<STRING, INT>", "a array<map <string,int>>"])
def test_map_is_refused(schema: str) -> None:
    with pytest.raises(InvalidOption, match="json has no MAP"):
        column_type(options(schema))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id BIGGINT, name STRING", "the type BIGGINT of id is unknown. Did you mean 'BIGINT'?"),
        ("a INT, `b c` array<struct<d: strng>>", "the type strng of d is unknown. Did you mean 'STRING'?"),
        (
            "a DECIMAL(10, 2) NOT NULL COMMENT 'x, y z', b uuid",
            "the type uuid of b is unknown. The types are",
        ),
        ("array<text>", "the type text of `value` is unknown."),
    ],
)
def test_unknown_type_is_named_with_the_nearest_and_all(schema: str, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        column_type(options(schema))
    assert said in str(refused.value) and str(refused.value).startswith("`value.schema`: ")
    assert "ARRAY, BIGINT, BINARY" in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        "a INTEGER, b array<struct<c: long, d: decimal(3,1)>>, e timestamp_ltz, f varchar(3)",
        "`int x` STRING NOT NULL COMMENT 'of type y', s STRUCT<>",
        "a INT DEFAULT, b",  # Spark reports it
        "a-b INT",
    ],
)
def test_schema_without_an_unknown_type_is_left_to_spark(schema: str) -> None:
    assert column_type(options(schema)) == f"struct<{schema}>"


def test_dates_are_texts() -> None:
    type = pa.struct([("day", pa.date32()), ("days", pa.list_(pa.date32()))])
    texts = ['{"day": "2026-01-02", "days": ["1969-12-31", null]}', '{"day": "2026-13-01"}', '{"day": 3}']
    assert read("day DATE, days ARRAY<DATE>", type, *texts) == [
        {"day": date(2026, 1, 2), "days": [date(1969, 12, 31), None]},
        None,
        None,
    ]


def test_decimal_with_too_many_digits_is_malformed() -> None:
    type = pa.struct([("n", pa.decimal128(4, 2))])
    assert read("n DECIMAL(4,2)", type, '{"n": 99.99}', '{"n": 111.2}') == [{"n": Decimal("99.99")}, None]


@pytest.mark.parametrize(
    "text", ['{"id":1},"x":3', '1,"v":{"id":2}', 'null],"v2":[1', '{"id":1}]', '{"id":"']
)
def test_fields_after_a_value_are_malformed(text: str) -> None:
    type = pa.struct([("id", pa.int64())])
    assert read("id BIGINT", type, text, '{"id": 2}') == [None, {"id": 2}]


def test_brackets_and_quotes_in_texts_are_no_structure() -> None:
    texts = ['{"t": "],}\\\\"}', '{"t": "\\"}, {"}', ' {"t": ""} ']
    found = read("t STRING", pa.struct([("t", pa.string())]), *texts)
    assert found == [{"t": "],}\\"}, {"t": '"}, {'}, {"t": ""}]


@pytest.mark.parametrize("bad", ['{"id": "x"}', "{"])
def test_first_malformed_value_ends_the_search(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    parse = json_values._parse
    monkeypatch.setattr(json_values, "_parse", lambda *given: calls.append(1) or parse(*given))
    values = pa.array([b'{"id": 1}', *[bad.encode()] * 500], pa.binary())
    with pytest.raises(MalformedValue, match="does not follow the schema"):
        decoded(values, options("id BIGINT", Malformed.FAIL), pa.struct([("id", pa.int64())]))
    assert len(calls) < 20
