"""Counts and latencies of requests per API. Plain numbers: the gateway turns them into metrics when asked."""

from asyncio import Future
from collections.abc import Callable, Mapping
from time import perf_counter
from types import CoroutineType
from typing import Any

from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.ports.histogram import Histogram

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ApiStats:
    """Of one API: how long requests took, and how many failed."""

    __slots__ = ("failures", "seconds", "took")

    def __init__(self) -> None:
        self.failures = 0
        self.seconds = Histogram(BUCKETS_S)
        self.took = self.seconds.observe


class RequestStats:
    def __init__(self) -> None:
        self.by_api: dict[int, ApiStats] = {}

    def of(self, api: int) -> ApiStats:
        return self.by_api.setdefault(api, ApiStats())


def measured(
    handlers: Mapping[int, Handler], stats: RequestStats, clock: Callable[[], float] = perf_counter
) -> dict[int, Handler]:
    """The same handlers, each counted from its call to its answer (waiting included)."""
    return {api: _measure(handler, stats.of(api), clock) for api, handler in handlers.items()}


def _measure(handler: Handler, stats: ApiStats, clock: Callable[[], float]) -> Handler:
    async def finish(begun: float, work: "CoroutineType[Any, Any, Reply]") -> Reply:
        try:
            return await work
        except Exception:
            stats.failures += 1
            raise
        finally:
            stats.took(clock() - begun)

    def handle(context: RequestContext, request: Any) -> Any:
        begun = clock()
        try:
            result = handler(context, request)
        except Exception:
            stats.failures += 1
            stats.took(clock() - begun)
            raise
        if isinstance(result, CoroutineType):
            return finish(begun, result)
        if isinstance(result, Future):
            result.add_done_callback(lambda _: stats.took(clock() - begun))
            return result
        stats.took(clock() - begun)
        return result

    return handle
