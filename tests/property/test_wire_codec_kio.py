"""Every message in every version has the same bytes as kio's, and kio's bytes decode to the same values."""

import dataclasses
import datetime
import importlib
import io
import uuid
from typing import Any

import pytest
from generate_messages import KEYS, _is_optional, _read_field, _without_none
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from tierlog.protocol.codec import decode, encode
from tierlog.protocol.schema import ZERO_UUID

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _cases() -> list[tuple[str, str, int, type, type]]:
    """(api, kind, version, kio's class, our class) for every message that tierlog generates."""
    found = []
    names = [name for key, name in api_key_map.items() if key in KEYS]
    for api in sorted(names):
        ours = importlib.import_module(f"tierlog.protocol.messages.{api}")
        for version, paths in schema_name_map[api].items():
            for kind, path in paths.items():
                if kind in (EntityType.request, EntityType.response):
                    module, name = path.split(":")
                    theirs = getattr(importlib.import_module(module), name)
                    found.append((api, kind.name, version, theirs, getattr(ours, name)))
    return found


def _messages(kind: type) -> st.SearchStrategy[Any]:
    """kio messages of a class."""
    return st.builds(kind, **{field.name: _values(field) for field in dataclasses.fields(kind)})


def _values(field: Any) -> st.SearchStrategy[Any]:
    plain = _without_none(field.type)
    merged = _read_field(field)
    if merged.array:
        element = _without_none(plain.__args__[0])
        values = st.lists(_scalars(field, element), max_size=3).map(tuple)
    else:
        values = _scalars(field, plain)
    nullable = _is_optional(field.type)
    if nullable and "tag" in field.metadata:  # kio writes a null tag only by leaving it out
        return st.one_of(st.just(field.default), values)
    return st.one_of(st.none(), values) if nullable else values


def _scalars(field: Any, plain: type) -> st.SearchStrategy[Any]:
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type is None:
        return _messages(plain)
    if kafka_type in INTEGERS:
        bits = INTEGERS[kafka_type]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {
        "uint16": st.integers(0, 65535),
        "float64": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "string": st.text(max_size=200),
        "bytes": st.binary(max_size=200),
        "records": st.binary(max_size=200),
        "uuid": st.uuids(),
        "error_code": st.sampled_from(list(KioErrorCode)),
        "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(_milliseconds),
        "timedelta_i64": st.integers(-(2**40), 2**40).map(_milliseconds),
        "datetime_i64": st.integers(0, 2**33).map(lambda s: EPOCH + datetime.timedelta(seconds=s)),
    }[kafka_type]


def _milliseconds(count: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=count)


def _translate(theirs: Any, ours: type) -> Any:
    """Our message with the content of a kio one."""
    nested = {field.name: field.nested for field in ours.FIELDS}  # type: ignore[attr-defined]
    values = {}
    for field in dataclasses.fields(theirs):
        merged = _read_field(field)
        value = getattr(theirs, field.name)
        if merged.array and value is not None:
            value = [_translate_one(each, merged.type, nested[merged.name]) for each in value]
        elif not merged.array:
            value = _translate_one(value, merged.type, nested[merged.name])
        values[merged.name] = value
    return ours(**values)


def _translate_one(value: Any, kind: str, nested: Any) -> Any:
    if value is None:
        return {"uuid": ZERO_UUID, "int64": -1}.get(kind)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    if isinstance(value, (uuid.UUID, str, bytes, bool, float)):
        return value
    return _translate(value, nested) if nested else int(value)


CASES = _cases()


@pytest.mark.parametrize(
    ("api", "kind", "version", "theirs", "ours"), CASES, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in CASES]
)
def test_bytes_equal_kio(api: str, kind: str, version: int, theirs: type, ours: Any) -> None:
    @settings(
        max_examples=8, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message = data.draw(_messages(theirs))
        buffer = io.BytesIO()
        entity_writer(theirs)(buffer, message)
        expected = buffer.getvalue()
        mine = _translate(message, ours)
        assert encode(mine, version) == expected
        padded = b"\xff" + expected + b"\xff\xff"
        assert decode(ours, version, padded, 1, 1 + len(expected)) == mine

    check()
