"""Broker connection, against a server on loopback whose responses the test defines."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tierlog.base.network import Unreachable
from tierlog.broker import platform
from tierlog.broker.platform import TcpNetwork
from tierlog.broker.replication.broker_connection import BUFFER_BYTES, KEPT_BUFFER_BYTES, BrokerConnection
from tierlog.metadata.image import BrokerImage
from tierlog.metadata.records import Endpoint
from tierlog.protocol.api import APIS, FETCH_KEY, decode_request_header, encode_response
from tierlog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tierlog.protocol.primitives import uvarint

VERSION = 17
Respond = Callable[[int, asyncio.StreamWriter], None]


def response(correlation_id: int, records: bytes) -> bytes:
    message = FetchResponse(
        session_id=7, responses=[FetchableTopicResponse(partitions=[PartitionData(records=records)])]
    )
    return b"".join(
        bytes(part) for part in encode_response(APIS[FETCH_KEY], VERSION, correlation_id, message)
    )


def broker(host: str, port: int, **endpoints: int) -> BrokerImage:
    """A registered broker, with the ports of its listeners on loopback."""
    return BrokerImage(
        broker_id=2,
        broker_epoch=1,
        incarnation=UUID(int=2),
        host=host,
        port=port,
        admin_url="http://127.0.0.1:9644",
        fenced=False,
        endpoints=tuple(
            Endpoint(name=name, host="127.0.0.1", port=number, protocol="PLAINTEXT")
            for name, number in endpoints.items()
        ),
    )


@asynccontextmanager
async def connected(respond: Respond) -> AsyncIterator[BrokerConnection]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header = decode_request_header(await reader.readexactly(size), 0, size)
                respond(header.correlation_id, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    connection = await TcpNetwork("BROKERS").connect(broker(host, port), "test")
    try:
        yield connection
    finally:
        connection.close()
        server.close()


async def records_of(connection: BrokerConnection, timeout_s: float = 10) -> bytes:
    response = await connection.call(FETCH_KEY, VERSION, FetchRequest(), timeout_s)
    return bytes(response.responses[0].partitions[0].records)


async def test_responses_of_every_size_arrive_complete():
    sizes = iter((1, 100, 70_000, 3 << 20, KEPT_BUFFER_BYTES + 1, 5))

    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        size = next(sizes)
        writer.write(response(correlation_id, bytes([size % 251]) * size))

    async with connected(respond) as connection:
        for size in (1, 100, 70_000, 3 << 20, KEPT_BUFFER_BYTES + 1, 5):
            assert await records_of(connection) == bytes([size % 251]) * size


async def test_responses_received_together_go_to_their_calls_in_order():
    waiting: list[int] = []

    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        waiting.append(correlation_id)
        if len(waiting) == 3:
            frames = [response(one, bytes([n]) * (n * 40_000)) for n, one in enumerate(waiting, 1)]
            writer.write(b"".join(frames))

    async with connected(respond) as connection:
        received = await asyncio.gather(*(records_of(connection) for _ in range(3)))
    assert [len(records) for records in received] == [40_000, 80_000, 120_000]


async def test_call_sends_the_requests_that_again_returns():
    """The call returns the last response."""
    served: list[int] = []
    taken: list[bytes] = []

    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        served.append(correlation_id)
        writer.write(response(correlation_id, bytes([len(served)]) * 70_000))

    def again(response: FetchResponse) -> FetchRequest | None:
        taken.append(bytes(response.responses[0].partitions[0].records))
        return FetchRequest() if len(taken) < 3 else None

    async with connected(respond) as connection:
        last = await connection.call(FETCH_KEY, VERSION, FetchRequest(), 10, again)
        assert last.responses[0].partitions[0].records == taken[2]
        assert await records_of(connection) == b"\4" * 70_000  # the connection is still usable
    assert taken == [bytes([n]) * 70_000 for n in (1, 2, 3)]
    assert served == [1, 2, 3, 4]


async def test_requests_that_again_returns_have_the_same_timeout():
    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if correlation_id == 1:
            writer.write(response(correlation_id, b""))

    async with connected(respond) as connection:
        with pytest.raises(Unreachable, match="did not respond"):
            await connection.call(FETCH_KEY, VERSION, FetchRequest(), 0.1, lambda _: FetchRequest())


async def test_exception_of_again_is_raised_to_the_caller():
    def again(response: FetchResponse) -> None:
        raise ValueError("not that")

    async with connected(lambda one, writer: writer.write(response(one, b""))) as connection:
        with pytest.raises(ValueError, match="not that"):
            await connection.call(FETCH_KEY, VERSION, FetchRequest(), 10, again)


async def test_connection_closed_by_again_sends_no_request():
    async with connected(lambda one, writer: writer.write(response(one, b""))) as connection:

        def again(response: FetchResponse) -> FetchRequest:
            connection.close()
            return FetchRequest()

        with pytest.raises(Unreachable, match="closed"):
            await connection.call(FETCH_KEY, VERSION, FetchRequest(), 10, again)


async def test_broken_connection_fails_pending_calls():
    async with connected(lambda _, writer: writer.close()) as connection:
        with pytest.raises(Unreachable, match="broke"):
            await records_of(connection)
        assert not connection.is_open
        with pytest.raises(Unreachable, match="closed"):
            await records_of(connection)


async def test_missing_response_closes_the_connection_after_the_timeout():
    async with connected(lambda correlation_id, writer: None) as connection:
        with pytest.raises(Unreachable, match="did not respond"):
            await records_of(connection, timeout_s=0.1)
        assert not connection.is_open


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (b"\xff\xff\xff\xff", "invalid size"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "invalid size"),
        (struct.pack(">ii", 4, 1), "malformed|shorter"),
    ],
)
async def test_invalid_response_closes_the_connection(response: bytes, why: str):
    async with connected(lambda _, writer: writer.write(response)) as connection:
        with pytest.raises(Unreachable, match=why):
            await records_of(connection)
        assert not connection.is_open


async def test_response_with_another_correlation_id_fails_the_call():
    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(correlation_id + 1, b""))

    async with connected(respond) as connection:
        with pytest.raises(Unreachable, match="out of order"):
            await records_of(connection)


async def test_closed_port_is_unreachable():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(Unreachable):
        await TcpNetwork("BROKERS").connect(broker("127.0.0.1", port), "test")


@pytest.mark.parametrize(
    ("endpoints", "port"),
    [
        ({"PLAINTEXT": 1, "BROKERS": 2}, 2),  # the peer uses PLAINTEXT between brokers, and this one BROKERS
        ({"PLAINTEXT": 1, "CLIENTS": 2}, 1),
        ({}, 1),  # registered at a format version without the listeners of brokers
    ],
)
async def test_connection_goes_to_the_listener_that_this_broker_uses_between_brokers(
    endpoints: dict[str, int], port: int
) -> None:
    with pytest.raises(Unreachable, match=rf"^127\.0\.0\.1:{port}: "):
        await TcpNetwork("BROKERS").connect(broker("127.0.0.1", 1, **endpoints), "test")


async def test_error_of_a_connection_that_times_out_says_so(monkeypatch):
    monkeypatch.setattr(platform, "CONNECT_TIMEOUT_S", 0)  # a constant, not a collaborator
    with pytest.raises(Unreachable, match=r"^127.0.0.1:9092: no response$"):
        await TcpNetwork("BROKERS").connect(broker("127.0.0.1", 9092), "test")


async def test_response_that_ends_within_a_topic_fails_its_call():
    """And nothing follows it in the buffer."""
    frame = struct.pack(">iiBihiB", BUFFER_BYTES - 4, 1, 0, 0, 0, 7, 3)  # a response with two topics
    frame += bytes(16) + b"\2" + struct.pack(">ihqqqBi", 0, 0, 0, 0, 0, 0, -1)
    records = BUFFER_BYTES - len(frame) - 3 - 2 - 8  # their size before them, no tags after them, half an id
    frame += uvarint(records + 1) + bytes(records) + b"\0\0" + bytes(8)
    assert len(frame) == BUFFER_BYTES

    async with connected(lambda _, writer: writer.write(frame)) as connection:
        with pytest.raises(Unreachable, match="FetchResponse v17"):
            await records_of(connection)
        assert not connection.is_open


async def test_bug_in_the_decoder_fails_the_call():
    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        connection._calls[0].api_key = -1  # unknown
        writer.write(response(correlation_id, b""))

    async with connected(respond) as connection:
        with pytest.raises(Unreachable, match="cannot decode"):
            await records_of(connection)
        assert not connection.is_open


async def test_receive_buffer_grows_with_received_bytes_and_not_with_the_claimed_size():
    connection = BrokerConnection("peer", "test", asyncio.get_running_loop())
    frame = struct.pack(">i", 10 * BUFFER_BYTES) + bytes(10 * BUFFER_BYTES - 1)
    held, sizes = b"", []
    for at in range(0, len(frame), 10_000):
        rest = frame[at : at + 10_000]
        while rest:
            buffer = connection.get_buffer(-1)
            count = min(len(rest), len(buffer))
            buffer[:count] = rest[:count]
            connection.buffer_updated(count)
            rest, held = rest[count:], held + rest[:count]
        sizes.append(len(connection._buffer))
    assert sizes[0] == BUFFER_BYTES
    assert sorted(set(sizes)) == [n * BUFFER_BYTES for n in (1, 2, 4, 8)] + [len(frame) + 1]
    assert connection._buffer[: len(held)] == held == frame
