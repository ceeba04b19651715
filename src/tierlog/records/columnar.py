"""Record batches to Arrow columns, without a Python object per record. Called by Spark's readers.

Python walks the batches (CRC, skipping, decompression), compiled loops walk the records, and also batches
that need no CRC and no decompression. Only requested columns are built, and each record is read only as far
as the last of them. Invalid bytes raise RecordsError.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tierlog.records import kernels
from tierlog.records.batch import HEADER_SIZE, BatchHeader, Buffer, check_batch
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError, RecordsFault
from tierlog.records.kernels import Array
from tierlog.records.record import LEAST_RECORD_BYTES, records_section

GROUP_BYTES = 16 << 20
"""Decompressed bytes decoded at a time: bounds the memory of a reader and keeps Arrow's 32-bit offsets safe.
"""
MAX_BATCH_BYTES = 512 << 20
"""Batches that decompress to more are rejected."""

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
_DEPTHS = {"key": kernels.TO_KEY, "value": kernels.TO_VALUE, "headers": kernels.TO_HEADERS}


class AbortedRange(NamedTuple):
    """A producer's records in [first_offset, last_offset] belong to an aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int


class Columns(NamedTuple):
    """Arrow arrays by column name, each with `rows` rows."""

    rows: int
    arrays: dict[str, Any]


def decode_columns(
    buffer: Buffer,
    columns: Collection[str],
    *,
    first_offset: int = 0,
    end_offset: int = 2**63 - 1,
    aborted: Collection[AbortedRange] = (),
    max_batch_bytes: int = MAX_BATCH_BYTES,
    group_bytes: int = GROUP_BYTES,
    is_checked: bool = False,
) -> Iterator[Columns]:
    """The records with offsets in [first_offset, end_offset), in order, in groups of about group_bytes.

    The buffer holds whole batches. Control batches and aborted transactions are skipped. `headers` is null
    for a record without headers, as in Spark's Kafka source. `is_checked`: the caller has compared all bytes
    with a checksum, so that those of the batches need not be. Raises RecordsError, and ValueError for an
    unknown column.
    """
    if unknown := set(columns) - set(COLUMNS):
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    if is_checked and not aborted:
        data = np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)
        places = np.empty((len(data) // HEADER_SIZE, 8), np.int64)  # most of it is never touched
        found = int(kernels.find_batches(data, first_offset, end_offset, places))
        if found != kernels.NOT_PLAIN:
            for some in _in_groups(places[:found], group_bytes):
                yield _decode(data, some, columns, first_offset, end_offset)
            return
    group = _Group(buffer, max_batch_bytes)
    hidden = _AbortedTransactions(aborted)
    at = next_offset = 0
    while at < len(buffer):
        header = check_batch(buffer, at)
        if header.base_offset < next_offset:
            raise RecordsError(RecordsFault.CORRUPT, f"offset {header.base_offset} follows {next_offset - 1}")
        next_offset = header.next_offset
        if (
            header.base_offset < end_offset
            and header.next_offset > first_offset
            and not header.is_control
            and header not in hidden
        ):
            group.add(at, header)
            if group.size >= group_bytes:
                yield _decode(group.data(), group.places(), columns, first_offset, end_offset)
                group = _Group(buffer, max_batch_bytes)
        at += header.size
    if group.size:
        yield _decode(group.data(), group.places(), columns, first_offset, end_offset)


class _AbortedTransactions:
    """Finds the aborted transaction of a batch by bisection: those of one producer do not overlap."""

    def __init__(self, aborted: Collection[AbortedRange]) -> None:
        self._by_producer: dict[int, list[AbortedRange]] = {}
        for txn in sorted(aborted, key=_last_offset):
            self._by_producer.setdefault(txn.producer_id, []).append(txn)

    def __contains__(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        txns = self._by_producer.get(header.producer_id, [])
        at = bisect_left(txns, header.base_offset, key=_last_offset)
        return at < len(txns) and txns[at].first_offset <= header.last_offset


def _last_offset(txn: AbortedRange) -> int:
    return txn.last_offset


class _Group:
    """Batches that are decoded together: positions in one array, without a copy unless one is compressed."""

    def __init__(self, buffer: Buffer, max_batch_bytes: int) -> None:
        self._buffer = buffer
        self._max_batch_bytes = max_batch_bytes
        self._sections: list[bytes | memoryview] = []
        self._headers: list[BatchHeader] = []
        self._starts: list[int] = []
        self._compressed = False
        self.size = 0

    def add(self, at: int, header: BatchHeader) -> None:
        section = records_section(self._buffer, at, header, self._max_batch_bytes)
        if header.record_count > len(section) // LEAST_RECORD_BYTES:
            raise RecordsError(RecordsFault.INVALID, f"{header.record_count} records in {len(section)} bytes")
        self._sections.append(section)
        self._headers.append(header)
        self._starts.append(at + header.size - len(section))
        self._compressed |= header.codec is not Codec.NONE
        self.size += len(section)

    def data(self) -> Array:
        """Read-only in any case, so that each kernel is compiled for one array type."""
        joined = b"".join(self._sections) if self._compressed else self._buffer
        return np.frombuffer(memoryview(joined).toreadonly(), np.uint8)

    def places(self) -> Array:
        """The input of `scan_records` for each batch."""
        places = np.empty((len(self._headers), 8), np.int64)
        sizes = [len(section) for section in self._sections]
        places[:, 0] = np.cumsum([0, *sizes[:-1]]) if self._compressed else self._starts
        places[:, 1] = places[:, 0] + sizes
        for row, header in zip(places, self._headers, strict=True):
            row[2:] = (
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp,
                header.max_timestamp,
                header.log_append_time,
            )
        return places


def _in_groups(places: Array, group_bytes: int) -> list[Array]:
    if not len(places):
        return []
    ends = np.cumsum(places[:, 1] - places[:, 0])
    return np.split(places, np.flatnonzero(np.diff(ends // group_bytes)) + 1)


def _decode(
    data: Array, places: Array, columns: Collection[str], first_offset: int, end_offset: int
) -> Columns:
    table = np.empty((kernels.ROWS, int(places[:, 2].sum())), np.int64)
    depth = max((_DEPTHS.get(column, kernels.TO_OFFSET) for column in columns), default=kernels.TO_OFFSET)
    count = _checked(kernels.scan_records(data, places, first_offset, end_offset, depth, table))
    return Columns(count, {column: _column(column, data, table, count) for column in columns})


def _column(name: str, data: Array, table: Array, count: int) -> Any:
    match name:
        case "offset":
            return pa.array(table[kernels.OFFSET, :count])
        case "timestamp":
            return pa.array(table[kernels.TIMESTAMP_US, :count]).view(TIMESTAMP_TYPE)
        case "timestampType":
            return pa.array(table[kernels.TIMESTAMP_TYPE, :count].astype(np.int32))
        case "key":
            return binary_array(data, table[kernels.KEY_AT, :count], table[kernels.KEY_SIZE, :count])
        case "value":
            return binary_array(data, table[kernels.VALUE_AT, :count], table[kernels.VALUE_SIZE, :count])
        case _:
            return _headers(data, table, count)


def binary_array(data: Array, starts: Array, sizes: Array) -> Any:
    """A binary array of the slices, with Arrow's buffers filled directly."""
    count = len(sizes)
    ends = np.empty(count + 1, np.int32)
    validity = np.zeros((count + 7) // 8, np.uint8)
    nulls = int(kernels.measure(sizes, ends, validity))
    values = np.empty(int(ends[-1]), np.uint8)
    kernels.gather(data, starts, ends, values)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(ends), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers, nulls)


def _headers(data: Array, table: Array, count: int) -> Any:
    counts = table[kernels.HEADERS, :count]
    places = np.empty((4, int(counts.sum())), np.int64)
    _checked(kernels.scan_headers(data, table, count, places))
    try:
        keys = binary_array(data, places[0], places[1]).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise RecordsError(RecordsFault.INVALID, f"a header key is not UTF-8: {error}") from None
    values = binary_array(data, places[2], places[3])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    absent = counts == 0
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=HEADERS_TYPE, mask=pa.array(absent))


def _checked(result: int) -> int:
    if result < 0:
        raise RecordsError(RecordsFault.INVALID, kernels.FAULTS[result])
    return int(result)
