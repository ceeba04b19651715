"""The connection to another broker, against a server on loopback that answers as it is told."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tierlog.base.network import Unreachable
from tierlog.broker.replication.broker_connection import BUFFER_BYTES, KEPT_BUFFER_BYTES, BrokerConnection
from tierlog.broker.replication.tcp_network import TcpNetwork
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
    connection = await TcpNetwork().connect(host, port, "test")
    try:
        yield connection
    finally:
        connection.close()
        server.close()


async def records_of(connection: BrokerConnection, timeout_s: float = 10) -> bytes:
    answer = await connection.call(FETCH_KEY, VERSION, FetchRequest(), timeout_s)
    return bytes(answer.responses[0].partitions[0].records)


async def test_answers_of_every_size_arrive_whole():
    sizes = iter((1, 100, 70_000, 3 << 20, KEPT_BUFFER_BYTES + 1, 5))

    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        size = next(sizes)
        writer.write(response(correlation_id, bytes([size % 251]) * size))

    async with connected(respond) as connection:
        for size in (1, 100, 70_000, 3 << 20, KEPT_BUFFER_BYTES + 1, 5):
            assert await records_of(connection) == bytes([size % 251]) * size


async def test_answers_come_in_the_order_of_the_calls_even_in_one_piece():
    waiting: list[int] = []

    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        waiting.append(correlation_id)
        if len(waiting) == 3:
            frames = [response(one, bytes([n]) * (n * 40_000)) for n, one in enumerate(waiting, 1)]
            writer.write(b"".join(frames))

    async with connected(respond) as connection:
        found = await asyncio.gather(*(records_of(connection) for _ in range(3)))
    assert [len(records) for records in found] == [40_000, 80_000, 120_000]


async def test_who_goes_on_asks_again_before_the_answer_is_anyone_elses():
    """All of it one call: what `again` returns is sent, and its last answer is that of the call."""
    served: list[int] = []
    taken: list[bytes] = []

    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        served.append(correlation_id)
        writer.write(response(correlation_id, bytes([len(served)]) * 70_000))

    def again(answer: FetchResponse) -> FetchRequest | None:
        taken.append(bytes(answer.responses[0].partitions[0].records))
        return FetchRequest() if len(taken) < 3 else None

    async with connected(respond) as connection:
        last = await connection.call(FETCH_KEY, VERSION, FetchRequest(), 10, again)
        assert last.responses[0].partitions[0].records == taken[2]
        assert await records_of(connection) == b"\4" * 70_000  # the connection goes on
    assert taken == [bytes([n]) * 70_000 for n in (1, 2, 3)]
    assert served == [1, 2, 3, 4]


async def test_what_is_asked_again_has_the_same_time():
    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if correlation_id == 1:
            writer.write(response(correlation_id, b""))

    async with connected(respond) as connection:
        with pytest.raises(Unreachable, match="did not answer"):
            await connection.call(FETCH_KEY, VERSION, FetchRequest(), 0.1, lambda _: FetchRequest())


async def test_a_call_raises_what_its_taker_raises():
    def again(answer: FetchResponse) -> None:
        raise ValueError("not that")

    async with connected(lambda one, writer: writer.write(response(one, b""))) as connection:
        with pytest.raises(ValueError, match="not that"):
            await connection.call(FETCH_KEY, VERSION, FetchRequest(), 10, again)


async def test_who_closes_the_connection_while_taking_an_answer_asks_nothing_more():
    async with connected(lambda one, writer: writer.write(response(one, b""))) as connection:

        def again(answer: FetchResponse) -> FetchRequest:
            connection.close()
            return FetchRequest()

        with pytest.raises(Unreachable, match="closed"):
            await connection.call(FETCH_KEY, VERSION, FetchRequest(), 10, again)


async def test_a_connection_that_breaks_fails_what_waits():
    async with connected(lambda _, writer: writer.close()) as connection:
        with pytest.raises(Unreachable, match="broke"):
            await records_of(connection)
        assert not connection.is_open
        with pytest.raises(Unreachable, match="closed"):
            await records_of(connection)


async def test_who_never_answers_is_given_up():
    async with connected(lambda correlation_id, writer: None) as connection:
        with pytest.raises(Unreachable, match="did not answer"):
            await records_of(connection, timeout_s=0.1)
        assert not connection.is_open


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\xff\xff\xff\xff", "no response"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no response"),
        (struct.pack(">ii", 4, 1), "malformed|shorter"),
    ],
)
async def test_what_is_no_response_ends_the_connection(answer: bytes, why: str):
    async with connected(lambda _, writer: writer.write(answer)) as connection:
        with pytest.raises(Unreachable, match=why):
            await records_of(connection)
        assert not connection.is_open


async def test_an_answer_to_another_request_is_refused():
    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(correlation_id + 1, b""))

    async with connected(respond) as connection:
        with pytest.raises(Unreachable, match="out of order"):
            await records_of(connection)


async def test_nobody_there_is_unreachable():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(Unreachable):
        await TcpNetwork().connect("127.0.0.1", port, "test")


async def test_an_answer_that_ends_within_a_topic_fails_its_call():
    """Where nothing else lies behind it in the buffer."""
    frame = struct.pack(">iiBihiB", BUFFER_BYTES - 4, 1, 0, 0, 0, 7, 3)  # of two topics
    frame += bytes(16) + b"\2" + struct.pack(">ihqqqBi", 0, 0, 0, 0, 0, 0, -1)
    records = BUFFER_BYTES - len(frame) - 3 - 2 - 8  # their size before them, no tags after them, half an id
    frame += uvarint(records + 1) + bytes(records) + b"\0\0" + bytes(8)
    assert len(frame) == BUFFER_BYTES

    async with connected(lambda _, writer: writer.write(frame)) as connection:
        with pytest.raises(Unreachable, match="FetchResponse v17"):
            await records_of(connection)
        assert not connection.is_open


async def test_a_response_that_cannot_be_read_by_a_fault_of_ours_fails_its_call():
    def respond(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        connection._calls[0].api_key = -1  # known to nobody
        writer.write(response(correlation_id, b""))

    async with connected(respond) as connection:
        with pytest.raises(Unreachable, match="cannot be read"):
            await records_of(connection)
        assert not connection.is_open


async def test_memory_for_an_answer_is_taken_as_it_comes_and_not_as_it_is_promised():
    connection = BrokerConnection("peer", "test", asyncio.get_running_loop())
    frame = struct.pack(">i", 10 * BUFFER_BYTES) + bytes(10 * BUFFER_BYTES - 1)
    held, sizes = b"", []
    for at in range(0, len(frame), 10_000):
        rest = frame[at : at + 10_000]
        while rest:
            room = connection.get_buffer(-1)
            count = min(len(rest), len(room))
            room[:count] = rest[:count]
            connection.buffer_updated(count)
            rest, held = rest[count:], held + rest[:count]
        sizes.append(len(connection._buffer))
    assert sizes[0] == BUFFER_BYTES
    assert sorted(set(sizes)) == [n * BUFFER_BYTES for n in (1, 2, 4, 8)] + [len(frame) + 1]
    assert connection._buffer[: len(held)] == held == frame
