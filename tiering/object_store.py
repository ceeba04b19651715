"""The object store port: what tierlog asks of a bucket, and the errors it answers with.

One conformance suite (tests/conformance) runs against every implementation. Keys are relative to the store's
prefix and use `/`. Implementations verify lengths and checksums on the way in and out.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ObjectStoreError(Exception):
    """The store did not do what was asked; trying again later may work."""


class InvalidStoreUrl(ValueError):
    """A URL that names no object store; the message says what would."""


class ObjectNotFound(ObjectStoreError):
    """No object under this key."""


class PreconditionFailed(ObjectStoreError):
    """A conditional put lost: the object is not what the caller saw."""


class CorruptObject(ObjectStoreError):
    """Bytes came back that are not what was put: wrong length or checksum."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    etag: str
    crc32c: int | None = None  # of the whole object, where the store itself keeps it and was asked (head)


@dataclass(frozen=True, slots=True)
class Absent:
    """Condition of a put: nothing may be there yet."""


Condition = Absent | str | None
"""Of a put: Absent(), the ETag that must be there, or None for no condition."""


class ObjectStore(Protocol):
    async def put(
        self, key: str, body: bytes | Path, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        """Stores the bytes, or a whole file, under the key. Readers see all of it or nothing."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object, exactly; short answers raise CorruptObject."""

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """A whole small object and the ETag for a conditional put."""

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag and, where the store keeps it, the checksum; raises ObjectNotFound."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Idempotent: a key that is not there is no error."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with the prefix, in key order."""

    async def close(self) -> None: ...


def exact_range(key: str, content: bytes, start: int, end: int) -> bytes:
    """The content, checked to be as long as the range asked for; raises CorruptObject."""
    if len(content) != end - start:
        raise CorruptObject(f"{key}: asked for bytes {start} to {end}, got {len(content)}")
    return content
