"""Traces of Produce and Fetch: a span for each sampled request of a client, from its handler to its reply.

Built by `handlers.table` only if the node traces, outside of all other wrappers. A request that is not
sampled costs one random number. Fetches of followers are not traced: they would hide those of consumers.

A sampled Produce is linked to the traces of its producers: the first record of up to LINKED_BATCHES batches
is decoded for its header `traceparent` (W3C Trace Context). Whether the client has sampled its own trace does
not matter: to know that, every batch would have to be decoded.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tierlog.base.slices import LogSlice
from tierlog.base.tracing import RequestTracer, Span
from tierlog.broker.handlers.context import Close, Handler, Pending, RawReply, Reply, RequestContext
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse
from tierlog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tierlog.records.batch import Buffer
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records

LINKED_BATCHES = 8
LINK_BYTES_MAX = 1 << 20
"""Larger batches, also when decompressed, are not decoded for a link."""

TRACEPARENT = "traceparent"


def traced_handlers(
    handlers: Mapping[int, Handler], tracer: RequestTracer, image: Callable[[], ClusterImage]
) -> dict[int, Handler]:
    return {
        **handlers,
        PRODUCE_KEY: _traced_produce(handlers[PRODUCE_KEY], tracer, image),
        FETCH_KEY: _traced_fetch(handlers[FETCH_KEY], tracer, image),
    }


def _traced_produce(handler: Handler, tracer: RequestTracer, image: Callable[[], ClusterImage]) -> Handler:
    def handle(context: RequestContext, request: Any) -> Reply | Pending:
        if not tracer.samples():
            return handler(context, request)
        span = tracer.begin("Produce", _parents(request))
        _describe(span, context, [topic.name or topic.topic_id for topic in request.topic_data], image())
        batches = [part.records for topic in request.topic_data for part in topic.partition_data]
        span.set("tierlog.partitions", len(batches))
        span.set("tierlog.request.bytes", sum(len(batch) for batch in batches if batch is not None))
        span.set("tierlog.acks", request.acks)
        return _call(handler, context, request, span, "append", "wait for replicas")

    return handle


def _traced_fetch(handler: Handler, tracer: RequestTracer, image: Callable[[], ClusterImage]) -> Handler:
    def handle(context: RequestContext, request: Any) -> Reply | Pending:
        if _is_of_follower(request) or not tracer.samples():
            return handler(context, request)
        span = tracer.begin("Fetch", ())
        _describe(span, context, [topic.topic or topic.topic_id for topic in request.topics], image())
        span.set("tierlog.partitions", sum(len(topic.partitions) for topic in request.topics))
        return _call(handler, context, request, span, "read", "wait for records")

    return handle


def _is_of_follower(request: FetchRequest) -> bool:
    return max(request.replica_id, request.replica_state.replica_id) >= 0


def _describe(
    span: Span, context: RequestContext, topics: list[str | uuid.UUID], image: ClusterImage
) -> None:
    span.set("messaging.system", "kafka")
    span.set("client.address", context.connection.peer_host)
    span.set("tierlog.api.version", context.version)
    if context.client_id:
        span.set("messaging.client.id", context.client_id)
    if len(topics) == 1 and (topic := image.find_topic(topics[0])) is not None:
        span.set("messaging.destination.name", topic.name)


def _call(
    handler: Handler, context: RequestContext, request: Any, span: Span, at_once: str, later: str
) -> Reply | Pending:
    """Call the handler with a step for its call and one for the wait for its reply."""
    step = span.begin(at_once)
    try:
        reply = handler(context, request)
    except Exception as failure:
        step.end()
        span.fail(repr(failure))
        span.end()
        raise
    step.end()
    if not isinstance(reply, Pending):
        _end(span, reply)
        return reply
    waiting, answered = span.begin(later), reply

    def end(work: "asyncio.Future[Any]") -> None:
        waiting.end()
        if work.cancelled():
            span.fail("the connection was closed")
            span.end()
        else:
            _end(span, work.exception() or work.result())

    def observe() -> None:  # by now `handlers.chain` has made a coroutine a task
        if isinstance(answered.work, asyncio.Future):
            answered.work.add_done_callback(end)

    asyncio.get_running_loop().call_soon(observe)
    return reply


def _end(span: Span, reply: "Reply | BaseException") -> None:
    if isinstance(reply, BaseException):
        span.fail(repr(reply))
    elif isinstance(reply, Close):
        span.fail("the connection is closed")
    elif isinstance(reply, RawReply):
        span.set("tierlog.response.bytes", sum(map(len, reply.parts)))
    elif isinstance(reply, ProduceResponse):
        _fail(span, {part.error_code for topic in reply.responses for part in topic.partition_responses})
    elif isinstance(reply, FetchResponse):
        parts = [part for topic in reply.responses for part in topic.partitions]
        span.set("tierlog.response.bytes", sum(_size(part.records) for part in parts))
        _fail(span, {reply.error_code, *(part.error_code for part in parts)})
    span.end()


def _size(records: "Buffer | LogSlice | None") -> int:
    return records.size if isinstance(records, LogSlice) else len(records or b"")


def _fail(span: Span, codes: set[int]) -> None:
    errors = sorted(ErrorCode(code).name for code in codes if code != ErrorCode.NONE)
    if errors:
        span.fail(", ".join(errors))


def _parents(request: ProduceRequest) -> list[str]:
    found: list[str] = []
    batches = (part.records for topic in request.topic_data for part in topic.partition_data)
    for batch, _ in zip((batch for batch in batches if batch), range(LINKED_BATCHES), strict=False):
        try:
            if len(batch) <= LINK_BYTES_MAX:
                first = next(iter_records(batch, max_bytes=LINK_BYTES_MAX))
                found += [value.decode() for name, value in first.headers if name == TRACEPARENT and value]
        except (RecordsError, ValueError, StopIteration):
            continue  # the handler rejects it, if it is invalid
    return list(dict.fromkeys(found))
