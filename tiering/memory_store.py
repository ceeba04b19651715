"""Object store in memory, for tests and the simulator."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import crc32c as crc

from tierlog.tiering.object_store import (
    Absent,
    Body,
    Condition,
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    PreconditionFailed,
    check_range,
    range_error,
    read_body,
)


class MemoryStore:
    """Objects by key. Each put gets a new ETag."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._puts = 0

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        content = await read_body(body)
        if crc32c is not None and crc.crc32c(content) != crc32c:
            raise CorruptObject(f"{key}: the body's checksum is not {crc32c:08x}")
        self._check(key, condition)
        self._puts += 1
        self._objects[key] = (content, f"{self._puts:x}")
        return await self.head(key)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        content = self._find(key)[0]
        return check_range(key, content[start:end], start, len(content) if end is None else end)

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        content = memoryview(self._find(key)[0])[start : start + len(buffer)]
        if len(content) != len(buffer):
            raise range_error(key, start, len(buffer), len(content))
        buffer[:] = content

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._find(key)

    async def head(self, key: str) -> ObjectInfo:
        content, etag = self._find(key)
        return ObjectInfo(key, len(content), etag, crc.crc32c(content))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in sorted(self._objects):
            if key.startswith(prefix):
                content, etag = self._objects[key]
                yield ObjectInfo(key, len(content), etag)

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        return 0

    async def close(self) -> None:
        self._objects.clear()

    def _find(self, key: str) -> tuple[bytes, str]:
        if key not in self._objects:
            raise ObjectNotFound(key)
        return self._objects[key]

    def _check(self, key: str, condition: Condition) -> None:
        found = self._objects.get(key)
        if isinstance(condition, Absent) and found is not None:
            raise PreconditionFailed(f"{key}: the object already exists")
        if isinstance(condition, str) and (found is None or found[1] != condition):
            raise PreconditionFailed(f"{key}: the object's ETag is not {condition}")
