"""Muted connections: not read, not timed out for it, and closed when their client closes."""

import asyncio
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, PRODUCE, Broker, Client, produce, turns, until

from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")

FOR_EVER_S = 1e6
BEAT = HeartbeatRequest(group_id="g")


def mute_on_heartbeat(broker: Broker, seconds: float) -> list[Connection]:
    """Each heartbeat mutes its connection; the connections that were."""
    muted: list[Connection] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        muted.append(context.connection)
        broker.listener.mute(context.connection, seconds)
        return HeartbeatResponse(throttle_time_ms=int(seconds))

    broker.on_heartbeat = handle
    return muted


async def test_muted_connection_gets_its_response_and_is_not_read(broker: Broker) -> None:
    await broker.start()
    muted = mute_on_heartbeat(broker, FOR_EVER_S)
    client, other = await broker.connect(), await broker.connect()
    for _ in range(3):
        client.send(HEARTBEAT, 4, BEAT)  # the second and third arrive with the first, or after it
    assert (await client.receive(HEARTBEAT, 4))[1].throttle_time_ms == FOR_EVER_S
    for _ in range(20):
        assert await other.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    assert (len(muted), broker.listener.muted, broker.listener.connections) == (1, 1, 2)


async def test_held_frames_are_handled_after_the_mute(broker: Broker) -> None:
    await broker.start()
    muted = mute_on_heartbeat(broker, 0.01)
    client = await broker.connect()
    for _ in range(4):
        client.send(HEARTBEAT, 4, BEAT)
    assert [(await client.receive(HEARTBEAT, 4))[0] for _ in range(4)] == [1, 2, 3, 4]
    assert len(muted) == 4
    await until(lambda: not broker.listener.muted)
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)


async def test_longer_mute_wins(broker: Broker) -> None:
    await broker.start()
    muted = mute_on_heartbeat(broker, FOR_EVER_S)
    client = await broker.connect()
    await client.ask(HEARTBEAT, 4, BEAT)
    broker.listener.mute(muted[0], 0.0)
    await turns()
    assert broker.listener.muted == 1


async def test_pending_response_leaves_while_muted(broker: Broker) -> None:
    await broker.start()
    waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    contexts: list[RequestContext] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
        contexts.append(context)
        return waiting

    broker.on_heartbeat = handle
    client = await broker.connect()
    client.send(HEARTBEAT, 4, BEAT)
    await until(lambda: bool(contexts))
    broker.listener.mute(contexts[0].connection, FOR_EVER_S)
    waiting.set_result(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert (await client.receive(HEARTBEAT, 4))[1].error_code == ErrorCode.REBALANCE_IN_PROGRESS


async def test_all_connections_can_be_unmuted_early(broker: Broker) -> None:
    await broker.start()
    muted = mute_on_heartbeat(broker, FOR_EVER_S)
    client = await broker.connect()
    for _ in range(2):
        client.send(HEARTBEAT, 4, BEAT)
    await client.receive(HEARTBEAT, 4)
    broker.listener.unmute_all()
    await client.receive(HEARTBEAT, 4)
    assert (len(muted), broker.listener.muted) == (2, 1)
    broker.listener.unmute_all()
    await until(lambda: not broker.listener.muted)


async def test_mute_right_after_unmute_all_stays(broker: Broker) -> None:
    await broker.start()
    muted = mute_on_heartbeat(broker, FOR_EVER_S)
    client = await broker.connect()
    await client.ask(HEARTBEAT, 4, BEAT)
    broker.listener.unmute_all()
    broker.listener.mute(muted[0], FOR_EVER_S / 2)
    await turns()
    assert broker.listener.muted == 1


async def test_a_muted_connection_is_neither_idle_nor_slow(broker: Broker) -> None:
    await broker.start()
    mute_on_heartbeat(broker, FOR_EVER_S)
    client = await broker.connect()
    client.send(HEARTBEAT, 4, BEAT)
    client.writer.write(b"\0\0")  # the beginning of a frame
    await client.receive(HEARTBEAT, 4)
    for channel in broker.listener._channels.values():
        channel.close_if_overdue(channel.core.active_at + FOR_EVER_S)
    assert (broker.listener.muted, broker.notes) == (1, [])


async def test_muted_connection_is_closed_when_its_client_closes(broker: Broker) -> None:
    await broker.start(sweep_s=0.001)
    muted = mute_on_heartbeat(broker, FOR_EVER_S)
    client = await broker.connect()
    for _ in range(3):
        client.send(HEARTBEAT, 4, BEAT)
    await client.receive(HEARTBEAT, 4)
    client.writer.write_eof()
    await until(lambda: not broker.listener.connections)
    assert len(muted) == 1  # to close the sending side does not lift the mute
    assert [why for why, _ in broker.notes] == [CloseReason.CLIENT]


async def test_requests_of_a_closed_client_over_its_quota_are_not_handled(broker: Broker) -> None:
    await broker.start(in_flight=1, sweep_s=0.001)
    calls: list[RequestContext] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
        calls.append(context)
        if len(calls) == 1:
            return asyncio.get_running_loop().create_future()
        broker.listener.mute(context.connection, FOR_EVER_S)
        return HeartbeatResponse()

    broker.on_heartbeat = handle
    client = await broker.connect()
    for _ in range(5):
        client.send(HEARTBEAT, 4, BEAT)
    client.writer.write_eof()
    await until(lambda: not broker.listener.connections)
    assert len(calls) == 2
    assert [why for why, _ in broker.notes] == [CloseReason.CLIENT]


LARGE = bytes(encode_request(APIS[PRODUCE], 9, 2, "c", produce(bytes(600_000))))


async def muted_with_a_begun_frame(broker: Broker) -> Client:
    """Mute a connection with a partial frame that has memory from the pool."""
    waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    contexts: list[RequestContext] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
        contexts.append(context)
        return waiting

    broker.on_heartbeat = handle
    client = await broker.connect()
    client.send(HEARTBEAT, 4, BEAT)
    client.writer.write(LARGE[:1000])
    await until(lambda: broker.listener.memory_pool.used > 0)
    waiting.set_result(HeartbeatResponse())
    await client.receive(HEARTBEAT, 4)
    broker.listener.mute(contexts[0].connection, FOR_EVER_S)
    return client


async def test_only_the_partial_frame_is_received_while_muted(broker: Broker) -> None:
    await broker.start()
    client = await muted_with_a_begun_frame(broker)
    client.writer.write(LARGE[1000:] + LARGE)
    await client.receive(PRODUCE, 9)
    await turns(50)
    assert (broker.listener.memory_pool.used, broker.listener.muted, len(broker.records)) == (0, 1, 1)


async def test_partial_frame_must_arrive_in_time_while_muted(broker: Broker) -> None:
    await broker.start(frame_s=1000.0)
    client = await muted_with_a_begun_frame(broker)
    [channel] = broker.listener._channels.values()
    channel.close_if_overdue(asyncio.get_running_loop().time() + 1001.0)
    assert await client.expect_close() == b""
    assert [why for why, _ in broker.notes] == [CloseReason.SLOW]
    assert broker.listener.memory_pool.used == 0


async def test_stopping_closes_a_muted_connection(broker: Broker) -> None:
    await broker.start()
    mute_on_heartbeat(broker, FOR_EVER_S)
    client = await broker.connect()
    await client.ask(HEARTBEAT, 4, BEAT)
    await broker.listener.close()
    assert await client.expect_close() == b""
    assert [why for why, _ in broker.notes] == [CloseReason.STOPPING]
