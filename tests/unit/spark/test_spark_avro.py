"""Avro schemas of hostile writers and of other versions: refused, or converted to the column's schema."""

import numpy as np
import pytest

from tierlog.spark.options import InvalidOption
from tierlog.spark.values import kernels
from tierlog.spark.values.avro_schema import parse_schema


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
