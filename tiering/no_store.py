"""The store of a cluster whose settings name none: it does nothing, and says why.

A directory of one broker would not do: its followers could not read what it uploads, and drop their copies
of it all the same. So nothing is tiered, and total retention goes on as while a store is away.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tierlog.tiering.object_store import Condition, ObjectInfo, ObjectStoreError


class NoStore:
    def __init__(self, why: str) -> None:
        self._why = why

    async def put(
        self, key: str, body: bytes | Path, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        raise ObjectStoreError(self._why)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        raise ObjectStoreError(self._why)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        raise ObjectStoreError(self._why)

    async def head(self, key: str) -> ObjectInfo:
        raise ObjectStoreError(self._why)

    async def delete(self, keys: Sequence[str]) -> None:
        raise ObjectStoreError(self._why)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        raise ObjectStoreError(self._why)
        yield  # an iterator, for the type

    async def close(self) -> None:
        return
