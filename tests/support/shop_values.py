"""Orders as Avro and Protobuf values, written by the libraries of these formats, and as Arrow has them."""

import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

FIRST_S = 1_700_000_000
AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double"},
        {"name": "weight", "type": "float"},
        {"name": "paid", "type": "boolean"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "before", "type": ["State", "null"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "raw", "type": "bytes"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "sizes", "type": {"type": "array", "items": "int"}},
                    ],
                },
            },
        },
        {"name": "first", "type": ["null", "Line"]},
        {"name": "attributes", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "mixed", "type": ["null", "int", "string"]},
        {"name": "wide", "type": ["int", "long"]},
    ],
}
SPARK_TYPE = (
    "struct<id:bigint,count:int,customer:string,amount:double,weight:float,paid:boolean,state:string,"
    "before:string,at:timestamp,day:date,code:binary,raw:binary,"
    "lines:array<struct<sku:string,sizes:array<int>>>,first:struct<sku:string,sizes:array<int>>,"
    "attributes:map<string,string>,price:decimal(10,2),mixed:struct<member0:int,member1:string>,wide:bigint>"
)


def avro_order(rng: random.Random, number: int) -> dict[str, Any]:
    """A record as fastavro writes it."""
    at = datetime.fromtimestamp(FIRST_S + number, UTC)
    line = {"sku": f"s{number}", "sizes": [rng.randrange(-9, 9) for _ in range(rng.randrange(3))]}
    return {
        "id": rng.randrange(-(2**63), 2**63),
        "count": rng.randrange(-(2**31), 2**31),
        "customer": rng.choice([None, "", "Zoë"]),
        "amount": rng.random(),
        "weight": rng.choice([0.5, -2.25]),
        "paid": rng.random() < 0.5,
        "state": rng.choice(["NEW", "SENT"]),
        "before": rng.choice(["NEW", None]),
        "at": at,
        "day": at.date(),
        "code": rng.randbytes(3),
        "raw": rng.randbytes(rng.randrange(4)),
        "lines": [line] * rng.randrange(3),
        "first": rng.choice([None, line]),
        "attributes": {f"a{n}": rng.choice([None, "b"]) for n in range(rng.randrange(3))},
        "price": Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-2),
        "mixed": rng.choice([None, 5, "x"]),
        "wide": rng.choice([1, 2**40]),
    }


def avro_bytes(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return out.getvalue()


def shown(order: dict[str, Any]) -> dict[str, Any]:
    """The record as Arrow has it."""
    mixed = order["mixed"]
    members = {"member0": mixed if isinstance(mixed, int) else None}
    members["member1"] = mixed if isinstance(mixed, str) else None
    found = {**order, "attributes": list(order["attributes"].items())}
    found["mixed"] = None if mixed is None else members
    return found


_FIELD = descriptor_pb2.FieldDescriptorProto
NUMBERS = ("u32", "u64", "s32", "s64", "f32", "f64", "sf32", "sf64", "fl", "by", "i32")
_NUMBER_TYPES = (
    _FIELD.TYPE_UINT32,
    _FIELD.TYPE_UINT64,
    _FIELD.TYPE_SINT32,
    _FIELD.TYPE_SINT64,
    _FIELD.TYPE_FIXED32,
    _FIELD.TYPE_FIXED64,
    _FIELD.TYPE_SFIXED32,
    _FIELD.TYPE_SFIXED64,
    _FIELD.TYPE_FLOAT,
    _FIELD.TYPE_BYTES,
    _FIELD.TYPE_INT32,
)
STATES = {0: "NEW", 1: "SENT", -5: "LOST"}


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    """shop.proto with the messages Line and Order, as protoc would compile it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    states = file.enum_type.add(name="State")
    for number, name in STATES.items():
        states.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=_FIELD.TYPE_STRING, label=1)
    line.field.add(name="n", number=2, type=_FIELD.TYPE_INT32, label=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="AttributesEntry")
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=_FIELD.TYPE_STRING, label=1)
    entry.options.map_entry = True
    named = _FIELD.TYPE_MESSAGE
    for name, number, type, label, type_name in (
        ("id", 1, _FIELD.TYPE_INT64, 1, ""),
        ("customer", 2, _FIELD.TYPE_STRING, 1, ""),
        ("amount", 3, _FIELD.TYPE_DOUBLE, 1, ""),
        ("paid", 4, _FIELD.TYPE_BOOL, 1, ""),
        ("state", 5, _FIELD.TYPE_ENUM, 1, ".shop.State"),
        ("at", 6, named, 1, ".google.protobuf.Timestamp"),
        ("lines", 7, named, 3, ".shop.Line"),
        ("first", 8, named, 1, ".shop.Line"),
        ("attributes", 9, named, 3, ".shop.Order.AttributesEntry"),
        *((name, 20 + n, _NUMBER_TYPES[n], 1, "") for n, name in enumerate(NUMBERS)),
        ("nums", 40, _FIELD.TYPE_SINT64, 3, ""),
        ("names", 41, _FIELD.TYPE_STRING, 3, ""),
        ("states", 42, _FIELD.TYPE_ENUM, 3, ".shop.State"),
    ):
        order.field.add(name=name, number=number, type=type, label=label, type_name=type_name or None)
    customer = order.field[1]
    customer.proto3_optional, customer.oneof_index = True, 0
    order.oneof_decl.add(name="_customer")
    return file


def proto_set() -> bytes:
    """A descriptor set, as of `protoc --include_imports --descriptor_set_out`."""
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.add().CopyFrom(proto_file())
    return found.SerializeToString()


def proto_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(proto_set()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def proto_order(order_class: Any, rng: random.Random, number: int) -> Any:
    order = order_class()
    if rng.random() < 0.8:
        order.id = rng.randrange(-(2**63), 2**63)
    if rng.random() < 0.5:
        order.customer = rng.choice(["", "Zoë"])
    order.amount, order.paid = rng.choice([0.0, 1.5]), rng.random() < 0.5
    order.state = rng.choice([0, 1, -5, 77])
    if rng.random() < 0.5:
        order.at.FromDatetime(datetime.fromtimestamp(FIRST_S + number, UTC))
    for each in range(rng.randrange(3)):
        order.lines.add(sku=f"s{each}", n=-each)
    if rng.random() < 0.3:
        order.first.n = rng.randrange(5)
    if rng.random() < 0.5:
        order.attributes["a"] = ""
        order.attributes["é"] = "b"
    if rng.random() < 0.5:
        order.u32, order.u64, order.f64 = 2**32 - 1, 2**64 - 1, rng.randrange(2**64)
        order.f32, order.i32, order.s32 = 2**31, -1, -(2**31)
        order.s64, order.sf32, order.sf64 = -(2**63), -7, 2**63 - 1
        order.fl, order.by = 0.5, rng.randbytes(5)
    order.nums.extend(rng.randrange(-100, 100) for _ in range(rng.randrange(4)))
    order.names.extend("n" * each for each in range(rng.randrange(3)))
    order.states.extend([0, 1][: rng.randrange(3)])
    return order


def proto_shown(order: Any) -> dict[str, Any]:
    """The message as Arrow has it."""
    first = {"sku": order.first.sku, "n": order.first.n}
    return {
        "id": order.id,
        "customer": order.customer if order.HasField("customer") else None,
        "amount": order.amount,
        "paid": order.paid,
        "state": STATES.get(order.state),
        "at": order.at.ToDatetime(UTC) if order.HasField("at") else None,
        "lines": [{"sku": line.sku, "n": line.n} for line in order.lines],
        "first": first if order.HasField("first") else None,
        "attributes": sorted(order.attributes.items()),
        **{name: getattr(order, name) for name in NUMBERS},
        "nums": list(order.nums),
        "names": list(order.names),
        "states": [STATES[state] for state in order.states],
    }
