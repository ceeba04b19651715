"""The stopwatch times all work of the event loop for a connection (`request_percentage`)."""

import asyncio
import os
import socket
from typing import Any

import pytest
from connection_harness import DELETE_TOPICS, HEARTBEAT, METADATA, PRODUCE, Broker, Client, produce, until

from tierlog.broker.handlers.context import Connection, RawReply, RequestContext
from tierlog.broker.net.core.bounds import FRAMES_PER_TURN
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.messages.produce import ProduceResponse

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")

FOR_EVER_S = 1e6
BEAT = bytes(encode_request(APIS[HEARTBEAT], 0, 1, "c", HeartbeatRequest(group_id="g")))
MIB = 1 << 20


class Timing:
    """Counts heartbeats handled and bytes sent while the stopwatch runs."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.inside = False
        self.handled: list[bool] = []
        self.sent = 0
        self.response: Any = HeartbeatResponse()
        self.mutes_s: list[float] = []
        broker.on_heartbeat = self.heartbeat
        broker.listener.set_stopwatch(self.stopwatch)

    def stopwatch(self, connection: Connection, callback: Any, *arguments: Any) -> None:
        before = self.broker.listener.sent_bytes
        self.inside = True
        callback(*arguments)
        self.inside = False
        self.sent += self.broker.listener.sent_bytes - before

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> Any:
        self.handled.append(self.inside)
        if self.mutes_s:
            self.broker.listener.mute(context.connection, self.mutes_s.pop())
        return self.response

    def check(self, handled: int) -> None:
        assert self.handled == [True] * handled
        assert self.sent == self.broker.listener.sent_bytes


@pytest.fixture
async def timing(broker: Broker) -> Timing:
    await broker.start(request_bytes=10_000)
    return Timing(broker)


def write_at_once(client: Client, data: bytes) -> None:
    """Write past the client's event loop, so that the kernel has all bytes before the broker's next turn."""
    assert os.write(client.writer.get_extra_info("socket").fileno(), data) == len(data)


async def test_turns_of_a_client_with_many_requests_are_timed(broker: Broker, timing: Timing) -> None:
    client = await broker.connect()
    await client.ask(METADATA, 9, MetadataRequest())
    write_at_once(client, BEAT * 3 * FRAMES_PER_TURN)
    for _ in range(3 * FRAMES_PER_TURN):
        await client.frame()
    timing.check(3 * FRAMES_PER_TURN)


@pytest.mark.parametrize("seconds", [0.01, FOR_EVER_S], ids=["its time is over", "all are unmuted"])
async def test_work_after_a_mute_is_timed(broker: Broker, timing: Timing, seconds: float) -> None:
    timing.mutes_s = [seconds]
    client = await broker.connect()
    write_at_once(client, BEAT * 10)
    await client.frame()
    if seconds == FOR_EVER_S:
        broker.listener.unmute_all()
    for _ in range(9):
        await client.frame()
    timing.check(10)


async def test_work_after_waiting_for_memory_is_timed(broker: Broker, timing: Timing) -> None:
    response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(context: RequestContext, request: Any) -> Any:
        return await response

    broker.on_produce = handle
    client = await broker.connect()
    kept = bytes(encode_request(APIS[PRODUCE], 9, 1, "c", produce(bytes(20_000))))
    write_at_once(client, kept + BEAT * 10)
    await until(lambda: broker.listener.memory_pool.waiting == 1)
    assert not timing.handled
    response.set_result(broker.produce(None, produce(b"")))  # type: ignore[arg-type]
    for _ in range(11):
        await client.frame()
    timing.check(10)


@pytest.mark.parametrize("way", ["future", "task"])
async def test_pending_response_is_timed(broker: Broker, timing: Timing, way: str) -> None:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def finish() -> Any:
        return await future

    timing.response = future if way == "future" else finish()
    client = await broker.connect()
    write_at_once(client, BEAT)
    await until(lambda: bool(timing.handled))
    future.set_result(HeartbeatResponse())
    await client.frame()
    timing.check(1)


async def test_sending_to_a_slow_client_is_timed(broker: Broker, timing: Timing) -> None:
    timing.response = RawReply([bytes(8 * MIB)])
    client = await broker.connect()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    write_at_once(client, BEAT)
    assert len(await client.frame()) > 8 * MIB
    timing.check(1)


async def test_stopwatch_runs_all_work_for_a_connection(broker: Broker) -> None:
    """Starting with the next readable event, for existing connections too, and until it is removed."""
    await broker.start()
    timed: list[Connection] = []

    def stopwatch(connection: Connection, callback: Any, *arguments: Any) -> None:
        timed.append(connection)
        callback(*arguments)

    client = await broker.connect()
    await client.ask(METADATA, 9, MetadataRequest())
    assert not timed
    broker.listener.set_stopwatch(stopwatch)
    await client.ask(METADATA, 9, MetadataRequest())
    later = await broker.connect()
    await later.ask(METADATA, 9, MetadataRequest())
    assert len({connection.id for connection in timed}) == 2
    broker.listener.set_stopwatch(None)
    timed.clear()
    await client.ask(METADATA, 9, MetadataRequest())
    assert not timed


async def test_delayed_request_is_timed(broker: Broker, timing: Timing) -> None:
    """Its handler, and the requests after it, run in a later turn."""
    appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.on_produce = lambda *_: appended
    inside: list[bool] = []

    def delete(*_: Any) -> DeleteTopicsResponse:
        inside.append(timing.inside)
        return DeleteTopicsResponse()

    broker.on_delete = delete
    client = await broker.connect()
    client.send(PRODUCE, 9, produce(b"x"))
    client.send(DELETE_TOPICS, 5, DeleteTopicsRequest())
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: broker.listener.memory_pool.held > 0)
    assert (inside, timing.handled) == ([], [])
    appended.set_result(ProduceResponse())
    for key, version in ((PRODUCE, 9), (DELETE_TOPICS, 5), (HEARTBEAT, 0)):
        await client.receive(key, version)
    assert inside == [True]
    timing.check(1)
