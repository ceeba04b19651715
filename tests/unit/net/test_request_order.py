"""Requests of one connection in the order of `handlers.ordering`: changes alone, reads after appends."""

import asyncio
from typing import Any

import pytest
from connection_harness import (
    DELETE_TOPICS,
    HEARTBEAT,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Broker,
    Client,
    produce,
    turns,
    until,
)

from tierlog.broker.handlers.context import RequestContext
from tierlog.broker.handlers.ordering import ORDERS, Order
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsTopic
from tierlog.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")

VERSIONS = {PRODUCE: 9, METADATA: 9, HEARTBEAT: 4, LIST_OFFSETS: 7, DELETE_TOPICS: 5}
Futures = list["asyncio.Future[Any]"]


class Traffic:
    """Records when each request starts. Produce requests and changes wait for the test."""

    def __init__(self, broker: Broker, *, as_tasks: bool) -> None:
        self.broker = broker
        self.started: list[int] = []
        self.appends: Futures = []
        self.changes: Futures = []
        for key, handler in list(broker.handlers.items()):
            broker.handlers[key] = self._noting(key, handler)
        broker.on_produce = lambda *_: self._wait(self.appends, as_tasks)
        broker.on_delete = lambda *_: self._wait(self.changes, as_tasks)

    def _noting(self, key: int, handler: Any) -> Any:
        def handle(context: RequestContext, request: Any) -> Any:
            self.started.append(key)
            return handler(context, request)

        return handle

    @staticmethod
    def _wait(futures: Futures, as_tasks: bool) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return _awaited(futures[-1]) if as_tasks else futures[-1]

    def append(self, number: int) -> None:
        context: Any = RequestContext(PRODUCE, 9, 0, "", None)  # type: ignore[arg-type]
        self.appends[number].set_result(self.broker.produce(context, produce(b"x")))


async def _awaited(future: "asyncio.Future[Any]") -> Any:
    return await future


@pytest.fixture(params=[False, True], ids=["futures", "coroutines"])
def traffic(broker: Broker, request: pytest.FixtureRequest) -> Traffic:
    return Traffic(broker, as_tasks=request.param)


def send(client: Client, *keys: int) -> None:
    requests = {
        PRODUCE: produce(b"x"),
        METADATA: MetadataRequest(),
        HEARTBEAT: HeartbeatRequest(),
        LIST_OFFSETS: ListOffsetsRequest(),
        DELETE_TOPICS: DeleteTopicsRequest(),
    }
    for key in keys:
        client.send(key, VERSIONS[key], requests[key])


async def receive(client: Client, *keys: int) -> list[int]:
    return [(await client.receive(key, VERSIONS[key]))[0] for key in keys]


async def test_a_change_holds_later_requests_of_its_connection_only(broker: Broker, traffic: Traffic) -> None:
    await broker.start()
    client, other = await broker.connect(), await broker.connect()
    sent = (METADATA, DELETE_TOPICS, METADATA, DELETE_TOPICS, HEARTBEAT, LIST_OFFSETS)
    send(client, *sent)
    for done in range(2):
        await until(lambda: len(traffic.changes) == done + 1)  # noqa: B023
        await turns()
        assert traffic.started == list(sent[: 2 * done + 2])
        traffic.changes[done].set_result(DeleteTopicsResponse())
    assert await receive(client, *sent) == [1, 2, 3, 4, 5, 6]
    traffic.started.clear()
    send(client, DELETE_TOPICS)
    send(other, METADATA, HEARTBEAT)
    assert await receive(other, METADATA, HEARTBEAT) == [1, 2]
    await until(lambda: len(traffic.changes) == 3)
    traffic.changes[2].set_exception(ValueError("a change that fails holds nothing either"))
    assert await receive(client, DELETE_TOPICS) == [7]
    broker.reports.clear()


async def test_appends_overlap_and_reads_wait_for_them(broker: Broker, traffic: Traffic) -> None:
    await broker.start()
    client = await broker.connect()
    send(client, PRODUCE, METADATA, PRODUCE, HEARTBEAT, LIST_OFFSETS, PRODUCE)
    await until(lambda: len(traffic.appends) == 2)
    await turns()
    assert traffic.started == [PRODUCE, METADATA, PRODUCE, HEARTBEAT]
    traffic.append(1)
    await turns()
    assert LIST_OFFSETS not in traffic.started
    traffic.append(0)
    await until(lambda: len(traffic.appends) == 3)
    await receive(client, PRODUCE, METADATA, PRODUCE, HEARTBEAT)
    assert (await client.receive(LIST_OFFSETS, 7))[1].throttle_time_ms == 2  # the records that it saw
    traffic.append(2)
    assert await receive(client, PRODUCE) == [6]


async def test_a_change_waits_for_the_appends_before_it(broker: Broker, traffic: Traffic) -> None:
    await broker.start()
    client = await broker.connect()
    send(client, PRODUCE, DELETE_TOPICS, PRODUCE, METADATA)
    await until(lambda: len(traffic.appends) == 1)
    await turns()
    assert traffic.started == [PRODUCE]
    traffic.append(0)
    await until(lambda: len(traffic.changes) == 1)
    await turns()
    assert traffic.started == [PRODUCE, DELETE_TOPICS]
    traffic.changes[0].set_result(DeleteTopicsResponse())
    await until(lambda: len(traffic.appends) == 2)
    traffic.append(1)
    assert await receive(client, PRODUCE, DELETE_TOPICS, PRODUCE, METADATA) == [1, 2, 3, 4]


async def test_change_does_not_wait_for_a_join_group(broker: Broker) -> None:
    """As LeaveGroup after JoinGroup."""
    traffic = Traffic(broker, as_tasks=False)
    heartbeats = broker.hold_heartbeats()
    await broker.start()
    client = await broker.connect()
    send(client, HEARTBEAT, DELETE_TOPICS, METADATA)
    await until(lambda: len(traffic.changes) == 1)
    traffic.changes[0].set_result(DeleteTopicsResponse())
    await until(lambda: METADATA in traffic.started)
    heartbeats[0].set_result(HeartbeatResponse())
    assert await receive(client, HEARTBEAT, DELETE_TOPICS, METADATA) == [1, 2, 3]


async def test_waiting_requests_are_dropped_when_the_client_closes(broker: Broker, traffic: Traffic) -> None:
    await broker.start()
    client = await broker.connect()
    send(client, PRODUCE, LIST_OFFSETS, METADATA)
    await until(lambda: len(traffic.appends) == 1)
    await turns()
    for connection in [*broker.listener._channels.values()]:
        connection.close(CloseReason.CLIENT)
    traffic.appends[0].cancel()
    await until(lambda: not broker.tasks)
    assert traffic.started == [PRODUCE]
    assert (broker.listener.memory_pool.used, broker.listener.memory_pool.held) == (0, 0)


GONE = [(PRODUCE, LIST_OFFSETS), (PRODUCE, DELETE_TOPICS, METADATA), (DELETE_TOPICS,)]


@pytest.mark.parametrize("sent", GONE, ids=["read held back", "change held back", "change under way"])
async def test_close_is_noticed_while_requests_wait_for_each_other(
    broker: Broker, traffic: Traffic, sent: tuple[int, ...]
) -> None:
    await broker.start(sweep_s=0.005, abandoned_s=0.01)
    client = await broker.connect()
    send(client, *sent)
    await until(lambda: bool(traffic.appends or traffic.changes))
    client.close()
    await until(lambda: not broker.listener.connections)
    assert broker.listener.closed == {CloseReason.CLIENT: 1}
    assert traffic.started == [sent[0]]
    for future in (*traffic.appends, *traffic.changes):
        future.cancel()
    await until(lambda: not broker.tasks)
    assert (broker.listener.memory_pool.used, broker.listener.memory_pool.held) == (0, 0)


async def test_last_requests_of_a_closed_client_are_carried_out(broker: Broker, traffic: Traffic) -> None:
    """For example LeaveGroup after an offset commit: a closing consumer waits for neither."""
    await broker.start(sweep_s=0.005)
    client = await broker.connect()
    send(client, PRODUCE, DELETE_TOPICS)
    await until(lambda: bool(traffic.appends))
    client.close()
    [channel] = broker.listener._channels.values()
    await until(lambda: channel.core.client_left_at is not None)
    traffic.append(0)
    await until(lambda: bool(traffic.changes))
    traffic.changes[0].set_result(DeleteTopicsResponse())
    await until(lambda: not broker.listener.connections)
    assert traffic.started == [PRODUCE, DELETE_TOPICS]


KIB = 1 << 10
LARGE = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t" * 10 * KIB) for _ in range(60)])


async def test_delayed_request_counts_as_held_until_it_starts(broker: Broker, traffic: Traffic) -> None:
    await broker.start()
    client = await broker.connect()
    send(client, PRODUCE)
    client.send(LIST_OFFSETS, 7, LARGE)
    memory_pool = broker.listener.memory_pool
    await until(lambda: memory_pool.held > 600 * KIB)
    traffic.append(0)
    await receive(client, PRODUCE, LIST_OFFSETS)
    assert (memory_pool.used, memory_pool.held) == (0, 0)


async def test_bytes_of_delayed_requests_are_limited(broker: Broker, traffic: Traffic) -> None:
    await broker.start(request_bytes=1500 * KIB)
    clients = [await broker.connect() for _ in range(5)]
    memory_pool = broker.listener.memory_pool
    for number, client in enumerate(clients):
        send(client, PRODUCE)
        client.send(LIST_OFFSETS, 7, LARGE)
        await until(lambda: len(traffic.appends) == number + 1)  # noqa: B023
        await until(lambda: memory_pool.held > min(number + 1, 2) * 600 * KIB)  # noqa: B023
        await until(lambda: len(broker.notes) == max(0, number - 1))  # noqa: B023
        assert memory_pool.held <= memory_pool.limit
    assert {why for why, _ in broker.notes} == {CloseReason.QUEUE_FULL}


async def test_malformed_delayed_request_closes_the_connection_when_it_starts(
    broker: Broker, traffic: Traffic
) -> None:
    await broker.start()
    client = await broker.connect()
    send(client, PRODUCE)
    malformed = bytearray(encode_request(APIS[LIST_OFFSETS], 7, 2, "test", LARGE))
    client.writer.write(malformed[:-KIB])
    client.writer.write(b"\xff" * KIB)
    await until(lambda: broker.listener.memory_pool.held > 600 * KIB)
    traffic.append(0)
    assert await receive(client, PRODUCE) == [1]
    assert await client.expect_close() == b""
    assert broker.listener.closed == {CloseReason.MALFORMED: 1}
    assert (broker.listener.memory_pool.used, broker.listener.memory_pool.held) == (0, 0)


def test_mutating_apis_are_changes_or_appends() -> None:
    """Recognised by the API's name, so that a new mutating API is not FREE by mistake."""
    changing = (
        "AddOffsets", "Alter", "Create", "Delete", "Elect", "End", "Expire", "Init", "Leave", "OffsetDelete",
        "Renew", "SaslAuthenticate", "Unregister", "Update",
    )  # fmt: skip
    of_changes = {name for name in ORDERS if name.startswith(changing) or "Alter" in name}
    assert of_changes == {name for name, order in ORDERS.items() if order is Order.CHANGE}
