"""An object store that fails at a chosen call: an error, a lost response, a stall, or truncated or corrupt
data.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tierlog.tiering.object_store import (
    Body,
    Condition,
    ObjectInfo,
    ObjectStore,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    range_error,
    read_body,
)

FAULTS = ("fail", "lose answer", "stall", "cut short", "corrupt")
"""Faults that a caller must handle. `hold` delays the call until `gate` is set."""


class FaultyStore:
    """Passes all calls to `inner`. After `arm`, call number `at` (from 0) of the named operations has a
    fault."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.fired = asyncio.Event()
        self.gate = asyncio.Event()  # set to release a held call
        self._fault = ""
        self._at = -1
        self._seen = 0
        self._operations: frozenset[str] = frozenset()
        self._called = asyncio.Event()
        self.down = False

    def arm(self, fault: str, at: int, *operations: str) -> None:
        self._fault, self._at, self._seen = fault, at, 0
        self._operations = frozenset(operations)
        self.fired.clear()

    async def until_called(self, times: int) -> None:
        """Wait until this many calls have been made in total."""
        while len(self.calls) < times:
            self._called.clear()
            await self._called.wait()

    def disarm(self) -> None:
        self._operations = frozenset()

    async def _next(self, operation: str) -> str:
        """The fault to inject at this call, if any."""
        self.calls.append(operation)
        self._called.set()
        if self.down:
            raise ObjectStoreUnavailable("503 Slow Down")
        if operation not in self._operations:
            return ""
        self._seen += 1
        if self._seen - 1 != self._at:
            return ""
        self.fired.set()
        if self._fault == "fail":
            raise ObjectStoreUnavailable(f"503 at {operation}")
        if self._fault == "stall":
            await asyncio.Event().wait()
        if self._fault == "hold":
            await self.gate.wait()
            return ""
        return self._fault

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        fault = await self._next("put")
        content = await read_body(body)
        if fault in ("cut short", "corrupt"):  # a store that does not verify the checksum and reports success
            info = await self.inner.put(key, _damage(content, fault), condition=condition)
            return ObjectInfo(key, len(content), info.etag, crc32c)
        info = await self.inner.put(key, content, crc32c=crc32c, condition=condition)
        if fault:
            raise ObjectStoreTimeout("timeout after success")
        return info

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        fault = await self._next("get")
        return self._answer(await self.inner.get(key, start, end), fault)

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        fault = await self._next("get")
        content = self._answer(await self.inner.get(key, start, start + len(buffer)), fault)
        if len(content) < len(buffer):
            raise range_error(key, start, len(buffer), len(content))
        buffer[:] = content

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        fault = await self._next("get")
        content, etag = await self.inner.get_with_etag(key)
        return self._answer(content, fault), etag

    async def head(self, key: str) -> ObjectInfo:
        fault = await self._next("head")
        info = await self.inner.head(key)
        if fault:  # a response without a body is lost, or cannot be parsed
            raise ObjectStoreUnavailable("connection reset")
        return info

    async def delete(self, keys: Sequence[str]) -> None:
        fault = await self._next("delete")
        await self.inner.delete(keys[: len(keys) // 2] if fault == "cut short" else keys)
        if fault:
            raise ObjectStoreTimeout("timeout after success")

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """`cut short` loses the response after half of the keys, the other faults before the first one."""
        fault = await self._next("list")
        found = [info async for info in self.inner.list(prefix)]
        for info in found[: len(found) // 2] if fault == "cut short" else () if fault else found:
            yield info
        if fault:
            raise ObjectStoreUnavailable("connection reset")

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        await self._next("abort")
        return await self.inner.abort_uploads(prefix, older_than_s)

    async def close(self) -> None:
        await self.inner.close()

    def _answer(self, content: bytes, fault: str) -> bytes:
        if fault == "lose answer":
            raise ObjectStoreUnavailable("connection reset")
        return _damage(content, fault) if fault else content


def _damage(content: bytes, fault: str) -> bytes:
    if fault == "cut short":
        return content[: len(content) // 2]
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x20]) + content[middle + 1 :] if content else b"\x00"
