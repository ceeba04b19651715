"""Request statistics: latencies and error codes of each API, which the gateway exports as metrics.

A request that is answered at once, as nearly all are, costs two clock reads and one observation. Requests
that wait are recorded separately and added when the metrics are read.
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
"""APIs whose handlers count errors themselves, so that not every response is searched for errors."""


class ApiStats:
    """Statistics of one API. `errors`: error code -> occurrences in responses."""

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
        """Count a request that failed as a whole."""
        code = failure.code if isinstance(failure, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.errors[code] += 1

    def total(self) -> Histogram:
        return self._at_once + self._total

    def local(self) -> Histogram:
        return self._at_once + self._until_waiting

    def remote(self) -> Histogram:
        """As in Kafka, a request that did not wait counts with a waiting time of 0."""
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
    """The same handlers with their latencies and errors measured."""
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
