"""Object store of a cluster without `object.store.url`: every call fails with the reason.

A local directory would not be safe: followers cannot read another broker's directory, but would still drop
their copies. Therefore nothing is tiered, and total retention works as during an outage of the store.
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
