"""The chain around every handler: quota, statistics, errors. `Chain.start` runs it before the
handler, `Chain.finish` after a pending reply.

A request that is answered at once, as nearly all are, costs two clock reads and one observation. A handler's
KafkaError becomes the error response of its API, any other exception is reported and becomes
UNKNOWN_SERVER_ERROR. If the API cannot carry an error, the reply is CLOSE. Built by `net.dispatch`.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Protocol

from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.context import (
    CLOSE,
    Handler,
    Meter,
    Pending,
    Reply,
    RequestContext,
    outcome,
)
from tierlog.broker.handlers.error_counts import counter_of
from tierlog.broker.handlers.error_responses import code_of_unavailable, error_reply
from tierlog.broker.handlers.ordering import ORDER_OF, Order
from tierlog.broker.handlers.stats import RequestStats
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.api import APIS, FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode, KafkaError

APIS_THAT_COUNT_ERRORS = (PRODUCE_KEY, FETCH_KEY)
"""APIs whose handlers count errors themselves, so that not every response is searched for errors."""

Report = Callable[[str, BaseException], None]


class RequestQuotas(Protocol):
    """Quotas of clients (net.throttling)."""

    def begin(self, context: RequestContext, request: Any) -> Meter: ...


class _Api:
    """An API's handler and its statistics."""

    __slots__ = ("count_errors", "handler", "stats")

    def __init__(self, key: int, handler: Handler, stats: RequestStats) -> None:
        self.handler = handler
        self.stats = stats.for_api(key)
        self.count_errors: Callable[[Any], None] | None = None
        if key not in APIS_THAT_COUNT_ERRORS:
            self.count_errors = counter_of(APIS[key].response, self.stats.errors)


class Chain:
    """The handlers of a node, each behind its quota and statistics. `clock`: in seconds."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        tasks: TaskGroup,
        report: Report,
        stats: RequestStats | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        all_stats = RequestStats() if stats is None else stats
        self._served = {key: _Api(key, handler, all_stats) for key, handler in handlers.items()}
        self._tasks = tasks
        self._clock = clock
        self.report = report
        self.quotas: RequestQuotas | None = None
        """None: no quota is set."""

    def serves(self, key: int) -> bool:
        return key in self._served

    def start(self, context: RequestContext, request: Any) -> Reply | Pending:
        """Call the handler. Afterwards the `work` of a Pending is always a future."""
        served = self._served[context.api]
        begun = self._clock()
        try:
            if self.quotas is not None:
                context.meter = self.quotas.begin(context, request)
            reply = served.handler(context, request)
            if isinstance(reply, Pending):
                reply.begun, reply.waiting_from = begun, self._clock()
                if not isinstance(reply.work, asyncio.Future):
                    reply.outlives_connection = ORDER_OF.get(context.api) is not Order.AFTER_APPENDS
                    work = reply.work
                    reply.work = self._tasks.spawn("request", outcome(work))
                    reply.work.add_done_callback(lambda _: work.close())  # if cancelled before its start
                return reply
            self._count(served, context, reply)
        except Exception as failure:
            reply = self._failed(context, request, failure)
        served.stats.observe(self._clock() - begun)
        return reply

    def finish(self, context: RequestContext, request: Any, pending: Pending) -> Reply:
        """The reply of a request that waited; its work is done."""
        served, work = self._served[context.api], pending.work
        served.stats.observe_pending(pending.begun, pending.waiting_from, self._clock())
        if not isinstance(work, asyncio.Future) or work.cancelled():
            if context.meter is not None:
                context.meter.on_error()
            return CLOSE
        result: Reply | BaseException = work.exception() or work.result()
        if isinstance(result, BaseException):
            return self._failed(context, request, result)
        try:
            self._count(served, context, result)
        except Exception as failure:
            return self._failed(context, request, failure)
        return result

    def _count(self, served: _Api, context: RequestContext, reply: Reply) -> None:
        if served.count_errors is not None:
            served.count_errors(reply)
        if context.meter is not None:
            context.meter.on_reply(reply)

    def _failed(self, context: RequestContext, request: Any, failure: BaseException) -> Reply:
        """The error response."""
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        if isinstance(failure, KafkaError):
            code, message = failure.code, failure.message
        elif isinstance(failure, MetadataUnavailable):
            code, message = code_of_unavailable(failure), str(failure)
        else:
            self.report(f"{APIS[context.api]} from {context.connection.peer_host}", failure)
        self._served[context.api].stats.errors[code] += 1
        if context.meter is not None:
            context.meter.on_error()
        reply = error_reply(context, request, code, message)
        return CLOSE if reply is None else reply
