"""Health of a broker's object store: a circuit breaker with one probe for all callers.

After FAILURES_TO_OPEN failures in a row that say that the store is unavailable, the breaker opens: calls
fail at once, and one probe asks the store until it responds. Failures of the pieces of one chunk, which are
requested concurrently, count as one. A failed call counts only if it began after the last success. A check
that times out opens the breaker, because all calls waited for it. So does a probe that fails while calls
wait and none succeeds: a store that hangs is known before the first of these calls has timed out. Both
changes are logged once, not for each partition. A store that fails the checks of `store_probe` is refused,
because it could lose data, and checked again from time to time. Built by `broker.remote.tiering`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from tierlog.base.failures import raise_again, without_frames
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
    deadline,
)
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.store_probe import UnsuitableStore

_log = structlog.get_logger("tierlog.tiering")

FAILURES_TO_OPEN = 5
FIRST_PROBE_S, PROBE_MAX_S = 0.2, 15.0
"""First and longest pause before a probe; the pause doubles each time."""
PAUSE_RESET_S = 300.0
"""A breaker that opens again within this time keeps the pause that it had reached: the probe is a small
request, which may succeed while others fail."""
SILENCE_S = 3.0
"""Time without a successful call, while some wait, after which a probe asks whether the store responds at
all: it may only be slow with large objects."""
SILENCE_PROBE_S = 8.0
"""Time that such a probe has. No response to a small request within it is an outage for readers, too."""
CHECKS_BEFORE_REFUSAL = 3  # failed ones, because a temporary fault can look the same
CHECK_PAUSE_S = 2.0  # between them
RECHECK_S = 180.0  # after a refusal

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
    """State of the breaker, and counts since the start of the process. `refused_calls`: those
    that failed without reaching the store."""

    state: BreakerState = BreakerState.CLOSED
    opened: int = 0
    refused_calls: int = 0
    last_error: str = ""

    @property
    def is_available(self) -> bool:
        """Whether calls reach the store."""
        return self.state is BreakerState.CLOSED


class HealthyStore:
    """An object store whose calls pass a circuit breaker. `fetch_rate` limits the ranges that consumers read
    (`get_into`)."""

    def __init__(
        self,
        inner: ObjectStore,
        tasks: TaskGroup,
        *,
        check: Callable[[ObjectStore], Awaitable[None]] | None = None,
        probe_key: str = "probe",
        fetch_rate: RateLimit | None = None,
    ) -> None:
        """`check`: the suitability check, which raises UnsuitableStore; runs before the first call.
        `probe_key`: an object that the probe asks for; it need not exist."""
        self.health = StoreHealth()
        self.fetch_rate = fetch_rate or RateLimit()
        self.inner = inner
        self._tasks = tasks
        self._events = 0
        """Number of starts and ends of calls. Their order decides whether a failure counts."""
        self._succeeded_at = 0
        self._failures = 0
        self._failed_at: dict[str, int] = {}
        """When each key has failed last, since the last success."""
        self._pause_s = FIRST_PROBE_S
        self._closed_at_s = -math.inf
        self._waiting = 0  # calls to which the store has not responded
        self._watching: asyncio.Task[None] | None = None
        self._probe_key = probe_key
        self._probing: asyncio.Task[None] | None = None
        self._check = check
        self._checking: asyncio.Task[ObjectStoreError | None] | None = None

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        await self._admit()
        with self._count_outcome(key):
            return await self.inner.put(key, body, crc32c=crc32c, condition=condition)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        await self._admit()
        with self._count_outcome(key):
            return await self.inner.get(key, start, end)

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        await self._admit()
        await self.fetch_rate.take(len(buffer))
        with self._count_outcome(key):
            await self.inner.get_into(key, start, buffer)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        await self._admit()
        with self._count_outcome(key):
            return await self.inner.get_with_etag(key)

    async def head(self, key: str) -> ObjectInfo:
        await self._admit()
        with self._count_outcome(key):
            return await self.inner.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._admit()
        with self._count_outcome(keys[0] if keys else ""):
            await self.inner.delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._admit()
        found = self.inner.list(prefix)
        with self._count_outcome(prefix):
            first = await anext(found, None)
        while first is not None:
            yield first
            with self._count_failure(prefix):  # an object may be of a page that was received before
                first = await anext(found, None)

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        await self._admit()
        with self._count_outcome(prefix):
            return await self.inner.abort_uploads(prefix, older_than_s)

    async def close(self) -> None:
        await self.inner.close()

    async def check(self) -> None:
        """Check that the store is suitable, if no call has done so. All callers wait for the same check,
        which continues if one of them is cancelled. Raises ObjectStoreError."""
        if self._check is None or self.health.state is not BreakerState.CLOSED:
            return
        if self._checking is None or self._checking.done():
            work = self._run_check(self._check)
            self._checking = self._tasks.spawn("suitability check of the object store", work)
        failure = await asyncio.shield(self._checking)
        try:
            raise_again(failure)
        finally:
            del failure

    async def _run_check(
        self, check: Callable[[ObjectStore], Awaitable[None]], attempts: int = CHECKS_BEFORE_REFUSAL
    ) -> ObjectStoreError | None:
        """Check up to `attempts` times. Returns the failure if every check fails or the store cannot be
        checked, otherwise None."""
        for attempt in range(1, attempts + 1):
            try:
                with self._count_outcome("suitability check"):
                    await check(self.inner)
                self._check = None
                return None
            except UnsuitableStore as reason:
                if attempt == attempts:
                    if self.health.state is not BreakerState.REFUSED:
                        self._refuse(str(reason))
                    return without_frames(reason)
            except ObjectStoreTimeout as failure:
                self._open(str(failure))  # as for many calls: all of them waited for this one
                return without_frames(failure)
            except ObjectStoreError as failure:
                return without_frames(failure)
            await asyncio.sleep(CHECK_PAUSE_S)
        return None

    async def _admit(self) -> None:
        await self.check()
        if self.health.state is BreakerState.CLOSED:
            return
        self.health.refused_calls += 1
        if self.health.state is BreakerState.REFUSED:
            raise UnsuitableStore(self.health.last_error)
        self._start_probe()
        raise BreakerOpen(f"the object store is unavailable: {self.health.last_error}")

    @contextmanager
    def _count_outcome(self, key: str) -> Iterator[None]:
        """Count a call for this key."""
        began = self._next_event()
        self._waiting += 1
        self._start_watch()
        try:
            yield
        except (ObjectStoreUnavailable, ObjectStoreTimeout) as error:
            self._on_unavailable(key, began, error)
            raise
        except ObjectStoreError:
            self._on_response()
            raise
        finally:
            self._waiting -= 1
        self._on_response()

    @contextmanager
    def _count_failure(self, key: str) -> Iterator[None]:
        """Count a call only if it fails."""
        began = self._next_event()
        try:
            yield
        except (ObjectStoreUnavailable, ObjectStoreTimeout) as error:
            self._on_unavailable(key, began, error)
            raise

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _on_response(self) -> None:
        self._succeeded_at = self._next_event()
        self._failures = 0
        self._failed_at.clear()

    def _on_unavailable(self, key: str, began: int, error: ObjectStoreError) -> None:
        if self.health.state is not BreakerState.REFUSED:  # the reason of the refusal stays
            self.health.last_error = str(error)
        if began < max(self._succeeded_at, self._failed_at.get(key, 0)):
            return
        self._failed_at[key] = self._next_event()
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self._open(str(error))

    def _open(self, error: str) -> None:
        if self.health.state is BreakerState.CLOSED:
            self.health.state = BreakerState.OPEN
            self.health.opened += 1
            _log.error("store.unavailable", error=error)
            self._start_probe()

    def _start_watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self._tasks.spawn("watch of the object store", self._watch())

    async def _watch(self) -> None:
        """While calls wait, look for silence."""
        while self._waiting:
            before = self._succeeded_at
            await asyncio.sleep(SILENCE_S)
            if self._waiting and self._succeeded_at == before and self.health.is_available:
                await self._probe_silence(before)

    async def _probe_silence(self, before: int) -> None:
        """`before`: the last success. A response does not count as one: the calls that wait may still fail,
        and five of them open the breaker."""
        try:
            async with deadline(SILENCE_PROBE_S, "a probe, while other calls wait"):
                await self.inner.head(self._probe_key)
        except (ObjectStoreUnavailable, ObjectStoreTimeout) as failure:
            if self._succeeded_at == before:
                self.health.last_error = str(failure)
                self._open(str(failure))
        except ObjectStoreError:  # it responds
            pass

    def _start_probe(self) -> None:
        """Start the probe, unless it runs."""
        if self._probing is None or self._probing.done():
            self._probing = self._tasks.spawn("probe of the object store", self._probe())

    async def _probe(self) -> None:
        clock = asyncio.get_running_loop().time
        if clock() - self._closed_at_s > PAUSE_RESET_S:
            self._pause_s = FIRST_PROBE_S
        probes = 0
        is_available = False
        while not is_available:
            await asyncio.sleep(self._pause_s)
            self._pause_s, probes = min(2 * self._pause_s, PROBE_MAX_S), probes + 1
            is_available = await self._responds()
        self._on_response()
        self._closed_at_s = clock()
        if self.health.state is BreakerState.REFUSED:
            return
        self.health.state = BreakerState.CLOSED
        _log.info("store.available", probes=probes)

    async def _responds(self) -> bool:
        try:
            with suppress(ObjectNotFound):
                await self.inner.head(self._probe_key)
            if self._check is not None:  # if it failed in the first call, that would open the breaker again
                raise_again(await self._run_check(self._check))
        except (ObjectStoreUnavailable, ObjectStoreTimeout) as error:
            self.health.last_error = str(error)
            return False
        except ObjectStoreError:  # it responded: wrong credentials, for example, concern each call alone
            pass
        except Exception as error:  # a mistake here must not keep the breaker open
            if self.health.last_error != repr(error):
                _log.exception("store.probe_failed")
            self.health.last_error = repr(error)
            return False
        return True

    def _refuse(self, reason: str) -> None:
        self.health.state, self.health.last_error = BreakerState.REFUSED, reason
        _log.error(
            "store.refused",
            reason=reason,
        )
        self._tasks.spawn("checks of the refused object store", self._recheck())

    async def _recheck(self) -> None:
        while self._check is not None:
            await asyncio.sleep(RECHECK_S)
            with suppress(Exception):  # the reason of the refusal has been logged
                await self._run_check(self._check, attempts=1)
        self.health.state = BreakerState.CLOSED
        _log.info("store.accepted")
