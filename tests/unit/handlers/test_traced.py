"""Traces of Produce and Fetch: spans with their steps, links to producers, and nothing for other requests."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from admin_cluster import COORDINATOR_APIS, AdminCluster

from tierlog.base.tasks import TaskGroup
from tierlog.base.tracing import Attribute
from tierlog.broker.handlers.chain import Chain
from tierlog.broker.handlers.context import CLOSE, Connection, Handler, Pending, RequestContext
from tierlog.broker.handlers.table import build_handlers
from tierlog.broker.handlers.traced import LINK_BYTES_MAX, traced_handlers
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME, FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse
from tierlog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

IMAGE = ClusterImage(cluster_id="c")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class RecordedSpan:
    def __init__(self, name: str) -> None:
        self.name, self.steps, self.failure, self.ends = name, list[RecordedSpan](), "", 0
        self.attributes: dict[str, Attribute] = {}

    def set(self, name: str, value: Attribute) -> None:
        self.attributes[name] = value

    def fail(self, why: str) -> None:
        self.failure = why

    def begin(self, name: str) -> "RecordedSpan":
        self.steps.append(RecordedSpan(name))
        return self.steps[-1]

    def end(self) -> None:
        self.ends += 1


class Recorder:
    begun = exported = 0

    def __init__(self, sampled: bool = True) -> None:
        self.sampled, self.spans, self.parents = sampled, list[RecordedSpan](), list[str]()

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[None]:
        return nullcontext()

    def samples(self) -> bool:
        return self.sampled

    def begin(self, name: str, parents: Sequence[str]) -> RecordedSpan:
        self.parents += parents
        self.spans.append(RecordedSpan(name))
        return self.spans[-1]


def batch(value: bytes = b"v", header: bytes = PARENT.encode(), codec: Codec = Codec.NONE) -> bytearray:
    return encode_batch([NewRecord(1, None, value, [("traceparent", header)])], codec=codec)


def produce_of(*batches: Any) -> ProduceRequest:
    parts = [PartitionProduceData(index=number, records=one) for number, one in enumerate(batches)]
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=parts)])


def context_of(api: int) -> RequestContext:
    return RequestContext(api, 9, 1, "shop", Connection(1, "10.0.0.1", 1))


def called(recorder: Recorder, handler: Handler, request: Any) -> Any:
    key = PRODUCE_KEY if isinstance(request, ProduceRequest) else FETCH_KEY
    handlers = traced_handlers({PRODUCE_KEY: handler, FETCH_KEY: handler}, recorder, lambda: IMAGE)
    return handlers[key](context_of(key), request)


def answer(reply: Any) -> Handler:
    return lambda context, request: reply


async def test_requests_of_a_node_that_does_not_trace_pass_no_wrapper(cluster: AdminCluster) -> None:
    coordinators = {BY_NAME[name].key: answer(None) for name in COORDINATOR_APIS}
    for tracer, is_wrapped in ((None, False), (Recorder(), True)):
        handlers = build_handlers(replace(cluster.dependencies, tracer=tracer), coordinators)
        modules = {str(getattr(handlers[key], "__module__", "")) for key in (PRODUCE_KEY, FETCH_KEY)}
        assert (modules == {traced_handlers.__module__}) == is_wrapped


def test_a_request_that_is_not_sampled_has_no_span() -> None:
    recorder, reply = Recorder(sampled=False), ProduceResponse()
    assert called(recorder, answer(reply), produce_of(batch())) is reply
    assert (recorder.spans, recorder.parents) == ([], [])


def test_a_fetch_of_a_follower_has_no_span() -> None:
    recorder = Recorder()
    called(recorder, answer(FetchResponse()), FetchRequest(replica_id=2))
    assert recorder.spans == []
    called(recorder, answer(FetchResponse()), FetchRequest())
    assert [span.name for span in recorder.spans] == ["Fetch"]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_produce_is_linked_to_the_trace_in_its_first_record(codec: Codec) -> None:
    recorder = Recorder()
    called(recorder, answer(ProduceResponse()), produce_of(batch(codec=codec), batch(codec=codec)))
    [span] = recorder.spans
    assert recorder.parents == [PARENT]
    assert (span.attributes["tierlog.partitions"], span.attributes["messaging.client.id"]) == (2, "shop")
    assert ([step.name for step in span.steps], span.steps[0].ends, span.ends) == (["append"], 1, 1)


@pytest.mark.parametrize(
    "records",
    [None, b"", b"short", bytes(200), batch()[:-5], batch(header=b"\xff"), batch(bytes(LINK_BYTES_MAX))],
    ids=["none", "empty", "short", "zeros", "truncated", "not text", "large"],
)
def test_batches_that_cannot_be_linked_reach_the_handler(records: Any) -> None:
    recorder, reply = Recorder(), ProduceResponse()
    assert called(recorder, answer(reply), produce_of(records)) is reply
    assert recorder.parents == [] and recorder.spans[0].ends == 1


def test_a_bomb_is_not_decompressed() -> None:
    recorder = Recorder()
    called(recorder, answer(None), produce_of(batch(bytes(2 * LINK_BYTES_MAX), codec=Codec.ZSTD)))
    assert recorder.parents == []


def test_errors_and_exceptions_mark_the_span() -> None:
    recorder = Recorder()
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    parts = [PartitionProduceResponse(index=0, error_code=code)]
    reply = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=parts)])
    called(recorder, answer(reply), produce_of(batch()))
    called(recorder, answer(CLOSE), produce_of(batch()))

    def refuse(context: RequestContext, request: Any) -> Any:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    with pytest.raises(KafkaError):
        called(recorder, refuse, produce_of(batch()))
    first, second, third = recorder.spans
    assert (first.failure, second.failure) == ("NOT_LEADER_OR_FOLLOWER", "the connection is closed")
    assert "KafkaError" in third.failure and [span.ends for span in recorder.spans] == [1, 1, 1]


@pytest.mark.parametrize("is_task", [True, False])
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_the_span_ends_with_the_reply_that_waited(is_task: bool, is_cancelled: bool) -> None:
    recorder, go = Recorder(), asyncio.Event()
    tasks = TaskGroup(lambda *_: None)

    async def work() -> ProduceResponse:
        await go.wait()
        return ProduceResponse()

    def handler(context: RequestContext, request: Any) -> Pending:
        return Pending(tasks.spawn("work", work()) if is_task else work())

    handlers = traced_handlers({PRODUCE_KEY: handler, FETCH_KEY: handler}, recorder, lambda: IMAGE)
    chain = Chain(handlers, tasks, lambda *_: None)
    pending = chain.start(context_of(PRODUCE_KEY), produce_of(batch()))
    assert isinstance(pending, Pending) and isinstance(pending.work, asyncio.Future)
    await asyncio.sleep(0)
    [span] = recorder.spans
    assert ([(step.name, step.ends) for step in span.steps], span.ends) == (
        [("append", 1), ("wait for replicas", 0)],
        0,
    )
    if is_cancelled:
        pending.work.cancel()
    else:
        go.set()
    await asyncio.wait([pending.work])
    await asyncio.sleep(0)
    assert (span.steps[1].ends, span.ends) == (1, 1)
    assert span.failure == ("the connection was closed" if is_cancelled else "")
    await tasks.close()
