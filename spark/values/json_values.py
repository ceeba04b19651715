"""JSON values as Arrow arrays, by pyarrow's parser: all values of a batch at once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tierlog.records.columnar import binary_array
from tierlog.records.kernels import Array

BEFORE, AFTER, COLUMN = b'{"v":', b"}\n", "v"
MOST_BYTES = 1 << 30


def decode(data: Array, starts: Array, ends: Array, type: Any) -> tuple[Any, Array]:
    """The values between these positions that are not malformed, and for each whether it is one of them."""
    values = binary_array(data, np.ascontiguousarray(starts), ends - starts)
    arrays, is_good = [], np.ones(len(values), np.bool_)
    todo = [(0, len(values))]
    while todo:  # bisection, because the parser does not say which value is malformed
        start, end = todo.pop()
        found = _parse(values.slice(start, end - start), type)
        if found is not None:
            arrays.append(found)
        elif end - start == 1:
            is_good[start] = False
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
        explicit_schema=pa.schema([(COLUMN, type)]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    block = pyarrow.json.ReadOptions(use_threads=False, block_size=min(len(text) + 1, MOST_BYTES))
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), read_options=block, parse_options=options)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(values):
        return None
    found = table.column(COLUMN).combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
