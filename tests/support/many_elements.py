"""Requests of every API with many elements in one of their arrays, each with a name or number of its own."""

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.schema import Field

COUNT = 6_000
VALUES = {
    "generation_id_or_member_epoch": -1,
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 1_000,
    "replica_id": -1,
    "response_partition_limit": 2_000,
    "session_timeout_ms": 10_000,
    "timeout_ms": 100,
    "transactional_id": None,
    "validate_only": True,
    "acks": -1,
}
"""With other values a request would be refused as a whole, wait, or make thousands of topics."""

SCALARS = {"bool": False, "bytes": b"", "records": b""}


class ManyElements(NamedTuple):
    """`path`: the names of nested arrays; the last one has COUNT elements, those before it one."""

    api: str
    version: int
    path: str
    frame: bytes


def requests_with_many_elements() -> Iterator[ManyElements]:
    for api in APIS.values():
        if api.name not in SERVED:
            continue
        for path in _paths(api.request, api.max_version):
            message = _filled(api.request, 0)
            holder = message
            for field in path[:-1]:
                element = _filled(field.nested, 0)
                setattr(holder, field.name, [element])
                holder = element
            last = path[-1]
            setattr(holder, last.name, [_element(last, number) for number in range(COUNT)])
            frame = encode_request(api, api.max_version, 1, "client", message)
            yield ManyElements(api.name, api.max_version, ".".join(each.name for each in path), frame)


def _paths(kind: Any, version: int) -> Iterator[tuple[Field, ...]]:
    for field in kind.FIELDS:
        if field.array and field.exists_in(version):
            yield (field,)
            if field.nested is not None:
                for path in _paths(field.nested, version):
                    yield (field, *path)


def _filled(kind: Any, number: int) -> Any:
    message = kind()
    for field in kind.FIELDS:
        if not field.array and field.type != "struct":
            value = VALUES.get(field.name, _element(field, number))
            if value is None and field.nullable is None:
                value = _element(field, number)
            setattr(message, field.name, value)
    return message


def _element(field: Field, number: int) -> Any:
    match field.type:
        case "struct":
            return _filled(field.nested, number)
        case "string":
            return f"k{number}"
        case "uuid":
            return uuid.UUID(int=number + 1)
        case "float64":
            return 1.0
        case "int8":
            return min(number, 2)
        case _:
            return SCALARS.get(field.type, number)
