"""Object stores by URL, and one that fails every call. Called by nodes and tools at start-up."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tierlog.tiering.object_store import (
    Body,
    Condition,
    InvalidStoreUrl,
    ObjectInfo,
    ObjectStore,
    ObjectStoreError,
)


def store_from_url(url: str, **options: str) -> ObjectStore:
    """Open the store of a URL. Raises InvalidStoreUrl. S3 credentials come from the AWS chain or `options`.

    `file:///dir`, `memory://`, `s3://bucket/prefix?endpoint=http://host:port&region=us-east-1`.
    """
    return _opener(url, options)()


def check_store_url(url: str) -> None:
    """Raise InvalidStoreUrl if `store_from_url` would; opens nothing."""
    _opener(url, {})


def _opener(url: str, options: dict[str, str]) -> Callable[[], ObjectStore]:
    # imported lazily: the S3 client takes a second to import
    try:
        parts = urlsplit(url)
    except ValueError as malformed:  # brackets without an IPv6 address between them
        raise InvalidStoreUrl(f"{url!r} is not a URL: {malformed}") from None
    if parts.scheme == "memory":
        from tierlog.tiering.memory_store import MemoryStore

        return MemoryStore
    if parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        if not parts.path.startswith("/"):
            raise InvalidStoreUrl(
                f"{url!r} names a relative directory: give its full path, as in file:///var/lib/tierlog/objects"
            )
        from tierlog.tiering.local_store import LocalStore

        return lambda: LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        from tierlog.tiering.s3 import S3Store
        from tierlog.tiering.s3_options import S3Options

        s3 = S3Options.from_url(url, **options)
        return lambda: S3Store(s3)
    raise InvalidStoreUrl(
        f"invalid object store URL {url!r}: expected file:///directory, memory://"
        " or s3://bucket/prefix?endpoint=…&region=…"
    )


class NoStore:
    """The store of a cluster without `object.store.url`: every call fails with the reason.

    A local directory would not be safe: followers cannot read another broker's directory, but would still
    drop their copies. Therefore nothing is tiered, and total retention works as during an outage of the
    store.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        raise ObjectStoreError(self._why)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        raise ObjectStoreError(self._why)

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
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

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        raise ObjectStoreError(self._why)

    async def close(self) -> None:
        return
