"""The pump over real sockets, with small handlers of real APIs: order, bounds, bad input, time-outs."""

import asyncio
import contextlib
import os
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tierlog.broker.handlers.api_versions import api_versions_handler
from tierlog.broker.handlers.context import CLOSE, RawReply, RequestContext
from tierlog.broker.net.bounds import Bounds
from tierlog.broker.net.connection import Why
from tierlog.broker.net.listener import Listener
from tierlog.broker.ports.files import FileSlice, OsFiles, SharedFile
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.wire.api import APIS, decode_response, encode_request
from tierlog.broker.wire.codec import encode
from tierlog.broker.wire.errors import ErrorCode, KafkaError
from tierlog.broker.wire.messages.api_versions import ApiVersionsRequest
from tierlog.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.broker.wire.messages.metadata import MetadataRequest, MetadataResponse
from tierlog.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")

PRODUCE, METADATA, HEARTBEAT, API_VERSIONS = 0, 3, 12, 18


class Broker:
    """A listener with handlers whose answers the test decides."""

    def __init__(self) -> None:
        self.reports: list[BaseException] = []
        self.heartbeats: list[Any] = []
        self.records: list[bytes] = []
        self.kept: list[memoryview] = []
        self.notes: list[tuple[Why, str]] = []
        self.tasks = TaskGroup(lambda _, failure: self.reports.append(failure))
        self.on_heartbeat: Callable[[RequestContext, Any], Any] = lambda *_: HeartbeatResponse()
        self.on_produce: Callable[[RequestContext, Any], Any] = self.produce
        self.handlers = {
            PRODUCE: lambda *both: self.on_produce(*both),  # noqa: PLW0108 - tests replace it
            METADATA: lambda context, request: MetadataResponse(controller_id=len(request.topics or ())),
            HEARTBEAT: lambda *both: self.on_heartbeat(*both),  # noqa: PLW0108
            API_VERSIONS: api_versions_handler([PRODUCE, METADATA, HEARTBEAT, API_VERSIONS]),
        }

    async def start(self, **bounds: Any) -> None:
        self.listener = Listener(
            self.handlers, self.tasks, self.error_reply, lambda _, failure: self.reports.append(failure),
            bounds=Bounds(**bounds), note=lambda _, why, detail: self.notes.append((why, detail)),
        )  # fmt: skip
        self.address = await self.listener.start()

    async def connect(self) -> "Client":
        reader, writer = await asyncio.open_connection(*self.address)
        return Client(reader, writer)

    async def close(self) -> None:
        await self.listener.close()
        await self.tasks.close()

    def produce(self, context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
        for topic in request.topic_data:
            for partition in topic.partition_data:
                self.records.append(bytes(partition.records or b""))
        answers = [PartitionProduceResponse(base_offset=len(self.records))]
        return (
            ProduceResponse(responses=[TopicProduceResponse(partition_responses=answers)])
            if request.acks
            else None
        )

    @staticmethod
    def error_reply(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
        return HeartbeatResponse(error_code=code) if context.api == HEARTBEAT else None


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.sent = 0

    def send(self, key: int, version: int, message: Any) -> None:
        self.sent += 1
        self.writer.write(encode_request(APIS[key], version, self.sent, "test", message))

    async def frame(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def receive(self, key: int, version: int) -> tuple[int, Any]:
        return decode_response(APIS[key], version, await self.frame())

    async def ask(self, key: int, version: int, message: Any) -> Any:
        self.send(key, version, message)
        correlation_id, answer = await self.receive(key, version)
        assert correlation_id == self.sent
        return answer

    async def expect_close(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    await broker.close()


def produce(records: bytes, acks: int = -1) -> ProduceRequest:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    return ProduceRequest(acks=acks, topic_data=data)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - lets the loop turn, waits for no time
        await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_advertises_what_has_a_handler(broker: Broker, version: int) -> None:
    await broker.start()
    client = await broker.connect()
    request = ApiVersionsRequest(client_software_name="a.b-c", client_software_version="1.0")
    answer = await client.ask(API_VERSIONS, version, request)
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert found == {key: (APIS[key].least, APIS[key].most) for key in broker.handlers}


async def test_a_newer_api_versions_gets_35_in_the_oldest_form(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    client.writer.write(struct.pack(">ihhih", 14, API_VERSIONS, 99, 5, 0) + b"what")
    correlation_id, answer = decode_response(APIS[API_VERSIONS], 0, await client.frame())
    assert (correlation_id, answer.error_code, len(answer.api_keys)) == (5, ErrorCode.UNSUPPORTED_VERSION, 4)
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)


async def test_a_bad_software_name_is_answered(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    answer = await client.ask(
        API_VERSIONS, 3, ApiVersionsRequest(client_software_name="-", client_software_version="")
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_answers_leave_in_request_order(broker: Broker) -> None:
    await broker.start()
    loop = asyncio.get_running_loop()
    waiting: dict[str, asyncio.Future[Any]] = {}

    def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
        if request.group_id == "now":
            return HeartbeatResponse(throttle_time_ms=0)
        waiting[request.group_id] = loop.create_future()

        async def finish() -> HeartbeatResponse:
            return await waiting[request.group_id]

        return finish() if request.group_id == "task" else waiting[request.group_id]

    broker.on_heartbeat = handle
    client = await broker.connect()
    for group in ("future", "now", "task", "now"):
        client.send(HEARTBEAT, 4, HeartbeatRequest(group_id=group))
    client.send(METADATA, 9, MetadataRequest())
    await until(lambda: len(waiting) == 2)
    waiting["task"].set_result(HeartbeatResponse(throttle_time_ms=3))
    await turns()
    waiting["future"].set_result(HeartbeatResponse(throttle_time_ms=1))
    answers = [await client.receive(HEARTBEAT, 4) for _ in range(4)] + [await client.receive(METADATA, 9)]
    assert [correlation for correlation, _ in answers] == [1, 2, 3, 4, 5]
    assert [answer.throttle_time_ms for _, answer in answers] == [1, 0, 3, 0, 0]


@pytest.mark.parametrize("way", ["raise", "future", "task"])
async def test_a_kafka_error_becomes_the_error_response(broker: Broker, way: str) -> None:
    await broker.start()

    def handle(context: RequestContext, request: Any) -> Any:
        failure = KafkaError(ErrorCode.NOT_COORDINATOR)
        if way == "raise":
            raise failure
        if way == "future":
            future = asyncio.get_running_loop().create_future()
            future.set_exception(failure)
            return future

        async def fail() -> None:
            raise failure

        return fail()

    broker.on_heartbeat = handle
    client = await broker.connect()
    for _ in range(3):
        assert (await client.ask(HEARTBEAT, 3, HeartbeatRequest())).error_code == ErrorCode.NOT_COORDINATOR
    assert broker.reports == []


async def test_another_exception_is_reported_and_answered(broker: Broker) -> None:
    await broker.start()
    broker.on_heartbeat = lambda *_: 1 // 0
    client = await broker.connect()
    assert (await client.ask(HEARTBEAT, 3, HeartbeatRequest())).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert isinstance(broker.reports[0], ZeroDivisionError)


async def test_without_an_error_response_the_connection_closes(broker: Broker) -> None:
    await broker.start()
    broker.on_produce = lambda *_: 1 // 0
    client = await broker.connect()
    client.send(PRODUCE, 9, produce(b"x"))
    assert await client.expect_close() == b""
    assert broker.listener.closed == {Why.UNANSWERED: 1}


async def test_an_answer_that_cannot_be_encoded_closes_the_connection(broker: Broker) -> None:
    await broker.start()
    broker.on_heartbeat = lambda *_: HeartbeatResponse(throttle_time_ms=2**40)
    client = await broker.connect()
    client.send(HEARTBEAT, 3, HeartbeatRequest())
    assert await client.expect_close() == b""
    assert len(broker.reports) == 1


async def test_acks_0_has_no_answer(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    client.send(PRODUCE, 9, produce(b"quiet", acks=0))
    answer = await client.ask(PRODUCE, 9, produce(b"loud"))
    assert answer.responses[0].partition_responses[0].base_offset == 2
    assert broker.records == [b"quiet", b"loud"]


# ---- receiving ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[10] * 500, [100_000] * 9, [3_000_000, 5, 300_000, 262_144, 1], [262_130] * 4]
)
@pytest.mark.parametrize("piece", [0, 65_537])
async def test_frames_of_all_sizes_arrive_whole(broker: Broker, sizes: list[int], piece: int) -> None:
    await broker.start()
    client = await broker.connect()
    contents = [os.urandom(size) for size in sizes]
    stream = b"".join(
        encode_request(APIS[PRODUCE], 9 + number % 4, number, "c", produce(content))
        for number, content in enumerate(contents)
    )
    for at in range(0, len(stream), piece or len(stream)):
        client.writer.write(stream[at : at + (piece or len(stream))])
        await client.writer.drain()
    for number in range(len(contents)):
        assert (await client.receive(PRODUCE, 9))[0] == number
    assert broker.records == contents


async def test_frames_byte_by_byte(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = encode_request(APIS[METADATA], 9, 1, "c", MetadataRequest())
    for byte in frame * 2:
        client.writer.write(bytes([byte]))
        await turns(3)
    for _ in range(2):
        assert (await client.receive(METADATA, 9))[0] == 1


@pytest.mark.parametrize("size", [50, 600_000])
async def test_a_kept_frame_survives_the_next(broker: Broker, size: int) -> None:
    await broker.start()

    def handle(context: RequestContext, request: ProduceRequest) -> Any:
        view = request.topic_data[0].partition_data[0].records
        assert isinstance(view, memoryview)
        view[0] = 7  # writable: offsets are assigned in place
        context.keep_frame()
        broker.kept.append(view)
        return broker.produce(context, request)

    broker.on_produce = handle
    client = await broker.connect()
    for letter in b"abc":
        await client.ask(PRODUCE, 9, produce(bytes([letter]) * size))
    assert [bytes(view) for view in broker.kept] == [
        b"\7" + bytes([letter]) * (size - 1) for letter in b"abc"
    ]


@pytest.mark.parametrize("size", [50, 600_000])
async def test_a_coroutine_keeps_its_frame(broker: Broker, size: int) -> None:
    await broker.start()
    go = asyncio.Event()

    async def handle(context: RequestContext, request: ProduceRequest) -> Any:
        await go.wait()
        return broker.produce(context, request)

    broker.on_produce = handle
    client = await broker.connect()
    for letter in b"abc":
        client.send(PRODUCE, 9, produce(bytes([letter]) * size))
    await client.writer.drain()
    await until(lambda: len(broker.tasks) == 3)
    go.set()
    for _ in range(3):
        await client.receive(PRODUCE, 9)
    assert sorted(broker.records) == [bytes([letter]) * size for letter in b"abc"]


# ---- sending --------------------------------------------------------------------------------------


async def test_file_slices_and_bytes_leave_in_order(broker: Broker, tmp_path: Path) -> None:
    await broker.start()
    content = os.urandom(9_000_000)
    (tmp_path / "segment").write_bytes(content)
    file = SharedFile(OsFiles(), tmp_path / "segment")
    body = encode(HeartbeatResponse(), 0)
    parts = [
        body,
        FileSlice(file, 5, 8_000_000),
        b"",
        FileSlice(file, 0, 0),
        b"mid",
        memoryview(b"dle"),
        FileSlice(file, 1, 9),
    ]
    broker.on_heartbeat = lambda *_: RawReply(parts)
    client = await broker.connect()
    for _ in range(3):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    for number in range(1, 4):
        frame = await client.frame()
        assert frame == struct.pack(">i", number) + body + content[5:8_000_005] + b"middle" + content[1:10]


async def test_a_client_that_takes_nothing_is_not_read(broker: Broker) -> None:
    await broker.start(queued_response_bytes=1 << 20, in_flight=4)
    calls = 0

    def handle(context: RequestContext, request: Any) -> RawReply:
        nonlocal calls
        calls += 1
        return RawReply([bytes(4 << 20)])

    broker.on_heartbeat = handle
    client = await broker.connect()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(20):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    other = await broker.connect()
    for _ in range(10):
        await other.ask(METADATA, 9, MetadataRequest())
    assert calls <= 3
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for number in range(1, 21):
        assert (await client.frame())[:4] == struct.pack(">i", number)
    assert calls == 20


async def test_requests_in_flight_are_bounded(broker: Broker) -> None:
    await broker.start(in_flight=3)
    futures: list[asyncio.Future[Any]] = []

    def handle(context: RequestContext, request: Any) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    broker.on_heartbeat = handle
    client = await broker.connect()
    for _ in range(10):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    other = await broker.connect()
    for _ in range(5):
        await other.ask(METADATA, 9, MetadataRequest())
    assert len(futures) == 3
    for number in range(10):
        await until(lambda: len(futures) > number)  # noqa: B023
        futures[number].set_result(HeartbeatResponse())
        assert (await client.receive(HEARTBEAT, 0))[0] == number + 1


# ---- bad input ------------------------------------------------------------------------------------


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
async def test_bad_input_closes_without_a_reply(broker: Broker, bad: bytes) -> None:
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
    assert [why for why, _ in broker.notes] == [Why.MALFORMED]
    assert broker.reports == []
    assert await other.ask(METADATA, 9, MetadataRequest(topics=None)) == MetadataResponse(controller_id=0)
    assert broker.listener.connections == 1


async def test_a_valid_request_before_a_bad_one_is_answered(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    client.writer.write(encode_request(APIS[METADATA], 9, 1, "c", MetadataRequest()) + BAD["unknown key"])
    assert (await client.receive(METADATA, 9))[0] == 1
    assert await client.expect_close() == b""


async def test_many_elements_stay_within_the_memory_bound(broker: Broker) -> None:
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


async def test_a_claimed_frame_costs_nothing_until_it_arrives(broker: Broker) -> None:
    await broker.start(receiving_bytes=300 << 20)
    before = resident_bytes()
    clients = [await broker.connect() for _ in range(4)]
    for client in clients:
        client.writer.write(struct.pack(">ihh", 100 << 20, 0, 9))
    assert await clients[3].expect_close() == b""  # the fourth passes the bound over all connections
    assert resident_bytes() - before < 8 << 20
    for client in clients:
        client.close()
    await until(lambda: not broker.listener.connections)
    assert broker.listener.buffers.receiving_bytes == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# ---- bounds of connections ------------------------------------------------------------------------


async def test_connections_are_limited(broker: Broker) -> None:
    await broker.start(connections=2)
    first, second = await broker.connect(), await broker.connect()
    await first.ask(METADATA, 9, MetadataRequest())
    await second.ask(METADATA, 9, MetadataRequest())
    assert await (await broker.connect()).expect_close() == b""
    assert broker.listener.refused == 1
    first.close()
    await until(lambda: broker.listener.connections == 1)
    await (await broker.connect()).ask(METADATA, 9, MetadataRequest())


async def test_connections_per_address_are_limited(broker: Broker) -> None:
    await broker.start(connections_per_address=1)
    first = await broker.connect()
    await first.ask(METADATA, 9, MetadataRequest())
    assert await (await broker.connect()).expect_close() == b""


@pytest.mark.parametrize(
    ("begun", "limits", "why"),
    [
        (b"", {"idle_s": 0.01}, Why.IDLE),
        (b"\0\0", {"header_s": 0.01}, Why.SLOW),
        (b"\0\0\1\0\0\3\0", {"header_s": 0.01}, Why.SLOW),
        (b"\0\0\1\0\0\3\0\1\0\0\0\0\0\0", {"header_s": 100.0, "frame_s": 0.01}, Why.SLOW),
    ],
)
async def test_slow_and_idle_clients_are_closed(
    broker: Broker, begun: bytes, limits: dict[str, float], why: Why
) -> None:
    await broker.start(sweep_s=0.005, **limits)
    client = await broker.connect()
    client.writer.write(begun)
    assert await client.expect_close() == b""
    assert [found for found, _ in broker.notes] == [why]


async def test_a_request_that_waits_is_not_idle(broker: Broker) -> None:
    await broker.start(idle_s=0.0, sweep_s=0.005)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.on_heartbeat = lambda *_: future
    client = await broker.connect()
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    idle = await broker.connect()
    await turns()
    assert await idle.expect_close() == b""
    future.set_result(HeartbeatResponse())
    assert (await client.receive(HEARTBEAT, 0))[0] == 1


async def test_closing_the_listener_closes_connections(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    await client.ask(METADATA, 9, MetadataRequest())
    await broker.listener.close()
    assert await client.expect_close() == b""
    assert broker.listener.connections == 0


async def test_close_comes_after_the_answers_before_it(broker: Broker) -> None:
    await broker.start()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers = [future, CLOSE, HeartbeatResponse()]
    broker.on_heartbeat = lambda *_: answers.pop(0)
    client = await broker.connect()
    for _ in range(3):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: not answers)
    future.set_result(HeartbeatResponse())
    assert (await client.receive(HEARTBEAT, 0))[0] == 1
    assert await client.expect_close() == b""
    assert broker.listener.closed == {Why.UNANSWERED: 1}
