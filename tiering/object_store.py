"""Object store port: the operations that tierlog needs from a bucket, and their errors.

One conformance suite (tests/conformance) runs against every implementation. Keys are relative to the store's
prefix and use `/`. Implementations verify lengths and checksums of reads and writes, and end each call by its
deadline (`call_deadline`).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CALL_TIMEOUT_S = 25.0
CALL_TIMEOUT_S_PER_MIB = 1.0  # a slower link cannot keep up with a log
"""A call may take CALL_TIMEOUT_S, including its retries, plus CALL_TIMEOUT_S_PER_MIB for each MiB if the size
is known. That is clearly below the deadlines of the tier manager (`manager.py`), so that the circuit breaker
counts a store that hangs. A timeout between two bytes is not enough: a store that sends one byte a second
would hold a slot forever."""


class ObjectStoreError(Exception):
    """A store operation failed; a retry may succeed. `code`: the store's name of the error, if it has sent
    one."""

    code = ""


class ObjectStoreTimeout(ObjectStoreError):
    """The store did not respond within the deadline. The caller held its slot and memory for that time."""


class ObjectStoreUnavailable(ObjectStoreError):
    """The store cannot be reached, or responds that it is overloaded or failing."""


class InvalidStoreUrl(ValueError):
    """A URL that does not name an object store; the message shows valid forms."""


class ObjectNotFound(ObjectStoreError):
    """The object does not exist."""


class PreconditionFailed(ObjectStoreError):
    """A conditional put failed: the object already exists or has another ETag."""


class CorruptObject(ObjectStoreError):
    """The data has a wrong length or checksum."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    etag: str
    crc32c: int | None = None  # checksum of the complete object, from `head` of a store that keeps it


@dataclass(frozen=True, slots=True)
class Absent:
    """Condition of a put: the object does not exist yet."""


Condition = Absent | str | None
"""Condition of a put: Absent(), the ETag of the object to replace, or None."""


class Body(Protocol):
    """A body that is read once, in order."""

    @property
    def size(self) -> int:
        """In bytes."""

    async def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. An exception here fails the put, which raises it."""


class ObjectStore(Protocol):
    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        """Store a body, or a file, under the key, atomically for readers. The result has the CRC-32C of what
        was read."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of the object. A shorter response raises CorruptObject."""

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Fill the buffer with bytes [start, start + len(buffer)) of the object. A shorter response raises
        CorruptObject. Does not write to the buffer after it returns or is cancelled."""

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """A complete small object, and its ETag for a conditional put."""

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag and, if the store keeps it, the checksum. Raises ObjectNotFound."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Idempotent: a missing object is not an error."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with the prefix, in key order."""

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        """Abort uploads below the prefix that started at least `older_than_s` ago by the store's clock and
        were never completed. Returns their number."""

    async def close(self) -> None: ...


def call_deadline(call_s: float, size_bytes: int, what: str) -> AbstractAsyncContextManager[None]:
    """Deadline of one call of a store that transfers this many bytes, or an unknown number (0)."""
    return deadline(call_s + CALL_TIMEOUT_S_PER_MIB * size_bytes / (1 << 20), what)


@asynccontextmanager
async def deadline(seconds: float, what: str) -> AsyncIterator[None]:
    """Cancel the block after this time, and raise ObjectStoreTimeout."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ObjectStoreTimeout(f"{what}: timed out after {seconds:g} s") from error


def check_range(key: str, content: bytes, start: int, end: int) -> bytes:
    """The content, if it has the length of the range. Raises CorruptObject otherwise."""
    if len(content) != end - start:
        raise range_error(key, start, end - start, len(content))
    return content


def range_error(key: str, start: int, wanted: int, received: int) -> CorruptObject:
    """The error of a response that is not the requested range. Sizes in bytes."""
    return CorruptObject(f"{key}: requested bytes {start} to {start + wanted}, received {received} bytes")


def checksum_error(key: str, found: int, expected: int) -> CorruptObject:
    return CorruptObject(f"{key}: the body has checksum {found:08x}, expected {expected:08x}")


class BytesBody:
    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._rest = memoryview(content)

    async def read_into(self, buffer: memoryview) -> None:
        buffer[:] = self._rest[: len(buffer)]
        self._rest = self._rest[len(buffer) :]


class FileBody:
    """Reads a file. Raises CorruptObject if the file has become shorter than `size`."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._path = path
        self._at = 0

    async def read_into(self, buffer: memoryview) -> None:
        await asyncio.to_thread(self._read, buffer)

    def _read(self, buffer: memoryview) -> None:
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._at)
            filled = 0
            while filled < len(buffer) and (received := file.readinto(buffer[filled:])):
                filled += received
        if filled < len(buffer):
            raise range_error(str(self._path), self._at, len(buffer), filled)
        self._at += filled


async def as_body(body: bytes | Path | Body) -> Body:
    """Raises OSError of the file."""
    if isinstance(body, Path):
        return FileBody(body, (await asyncio.to_thread(body.stat)).st_size)
    return BytesBody(body) if isinstance(body, bytes | bytearray | memoryview) else body


async def read_body(body: bytes | Path | Body) -> bytes:
    """All of a small body."""
    source = await as_body(body)
    content = bytearray(source.size)
    await source.read_into(memoryview(content))
    return bytes(content)
