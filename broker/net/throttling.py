"""Quotas at work: what a client does is counted, and one that is over its quota waits.

The answer tells at once how long, and the connection is muted for that time (KIP-13, 124, 219, 612). While no
quota is set nothing here runs: the listener then has the plain handlers and no stopwatch. Built by the
composition root; `follow` is called with each new image.

The time of a request (`request_percentage`) is that which the event loop spends on its connection: receiving,
handling, sending. What a request leaves to tasks and threads is not counted.
"""

from asyncio import Future
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import Any

from tierlog.base.clock import Clock
from tierlog.broker.handlers.context import CLOSE, Connection, Handler, Reply, RequestContext
from tierlog.broker.net.listener import Listener
from tierlog.broker.quotas.limits import counted_as
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import QuotaKey
from tierlog.protocol.api import FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.messages.fetch import FetchRequest
from tierlog.protocol.messages.produce import ProduceRequest


class Throttling:
    """`handlers` are those of the listener; `timer` counts seconds."""

    def __init__(
        self,
        listener: Listener,
        handlers: Mapping[int, Handler],
        quotas: ClientQuotas,
        clock: Clock,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._listener = listener
        self._plain = handlers
        self._metered = {api: self._meter(handler) for api, handler in handlers.items()}
        self.quotas = quotas
        self.clock = clock
        self._timer = timer

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.quotas is new.quotas:
            return
        self.quotas.configure(new.quotas)
        self._listener.dispatcher.serve(self._metered if new.quotas else self._plain)
        timed = self.quotas.bounds(QuotaKey.REQUEST_PERCENTAGE)
        self._listener.time_clients(self._stopwatch if timed else None)
        limited = self.quotas.bounds(QuotaKey.CONNECTION_CREATION_RATE)
        self._listener.admission = self._admission if limited else None
        self._listener.unmute_all()  # a quota that was too small by mistake may have muted them for an hour

    def mute(self, connection: Connection, throttle_ms: int) -> None:
        self._listener.mute(connection, throttle_ms / 1000)

    def _admission(self, host: str) -> int:
        return self.quotas.connect(host, self.clock.monotonic_ms())

    def _stopwatch(self, connection: Connection, callback: Callable[..., None], *arguments: Any) -> None:
        began = self._timer()
        callback(*arguments)
        percent = (self._timer() - began) * 100  # of the second that it is a part of
        now_ms = self.clock.monotonic_ms()
        self.quotas.note(
            QuotaKey.REQUEST_PERCENTAGE, connection.user, connection.client_id or "", percent, now_ms
        )

    def _meter(self, handler: Handler) -> Handler:
        """The handler of one API, with its requests judged when their answers are there."""

        async def finish(request: _Request, work: "CoroutineType[Any, Any, Reply]") -> Reply:
            try:
                reply = await work
            except Exception:
                request.failed()
                raise
            request.answered(reply)
            return reply

        def handle(context: RequestContext, message: Any) -> Any:
            request = _Request(self, context, message)
            context.meter = request
            try:
                result = handler(context, message)
            except Exception:
                request.failed()
                raise
            if isinstance(result, CoroutineType):
                return finish(request, result)
            if isinstance(result, Future):
                # Called before the connection's own callback, which sends the answer.
                result.add_done_callback(partial(_completed, request))
                return result
            request.answered(result)
            return result

        return handle


def _completed(request: "_Request", result: "Future[Reply]") -> None:
    if result.cancelled() or result.exception() is not None:
        request.failed()
    else:
        request.answered(result.result())


class _Request:
    """One request and its client's quotas: the Meter of its context."""

    __slots__ = (
        "_client_id", "_connection", "_is_judged", "_is_replica", "_is_told", "_produced", "_throttling",
        "_user",
    )  # fmt: skip

    def __init__(self, throttling: Throttling, context: RequestContext, message: Any) -> None:
        self._throttling = throttling
        connection = self._connection = context.connection
        self._user = connection.user
        self._client_id = connection.client_id = counted_as(context.client_id or "")
        self._is_told = True
        self._is_judged = False  # of the time that it took
        self._is_replica = False
        self._produced = 0
        if context.api == PRODUCE_KEY:
            self._produced = _size(message)
            self._is_told = message.acks != 0
        elif context.api == FETCH_KEY:
            self._is_replica = max(message.replica_id, message.replica_state.replica_id) >= 0
            if not self._is_replica:
                self._cap(message)

    def fetched(self, size: int) -> int:
        """Bytes that are not sent are not counted, whichever quota is passed."""
        throttling = self._throttling
        now_ms = throttling.clock.monotonic_ms()
        self._is_judged = True
        took = throttling.quotas.charge(QuotaKey.REQUEST_PERCENTAGE, self._user, self._client_id, 0.0, now_ms)
        if took:
            return took
        key = QuotaKey.CONSUMER_BYTE_RATE
        return throttling.quotas.charge_unless_over(key, self._user, self._client_id, size, now_ms)

    def answered(self, reply: Reply) -> None:
        """Tells the client how long it has to wait, for what it did or for what its handler says."""
        if self._is_replica:
            return  # of this cluster: anyone else's request as a replica has failed
        throttle_ms = max(self._judge(), getattr(reply, "throttle_time_ms", 0))
        if not throttle_ms or reply is CLOSE:
            return
        if hasattr(reply, "throttle_time_ms"):
            reply.throttle_time_ms = throttle_ms
        self._throttling.mute(self._connection, throttle_ms)

    def failed(self) -> None:
        """An answer that is made of an exception says no time; the connection is muted all the same."""
        throttle_ms = self._judge()
        if throttle_ms:
            self._throttling.mute(self._connection, throttle_ms)

    def _judge(self) -> int:
        quotas, now_ms = self._throttling.quotas, self._throttling.clock.monotonic_ms()
        throttle_ms = 0
        if self._produced:
            key = QuotaKey.PRODUCER_BYTE_RATE
            throttle_ms = quotas.charge(key, self._user, self._client_id, self._produced, now_ms)
        if self._is_told and not self._is_judged:  # with acks=0 only bytes are bounded, as in Kafka
            key = QuotaKey.REQUEST_PERCENTAGE
            throttle_ms = max(throttle_ms, quotas.charge(key, self._user, self._client_id, 0.0, now_ms))
        return throttle_ms

    def _cap(self, message: FetchRequest) -> None:
        """More than what may be had at once would only be thrown away."""
        quotas = self._throttling.quotas
        most = quotas.most_at_once(QuotaKey.CONSUMER_BYTE_RATE, self._user, self._client_id)
        if most is not None:
            message.max_bytes = min(message.max_bytes, most)
            message.min_bytes = min(message.min_bytes, most)


def _size(message: ProduceRequest) -> int:
    """Of its record batches; Kafka counts the whole request."""
    return sum(len(data.records or b"") for topic in message.topic_data for data in topic.partition_data)
