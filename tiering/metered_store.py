"""Metered store: counts the calls of an object store, their bytes, and how long they took.

Wraps the store of a broker; the gateway exports the counts.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tierlog.base.histogram import Histogram
from tierlog.tiering.format.keys import kind_of
from tierlog.tiering.object_store import (
    Body,
    Condition,
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    PreconditionFailed,
)

CALL_BUCKETS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_OUTCOMES: dict[type[BaseException], str] = {
    ObjectNotFound: "not_found",
    PreconditionFailed: "precondition_failed",
    CorruptObject: "corrupt",
    ObjectStoreTimeout: "timeout",
    ObjectStoreUnavailable: "unavailable",
    asyncio.CancelledError: "cancelled",
}
"""All other failures are `error`."""

FAILURES = (ObjectStoreError, OSError, asyncio.CancelledError)
"""Exceptions that end a call without a result."""


class StoreCounts:
    """`requests`: by operation, kind (`kind_of`) and outcome. `bytes`: of bodies, by operation and kind.
    `seconds`: by operation, with all retries, whatever the outcome."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, Histogram] = {}


class MeteredStore:
    """Each call is counted once, however many HTTP requests it takes."""

    def __init__(self, store: ObjectStore) -> None:
        self.inner = store
        self.counts = StoreCounts()

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        with self._counted("put", key):
            info = await self.inner.put(key, body, crc32c=crc32c, condition=condition)
        self.counts.bytes["put", kind_of(key)] += info.size
        return info

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._counted("get", key):
            data = await self.inner.get(key, start, end)
        self.counts.bytes["get", kind_of(key)] += len(data)
        return data

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        with self._counted("get", key):
            await self.inner.get_into(key, start, buffer)
        self.counts.bytes["get", kind_of(key)] += len(buffer)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._counted("get", key):
            data, etag = await self.inner.get_with_etag(key)
        self.counts.bytes["get", kind_of(key)] += len(data)
        return data, etag

    async def head(self, key: str) -> ObjectInfo:
        with self._counted("head", key):
            return await self.inner.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        with self._counted("delete", keys[0] if keys else ""):
            await self.inner.delete(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Measures the waits for the store, and not the work of the caller between two objects."""
        clock, waited_s, outcome = asyncio.get_running_loop().time, 0.0, "ok"
        found = aiter(self.inner.list(prefix))
        try:
            while True:
                begun = clock()
                try:
                    info = await anext(found, None)
                finally:
                    waited_s += clock() - begun
                if info is None:
                    return
                yield info
        except FAILURES as failure:
            outcome = _outcome(failure)
            raise
        finally:
            self._count("list", prefix, outcome, waited_s)

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        with self._counted("list", prefix):
            return await self.inner.abort_uploads(prefix, older_than_s)

    async def close(self) -> None:
        await self.inner.close()

    @contextmanager
    def _counted(self, operation: str, key: str) -> Iterator[None]:
        clock, outcome = asyncio.get_running_loop().time, "ok"
        begun = clock()
        try:
            yield
        except FAILURES as failure:
            outcome = _outcome(failure)
            raise
        finally:
            self._count(operation, key, outcome, clock() - begun)

    def _count(self, operation: str, key: str, outcome: str, took_s: float) -> None:
        self.counts.requests[operation, kind_of(key), outcome] += 1
        self.counts.seconds.setdefault(operation, Histogram(CALL_BUCKETS_S)).observe(took_s)


def _outcome(failure: BaseException) -> str:
    return _OUTCOMES.get(type(failure), "error")
