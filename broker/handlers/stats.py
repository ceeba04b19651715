"""Latencies and error codes of requests per API. Plain numbers: the gateway shows them as metrics when asked.

A request that is answered at once, as nearly all are, costs two looks at the clock and one observation; the
parts of those that wait are kept apart, and put together when somebody asks.
"""

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from types import CoroutineType
from typing import Any

from tierlog.base.histogram import Histogram
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.error_codes import counter_of
from tierlog.protocol.api import APIS, FETCH_KEY, PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode, KafkaError

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COUNT_THEIR_OWN = (PRODUCE_KEY, FETCH_KEY)
"""Their handlers know when there is an error to count, so that nobody has to look through every answer."""


class ApiStats:
    """Of one API. `errors`: error code -> how often it was in an answer."""

    __slots__ = ("_at_once", "_total", "_until_waiting", "_waiting", "errors", "took")

    def __init__(self) -> None:
        self.errors: Counter[int] = Counter()
        self._at_once = Histogram(BUCKETS_S)
        self._total, self._until_waiting, self._waiting = (Histogram(BUCKETS_S) for _ in range(3))
        self.took = self._at_once.observe

    @property
    def count(self) -> int:
        return self._at_once.count + self._total.count

    def waited(self, begun: float, waiting_from: float, ended: float) -> None:
        self._total.observe(ended - begun)
        self._until_waiting.observe(waiting_from - begun)
        self._waiting.observe(ended - waiting_from)

    def failed(self, failure: BaseException) -> None:
        """A request whose answer is a single error."""
        code = failure.code if isinstance(failure, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.errors[code] += 1

    def total(self) -> Histogram:
        return self._at_once + self._total

    def local(self) -> Histogram:
        return self._at_once + self._until_waiting

    def remote(self) -> Histogram:
        """As in Kafka, a request that did not wait counts as one that waited for no time."""
        nothing = Histogram(BUCKETS_S)
        nothing.buckets[0] = nothing.count = self._at_once.count
        return nothing + self._waiting


class RequestStats:
    def __init__(self) -> None:
        self.by_api: dict[int, ApiStats] = {}

    def of(self, api: int) -> ApiStats:
        return self.by_api.setdefault(api, ApiStats())


def measured(
    handlers: Mapping[int, Handler], stats: RequestStats, clock: Callable[[], float] = perf_counter
) -> dict[int, Handler]:
    """The same handlers, each timed from its call to its answer, and its errors counted."""
    return {api: _measure(handler, api, stats.of(api), clock) for api, handler in handlers.items()}


def _measure(handler: Handler, api: int, stats: ApiStats, clock: Callable[[], float]) -> Handler:
    count_errors = None if api in COUNT_THEIR_OWN else counter_of(APIS[api].response, stats.errors)

    async def finish(begun: float, waiting_from: float, work: "CoroutineType[Any, Any, Reply]") -> Reply:
        try:
            reply = await work
        except Exception as failure:
            stats.failed(failure)
            raise
        finally:
            stats.waited(begun, waiting_from, clock())
        if count_errors is not None:
            count_errors(reply)
        return reply

    def completed(begun: float, waiting_from: float, work: "Future[Reply]") -> None:
        stats.waited(begun, waiting_from, clock())
        if work.cancelled():
            return
        failure = work.exception()
        if failure is not None:
            stats.failed(failure)
        elif count_errors is not None:
            count_errors(work.result())

    def handle(context: RequestContext, request: Any) -> Any:
        begun = clock()
        try:
            result = handler(context, request)
        except Exception as failure:
            stats.failed(failure)
            stats.took(clock() - begun)
            raise
        if isinstance(result, CoroutineType):
            return finish(begun, clock(), result)
        if isinstance(result, Future):
            waiting_from = clock()
            result.add_done_callback(lambda work: completed(begun, waiting_from, work))
            return result
        stats.took(clock() - begun)
        if count_errors is not None:
            count_errors(result)
        return result

    return handle
