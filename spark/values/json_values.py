"""JSON values as Arrow arrays, by pyarrow's parser: all values of a batch at once.

The parser takes dates as numbers only. They are parsed as strings, and cast.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tierlog.records.columnar import binary_array
from tierlog.records.kernels import Array
from tierlog.spark.values import kernels

BEFORE, AFTER, COLUMN = b'{"v":', b"}\n", "v"
MOST_BYTES = 1 << 30


def decode(data: Array, starts: Array, ends: Array, type: Any, *, stops: bool = False) -> tuple[Any, Array]:
    """The values between these positions that are not malformed, and for each whether it is one of them.
    `stops`: at the first malformed one, as it ends the query. The values after it count as malformed, too."""
    is_good = np.zeros(len(starts), np.bool_)
    kernels.find_json(data, starts, ends, is_good)
    candidates = np.flatnonzero(is_good)
    if stops and len(candidates) < len(starts):
        candidates = candidates[candidates < np.argmin(is_good)]
    is_good[:] = False
    array, is_parsed = _decode(
        binary_array(data, np.ascontiguousarray(starts[candidates]), (ends - starts)[candidates]), type, stops
    )
    is_good[candidates] = is_parsed
    return array, is_good


def _decode(values: Any, type: Any, stops: bool) -> tuple[Any, Array]:
    arrays, is_good = [], np.zeros(len(values), np.bool_)
    todo = [(0, len(values))]
    while todo:  # bisection, because the parser does not say which value is malformed
        start, end = todo.pop()
        found = _parse(values.slice(start, end - start), type)
        if found is not None:
            arrays.append(found)
            is_good[start:end] = True
        elif end - start == 1:
            if stops:
                break
        else:
            middle = (start + end) // 2
            todo += [(middle, end), (start, middle)]
    return (pa.concat_arrays(arrays) if arrays else pa.nulls(0, type)), is_good


def _parse(values: Any, type: Any) -> Any:
    """None if one is malformed. Each is the field of an object of its own, so that no value is taken for two
    or for none."""
    if len(values) == 0:
        return pa.nulls(0, type)
    try:
        values.cast(pa.string())  # the parser does not check UTF-8
    except pa.ArrowInvalid:
        return None
    together = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text = b"".join((BEFORE, pc.binary_join(together, AFTER + BEFORE)[0].as_buffer(), AFTER))
    options = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema([(COLUMN, _with_texts(type))]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    block = pyarrow.json.ReadOptions(use_threads=False, block_size=min(len(text) + 1, MOST_BYTES))
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), read_options=block, parse_options=options)
        if table.num_rows != len(values):
            return None
        found = table.column(COLUMN).cast(type).combine_chunks()
        found = found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
        found.validate(full=True)  # a decimal may have too many digits
    except pa.ArrowInvalid:
        return None
    return found


def _with_texts(type: Any) -> Any:
    """The type with strings in the place of dates."""
    if pa.types.is_date(type):
        return pa.string()
    if pa.types.is_struct(type):
        return pa.struct([one.with_type(_with_texts(one.type)) for one in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_with_texts(type.value_type)))
    return type
