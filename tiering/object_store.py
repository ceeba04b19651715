"""Object store port: the operations that tierlog needs from a bucket, and their errors.

One conformance suite (tests/conformance) runs against every implementation. Keys are relative to the store's
prefix and use `/`. Implementations verify lengths and checksums of reads and writes.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ObjectStoreError(Exception):
    """A store operation failed; a retry may succeed."""


class InvalidStoreUrl(ValueError):
    """A URL that does not name an object store; the message shows valid forms."""


class ObjectNotFound(ObjectStoreError):
    """The object does not exist."""


class PreconditionFailed(ObjectStoreError):
    """A conditional put failed, because the object has changed."""


class CorruptObject(ObjectStoreError):
    """The data has a wrong length or checksum."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    etag: str
    crc32c: int | None = None  # of the complete object, from `head` of a store that keeps it


@dataclass(frozen=True, slots=True)
class Absent:
    """Condition of a put: the object does not exist yet."""


Condition = Absent | str | None
"""Condition of a put: Absent(), the ETag of the object to replace, or None."""


class ObjectStore(Protocol):
    async def put(
        self, key: str, body: bytes | Path, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        """Store bytes or a file under the key, atomically for readers."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object. A shorter response raises CorruptObject."""

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """A complete small object, and its ETag for a conditional put."""

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag and, if the store keeps it, the checksum. Raises ObjectNotFound."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Idempotent: a missing object is not an error."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with the prefix, in key order."""

    async def close(self) -> None: ...


def exact_range(key: str, content: bytes, start: int, end: int) -> bytes:
    """The content, if it has the length of the range. Raises CorruptObject otherwise."""
    if len(content) != end - start:
        raise CorruptObject(f"{key}: requested bytes {start} to {end}, received {len(content)} bytes")
    return content
