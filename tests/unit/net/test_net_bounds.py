"""Limits shared by connections: request bytes, response bytes, turns, accepted connections."""

import asyncio
import os
import socket
import struct
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, PRODUCE, Broker, Client, produce, turns, until
from sasl_logins import LoginBroker, log_in

from tierlog.broker.handlers.context import RawReply, RequestContext
from tierlog.broker.net.core.bounds import (
    ABANDONED_REQUESTS_MAX,
    FRAMES_PER_TURN,
    SWEEP_PER_TURN,
    THROTTLED_CONNECTIONS_PER_ADDRESS_MAX,
)
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.listener import Refusal, plain_address
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")
KIB, MIB = 1 << 10, 1 << 20


def large(size: int = 600 * KIB) -> bytes:
    """A Produce frame that does not fit into the shared receive buffer."""
    return bytes(encode_request(APIS[PRODUCE], 9, 1, "c", produce(bytes(size))))


# ---- queued.max.request.bytes ---------------------------------------------------------------------


async def test_connections_wait_for_memory_in_order_of_arrival(broker: Broker) -> None:
    await broker.start(request_bytes=1 * MIB)
    memory_pool = broker.listener.buffers.memory_pool
    clients = [await broker.connect() for _ in range(4)]
    frame = large()
    for number, client in enumerate(clients):
        client.writer.write(frame[:1000])
        await until(lambda: memory_pool.waiting == max(number - 1, 0))  # noqa: B023
        await until(lambda: memory_pool.used > min(number + 1, 2) * 600 * KIB)  # noqa: B023
    for client in clients[2:]:
        client.writer.write(frame[1000:])
    await turns(50)
    assert broker.records == []
    assert await (await broker.connect()).ask(METADATA, 9, MetadataRequest())  # needs no room
    for client in clients[:2]:
        client.writer.write(frame[1000:])
    for client in clients:
        await client.receive(PRODUCE, 9)
    assert len(broker.records) == 4
    await until(lambda: not memory_pool.used)
    assert memory_pool.waits == 2


async def test_clients_without_a_login_take_no_memory_from_others() -> None:
    broker = LoginBroker(session_ms=3_600_000)
    await broker.start(request_bytes=10_000)
    client = await broker.connect()
    assert (await log_in(client, "PLAIN", "ada", "lovelace")).error_code == 0
    strangers = [await broker.connect() for _ in range(4)]
    buffers = broker.listener.buffers
    for stranger in strangers:
        stranger.writer.write(struct.pack(">i", 4096) + bytes(8))
    await until(lambda: buffers.login_pool.waiting == 1)
    client.writer.write(large())
    await client.receive(PRODUCE, 9)
    for stranger in strangers:
        stranger.writer.transport.abort()
    await until(lambda: broker.listener.connections == 1)
    await broker.close()
    for pool in (buffers.login_pool, buffers.memory_pool):
        assert (pool.used, pool.waiting) == (0, 0)


async def test_frame_larger_than_the_memory_pool_is_received(broker: Broker) -> None:
    await broker.start(request_bytes=100 * KIB)
    client = await broker.connect()
    client.writer.write(large() * 2)
    for _ in range(2):
        await client.receive(PRODUCE, 9)


async def test_pending_requests_do_not_block_other_connections(broker: Broker) -> None:
    """Their memory is released while they wait, as in Kafka."""
    await broker.start(request_bytes=500 * KIB)
    futures: list[asyncio.Future[Any]] = []

    def handle(context: RequestContext, request: Any) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    broker.on_heartbeat = broker.on_produce = handle
    waiting, split = await broker.connect(), await broker.connect()
    for _ in range(20):
        waiting.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g" * 30 * KIB))
    waiting.writer.write(large())
    await until(lambda: len(futures) == 21)
    assert broker.listener.memory_pool.used == 0
    broker.on_produce = broker.produce
    split.writer.write(large())
    await split.receive(PRODUCE, 9)
    assert (broker.listener.memory_pool.waits, broker.listener.connections) == (0, 2)


async def test_bytes_of_pending_requests_of_a_connection_are_limited(broker: Broker) -> None:
    await broker.start(frame_bytes=100 * KIB)
    futures = broker.hold_heartbeats()
    client, other = await broker.connect(), await broker.connect()
    for _ in range(10):
        client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g" * 30 * KIB))
    for _ in range(20):
        await other.ask(METADATA, 9, MetadataRequest())
    assert (len(futures), broker.listener.saturated) == (4, 1)
    for number in range(10):
        await until(lambda: len(futures) > number)  # noqa: B023
        futures[number].set_result(HeartbeatResponse())
        assert (await client.receive(HEARTBEAT, 0))[0] == number + 1


async def test_kept_frame_is_counted_once_until_it_is_answered(broker: Broker) -> None:
    await broker.start(request_bytes=1 * MIB)
    go = asyncio.Event()

    async def handle(context: RequestContext, request: Any) -> Any:
        await go.wait()
        return broker.produce(context, request)

    broker.on_produce = handle
    split, whole = await broker.connect(), await broker.connect()
    small = large(100 * KIB)
    split.writer.write(large())
    whole.writer.write(small)
    await until(lambda: len(broker.tasks) == 2)
    memory_pool = broker.listener.memory_pool
    assert (memory_pool.used, memory_pool.waits) == (len(large()) + len(small) - 8, 0)
    go.set()
    for client in (split, whole):
        await client.receive(PRODUCE, 9)
    assert memory_pool.used == 0


async def test_bytes_of_kept_frames_are_limited(broker: Broker) -> None:
    await broker.start(request_bytes=100 * KIB)
    answers: list[asyncio.Future[Any]] = []

    async def handle(context: RequestContext, request: Any) -> Any:
        answers.append(asyncio.get_running_loop().create_future())
        await answers[-1]
        return broker.produce(context, request)

    broker.on_produce = handle
    client = await broker.connect()
    client.writer.write(large(60 * KIB) * 4)
    await until(lambda: len(answers) == 2)
    await turns()
    assert (len(answers), broker.listener.memory_pool.waiting) == (2, 1)
    for number in range(4):
        await until(lambda: len(answers) > number)  # noqa: B023
        answers[number].set_result(None)
        await client.receive(PRODUCE, 9)
    await until(lambda: not broker.listener.memory_pool.used)


async def test_closed_connection_releases_its_memory_and_its_turn(broker: Broker) -> None:
    await broker.start(request_bytes=500 * KIB)
    memory_pool = broker.listener.buffers.memory_pool
    holder, second, third = [await broker.connect() for _ in range(3)]
    holder.writer.write(large()[:5000])
    await until(lambda: memory_pool.used > 0)
    for number, client in enumerate((second, third), 1):
        client.writer.write(large())
        await until(lambda: memory_pool.waiting == number)  # noqa: B023
    second.writer.transport.abort()
    holder.writer.transport.abort()
    await third.receive(PRODUCE, 9)
    await until(lambda: broker.listener.connections == 1)
    assert (memory_pool.used, memory_pool.waiting) == (0, 0)


async def test_connection_that_holds_most_is_closed_above_the_limit(broker: Broker) -> None:
    await broker.start(in_flight=1, request_bytes=150 * KIB)
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    unused = iter(futures)
    broker.on_heartbeat = lambda *_: next(unused, HeartbeatResponse())
    clients = [await broker.connect() for _ in range(2)]
    memory_pool = broker.listener.buffers.memory_pool
    for client, count in zip(clients, (11, 5), strict=True):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
        for _ in range(count):
            client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g" * 10 * KIB))
        await until(lambda: memory_pool.held > 105 * KIB or bool(broker.notes))
    assert await clients[0].expect_close() == b""
    assert [why for why, _ in broker.notes] == [CloseReason.QUEUE_FULL]
    futures[1].set_result(HeartbeatResponse())
    for _ in range(6):
        await clients[1].frame()
    assert (memory_pool.used, memory_pool.held) == (0, 0)


async def test_close_is_noticed_while_the_connection_is_not_read(broker: Broker) -> None:
    """Its requests are handled, and its place in the queue for memory is free."""
    await broker.start(in_flight=2, sweep_s=0.005)
    futures = broker.hold_heartbeats()
    client = await broker.connect()
    for _ in range(4):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    client.send(PRODUCE, 9, produce(b"last words"))
    await until(lambda: len(futures) == 2)
    client.close()
    await until(lambda: broker.listener.connections == 0)
    assert (len(futures), broker.records) == (4, [b"last words"])
    assert all(future.cancelled() for future in futures)
    assert broker.listener.closed == {CloseReason.CLIENT: 1}


async def test_limits_apply_to_clients_that_close_their_sending_side(broker: Broker) -> None:
    await broker.start(in_flight=2, sweep_s=0.001)
    futures = broker.hold_heartbeats()
    client = await broker.connect()
    for _ in range(ABANDONED_REQUESTS_MAX * 2):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    client.writer.write_eof()
    await until(lambda: broker.listener.connections == 0)
    assert len(futures) == 2 + ABANDONED_REQUESTS_MAX
    assert broker.listener.closed == {CloseReason.CLIENT: 1}


# ---- responses that the client does not accept ----------------------------------------------------


async def sleeper(broker: Broker) -> Client:
    """A client that accepts no response bytes."""
    client = await broker.connect()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    return client


def sending(broker: Broker) -> int:
    return sum(channel.core.is_sending for channel in broker.listener._channels.values())


async def test_client_that_accepts_nothing_for_a_second_counts_as_blocked(broker: Broker) -> None:
    await broker.start()
    broker.on_heartbeat = lambda *_: RawReply([bytes(8 * MIB)])
    client = await sleeper(broker)
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: sending(broker) == 1)
    assert broker.listener.blocked == 0
    [channel] = broker.listener._channels.values()
    channel.core.blocked_at -= 1.1
    assert broker.listener.blocked == 1
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    await client.frame()
    assert broker.listener.blocked == 0


async def test_blocked_connection_is_closed_after_the_send_timeout(broker: Broker) -> None:
    await broker.start(blocked_s=0.02, sweep_s=0.005)
    broker.on_heartbeat = lambda *_: RawReply([bytes(8 * MIB)])
    client = await sleeper(broker)
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: bool(broker.notes))
    assert broker.notes[0][0] is CloseReason.BLOCKED
    assert "bytes not accepted" in broker.notes[0][1]
    assert broker.listener.kept_bytes == 0


async def test_blocked_connection_holds_no_request_memory(broker: Broker) -> None:
    await broker.start(blocked_s=2000.0, frame_s=1000.0, queued_response_bytes=1 * MIB)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.on_heartbeat = lambda *_: future
    client = await sleeper(broker)
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    client.writer.write(large()[:1000])
    await until(lambda: broker.listener.memory_pool.used > 600 * KIB)
    future.set_result(RawReply([bytes(8 * MIB)]))
    await until(lambda: sending(broker) == 1)
    [channel] = broker.listener._channels.values()
    channel.close_if_overdue(asyncio.get_running_loop().time() + 1001.0)
    assert [why for why, _ in broker.notes] == [CloseReason.SLOW]
    assert broker.listener.memory_pool.used == 0


async def test_unaccepted_responses_of_all_connections_are_limited(broker: Broker) -> None:
    await broker.start(queued_response_bytes_total=20 * MIB)
    broker.on_heartbeat = lambda *_: RawReply([bytes(8 * MIB)])
    sleepers = []
    for number in range(5):
        sleepers.append(await sleeper(broker))
        sleepers[-1].send(HEARTBEAT, 0, HeartbeatRequest())
        await until(lambda: broker.listener.closed[CloseReason.QUEUE_FULL] + sending(broker) > number)  # noqa: B023
        assert broker.listener.kept_bytes <= 20 * MIB
    assert broker.listener.closed == {CloseReason.QUEUE_FULL: 3}
    sleepers[-1].reader._transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await sleepers[-1].frame()) > 8 * MIB  # the last one was not the slowest
    assert await (await broker.connect()).ask(METADATA, 9, MetadataRequest())


async def test_responses_behind_a_pending_one_are_counted(broker: Broker) -> None:
    await broker.start(queued_response_bytes=1 * MIB, in_flight=100)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    calls: list[int] = []

    def handle(context: RequestContext, request: Any) -> Any:
        calls.append(context.correlation_id)
        return future if len(calls) == 1 else RawReply([bytes(300 * KIB)])

    broker.on_heartbeat = handle
    client = await broker.connect()
    for _ in range(20):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: broker.listener.kept_bytes > 1 * MIB)
    await turns()
    assert len(calls) == 5
    future.set_result(HeartbeatResponse())
    for number in range(1, 21):
        assert (await client.frame())[:4] == struct.pack(">i", number)
    assert broker.listener.kept_bytes == 0


# ---- turns ----------------------------------------------------------------------------------------


async def test_client_with_many_requests_yields_to_others(broker: Broker) -> None:
    await broker.start()
    order: list[str] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        order.append(request.group_id)
        return HeartbeatResponse()

    broker.on_heartbeat = handle
    hog, others = await broker.connect(), [await broker.connect() for _ in range(3)]
    for client in (hog, *others):
        await client.ask(METADATA, 9, MetadataRequest())
    from_hog, from_other = (
        bytes(encode_request(APIS[HEARTBEAT], 0, 1, "c", HeartbeatRequest(group_id=who)))
        for who in ("hog", "other")
    )
    for client, data in [(hog, from_hog * 10 * FRAMES_PER_TURN), *((other, from_other) for other in others)]:
        # past the client's event loop: all is in the kernel before the broker has its next turn
        os.write(client.writer.get_extra_info("socket").fileno(), data)
    for other in others:
        await other.frame()
    for _ in range(10 * FRAMES_PER_TURN):
        await hog.frame()
    last = max(place for place, who in enumerate(order) if who == "other")
    assert order[:last].count("hog") <= 2 * FRAMES_PER_TURN
    assert order.count("hog") == 10 * FRAMES_PER_TURN
    assert broker.listener.buffers.memory_pool.used == 0


async def test_sweep_checks_every_connection(broker: Broker) -> None:
    await broker.start(idle_s=0.01, sweep_s=0.005)
    clients = [await broker.connect() for _ in range(SWEEP_PER_TURN + 10)]
    for client in clients:
        assert await client.expect_close() == b""
    assert broker.listener.closed == {CloseReason.IDLE: SWEEP_PER_TURN + 10}


# ---- accepting ------------------------------------------------------------------------------------


async def test_address_can_have_its_own_connection_limit(broker: Broker) -> None:
    await broker.start(connections_per_address=1, connections_per_address_overrides={"127.0.0.2": 2})
    at_home = [await broker.connect("127.0.0.2") for _ in range(3)]
    for client in at_home[:2]:
        await client.ask(METADATA, 9, MetadataRequest())
    assert await at_home[2].expect_close() == b""
    assert broker.listener.refused == {Refusal.ADDRESS: 1}
    assert broker.refusals == [(Refusal.ADDRESS, "127.0.0.2")]
    assert await (await broker.connect()).ask(METADATA, 9, MetadataRequest())


async def test_connections_above_the_rate_wait_and_are_not_refused(broker: Broker) -> None:
    await broker.start(connections_per_second=5)
    clients = [await broker.connect() for _ in range(11)]  # the kernel takes them
    await until(lambda: broker.listener.refused[Refusal.RATE] > 0)
    assert broker.listener.accepted <= 10  # a second may have begun in between
    for client in clients:
        await client.ask(METADATA, 9, MetadataRequest())
    assert broker.listener.accepted == 11


async def test_connections_of_one_address_do_not_use_up_the_rate_of_another(broker: Broker) -> None:
    await broker.start(more=["OTHER"], connections_per_second=2)
    flood = [await broker.connect() for _ in range(12)]
    await until(lambda: broker.listener.refused[Refusal.RATE] > 0)
    client = await Client.connect(*broker.addresses["OTHER"])
    await client.ask(METADATA, 9, MetadataRequest())
    assert broker.listener.accepted < len(flood)


async def test_reached_rate_counts_no_refusal_without_waiting_connections(broker: Broker) -> None:
    await broker.start(connections_per_second=3)
    for _ in range(3):
        await (await broker.connect()).ask(METADATA, 9, MetadataRequest())
    await until(lambda: broker.listener._accepting)
    assert not broker.listener.refused
    assert not broker.refusals


async def test_address_over_its_quota_cannot_take_all_places_of_throttled_connections(broker: Broker) -> None:
    await broker.start()
    broker.listener.admission = lambda host: 1_000_000
    several = [await broker.connect() for _ in range(THROTTLED_CONNECTIONS_PER_ADDRESS_MAX + 1)]
    assert await several[-1].expect_close() == b""
    other = await broker.connect("127.0.0.2")
    await until(lambda: broker.listener.refused[Refusal.QUOTA] == len(several) + 1)
    assert len(broker.listener._throttled_connections) == THROTTLED_CONNECTIONS_PER_ADDRESS_MAX + 1
    await broker.listener.close()
    for client in (other, several[0]):
        assert await client.expect_close() == b""
    assert not broker.listener._throttled_per_address


async def test_ipv4_clients_of_a_dual_stack_listener_have_ipv4_addresses(broker: Broker) -> None:
    await broker.start(host="::ffff:127.0.0.1", connections_per_address_overrides={"127.0.0.1": 1})
    await (await broker.connect()).ask(METADATA, 9, MetadataRequest())
    assert await (await broker.connect()).expect_close() == b""
    assert broker.refusals == [(Refusal.ADDRESS, "127.0.0.1")]


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:db8::5", "2001:db8::5"),
    ],
)
def test_addresses_have_the_form_of_settings(host: str, plain: str) -> None:
    assert plain_address(host) == plain
