"""Compiled loops of the columnar encoder, and Kafka's partitioner.

A column of bytes is a triple: one uint8 array, and the start and size of each value; size -1 is null. The
caller has checked that the values lie inside of the array. Imports numba, so only columnar_encode.py imports
this module, and only Spark imports columnar_encode.py.
"""

from tierlog.records.kernels import Array, compiled

MOST_VARINT_BYTES = 10
RECORD_OVERHEAD_BYTES = 48
"""Most bytes of a record without its key, value and headers: length, attributes, deltas, sizes, count."""
HEADER_OVERHEAD_BYTES = 10

# the state of an open batch, which `append_records` updates
USED, RECORDS, BASE_TIMESTAMP, MAX_TIMESTAMP = range(4)
STATES = 4


@compiled
def varint_size(value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw < 0 or raw > 0x7F:
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@compiled
def put_varint(out: Array, at: int, value: int) -> int:
    """Zigzag, seven bits a byte. Returns the position after it."""
    raw = (value << 1) ^ (value >> 63)
    while raw < 0 or raw > 0x7F:
        out[at] = (raw & 0x7F) | 0x80
        at += 1
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
    out[at] = raw
    return at + 1


@compiled
def put_bytes(out: Array, at: int, data: Array, start: int, size: int) -> int:
    """A size and that many bytes, or -1 alone for null. Returns the position after it."""
    at = put_varint(out, at, size)
    if size > 0:
        source, target = data[start : start + size], out[at : at + size]
        for i in range(size):  # this form becomes a vectorised copy
            target[i] = source[i]
        at += size
    return at


@compiled
def append_records(
    rows: Array,
    first: int,
    timestamps: Array,
    key_data: Array,
    key_starts: Array,
    key_sizes: Array,
    value_data: Array,
    value_starts: Array,
    value_sizes: Array,
    header_ends: Array,
    name_data: Array,
    name_starts: Array,
    name_sizes: Array,
    header_data: Array,
    header_starts: Array,
    header_sizes: Array,
    out: Array,
    state: Array,
) -> int:
    """Append records to an open batch while they fit into `out`. Returns the index into `rows` of the first
    that does not fit, or their number.

    `rows`: the rows to append, in order. Row i has the headers [header_ends[i], header_ends[i + 1]).
    """
    for index in range(first, rows.shape[0]):
        row = rows[index]
        headers_from, headers_to = header_ends[row], header_ends[row + 1]
        key_size, value_size = key_sizes[row], value_sizes[row]
        if state[RECORDS] == 0:
            state[BASE_TIMESTAMP] = state[MAX_TIMESTAMP] = timestamps[row]
        delta_ms = timestamps[row] - state[BASE_TIMESTAMP]
        size = 1 + varint_size(delta_ms) + varint_size(state[RECORDS])
        size += varint_size(key_size) + max(key_size, 0) + varint_size(value_size) + max(value_size, 0)
        size += varint_size(headers_to - headers_from)
        for header in range(headers_from, headers_to):
            size += varint_size(name_sizes[header]) + name_sizes[header]
            size += varint_size(header_sizes[header]) + max(header_sizes[header], 0)
        at = state[USED]
        if at + varint_size(size) + size > out.shape[0]:
            return index
        at = put_varint(out, at, size)
        out[at] = 0  # attributes, unused
        at = put_varint(out, at + 1, delta_ms)
        at = put_varint(out, at, state[RECORDS])
        at = put_bytes(out, at, key_data, key_starts[row], key_size)
        at = put_bytes(out, at, value_data, value_starts[row], value_size)
        at = put_varint(out, at, headers_to - headers_from)
        for header in range(headers_from, headers_to):
            at = put_bytes(out, at, name_data, name_starts[header], name_sizes[header])
            at = put_bytes(out, at, header_data, header_starts[header], header_sizes[header])
        state[USED] = at
        state[RECORDS] += 1
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], timestamps[row])
    return len(rows)


@compiled
def partitions_of(data: Array, starts: Array, sizes: Array, count: int, out: Array) -> None:
    """Partition of each key as Kafka's default partitioner chooses it; null keys keep what `out` has."""
    for i in range(starts.shape[0]):
        size = sizes[i]
        if size < 0:
            continue
        at = starts[i]
        h = 0x9747B28C ^ size
        for _ in range(size >> 2):
            k = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
            k = (k * 0x5BD1E995) & 0xFFFFFFFF
            k = ((k ^ (k >> 24)) * 0x5BD1E995) & 0xFFFFFFFF
            h = ((h * 0x5BD1E995) & 0xFFFFFFFF) ^ k
            at += 4
        rest = size & 3
        if rest > 2:
            h ^= data[at + 2] << 16
        if rest > 1:
            h ^= data[at + 1] << 8
        if rest > 0:
            h = ((h ^ data[at]) * 0x5BD1E995) & 0xFFFFFFFF
        h = ((h ^ (h >> 13)) * 0x5BD1E995) & 0xFFFFFFFF
        h ^= h >> 15
        out[i] = (h & 0x7FFFFFFF) % count
