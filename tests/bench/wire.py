"""Kafka protocol frames for the raw load generators, built once and sent as bytes.

Versions: ApiVersions 0, Metadata 1, ListOffsets 1, Produce 9, Fetch 12 (the last versions that
address topics by name with flexible encoding, so no topic id has to be looked up).
"""

import functools
import random
import socket
import ssl
import struct
import time
from typing import NamedTuple

CRC32C_POLYNOMIAL = 0x82F63B78
BATCH_OVERHEAD = 61
CLIENT_ID = b"bench"


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (CRC32C_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def uvarint(value):
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value):
    return uvarint((value << 1) ^ (value >> 63))


def read_uvarint(buffer, at):
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def compact_string(text):
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def _record(offset_delta, value, key=None):
    body = b"\x00" + varint(0) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def record_batch(total_bytes, records, seed=7):
    """One uncompressed v2 batch of exactly total_bytes holding `records` records of random bytes."""
    noise = random.Random(seed).randbytes(2 * total_bytes)
    parts = []
    left = total_bytes - BATCH_OVERHEAD
    for index in range(records):
        share = left // (records - index)
        fitting = b""
        for size in range(max(share - 24, 0), share):
            part = _record(index, noise[left : left + size])
            if len(part) <= share:
                fitting = part
        parts.append(fitting)  # one byte short where a length byte tips over: a later record takes it
        left -= len(fitting)
    if left:
        raise ValueError(f"cannot fill {total_bytes} bytes with {records} records: {left} left")
    return _batch(parts)


def keyed_batch(keys, value_bytes, seed=7):
    """One uncompressed v2 batch with a record of random bytes for each key."""
    values = random.Random(seed)
    return _batch([_record(index, values.randbytes(value_bytes), key) for index, key in enumerate(keys)])


def _batch(parts):
    records = len(parts)
    now = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", 0, records - 1, now, now, -1, -1, -1, records) + b"".join(parts)
    after_length = struct.pack(">ibI", -1, 2, crc32c(tail)) + tail
    return struct.pack(">qi", 0, len(after_length)) + after_length


def request(api_key, version, body, flexible, correlation=0):
    header = struct.pack(">hhih", api_key, version, correlation, len(CLIENT_ID)) + CLIENT_ID
    if flexible:
        header += b"\x00"
    return bytearray(struct.pack(">i", len(header) + len(body)) + header + body)


CORRELATION_AT = 8  # size 4, api key 2, api version 2


def produce_request(topic, partition_batches, acks):
    parts = [b"\x00", struct.pack(">hi", acks, 30000), uvarint(2), compact_string(topic)]
    parts.append(uvarint(len(partition_batches) + 1))
    for partition, batch in partition_batches:
        parts += [struct.pack(">i", partition), uvarint(len(batch) + 1), batch, b"\x00"]
    parts += [b"\x00", b"\x00"]
    return request(0, 9, b"".join(parts), True)


def check_produce_response(body):
    """Raises on any partition error; body starts at the correlation id."""
    at = 5
    topics, at = read_uvarint(body, at)
    for _ in range(topics - 1):
        length, at = read_uvarint(body, at)
        at += length - 1
        partitions, at = read_uvarint(body, at)
        for _ in range(partitions - 1):
            (error,) = struct.unpack_from(">h", body, at + 4)
            if error:
                raise RuntimeError(f"produce error code {error}")
            at += 4 + 2 + 24
            errors, at = read_uvarint(body, at)
            if errors > 1:
                raise RuntimeError("produce record errors")
            message, at = read_uvarint(body, at)
            at += max(message - 1, 0) + 1
        at += 1


def fetch_request(topic, partition, partition_max_bytes, max_wait_ms=500, min_bytes=1, max_bytes=55 << 20):
    """Sessionless Fetch v12; returns the frame and the position of its 8-byte fetch offset."""
    head = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, 0, 0, -1)
    head += uvarint(2) + compact_string(topic) + uvarint(2) + struct.pack(">ii", partition, -1)
    tail = struct.pack(">qiqi", 0, -1, -1, partition_max_bytes) + b"\x00\x00" + b"\x01" + b"\x01" + b"\x00"
    frame = request(1, 12, head + tail, True)
    return frame, len(frame) - len(tail)


def fetch_records(buffer, size):
    """(high watermark, position of the records, their length) of a one-partition Fetch v12 response.

    `buffer` starts at the correlation id.
    """
    (top,) = struct.unpack_from(">h", buffer, 9)
    if top:
        raise RuntimeError(f"fetch error code {top}")
    at = 5 + 4 + 2 + 4
    topics, at = read_uvarint(buffer, at)
    if topics != 2:
        raise RuntimeError(f"{topics - 1} topics in the fetch response")
    length, at = read_uvarint(buffer, at)
    at += length - 1
    _, at = read_uvarint(buffer, at)
    _, error, high = struct.unpack_from(">ihq", buffer, at)
    if error:
        raise RuntimeError(f"fetch error code {error}")
    at += 4 + 2 + 24
    aborted, at = read_uvarint(buffer, at)
    if aborted > 1:
        raise RuntimeError("aborted transactions in a plain topic")
    at += 4
    length, at = read_uvarint(buffer, at)
    return high, at, max(length - 1, 0)


def api_versions_request():
    return request(18, 0, b"", False)


def metadata_request(topic=None):
    if topic is None:
        return request(3, 1, struct.pack(">i", 0), False)
    raw = topic.encode()
    return request(3, 1, struct.pack(">ih", 1, len(raw)) + raw, False)


def parse_metadata(body):
    """Metadata v1: (brokers, controller id, {topic: {partition: (error, leader, in-sync replicas)}})."""
    at = 4

    def take(form):
        nonlocal at
        values = struct.unpack_from(form, body, at)
        at += struct.calcsize(form)
        return values if len(values) > 1 else values[0]

    def text():
        nonlocal at
        length = max(take(">h"), 0)
        at += length
        return bytes(body[at - length : at]).decode()

    brokers, topics = {}, {}
    for _ in range(take(">i")):
        node, host = take(">i"), text()
        brokers[node] = (host, take(">i"))
        text()  # rack
    controller = take(">i")
    for _ in range(take(">i")):
        take(">h")
        partitions = topics[text()] = {}
        take(">b")
        for _ in range(take(">i")):
            error, partition, leader, replicas = take(">hiii")
            at += 4 * replicas
            in_sync = take(">i")
            at += 4 * in_sync
            partitions[partition] = (error, leader, in_sync)
    return brokers, controller, topics


def partitions_by_leader(body):
    """{leader's address: [partition, …]} from a Metadata v1 response about one topic."""
    brokers, _, topics = parse_metadata(body)
    leaders = {}
    for partitions in topics.values():
        for partition, (error, leader, _) in partitions.items():
            if not error and leader in brokers:
                leaders.setdefault(brokers[leader], []).append(partition)
    return leaders


LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4


def list_offset(address, topic, partition, position=LATEST):
    """ListOffsets: version 1, or 8 (the first that knows EARLIEST_LOCAL) where that is asked for."""
    raw = topic.encode()
    if position == EARLIEST_LOCAL:
        body = struct.pack(">ib", -1, 0) + uvarint(2) + compact_string(topic) + uvarint(2)
        frame = request(2, 8, body + struct.pack(">iiq", partition, -1, position) + b"\x00\x00\x00", True)
        at = 4 + 1 + 4 + 1 + len(compact_string(topic)) + 1 + 4
    else:
        body = struct.pack(">iih", -1, 1, len(raw)) + raw + struct.pack(">iiq", 1, partition, position)
        frame = request(2, 1, body, False)
        at = 4 + 4 + 2 + len(raw) + 4 + 4
    with connect(address) as connection:
        connection.sendall(frame)
        reply = read_frame(connection)
    error, _, offset = struct.unpack_from(">hqq", reply, at)
    if error:
        raise RuntimeError(f"list offsets error code {error}")
    return offset


def serving_partitions(address, topic, partitions):
    """How many of these partitions of the topic answer ListOffsets at this address without an error."""
    raw = topic.encode()
    each = b"".join(struct.pack(">iq", partition, LATEST) for partition in partitions)
    body = struct.pack(">iih", -1, 1, len(raw)) + raw + struct.pack(">i", len(partitions)) + each
    with connect(address) as connection:
        connection.sendall(request(2, 1, body, False))
        reply = read_frame(connection)
    at = 4 + 4 + 2 + len(raw) + 4
    return sum(struct.unpack_from(">ih", reply, at + 22 * index)[1] == 0 for index in range(len(partitions)))


def end_offset(address, topic, partition):
    return list_offset(address, topic, partition, LATEST)


def parse_address(text):
    """The first of HOST:PORT[,HOST:PORT…]."""
    host, port = text.split(",")[0].rsplit(":", 1)
    return host, int(port)


class TlsAddress(NamedTuple):
    """Address of a listener with TLS, and the file of the CA of its certificate."""

    host: str
    port: int
    ca: str


def tls_address(text, ca):
    return TlsAddress(*parse_address(text), ca)


@functools.cache
def tls_context(ca):
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def connect(address, timeout=30.0):
    connection = socket.create_connection(address[:2], timeout=timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if isinstance(address, TlsAddress):
        return tls_context(address.ca).wrap_socket(connection, server_hostname=address.host)
    return connection


def read_exact(connection, view):
    done = 0
    while done < len(view):
        count = connection.recv_into(view[done:])
        if not count:
            raise ConnectionError("the broker closed the connection")
        done += count


def read_frame(connection):
    head = bytearray(4)
    read_exact(connection, memoryview(head))
    body = bytearray(struct.unpack(">i", head)[0])
    read_exact(connection, memoryview(body))
    return body


class FrameReader:
    """Splits small responses out of one receive buffer: few system calls when replies are pipelined."""

    def __init__(self, connection):
        self.connection = connection
        self.buffer = bytearray(256 << 10)
        self.view = memoryview(self.buffer)
        self.start = self.end = 0

    def buffered(self):
        held = self.end - self.start
        return held >= 4 and held >= 4 + int.from_bytes(self.buffer[self.start : self.start + 4], "big")

    def next(self):
        while not self.buffered():
            if self.start:
                held = self.end - self.start
                self.buffer[:held] = self.buffer[self.start : self.end]
                self.start, self.end = 0, held
            count = self.connection.recv_into(self.view[self.end :])
            if not count:
                raise ConnectionError("the broker closed the connection")
            self.end += count
        size = int.from_bytes(self.buffer[self.start : self.start + 4], "big")
        body = self.view[self.start + 4 : self.start + 4 + size]
        self.start += 4 + size
        if self.start == self.end:
            self.start = self.end = 0
        return body
