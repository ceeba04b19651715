"""Health of a broker's object store: a circuit breaker with one probe for all callers.

After FAILURES_TO_OPEN failures in a row that say that the store is unavailable, the breaker opens: calls
fail at once, and one probe asks the store until it responds. Both changes are logged once, not for each
partition. A store that fails the checks of `store_probe` is refused for good: it could lose data. Built by
`broker.remote.tiering`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.tiering.object_store import (
    Body,
    Condition,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
)
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.store_probe import UnsuitableStore

_log = structlog.get_logger("tierlog.tiering")

FAILURES_TO_OPEN = 5
FIRST_PROBE_S, PROBE_MAX_S = 0.2, 15.0
"""Pauses between probes; each is twice the one before."""
CHECKS_BEFORE_REFUSAL = 3  # a store is refused only if it fails that often: a fault may look the same
PROBE_KEY = "probe"

STORE_FAILURES = (ObjectStoreUnavailable, ObjectStoreTimeout, UnsuitableStore)
"""Failures of the store and not of one object: the same call may succeed later."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    REFUSED = "refused"


class BreakerOpen(ObjectStoreUnavailable):
    """The store was not asked: it is known to be unavailable, and that has been logged."""


@dataclass(slots=True)
class StoreHealth:
    """State of the breaker, and counts since the start of the process. `refused_calls`: the store was not
    asked."""

    state: BreakerState = BreakerState.CLOSED
    opened: int = 0
    refused_calls: int = 0
    last_error: str = ""


class HealthyStore:
    """An object store whose calls pass a circuit breaker. `copy_rate` limits the bodies of segments, and
    `fetch_rate` the ranges that are read."""

    def __init__(
        self,
        inner: ObjectStore,
        tasks: TaskGroup,
        *,
        check: Callable[[ObjectStore], Awaitable[None]] | None = None,
        copy_rate: RateLimit | None = None,
        fetch_rate: RateLimit | None = None,
    ) -> None:
        """`check`: raises UnsuitableStore; runs before the first call."""
        self.health = StoreHealth()
        self.copy_rate, self.fetch_rate = copy_rate or RateLimit(), fetch_rate or RateLimit()
        self.inner = inner
        self._tasks = tasks
        self._failures = 0
        self._check = check
        self._checking = asyncio.Lock()

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        await self._admit()
        with self._watched():
            sent = body if isinstance(body, bytes | Path) else _LimitedBody(body, self.copy_rate)
            return await self.inner.put(key, sent, crc32c=crc32c, condition=condition)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        await self._admit()
        if end is not None:
            await self.fetch_rate.take(max(0, end - start))
        with self._watched():
            return await self.inner.get(key, start, end)

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        await self._admit()
        await self.fetch_rate.take(len(buffer))
        with self._watched():
            await self.inner.get_into(key, start, buffer)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        await self._admit()
        with self._watched():
            return await self.inner.get_with_etag(key)

    async def head(self, key: str) -> ObjectInfo:
        await self._admit()
        with self._watched():
            return await self.inner.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._admit()
        with self._watched():
            await self.inner.delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._admit()
        found = self.inner.list(prefix)
        with self._watched():
            first = await anext(found, None)
        if first is not None:
            yield first
            async for info in found:
                yield info

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        await self._admit()
        with self._watched():
            return await self.inner.abort_uploads(prefix, older_than_s)

    async def close(self) -> None:
        await self.inner.close()

    async def check(self) -> None:
        """Check that the store is suitable, if no call has done so. Raises ObjectStoreError."""
        async with self._checking:
            for attempt in range(1, CHECKS_BEFORE_REFUSAL + 1):
                if self._check is None:
                    return
                with self._watched():
                    try:
                        await self._check(self.inner)
                        self._check = None
                    except UnsuitableStore as reason:
                        if attempt == CHECKS_BEFORE_REFUSAL:
                            self._refuse(str(reason))
                            raise

    async def _admit(self) -> None:
        if self.health.state is BreakerState.CLOSED and self._check is not None:
            await self.check()
        if self.health.state is BreakerState.CLOSED:
            return
        self.health.refused_calls += 1
        if self.health.state is BreakerState.REFUSED:
            raise UnsuitableStore(self.health.last_error)
        raise BreakerOpen(f"the object store is unavailable: {self.health.last_error}")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (ObjectStoreUnavailable, ObjectStoreTimeout) as error:
            self._on_unavailable(error)
            raise
        except ObjectStoreError:
            self._failures = 0  # it responded
            raise
        self._failures = 0

    def _on_unavailable(self, error: ObjectStoreError) -> None:
        self.health.last_error = str(error)
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN and self.health.state is BreakerState.CLOSED:
            self.health.state = BreakerState.OPEN
            self.health.opened += 1
            _log.error(
                "the object store is unavailable", error=str(error), next="it is probed until it responds"
            )
            self._tasks.spawn("probe of the object store", self._probe())

    async def _probe(self) -> None:
        pause_s, probes = FIRST_PROBE_S, 1
        while True:
            try:
                with suppress(ObjectNotFound):
                    await self.inner.head(PROBE_KEY)
                break
            except (ObjectStoreUnavailable, ObjectStoreTimeout) as error:
                self.health.last_error = str(error)
            except ObjectStoreError:  # a response: credentials, for example, are the business of each call
                break
            await asyncio.sleep(pause_s)
            pause_s, probes = min(2 * pause_s, PROBE_MAX_S), probes + 1
        self._failures = 0
        self.health.state = BreakerState.CLOSED
        _log.info("the object store is available again", probes=probes)

    def _refuse(self, reason: str) -> None:
        self.health.state, self.health.last_error = BreakerState.REFUSED, reason
        _log.error("the object store is refused", reason=reason, next="set object.store.url to another store")


class _LimitedBody:
    """A segment, which is read no faster than the rate."""

    def __init__(self, body: Body, rate: RateLimit) -> None:
        self.size = body.size
        self._body = body
        self._rate = rate

    async def read_into(self, buffer: memoryview) -> None:
        await self._rate.take(len(buffer))
        await self._body.read_into(buffer)
