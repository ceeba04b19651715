"""Values decoded into Arrow, against what Avro's and Protobuf's own libraries wrote."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import schema_registry
import shop_values as shop

from tierlog.client.registry import RegistryError
from tierlog.spark.options import InvalidOption, parse_options
from tierlog.spark.options.values import ValueOptions
from tierlog.spark.values import MalformedValue, column_type, decoded, resolved
from tierlog.spark.values.avro import Program
from tierlog.spark.values.avro_schema import parse_schema
from tierlog.spark.values.protobuf import MessageReader
from tierlog.spark.values.protobuf_schema import parse_descriptors

SCHEMA = json.dumps(shop.AVRO_SCHEMA)
ORDER = "shop.Order"


@pytest.fixture(scope="module")
def registry() -> Iterator[schema_registry.Registry]:
    with schema_registry.running() as found:
        yield found


def options(**given: str) -> ValueOptions:
    named = {name.replace("_", "."): value for name, value in given.items()}
    found = parse_options({"path": ".", "topic": "orders", **named}).value
    assert found is not None
    return found


def of_registry(registry: schema_registry.Registry, **given: str) -> ValueOptions:
    user = {"schema.registry.url": registry.url, "schema.registry.basic.auth.user.info": schema_registry.USER}
    found = resolved(options(**user, **given))
    assert found is not None
    return found


def natural(schema: str) -> Any:
    """The Arrow type of a schema's values."""
    nothing = np.zeros(0, np.int64)
    array, _ = Program(schema).decode(np.zeros(0, np.uint8), nothing, nothing)
    return array.type


def proto_type() -> Any:
    nothing = np.zeros(0, np.int64)
    reader = MessageReader(parse_descriptors(shop.proto_set(), ORDER))
    return reader.decode(np.zeros(0, np.uint8), nothing, nothing)[0].type


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


def test_avro_values_are_what_another_library_wrote() -> None:
    rng = random.Random(1)
    orders = [shop.avro_order(rng, number) for number in range(300)]
    values: list[bytes | None] = [shop.avro_bytes(shop.AVRO_SCHEMA, order) for order in orders]
    values[7] = None
    found = decoded(
        pa.array(values, pa.binary()), options(value_format="avro", value_schema=SCHEMA), natural(SCHEMA)
    )
    found.validate(full=True)
    assert found.to_pylist() == [None if n == 7 else shop.shown(order) for n, order in enumerate(orders)]
    assert parse_schema(SCHEMA).spark.replace("`", "") == shop.SPARK_TYPE


def test_slices_and_nulls_alone_are_decoded() -> None:
    values = [b"\x02", None, b"\x04", b"\x06"]
    avro = options(value_format="avro", value_schema='"int"')
    assert decoded(pa.array(values, pa.binary())[1:3], avro, pa.int32()).to_pylist() == [None, 2]
    assert decoded(pa.array([None], pa.binary()), avro, pa.int32()).to_pylist() == [None]
    assert decoded(pa.array([], pa.binary()), avro, pa.int32()).to_pylist() == []


def test_no_byte_of_an_avro_value_can_be_missing_or_too_many() -> None:
    """Every prefix of a value is malformed, or it would be taken for a shorter one."""
    order = {**shop.avro_order(random.Random(3), 1), "raw": b"abc"}
    value = shop.avro_bytes(shop.AVRO_SCHEMA, order)
    values = [value[:end] for end in range(len(value))] + [value + b"x", value]
    lenient = options(value_format="avro", value_schema=SCHEMA, value_malformed="null")
    found = decoded(pa.array(values, pa.binary()), lenient, natural(SCHEMA))
    assert found.null_count == len(values) - 1
    assert found[-1].as_py() == shop.shown(order)
    strict = options(value_format="avro", value_schema=SCHEMA)
    with pytest.raises(MalformedValue, match="a value does not follow the schema"):
        decoded(pa.array([value, value[:-1]], pa.binary()), strict, natural(SCHEMA))


def test_timestamp_that_no_column_can_hold_is_malformed() -> None:
    schema = '{"type":"long","logicalType":"timestamp-millis"}'
    values = [b"\xd0\x0f", b"\x80" * 8 + b"\x01", b"\xd2\x0f", None]  # 1,000, 2^55 and 1,001
    lenient = options(value_format="avro", value_schema=schema, value_malformed="null")
    found = decoded(pa.array(values, pa.binary()), lenient, natural(schema))
    assert found.cast(pa.int64()).to_pylist() == [1_000_000, None, 1_001_000, None]
    strict = options(value_format="avro", value_schema=schema)
    with pytest.raises(MalformedValue, match="a value does not follow the schema"):
        decoded(pa.array(values, pa.binary()), strict, natural(schema))


def test_random_bytes_are_refused_or_decoded_but_never_read_beyond_their_end() -> None:
    rng = random.Random(5)
    values = [rng.randbytes(rng.randrange(60)) for _ in range(3_000)]
    values += [b"\x01" + b"\xff" * 9 + b"\x7f", b"\x80" * 30, b"\xff" * 40]
    array = pa.array(values, pa.binary())
    longs = '{"type":"array","items":"long"}'
    branches = f'["null","bytes","string",{longs}]'
    nested = f'{{"type":"array","items":{{"type":"map","values":{branches}}}}}'
    for schema in (SCHEMA, nested):
        lenient = options(value_format="avro", value_schema=schema, value_malformed="null")
        decoded(array, lenient, natural(schema)).validate(full=True)
    type = proto_type()
    reader = MessageReader(parse_descriptors(shop.proto_set(), ORDER))
    data, ends = np.frombuffer(b"".join(values), np.uint8), np.cumsum([len(value) for value in values])
    found, _ = reader.decode(data, ends - [len(value) for value in values], ends)
    found.validate(full=True)
    assert found.type == type


def test_avro_of_older_schemas_is_read_with_the_column_s_schema(registry: schema_registry.Registry) -> None:
    old = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "gone", "type": "int"}, {"name": "n", "type": "int"}],
    }
    new = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "currency", "type": "string", "default": "EUR"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
    first = registry.register("orders-value", json.dumps(old))
    second = registry.register("orders-value", json.dumps(new))
    registry.fail_next = 1
    avro = of_registry(registry, value_format="avro", value_malformed="null")
    values = [
        framed(first, shop.avro_bytes(old, {"gone": 1, "n": 2})),
        framed(second, shop.avro_bytes(new, {"n": 3, "currency": "CHF", "note": "x"})),
        b"\0\0",
        b"\1" + framed(first, b"")[1:],
        framed(first, shop.avro_bytes(old, {"gone": 1, "n": 4})),
    ]
    found = decoded(pa.array(values, pa.binary()), avro, natural(json.dumps(new)))
    older = {"currency": "EUR", "note": None}
    assert found.to_pylist() == [
        {"n": 2, **older},
        {"n": 3, "currency": "CHF", "note": "x"},
        None,
        None,
        {"n": 4, **older},
    ]
    requests = len(registry.requests)
    decoded(pa.array(values, pa.binary()), avro, natural(json.dumps(new)))
    assert len(registry.requests) == requests  # a process asks for a schema once


def test_failures_of_the_registry_say_what_was_asked(registry: schema_registry.Registry) -> None:
    with pytest.raises(RegistryError, match=r"/subjects/none-value/versions/latest: 404 Schema not found"):
        of_registry(registry, value_format="avro", value_subject="none-value")
    wrong = {"schema.registry.url": registry.url, "value_format": "avro"}
    with pytest.raises(RegistryError, match=r"401 Unauthorized.*Check the options `schema.registry.url`"):
        resolved(options(**wrong))


def test_protobuf_messages_are_what_another_library_wrote(tmp_path: Path) -> None:
    rng, order_class = random.Random(2), shop.proto_class()
    orders = [shop.proto_order(order_class, rng, number) for number in range(300)]
    values: list[bytes | None] = [order.SerializeToString() for order in orders]
    values[3] = (values[3] or b"") + b"\x9a\x06\x03abc\xa3\x06\x08\x01\xa4\x06"  # unknown: bytes, and a group
    values[4] = (values[4] or b"") + b"\x0a"
    values[5] = None
    (tmp_path / "shop.desc").write_bytes(shop.proto_set())
    proto = options(
        value_format="protobuf",
        value_schema=str(tmp_path / "shop.desc"),
        value_message=ORDER,
        value_malformed="null",
    )
    found = decoded(pa.array(values, pa.binary()), proto, proto_type())
    found.validate(full=True)
    for number, (order, row) in enumerate(zip(orders, found.to_pylist(), strict=True)):
        if number in (4, 5):
            assert row is None
        else:
            row["attributes"].sort()
            assert row == shop.proto_shown(order)


def test_framed_protobuf_takes_the_schema_of_the_registry(registry: schema_registry.Registry) -> None:
    schema_id = registry.register("orders-value", shop.proto_file().SerializeToString())
    order = shop.proto_order(shop.proto_class(), random.Random(4), 1)
    values = [
        framed(schema_id, indexes + order.SerializeToString()) for indexes in (b"\x02\x02", b"\x04\x02\x00")
    ]
    values.append(framed(schema_id, b"\x80"))
    proto = of_registry(registry, value_format="protobuf", value_message=ORDER, value_malformed="null")
    rows = decoded(pa.array(values, pa.binary()), proto, proto_type()).to_pylist()
    assert rows[2] is None
    for row in rows[:2]:
        row["attributes"].sort()
        assert row == shop.proto_shown(order)


def test_json_values_are_parsed_one_by_one() -> None:
    type = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    texts = ['{"id": 1, "tags": ["a"], "more": {}}', '{\n"id": 2}', "{}", "null", None, '{"tags": null}']
    bad = ["{}{}", "", "{", '{"id": "x"}', '1} {"v":2', "[1]", "{}\n{}", '"']
    values = [None if text is None else text.encode() for text in texts + bad]
    values.append(b'{"tags": ["\xff"]}')
    lenient = options(
        value_format="json", value_schema="id BIGINT, tags ARRAY<STRING>", value_malformed="null"
    )
    found = decoded(pa.array(values, pa.binary()), lenient, type).to_pylist()
    empty = {"id": None, "tags": None}
    assert found[:6] == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}, empty, None, None, empty]
    assert found[6:] == [None] * (len(bad) + 1)
    assert column_type(lenient) == "struct<id BIGINT, tags ARRAY<STRING>>"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"value_format": "xml"}, "must be json, avro, protobuf or raw"),
        ({"value_schema": "x"}, "needs `value.format`"),
        ({"value_format": "json"}, "id BIGINT, name STRING"),
        ({"value_format": "avro"}, "needs `value.schema` or `schema.registry.url`"),
        ({"value_format": "avro", "value_schema": "/nowhere"}, "neither a schema nor a readable file"),
        ({"value_format": "protobuf", "value_schema": "/nowhere"}, "neither a schema nor a readable file"),
        (
            {"value_format": "avro", "value_schema": '"int"', "value_malformed": "drop"},
            "must be fail or null",
        ),
        ({"value_format": "avro", "schema.registry.url": "registry:8081"}, "must begin with http"),
        (
            {"value_format": "json", "value_schema": "id INT", "value_message": "M"},
            "is for `value.format` pro",
        ),
        (
            {"value_format": "avro", "value_schema": '"int"', "value_subject": "s"},
            "`value.subject` has no eff",
        ),
        ({"value_format": "json", "value_schema": "id INT", "value_schema_id": "1"}, "id` has no effect"),
    ],
)
def test_invalid_option_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        options(**given)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("{", "not an Avro schema in JSON"),
        ('{"type": "record"}', "not an Avro schema"),
        ('"Order"', "unknown Avro type Order"),
        ('{"type":"record","name":"R","fields":[]}', "has no fields"),
        ('{"type":"record","name":"a.R","fields":[{"name":"r","type":["null","R"]}]}', "a.R contains itself"),
    ],
)
def test_invalid_avro_schema_is_refused(schema: str, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        parse_schema(schema)


@pytest.mark.parametrize("name", ["api.proto", "app.proto", "acl.proto", "a.proto", "shop.proto"])
def test_descriptors_of_a_file_of_any_name_are_read(name: str) -> None:
    file = shop.proto_file()
    file.name = name
    file.message_type[1].field.pop(5)  # the timestamp of the file that it imports
    assert parse_descriptors(file.SerializeToString(), ORDER).spark.startswith("struct<`id`:bigint")


def test_invalid_descriptors_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"no message 'shop\.Nothing'; it has .*shop\.Order"):
        parse_descriptors(shop.proto_set(), "shop.Nothing")
    with pytest.raises(InvalidOption, match="not a set of Protobuf descriptors"):
        parse_descriptors(b"\x0a\xff", "shop.Order")
