"""Client connections over real sockets, with small handlers of real APIs: order, limits, timeouts."""

import asyncio
import gc
import os
import socket
import struct
import weakref
from pathlib import Path
from typing import Any

import pytest
from connection_harness import API_VERSIONS, HEARTBEAT, METADATA, PRODUCE, Broker, produce, turns, until

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import SharedFile
from tierlog.broker.handlers.context import CLOSE, WHOLE_FRAME, Pending, RawReply, RequestContext
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.listener import Refusal
from tierlog.protocol.api import APIS, decode_response, encode_request
from tierlog.protocol.codec import encode
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.api_versions import ApiVersionsRequest
from tierlog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tierlog.protocol.messages.produce import (
    ProduceRequest,
)

DESCRIBE_LOG_DIRS = 35

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")


# ---- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_advertises_apis_with_a_handler(broker: Broker, version: int) -> None:
    await broker.start()
    client = await broker.connect()
    request = ApiVersionsRequest(client_software_name="a.b-c", client_software_version="1.0")
    answer = await client.ask(API_VERSIONS, version, request)
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert found == {key: (APIS[key].min_version, APIS[key].max_version) for key in broker.handlers}


async def test_newer_api_versions_gets_unsupported_version_in_v0(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    client.writer.write(struct.pack(">ihhih", 14, API_VERSIONS, 99, 5, 0) + b"what")
    correlation_id, answer = decode_response(APIS[API_VERSIONS], 0, await client.frame())
    assert (correlation_id, answer.error_code, len(answer.api_keys)) == (5, ErrorCode.UNSUPPORTED_VERSION, 6)
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)


async def test_invalid_software_name_gets_an_error_response(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    answer = await client.ask(
        API_VERSIONS, 3, ApiVersionsRequest(client_software_name="-", client_software_version="")
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_responses_leave_in_request_order(broker: Broker) -> None:
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


async def test_other_exceptions_are_reported_and_answered(broker: Broker) -> None:
    await broker.start()
    broker.on_heartbeat = lambda *_: 1 // 0
    client = await broker.connect()
    assert (await client.ask(HEARTBEAT, 3, HeartbeatRequest())).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert isinstance(broker.reports[0], ZeroDivisionError)


async def test_connection_closes_without_an_error_response(broker: Broker) -> None:
    broker.handlers[DESCRIBE_LOG_DIRS] = lambda *_: 1 // 0
    await broker.start()
    client = await broker.connect()
    client.send(DESCRIBE_LOG_DIRS, 1, DescribeLogDirsRequest())  # has an error code from version 3 on
    assert await client.expect_close() == b""
    assert broker.listener.closed == {CloseReason.UNANSWERED: 1}


async def test_response_that_cannot_be_encoded_closes_the_connection(broker: Broker) -> None:
    await broker.start()
    broker.on_heartbeat = lambda *_: HeartbeatResponse(throttle_time_ms=2**40)
    client = await broker.connect()
    client.send(HEARTBEAT, 3, HeartbeatRequest())
    assert await client.expect_close() == b""
    assert len(broker.reports) == 1


@pytest.mark.parametrize("way", ["at once", "future", "task"])
async def test_reply_close_closes_the_connection(broker: Broker, way: str) -> None:
    await broker.start()

    def handle(context: RequestContext, request: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(object())

        async def finish() -> Any:
            return await future

        return {"at once": object(), "future": future}.get(way) or finish()

    broker.on_heartbeat = handle
    client = await broker.connect()
    client.send(HEARTBEAT, 3, HeartbeatRequest())
    assert await client.expect_close() == b""
    assert broker.listener.closed == {CloseReason.UNANSWERED: 1}
    assert len(broker.reports) == 1


async def test_acks_0_has_no_response(broker: Broker) -> None:
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


async def test_frames_may_arrive_byte_by_byte(broker: Broker) -> None:
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
async def test_kept_frame_is_not_overwritten(broker: Broker, size: int) -> None:
    await broker.start()

    def handle(context: RequestContext, request: ProduceRequest) -> Any:
        view = request.topic_data[0].partition_data[0].records
        assert isinstance(view, memoryview)
        view[0] = 7  # writable: offsets are assigned in place
        broker.kept.append(view)
        done = asyncio.get_running_loop().create_future()
        done.set_result(broker.produce(context, request))
        return Pending(done, keeps=WHOLE_FRAME)

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


async def test_client_that_accepts_nothing_is_not_read(broker: Broker) -> None:
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
    futures = broker.hold_heartbeats()
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


class CountingSocket(socket.socket):
    sends = 0

    def sendmsg(self, *arguments: Any) -> int:
        self.sends += 1
        return super().sendmsg(*arguments)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_responses_of_one_turn_leave_together(broker: Broker, order: tuple[int, ...]) -> None:
    await broker.start()
    futures = broker.hold_heartbeats()
    client = await broker.connect()
    for _ in order:
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: len(futures) == 3)
    (channel,) = broker.listener._channels.values()
    with CountingSocket(fileno=os.dup(channel._outbox._socket.fileno())) as counting:
        channel._outbox._socket = counting
        for number in order:
            futures[number].set_result(HeartbeatResponse())
        assert [(await client.receive(HEARTBEAT, 0))[0] for _ in order] == [1, 2, 3]
        assert counting.sends == 1
        client.close()
        await until(lambda: not broker.listener._channels)


async def test_frame_timeout_excludes_time_without_reading(broker: Broker) -> None:
    await broker.start(in_flight=1, sweep_s=1000.0)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.on_heartbeat = lambda *_: future
    client = await broker.connect()
    frame = encode_request(APIS[HEARTBEAT], 0, 1, "c", HeartbeatRequest())
    client.writer.write(bytes(frame) + bytes(frame)[:20])
    await until(lambda: any(channel.core.has_held_bytes for channel in broker.listener._channels.values()))
    (channel,) = broker.listener._channels.values()
    channel.core.active_at -= 100
    future.set_result(HeartbeatResponse())
    await client.frame()
    channel.close_if_overdue(asyncio.get_running_loop().time())
    client.writer.write(bytes(frame)[20:])
    await client.frame()


# ---- bounds of connections ------------------------------------------------------------------------


async def test_connections_have_the_socket_buffers_of_the_settings(broker: Broker) -> None:
    await broker.start(send_buffer_bytes=40_000, receive_buffer_bytes=50_000)
    client = await broker.connect()
    await client.ask(METADATA, 9, MetadataRequest())
    [channel] = broker.listener._channels.values()
    served = channel._socket
    assert served.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 40_000  # the kernel doubles it
    assert served.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 50_000


async def test_connections_are_limited(broker: Broker) -> None:
    await broker.start(connections=2)
    first, second = await broker.connect(), await broker.connect()
    await first.ask(METADATA, 9, MetadataRequest())
    await second.ask(METADATA, 9, MetadataRequest())
    assert await (await broker.connect()).expect_close() == b""
    assert broker.listener.refused == {Refusal.ALL: 1}
    first.close()
    await until(lambda: broker.listener.connections == 1)
    await (await broker.connect()).ask(METADATA, 9, MetadataRequest())


async def test_connection_counts_once_for_the_rate(broker: Broker) -> None:
    await broker.start(connections_per_second=4)
    for _ in range(3):
        await (await broker.connect()).ask(METADATA, 9, MetadataRequest())
    assert "accept" not in broker.listener._timers, "accepting rests although the rate was not reached"


async def test_connections_per_address_are_limited(broker: Broker) -> None:
    await broker.start(connections_per_address=1)
    first = await broker.connect()
    await first.ask(METADATA, 9, MetadataRequest())
    assert await (await broker.connect()).expect_close() == b""


@pytest.mark.parametrize(
    ("begun", "limits", "why"),
    [
        (b"", {"idle_s": 0.01}, CloseReason.IDLE),
        (b"\0\0", {"header_s": 0.01}, CloseReason.SLOW),
        (b"\0\0\1\0\0\3\0", {"header_s": 0.01}, CloseReason.SLOW),
        (b"\0\0\1\0\0\3\0\1\0\0\0\0\0\0", {"header_s": 100.0, "frame_s": 0.01}, CloseReason.SLOW),
    ],
)
async def test_slow_and_idle_clients_are_closed(
    broker: Broker, begun: bytes, limits: dict[str, float], why: CloseReason
) -> None:
    await broker.start(sweep_s=0.005, **limits)
    client = await broker.connect()
    client.writer.write(begun)
    assert await client.expect_close() == b""
    assert [found for found, _ in broker.notes] == [why]


async def test_connection_with_a_pending_request_is_not_idle(broker: Broker) -> None:
    await broker.start(idle_s=1000.0)
    futures = broker.hold_heartbeats()
    client = await broker.connect()
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    idle = await broker.connect()
    await until(lambda: len(futures) == 1 and broker.listener.connections == 2)
    for channel in list(broker.listener._channels.values()):
        channel.close_if_overdue(asyncio.get_running_loop().time() + 1001.0)
    assert await idle.expect_close() == b""
    futures[0].set_result(HeartbeatResponse())
    assert (await client.receive(HEARTBEAT, 0))[0] == 1


async def test_requests_of_a_closed_connection_are_cancelled(broker: Broker) -> None:
    await broker.start()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.on_heartbeat = lambda *_: future
    client = await broker.connect()
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: any(channel.core.next_to_answer for channel in broker.listener._channels.values()))
    client.close()
    await until(future.cancelled)
    assert [why for why, _ in broker.notes] == [CloseReason.CLIENT]


async def test_closing_the_listener_closes_connections(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    await client.ask(METADATA, 9, MetadataRequest())
    await broker.listener.close()
    assert await client.expect_close() == b""
    assert broker.listener.connections == 0


async def test_connection_closes_after_earlier_responses(broker: Broker) -> None:
    await broker.start()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers = [future, CLOSE, HeartbeatResponse()]
    broker.on_heartbeat = lambda *_: answers.pop(0)
    client = await broker.connect()
    for _ in range(3):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: len(answers) == 1)
    await turns()
    future.set_result(HeartbeatResponse())
    assert (await client.receive(HEARTBEAT, 0))[0] == 1
    assert await client.expect_close() == b""
    assert broker.listener.closed == {CloseReason.UNANSWERED: 1}
    assert len(answers) == 1, "what came after it was not handled"


async def test_a_closed_connection_is_freed_without_the_garbage_collector(broker: Broker) -> None:
    await broker.start()
    client = await broker.connect()
    await client.ask(HEARTBEAT, 4, HeartbeatRequest())
    (connection,) = (weakref.ref(channel._socket) for channel in broker.listener._channels.values())
    gc.disable()
    try:
        client.close()
        await until(lambda: bool(broker.notes))
        await turns()
        assert connection() is None
    finally:
        gc.enable()
