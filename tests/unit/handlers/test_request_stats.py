"""Request statistics: total, local and remote time, and error codes."""

import asyncio
import inspect
from collections import Counter
from typing import Any

import pytest

from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.chain import Chain
from tierlog.broker.handlers.context import Connection, Pending, RawReply, RequestContext
from tierlog.broker.handlers.error_counts import counter_of
from tierlog.broker.handlers.stats import ApiStats, RequestStats
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN, respond_in_turns
from tierlog.protocol.api import APIS, BY_NAME
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages import metadata
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

HEARTBEAT = BY_NAME["Heartbeat"].key
CONTEXT = RequestContext(HEARTBEAT, 4, 1, None, Connection(1, "h", 1))


class Ticks:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def handled(ticks: Ticks, handler: Any) -> tuple[Any, ApiStats]:
    """A call of the handler through the chain: its reply, or a coroutine of it."""
    stats = RequestStats()
    chain = Chain({HEARTBEAT: handler}, TaskGroup(lambda *_: None), lambda *_: None, stats, ticks)

    def call() -> Any:
        reply = chain.start(CONTEXT, HeartbeatRequest())
        return finish(reply) if isinstance(reply, Pending) else reply

    async def finish(pending: Pending) -> Any:
        await asyncio.wait([pending.work])
        return chain.finish(CONTEXT, HeartbeatRequest(), pending)

    return call, stats.for_api(HEARTBEAT)


def test_immediate_response_counts_as_local_time() -> None:
    ticks = Ticks()

    def handler(*_: Any) -> HeartbeatResponse:
        ticks.now += 0.002
        return HeartbeatResponse()

    call, stats = handled(ticks, handler)
    call()
    assert (stats.count, stats.errors) == (1, {})
    assert [each.total for each in (stats.total(), stats.local(), stats.remote())] == [0.002, 0.002, 0.0]
    assert [each.count for each in (stats.total(), stats.local(), stats.remote())] == [1, 1, 1]


@pytest.mark.parametrize("way", ["future", "coroutine"])
async def test_waiting_time_counts_as_remote(way: str) -> None:
    ticks = Ticks()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def wait() -> Any:
        return await future

    def handler(*_: Any) -> Any:
        ticks.now += 0.002
        return Pending(future if way == "future" else wait())

    call, stats = handled(ticks, handler)
    answer = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    ticks.now += 0.5
    future.set_result(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    await answer
    await asyncio.sleep(0)
    totals = [each.total for each in (stats.total(), stats.local(), stats.remote())]
    assert totals == pytest.approx([0.502, 0.002, 0.5])
    assert stats.errors == {ErrorCode.REBALANCE_IN_PROGRESS: 1}


@pytest.mark.parametrize("way", ["raise", "future", "coroutine"])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (KafkaError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_COORDINATOR),
        (ZeroDivisionError(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_failed_request_counts_one_error(way: str, failure: Exception, code: ErrorCode) -> None:
    def handler(*_: Any) -> Any:
        if way == "raise":
            raise failure
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(failure)
        return Pending(future if way == "future" else wait(future))

    async def wait(future: "asyncio.Future[Any]") -> Any:
        return await future

    call, stats = handled(Ticks(), handler)
    reply = call()
    answer = reply if way == "raise" else await reply
    assert answer.error_code == code
    assert (stats.count, stats.errors) == (1, {code: 1})


def test_error_codes_are_found_at_any_depth() -> None:
    errors: Counter[int] = Counter()
    count = counter_of(metadata.MetadataResponse, errors)
    assert count is not None
    codes = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE)
    partitions = [metadata.MetadataResponsePartition(error_code=code) for code in codes]
    topics = [
        metadata.MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        metadata.MetadataResponseTopic(partitions=partitions),
    ]
    count(metadata.MetadataResponse(topics=topics))
    count(None)
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1, ErrorCode.LEADER_NOT_AVAILABLE: 2}


async def test_error_codes_of_sliced_responses_are_counted() -> None:
    topics = [metadata.MetadataResponseTopic(error_code=number % 2) for number in range(1000)]
    reply = await respond_in_turns(metadata.MetadataResponse(), 12, "topics", len(topics), topics)
    assert isinstance(reply, RawReply) and len(reply.parts) == 2 + 1000 / ENTRIES_PER_TURN
    errors: Counter[int] = Counter()
    count = counter_of(metadata.MetadataResponse, errors)
    assert count is not None
    count(reply)
    assert errors == {1: 500}


def test_error_codes_of_every_api_can_be_counted() -> None:
    for api in APIS.values():
        count = counter_of(api.response, Counter())
        if count is not None:
            count(api.response())


@pytest.mark.parametrize("step", ["begin", "answered"])
@pytest.mark.parametrize("way", ["at once", "later"])
async def test_a_quota_that_fails_gives_an_error_response(step: str, way: str) -> None:
    class BrokenQuotas:
        def begin(self, *_: Any) -> Any:
            if step == "begin":
                raise ZeroDivisionError
            return self

        def on_reply(self, _: Any) -> None:
            raise ZeroDivisionError

        def on_error(self) -> None: ...

    async def later() -> HeartbeatResponse:
        return HeartbeatResponse()

    reports: list[str] = []
    chain = Chain(
        {HEARTBEAT: lambda *_: HeartbeatResponse() if way == "at once" else Pending(later())},
        TaskGroup(lambda *_: None),
        lambda name, _: reports.append(name),
    )
    chain.quotas = BrokenQuotas()
    reply: Any = chain.start(CONTEXT, HeartbeatRequest())
    if isinstance(reply, Pending):
        await asyncio.wait([reply.work])
        reply = chain.finish(CONTEXT, HeartbeatRequest(), reply)
    assert reply.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert reports == [f"{APIS[HEARTBEAT]} from h"]


async def test_request_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    """Its connection is closed in the same turn of the event loop, by a malformed frame."""

    async def read() -> HeartbeatResponse:
        return HeartbeatResponse()

    work = read()
    tasks = TaskGroup(lambda *_: None)
    chain = Chain({HEARTBEAT: lambda *_: Pending(work)}, tasks, lambda *_: None, RequestStats(), Ticks())
    reply = chain.start(CONTEXT, HeartbeatRequest())
    assert isinstance(reply, Pending) and isinstance(reply.work, asyncio.Future)
    reply.work.cancel()
    await asyncio.wait([reply.work])
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
