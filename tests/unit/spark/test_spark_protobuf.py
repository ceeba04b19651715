"""Protobuf messages that Google's library reads, but does not write."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shop_values as shop
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from tierlog.spark.options import InvalidOption
from tierlog.spark.options.values import Malformed, ValueFormat, ValueOptions
from tierlog.spark.values import decoded
from tierlog.spark.values.protobuf import MessageReader
from tierlog.spark.values.protobuf_schema import parse_descriptors

ORDER = "shop.Order"
OPTIONS = ValueOptions(
    format=ValueFormat.PROTOBUF, descriptors=shop.proto_set(), message=ORDER, malformed=Malformed.NULL
)
NUMBERS = ("id", "paid", *(name for name in shop.NUMBERS if name != "fl"))  # a float may be NaN


def read(*values: bytes) -> Any:
    nothing = np.zeros(0, np.int64)
    reader = MessageReader(parse_descriptors(shop.proto_set(), ORDER))
    type = reader.decode(np.zeros(0, np.uint8), nothing, nothing)[0].type
    found = decoded(pa.array(values, pa.binary()), OPTIONS, type)
    found.validate(full=True)
    return found.to_pylist()


def test_message_of_too_many_fields_is_refused() -> None:
    """Each message has the one before it twice."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto")
    for level in range(16):
        message = file.message_type.add(name=f"M{level}")
        for number in (1, 2):
            one = message.field.add(name=f"f{number}", number=number, type=5, label=1)
            if level:
                one.type, one.type_name = 11, f".M{level - 1}"
    with pytest.raises(InvalidOption, match="more than 10000 fields"):
        parse_descriptors(file.SerializeToString(), "M15")


def entry(key: str, value: str) -> bytes:
    """An entry of `attributes`, field 9."""
    body = b"\x0a" + bytes([len(key)]) + key.encode() + b"\x12" + bytes([len(value)]) + value.encode()
    return b"\x4a" + bytes([len(body)]) + body


def test_last_entry_of_a_map_s_key_counts() -> None:
    first = entry("a", "1") + entry("b", "2") + entry("a", "3")
    rows = read(first, entry("b", "4"), b"", entry("a", "5") + entry("a", "6"))
    assert [row["attributes"] for row in rows] == [[("b", "2"), ("a", "3")], [("b", "4")], [], [("a", "6")]]


@pytest.mark.parametrize("bits", [2**32, 2**32 + 3, 2**64 - 1, 2**32 - 1, 2**31, 5])
def test_sint32_of_more_bits_is_truncated_first(bits: int) -> None:
    raw = bytearray(b"\xb0\x01")  # field 22
    while bits > 0x7F:
        raw.append(bits & 0x7F | 0x80)
        bits >>= 7
    raw.append(bits)
    assert read(bytes(raw))[0]["s32"] == shop.proto_class().FromString(bytes(raw)).s32


@pytest.mark.parametrize("seconds", [9_223_372_036_855, -9_223_372_036_855, -(2**63), 2**63 - 1])
def test_timestamp_that_no_column_can_hold_is_malformed(seconds: int) -> None:
    order = shop.proto_class()()
    order.at.seconds = seconds
    good = shop.proto_class()(id=7).SerializeToString()
    rows = read(good, order.SerializeToString(), good)
    assert [row and row["id"] for row in rows] == [7, None, 7]


def test_changed_bytes_are_read_as_by_the_other_library() -> None:
    """Except entries of maps with unknown fields, which some of Google's libraries drop, and others keep."""
    rng, order_class = random.Random(6), shop.proto_class()
    values = []
    for number in range(1_500):
        raw = bytearray(shop.proto_order(order_class, rng, number).SerializeToString())
        for _ in range(rng.randrange(3)):
            if raw:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        values.append(bytes(raw))
    compared = 0
    for value, row in zip(values, read(*values), strict=True):
        try:
            order = order_class.FromString(value)
            if order.HasField("at"):
                order.at.ToDatetime()
        except (DecodeError, ValueError, OverflowError, UnicodeDecodeError):
            continue
        if row is None:
            continue
        expected = {
            **{name: getattr(order, name) for name in NUMBERS},
            "customer": order.customer if order.HasField("customer") else None,
            "nums": list(order.nums),
        }
        assert {name: row[name] for name in expected} == expected
        compared += 1
    assert compared > 500
