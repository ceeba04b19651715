"""Values as columns: JSON, Avro and Protobuf decoded into Arrow on the executors.

`column_type` says on the driver which type the column `value` has in Spark. `decoded` decodes a batch.
"""

import re
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tierlog.spark.options import InvalidOption
from tierlog.spark.options.table import similar
from tierlog.spark.options.values import Malformed, ValueFormat, ValueOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierlog.client.registry import RegistryAddress
    from tierlog.records.kernels import Array

    Decoder: TypeAlias = "Callable[[Array, Array, Array, Any], tuple[Any, Array]]"

SPARK_TYPES = (
    *("ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT"),
    *("STRING", "STRUCT", "TIMESTAMP", "TIMESTAMP_NTZ", "TINYINT"),
)
OTHER_SPARK_TYPES = (
    *("BYTE", "CHAR", "CHARACTER", "DEC", "INTEGER", "INTERVAL", "LONG", "NUMERIC", "REAL", "SHORT", "TIME"),
    *("TIMESTAMP_LTZ", "VARCHAR", "VARIANT", "VOID"),
)
"""Other names of these types, and types that Spark has and JSON values do not."""

DDL_WORD = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|\S""", re.DOTALL)
FRAME_BYTES = 5
DECODERS_MAX = 64


class MalformedValue(ValueError):
    """A value does not follow its schema."""


def resolved(options: ValueOptions | None) -> ValueOptions | None:
    """The options with the schema of the column, which the registry has if the user gave none. Raises
    RegistryError."""
    if options is None or options.schema or options.descriptors or options.registry is None:
        return options
    from tierlog.client.registry import RegistryError

    try:
        return _of_registry(options, options.registry)
    except RegistryError as failure:
        chosen = "value.subject" if options.schema_id is None else "value.schema.id"
        advice = f"Check the options `schema.registry.url` and `{chosen}`"
        raise RegistryError(f"{failure}. {advice}", failure.status) from None


def _of_registry(options: ValueOptions, address: "RegistryAddress") -> ValueOptions:
    from tierlog.client import registry

    subject = options.subject or ""
    if options.format is ValueFormat.PROTOBUF:
        if options.schema_id is not None:
            return replace(options, descriptors=registry.descriptors_of_id(address, options.schema_id))
        return replace(options, descriptors=registry.latest_descriptors_of(address, subject))
    if options.schema_id is not None:
        return replace(options, schema=registry.schema_of_id(address, options.schema_id))
    return replace(options, schema=registry.latest_of(address, subject))


def column_type(options: ValueOptions) -> str:
    """The type of the column `value` in Spark. Raises InvalidOption and RegistryError."""
    found = resolved(options) or options
    if found.format is ValueFormat.JSON:
        return _json_type(found.schema.strip())
    if found.format is ValueFormat.PROTOBUF:
        from tierlog.spark.values.protobuf_schema import parse_descriptors

        return parse_descriptors(found.descriptors, found.message).spark
    from tierlog.spark.values.avro_schema import parse_schema

    return parse_schema(found.schema).spark


def _json_type(schema: str) -> str:
    """The type of a schema in Spark's notation: of fields, a struct or an array. Raises InvalidOption."""
    if re.search(r"\bmap\s*<", schema, re.IGNORECASE):
        raise InvalidOption("`value.format` json has no MAP: name the fields in a STRUCT")
    is_type = re.match(r"(struct|array)\s*<", schema, re.IGNORECASE)
    found = schema if is_type else f"struct<{schema}>"
    if (unknown := _unknown_type(found)) is not None:
        field, name = unknown
        raise InvalidOption(
            f"`value.schema`: the type {name} of {field} is unknown.{similar(name.upper(), SPARK_TYPES)} "
            f"The types are {', '.join(SPARK_TYPES)}"
        )
    return found


def _unknown_type(type: str) -> tuple[str, str] | None:
    """The first field whose type Spark does not have, and this type. Spark itself reports other mistakes."""
    field, kind, state, parentheses = "`value`", "", "type", 0
    is_struct = [False]  # for each open bracket: whether it has fields, or one type
    for word in DDL_WORD.findall(type):
        if word == ">" and len(is_struct) > 1:
            is_struct.pop()
            state = "end"
        elif state == "name":
            field, state = word, "type"
        elif state == "type":
            if word == ":":
                continue
            kind, state = word.upper(), "end"
            if not word.isidentifier():
                return None
            if kind not in (*SPARK_TYPES, *OTHER_SPARK_TYPES):
                return field, word
        elif word == "<":
            is_struct.append(kind == "STRUCT")
            state = "name" if is_struct[-1] else "type"
        elif word == "," and not parentheses:
            state = "name" if is_struct[-1] else "type"
        else:
            parentheses += (word == "(") - (word == ")")
    return None


def decoded(values: Any, options: ValueOptions, type: Any) -> Any:
    """An Arrow array of the type, of a binary array. Null stays null. Raises MalformedValue."""
    import numpy as np
    import pyarrow as pa

    from tierlog.records.columnar_encode import column_bytes

    data, starts, sizes = column_bytes(values)
    rows = np.flatnonzero(sizes >= 0)
    starts, ends = starts[rows], (starts + sizes)[rows]
    arrays, sources = [], []
    for group, start, decoder in _decoders(data, starts, ends, options):
        array, is_good = _decode(decoder, data, starts[group] + start, ends[group], type)
        arrays.append(array)
        sources.append(rows[group][is_good])
    found = pa.concat_arrays(arrays) if arrays else pa.nulls(0, type)
    if len(found) < len(rows) and options.malformed is Malformed.FAIL:
        good = np.concatenate(sources) if sources else np.zeros(0, np.int64)
        first = int(np.setdiff1d(rows, good)[0])
        shown = values[first].as_py()[:40]
        raise MalformedValue(
            f"a value does not follow the schema: {shown!r}; set `value.malformed` to null to read such "
            "values as null"
        )
    if len(found) == len(values) and len(arrays) == 1:
        return found
    places = np.full(len(values), -1, np.int64)
    at = 0
    for source in sources:
        places[source] = np.arange(at, at + len(source))
        at += len(source)
    return found.take(pa.array(places, mask=places < 0))


def _decode(
    decoder: "Decoder", data: "Array", starts: "Array", ends: "Array", type: Any
) -> "tuple[Any, Array]":
    """The result of the decoder. A value that does not fit into the type, such as a timestamp after the year
    294246, is not good either: the values are halved until it stands alone."""
    import numpy as np
    import pyarrow as pa

    try:
        return decoder(data, starts, ends, type)
    except pa.ArrowInvalid:
        if len(starts) == 1:
            return pa.nulls(0, type), np.zeros(1, np.bool_)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:  # the schema is wrong, not a value
        raise MalformedValue(f"values do not fit into {type}: {error}") from None
    half = len(starts) // 2
    first, first_good = _decode(decoder, data, starts[:half], ends[:half], type)
    second, second_good = _decode(decoder, data, starts[half:], ends[half:], type)
    return pa.concat_arrays([first, second]), np.concatenate([first_good, second_good])


def _decoders(data: "Array", starts: "Array", ends: "Array", options: ValueOptions) -> Any:
    """Groups of values by the schema that wrote them: their numbers, the size of the frame, and a Decoder."""
    import numpy as np

    if options.registry is None:
        if len(starts):
            yield np.arange(len(starts)), 0, _decoder(options, options.schema)
        return
    framed = np.flatnonzero(ends - starts >= FRAME_BYTES)
    framed = framed[data[starts[framed]] == 0]
    if options.format is not ValueFormat.AVRO:
        if len(framed):
            yield framed, FRAME_BYTES, _decoder(options, options.schema)
        return
    from tierlog.client.registry import schema_of_id

    ids = np.zeros(len(framed), np.int64)
    for number in range(1, FRAME_BYTES):
        ids = ids << 8 | data[starts[framed] + number]
    for schema_id in np.unique(ids):
        schema = schema_of_id(options.registry, int(schema_id))
        yield framed[ids == schema_id], FRAME_BYTES, _decoder(options, schema)


@lru_cache(DECODERS_MAX)
def _decoder(options: ValueOptions, schema: str) -> "Decoder":
    """Decodes values that this schema wrote: data, starts, ends, type -> array, which are good."""
    match options.format:
        case ValueFormat.JSON:
            from tierlog.spark.values.json_values import decode

            return partial(decode, stops=options.malformed is Malformed.FAIL)
        case ValueFormat.AVRO:
            from tierlog.spark.values.avro import decoder

            of_avro: Decoder = decoder(schema, options.schema)
            return of_avro
        case ValueFormat.PROTOBUF:
            from tierlog.spark.values.protobuf import decoder as protobuf_decoder

            of_messages: Decoder = protobuf_decoder(
                options.descriptors, options.message, options.registry is not None
            )
            return of_messages
