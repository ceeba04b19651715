"""Producing: large requests leave turns of the event loop to others, and what they hold is counted."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from tierlog.base.clock import SystemClock
from tierlog.records.writer import NewRecord
from tierlog.rest.budget import Budget
from tierlog.rest.errors import RestError
from tierlog.rest.formats import Values
from tierlog.rest.gateway import Call, Counts, Limits
from tierlog.rest.producer import Written
from tierlog.rest.producing import RECORDS_MAX, RECORDS_PER_TURN, _Partitions, _RecordStream, produce


class StubProducer:
    """Keeps the records that it gets. `is_done`: it answers at once."""

    def __init__(self, *, is_done: bool) -> None:
        self.is_done = is_done
        self.sent: list[asyncio.Future[Written]] = []

    def sticky(self, count: int) -> int:
        return 0

    def send(self, topic: str, partition: int, record: NewRecord) -> asyncio.Future[Written]:
        done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self.sent.append(done)
        if self.is_done:
            done.set_result(Written(partition, 0, record.timestamp))
        return done


class StubCluster:
    async def topic(self, name: str, *, fresh: bool = False) -> Any:
        return SimpleNamespace(partitions=[None])


class BrokenContent:
    """The body of a client that went away."""

    async def readany(self) -> bytes:
        raise ConnectionResetError

    def at_eof(self) -> bool:
        return False


class StubCall(Call):
    async def respond(self, status: int, body: bytes) -> web.StreamResponse:
        return web.Response(status=status, body=body)


def call_with(body: bytes, producer: StubProducer) -> Call:
    gateway = SimpleNamespace(
        values=Values(None),
        clock=SystemClock(),
        counts=Counts(),
        limits=Limits(),
        budget=Budget(1 << 20),
        stopping=asyncio.Event(),
    )
    request = SimpleNamespace(query={}, match_info={"topic": "t"}, content=BrokenContent())
    session = SimpleNamespace(cluster=StubCluster(), producer=producer)
    return StubCall(
        gateway=cast(Any, gateway), request=cast(Any, request), session=cast(Any, session), body=body
    )


def body_of(count: int) -> bytes:
    return b'{"records":[' + b",".join([b'{"value":{"a":1}}'] * count) + b"]}"


async def test_large_request_leaves_turns_to_others() -> None:
    turns, call = 0, call_with(body_of(10 * RECORDS_PER_TURN), StubProducer(is_done=True))

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(others())
    assert (await produce(call)).status == 200
    task.cancel()
    assert turns >= 9


async def test_records_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes hundreds of bytes once it is decoded."""

    def decoded(*_: object) -> Any:
        raise AssertionError("the body was decoded")

    monkeypatch.setattr("tierlog.rest.producing.decoded", decoded)
    with pytest.raises(RestError, match=f"more than {RECORDS_MAX}"):
        await produce(call_with(body_of(RECORDS_MAX + 1), StubProducer(is_done=True)))


async def test_records_of_a_client_that_went_away_are_held_until_the_broker_has_responded() -> None:
    producer = StubProducer(is_done=False)
    call = call_with(b"", producer)
    stream = _RecordStream(call, "c", "t", _Partitions(1, call))
    await stream._take(b'{"value":{"type":"STRING","data":"x"}}')
    held = call.gateway.budget.used
    assert held > 0
    with pytest.raises(ConnectionResetError):
        await stream.run()
    assert call.gateway.budget.used == held
    producer.sent[0].set_result(Written(0, 0, 0))
    await asyncio.sleep(0)
    assert call.gateway.budget.used == 0
