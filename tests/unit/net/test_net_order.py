"""Requests that block later requests of their connection (`Pending.blocks_later_until`)."""

import asyncio
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, PRODUCE, Broker, produce, turns, until

from tierlog.broker.handlers.context import WHOLE_FRAME, Pending, RequestContext
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")


class Held:
    """Produce requests whose records begin with `slow` complete when the test releases them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.go: list[asyncio.Event] = []
        broker.on_produce = self.handle

    def handle(self, context: RequestContext, request: Any) -> Any:
        records = request.topic_data[0].partition_data[0].records
        if bytes(records[:4]) != b"slow":
            return self.broker.produce(context, request)
        self.go.append(asyncio.Event())
        later: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = self.broker.tasks.spawn("slow", self.carry_out(context, request, self.go[-1], later))
        return Pending(work, keeps=WHOLE_FRAME, blocks_later_until=later)

    async def carry_out(
        self, context: RequestContext, request: Any, go: asyncio.Event, others: "asyncio.Future[None]"
    ) -> Any:
        try:
            await go.wait()
            return self.broker.produce(context, request)
        finally:
            others.set_result(None)


@pytest.fixture
def held(broker: Broker) -> Held:
    return Held(broker)


SMALL, LARGE = 50, 700_000


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("following", [SMALL, LARGE])
async def test_later_requests_of_the_connection_wait_and_others_do_not(
    broker: Broker, held: Held, size: int, following: int
) -> None:
    await broker.start()
    client, other = await broker.connect(), await broker.connect()
    contents = [b"slow 1" * size, b"next 2" * following, b"slow 3" * size, b"next 4" * following]
    for content in contents[:2]:
        client.send(PRODUCE, 9, produce(content))
    client.send(HEARTBEAT, 4, HeartbeatRequest())
    for content in contents[2:]:
        client.send(PRODUCE, 9, produce(content))
    await until(lambda: len(held.go) == 1)
    await other.ask(PRODUCE, 9, produce(b"other"))
    await turns()
    assert (broker.records, len(held.go)) == ([b"other"], 1)
    held.go[0].set()
    await until(lambda: len(held.go) == 2)
    await turns()
    assert broker.records[1:] == contents[:2]
    await other.ask(PRODUCE, 9, produce(b"more"))
    held.go[1].set()
    answers = [(await client.receive(key, 9 if key != HEARTBEAT else 4))[0]
               for key in (PRODUCE, PRODUCE, HEARTBEAT, PRODUCE, PRODUCE)]  # fmt: skip
    assert answers == [1, 2, 3, 4, 5]
    assert [each for each in broker.records if each not in (b"other", b"more")] == contents
    assert (broker.listener.memory_pool.used, broker.listener.memory_pool.held) == (0, 0)


async def test_response_may_come_after_later_requests_start(broker: Broker) -> None:
    await broker.start()
    waiting: list[tuple[asyncio.Future[None], asyncio.Future[Any]]] = []

    def handle(context: RequestContext, request: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        later: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((later, answer))
        return Pending(answer, blocks_later_until=later)

    broker.on_produce = handle
    client = await broker.connect()
    for _ in range(3):
        client.send(PRODUCE, 9, produce(b"x"))
    for number in range(3):
        await until(lambda: len(waiting) == number + 1)  # noqa: B023
        await turns()
        assert len(waiting) == number + 1
        waiting[number][0].set_result(None)
    for _, answer in waiting:
        answer.set_result(broker.produce(RequestContext(0, 9, 0, "", None), produce(b"x")))  # type: ignore[arg-type]
    assert [(await client.receive(PRODUCE, 9))[0] for _ in waiting] == [1, 2, 3]


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_request_of_a_closed_client_is_carried_out_and_leaves_nothing(
    broker: Broker, held: Held, size: int
) -> None:
    await broker.start(sweep_s=0.01)
    client = await broker.connect()
    contents = [b"slow 1" * size, b"next 2" * SMALL]
    for content in contents:
        client.send(PRODUCE, 9, produce(content, acks=0))
    await client.writer.drain()
    await until(lambda: len(held.go) == 1)
    client.close()
    await client.writer.wait_closed()
    await turns(100)
    held.go[0].set()
    await until(lambda: not broker.listener.connections)
    assert broker.records == contents
    assert (broker.listener.memory_pool.used, broker.listener.memory_pool.held, len(broker.tasks)) == (
        0,
        0,
        0,
    )


async def test_closing_the_connection_cancels_the_request(broker: Broker, held: Held) -> None:
    await broker.start()
    client = await broker.connect()
    client.send(PRODUCE, 9, produce(b"slow" * LARGE))
    client.send(METADATA, 9, MetadataRequest())
    await until(lambda: len(held.go) == 1)
    await broker.listener.close()
    await until(lambda: not len(broker.tasks))
    assert broker.records == []
    assert (broker.listener.memory_pool.used, broker.listener.memory_pool.held) == (0, 0)
    assert await client.expect_close() == b""
