"""Malformed input over real sockets: no response, little memory, and no effect on other clients."""

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from connection_harness import HEARTBEAT, METADATA, PRODUCE, Broker, produce, until

from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.codec import encode
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(key: int, version: int, body: bytes, client_id: bytes = b"\0\1c") -> bytes:
    return frame(struct.pack(">hhi", key, version, 1) + client_id + body)


METADATA_9 = encode(MetadataRequest(topics=None), 9)
BAD = {
    "size below zero": struct.pack(">i", -1),
    "size zero": struct.pack(">i", 0),
    "size over the limit": struct.pack(">i", (100 << 20) + 1) + bytes(50),
    "size of all ones": b"\x7f\xff\xff\xff",
    "shorter than a header": frame(b"\0\3\0"),
    "unknown key": request(999, 0, b""),
    "key below zero": request(-1, 0, b""),
    "key without a handler": request(1, 12, b""),
    "version above": request(METADATA, 99, METADATA_9),
    "version below": request(METADATA, -1, METADATA_9),
    "client id past the frame": request(METADATA, 9, METADATA_9, b"\x7f\xff"),
    "client id length below -1": request(METADATA, 9, METADATA_9, b"\xff\xfe"),
    "client id not utf-8": request(METADATA, 9, METADATA_9, b"\0\2\xff\xff"),
    "header tag past the frame": request(METADATA, 9, b"\1\0\x7f" + METADATA_9),
    "header cut before its tags": request(METADATA, 9, b""),
    "array count past the frame": request(METADATA, 1, struct.pack(">i", 2**31 - 1)),
    "array count below -1": request(METADATA, 1, struct.pack(">i", -2)),
    "compact count past the frame": request(METADATA, 9, b"\0\xff\xff\xff\xff\x0f\0\0\0"),
    "null where not nullable": request(HEARTBEAT, 0, b"\xff\xff" + bytes(10)),
    "over-long varint": request(METADATA, 9, b"\0\x80\x80\x80\x80\x80\x01" + METADATA_9),
    "tagged field past the frame": request(METADATA, 9, b"\0" + METADATA_9[:-1] + b"\1\x05\x7f"),
    "bytes left over": request(METADATA, 9, b"\0" + METADATA_9 + b"\0"),
    "produce cut short": request(PRODUCE, 9, b"\0" + encode(produce(b"abc"), 9)[:-2]),
    "produce with bytes left over": request(PRODUCE, 9, b"\0" + encode(produce(b"abc"), 9) + b"\0"),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("160301020001000001fc0303") + bytes(500),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_malformed_input_closes_the_connection_without_a_response(broker: Broker, bad: bytes) -> None:
    await broker.start()
    other = await broker.connect()
    client = await broker.connect()
    await client.ask(METADATA, 9, MetadataRequest())
    tracemalloc.start()
    try:
        client.writer.write(bad)
        assert await client.expect_close() == b""
        assert tracemalloc.get_traced_memory()[1] < 2 * len(bad) + (8 << 20)
    finally:
        tracemalloc.stop()
    assert [why for why, _ in broker.notes] == [CloseReason.MALFORMED]
    assert broker.reports == []
    assert await other.ask(METADATA, 9, MetadataRequest(topics=None)) == MetadataResponse(controller_id=0)
    assert broker.listener.connections == 1


async def test_valid_request_before_a_malformed_one_is_answered(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    client.writer.write(encode_request(APIS[METADATA], 9, 1, "c", MetadataRequest()) + BAD["unknown key"])
    assert (await client.receive(METADATA, 9))[0] == 1
    assert await client.expect_close() == b""


async def test_requests_with_many_elements_stay_within_the_memory_limit(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    bad = request(METADATA, 9, b"\0" + b"\xff\xff\xff\x03" + b"\1\0" * 8_000_000)
    tracemalloc.start()
    try:
        client.writer.write(bad)
        with contextlib.suppress(ConnectionError):
            await client.writer.drain()
        assert await client.expect_close() == b""
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(bad) + (8 << 20)  # the client's own copy is the third


async def test_large_frame_uses_no_memory_before_it_arrives(broker: Broker) -> None:
    await broker.start(request_bytes=300 << 20)
    before = resident_bytes()
    clients = [await broker.connect() for _ in range(4)]
    for client in clients:
        client.writer.write(struct.pack(">ihh", 100 << 20, 0, 9))
    memory_pool = broker.listener.buffers.memory_pool
    await until(lambda: memory_pool.waiting == 1)  # the fourth passes the bound over all connections
    assert resident_bytes() - before < 8 << 20
    for client in clients:
        client.close()
    await until(lambda: not broker.listener.connections)
    assert (memory_pool.used, memory_pool.waiting) == (0, 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
