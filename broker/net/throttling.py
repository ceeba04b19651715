"""Throttling: counts the use of clients with quotas and mutes clients over their quota.

The response carries the throttle time, and the connection is muted for it (KIP-13, KIP-124, KIP-219,
KIP-612). Without quotas the listener uses the plain handlers and no stopwatch. Built by the composition root;
`follow` is called with each new image.

`request_percentage` counts the time that the event loop spends on a connection: receiving, handling and
sending. Work in tasks and threads is not counted.
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
from tierlog.broker.quotas.limits import account_name
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import QuotaKey
from tierlog.protocol.api import FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.messages.fetch import FetchRequest
from tierlog.protocol.messages.produce import ProduceRequest


class Throttling:
    """`handlers`: those of the listener. `timer`: a clock in seconds."""

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
        self._listener.set_stopwatch(self._stopwatch if timed else None)
        limited = self.quotas.bounds(QuotaKey.CONNECTION_CREATION_RATE)
        self._listener.admission = self._admission if limited else None
        self._listener.unmute_all()  # a quota set too low by mistake may have muted them for an hour

    def mute(self, connection: Connection, throttle_ms: int) -> None:
        self._listener.mute(connection, throttle_ms / 1000)

    def _admission(self, host: str) -> int:
        return self.quotas.connect(host, self.clock.monotonic_ms())

    def _stopwatch(self, connection: Connection, callback: Callable[..., None], *arguments: Any) -> None:
        began = self._timer()
        callback(*arguments)
        percent = (self._timer() - began) * 100  # of one second
        now_ms = self.clock.monotonic_ms()
        self.quotas.record(
            QuotaKey.REQUEST_PERCENTAGE, connection.user, connection.client_id or "", percent, now_ms
        )

    def _meter(self, handler: Handler) -> Handler:
        """The handler of one API, which checks quotas when the response is ready."""

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
                # called before the connection's callback, which sends the response
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
    """A request and its client's quotas: the Meter of its context."""

    __slots__ = (
        "_client_id", "_connection", "_gets_response", "_is_checked", "_is_replica", "_produced",
        "_throttling", "_user",
    )  # fmt: skip

    def __init__(self, throttling: Throttling, context: RequestContext, message: Any) -> None:
        self._throttling = throttling
        connection = self._connection = context.connection
        self._user = connection.user
        self._client_id = connection.client_id = account_name(context.client_id or "")
        self._gets_response = True
        self._is_checked = False  # the request_percentage quota
        self._is_replica = False
        self._produced = 0
        if context.api == PRODUCE_KEY:
            self._produced = _size(message)
            self._gets_response = message.acks != 0
        elif context.api == FETCH_KEY:
            self._is_replica = max(message.replica_id, message.replica_state.replica_id) >= 0
            if not self._is_replica:
                self._cap(message)

    def fetched(self, size: int) -> int:
        """A response that exceeds a quota is not sent, so its bytes do not count."""
        throttling = self._throttling
        now_ms = throttling.clock.monotonic_ms()
        self._is_checked = True
        took = throttling.quotas.charge(QuotaKey.REQUEST_PERCENTAGE, self._user, self._client_id, 0.0, now_ms)
        if took:
            return took
        key = QuotaKey.CONSUMER_BYTE_RATE
        return throttling.quotas.charge_unless_over(key, self._user, self._client_id, size, now_ms)

    def answered(self, reply: Reply) -> None:
        """Mute the client for its throttle time, or for the handler's if that is longer."""
        if self._is_replica:
            return  # exempt: Fetch has verified that the client is a broker of this cluster
        throttle_ms = max(self._check_quotas(), getattr(reply, "throttle_time_ms", 0))
        if not throttle_ms or reply is CLOSE:
            return
        if hasattr(reply, "throttle_time_ms"):
            reply.throttle_time_ms = throttle_ms
        self._throttling.mute(self._connection, throttle_ms)

    def failed(self) -> None:
        """An error response carries no throttle time, but the connection is muted."""
        throttle_ms = self._check_quotas()
        if throttle_ms:
            self._throttling.mute(self._connection, throttle_ms)

    def _check_quotas(self) -> int:
        quotas, now_ms = self._throttling.quotas, self._throttling.clock.monotonic_ms()
        throttle_ms = 0
        if self._produced:
            key = QuotaKey.PRODUCER_BYTE_RATE
            throttle_ms = quotas.charge(key, self._user, self._client_id, self._produced, now_ms)
        if self._gets_response and not self._is_checked:  # with acks=0 only bytes count, as in Kafka
            key = QuotaKey.REQUEST_PERCENTAGE
            throttle_ms = max(throttle_ms, quotas.charge(key, self._user, self._client_id, 0.0, now_ms))
        return throttle_ms

    def _cap(self, message: FetchRequest) -> None:
        """Limit the response to the quota's burst: a larger one would be discarded."""
        quotas = self._throttling.quotas
        most = quotas.most_at_once(QuotaKey.CONSUMER_BYTE_RATE, self._user, self._client_id)
        if most is not None:
            message.max_bytes = min(message.max_bytes, most)
            message.min_bytes = min(message.min_bytes, most)


def _size(message: ProduceRequest) -> int:
    """Bytes of the record batches; Kafka counts the whole request."""
    return sum(len(data.records or b"") for topic in message.topic_data for data in topic.partition_data)
