"""Arrow columns to record batches, without a Python object per record. Called by Spark's writers.

Python cuts rows into batches, seals and compresses them; compiled loops write the records. An `OpenBatch`
collects the records of one partition, from as many columns as it takes to fill it.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tierlog.records import encode_kernels as kernels
from tierlog.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL, seal
from tierlog.records.codecs import Codec, compress
from tierlog.records.kernels import Array

FIRST_BYTES = 16 * 1024
"""First size of an open batch. It grows up to its limit: a task may write to thousands of partitions."""


class Bytes(NamedTuple):
    """Values of a column: where each starts in `data`, and its size; -1 is null."""

    data: Array
    starts: Array
    sizes: Array

    def of_rows(self, rows: Array) -> "Bytes":
        return Bytes(self.data, self.starts[rows], self.sizes[rows])


class RecordColumns(NamedTuple):
    """Rows to encode. `timestamps`: milliseconds. Row i has headers [header_ends[i], header_ends[i + 1])."""

    timestamps: Array
    keys: Bytes
    values: Bytes
    header_ends: Array
    header_names: Bytes
    header_values: Bytes

    @property
    def rows(self) -> int:
        return len(self.timestamps)

    def most_bytes(self, row: int) -> int:
        """Upper bound of the encoded size of one row."""
        size = kernels.RECORD_OVERHEAD_BYTES + max(self.keys.sizes[row], 0) + max(self.values.sizes[row], 0)
        for header in range(self.header_ends[row], self.header_ends[row + 1]):
            size += kernels.HEADER_OVERHEAD_BYTES + self.header_names.sizes[header]
            size += max(self.header_values.sizes[header], 0)
        return int(size)


class Producer(NamedTuple):
    """Fields of a batch that identify its producer (KIP-98)."""

    id: int
    epoch: int
    transactional: bool = False


def record_columns(key: Any, value: Any, headers: Any, timestamps: Array) -> RecordColumns:
    """Columns from Arrow arrays. `key` and `headers` may be None: all null. Raises ValueError for a header
    without a key."""
    rows = len(value)
    names = values = _no_bytes(0)
    ends = np.zeros(rows + 1, np.int64)
    if headers is not None:
        children = headers.flatten()  # without those of null rows
        sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
        np.cumsum(sizes, out=ends[1:])
        name, content = children.flatten()
        if name.null_count:
            raise ValueError("a header has no key")
        names, values = column_bytes(name), column_bytes(content)
    keys = _no_bytes(rows) if key is None else column_bytes(key)
    return RecordColumns(timestamps, keys, column_bytes(value), ends, names, values)


def column_bytes(array: Any) -> Bytes:
    """Places of the values of a string or binary array."""
    if array.type not in (pa.binary(), pa.string()):
        array = array.cast(pa.binary())
    _, offsets, data = array.buffers()
    if not len(array):
        return _no_bytes(0)
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    sizes = np.diff(ends)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = -1
    content = np.frombuffer(data, np.uint8) if data is not None else _EMPTY
    content.flags.writeable = False
    return Bytes(content, ends[:-1], sizes)


def partitions_of_keys(keys: Bytes, count: int, of_null: Array) -> Array:
    """Partition of each key by Kafka's default partitioner, and `of_null` for rows without a key."""
    found = of_null.astype(np.int64)
    kernels.partitions_of(*keys, count, found)
    return found


class OpenBatch:
    """Records of one partition that are not sent yet: `max_bytes` before compression at most, or one
    record."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._out = np.empty(min(FIRST_BYTES, max_bytes), np.uint8)
        self._state = np.zeros(kernels.STATES, np.int64)

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return int(self._state[kernels.USED])

    @property
    def records(self) -> int:
        return int(self._state[kernels.RECORDS])

    def append(self, columns: RecordColumns, rows: Array, first: int) -> int:
        """Append rows from index `first` of `rows` on. Returns the index of the first that does not fit."""
        while True:
            first = kernels.append_records(
                rows,
                first,
                columns.timestamps,
                *columns.keys,
                *columns.values,
                columns.header_ends,
                *columns.header_names,
                *columns.header_values,
                self._out,
                self._state,
            )
            if first == len(rows) or not self._grow(columns, int(rows[first])):
                return first

    def _grow(self, columns: RecordColumns, row: int) -> bool:
        """Make room for one more record. False: the batch is full."""
        wanted = min(len(self._out) * 4, self._max_bytes)
        if not self.records:
            wanted = max(wanted, columns.most_bytes(row))
        if wanted <= len(self._out):
            return False
        grown = np.empty(wanted, np.uint8)
        grown[: self.size] = self._out[: self.size]
        self._out = grown
        return True

    def seal(self, codec: Codec, producer: Producer, base_sequence: int) -> bytearray:
        """The batch, ready to send; the open batch is empty afterwards."""
        section = compress(codec, self._out[: self.size].tobytes())
        _, records, base_timestamp, max_timestamp = (int(each) for each in self._state)
        batch = bytearray(HEADER_SIZE + len(section))
        HEADER.pack_into(
            batch,
            0,
            0,
            len(batch) - LOG_OVERHEAD,
            -1,
            MAGIC,
            0,
            codec | (TRANSACTIONAL if producer.transactional else 0),
            records - 1,
            base_timestamp,
            max_timestamp,
            producer.id,
            producer.epoch,
            base_sequence,
            records,
        )
        batch[HEADER_SIZE:] = section
        seal(batch, 0, len(batch))
        self._state[:] = 0
        if len(self._out) > self._max_bytes:
            self._out = np.empty(self._max_bytes, np.uint8)
        return batch


_EMPTY = np.zeros(0, np.uint8)
_EMPTY.flags.writeable = False


def _no_bytes(rows: int) -> Bytes:
    """A column of nulls."""
    return Bytes(_EMPTY, np.zeros(rows, np.int64), np.full(rows, -1, np.int64))
