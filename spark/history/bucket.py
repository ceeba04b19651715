"""Blocking access to the bucket, for Spark's driver and executors. Only snapshots and jobs write.

Accepts the same addresses as the broker's `object.store.url`. A read returns the complete range or fails.
boto3 is imported at the first use of S3, so a directory does not need it.
"""

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from crc32c import crc32c

from tierlog.spark.options import InvalidOption, StoreAddress
from tierlog.tiering.object_store import (
    Absent,
    Condition,
    CorruptObject,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    check_range,
)
from tierlog.tiering.s3_options import S3Options

if TYPE_CHECKING:
    from tierlog.tiering.local_store import LocalStore

T = TypeVar("T")

CONNECT_SECONDS = 5
READ_SECONDS = 60
TRIES = 5  # with boto3's own jittered backoff
CONNECTIONS = 32
READ_BACK_BYTES = 8 << 20


class Bucket(Protocol):
    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of an object, or all bytes. Raises ObjectNotFound, or CorruptObject if
        truncated."""

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        """A complete small object, and its ETag for a conditional write. Raises ObjectNotFound."""

    def write(self, key: str, body: bytes, condition: Condition) -> str:
        """Put an object and return its ETag. Raises PreconditionFailed."""

    def put_new(self, key: str, body: bytes | IO[bytes], size: int, checksum: int) -> None:
        """Put an object of this size and CRC-32C under a key that has none. If the key has an object already,
        it must be the same: an earlier attempt of the caller has put it. Raises CorruptObject otherwise."""

    def delete(self, keys: list[str]) -> None:
        """Delete objects; a missing one is ignored."""

    def keys(self, prefix: str) -> list[str]:
        """All keys with the prefix, sorted. The prefix ends with a slash."""

    def folders(self) -> list[str]:
        """The first components of all keys."""


@lru_cache(maxsize=8)
def open_bucket(address: StoreAddress) -> Bucket:
    """Open the bucket at an address; one client per process. Raises InvalidOption."""
    parts = urlsplit(address.path)
    if parts.scheme in ("s3", "s3a") and parts.netloc:
        return S3Bucket(_s3_options(address))
    if parts.scheme == "file" and not parts.netloc:
        return DirectoryBucket(Path(unquote(parts.path)))
    if parts.scheme == "":
        return DirectoryBucket(Path(address.path))
    raise InvalidOption(f"`path` {address.path!r} is neither a directory nor s3://bucket/prefix")


class DirectoryBucket:
    """A directory in the layout of `tiering.local_store`: an object is a file of the same name."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise InvalidOption(f"`path`: {directory} is not a directory")
        self._root = directory

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            with open(self._root / key, "rb") as file:
                file.seek(start)
                content = file.read() if end is None else file.read(end - start)
        except FileNotFoundError:
            raise ObjectNotFound(key) from None
        return content if end is None else check_range(key, content, start, end)

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._in_store(lambda store: store.get_with_etag(key))

    def write(self, key: str, body: bytes, condition: Condition) -> str:
        return self._in_store(lambda store: store.put(key, body, condition=condition)).etag

    def delete(self, keys: list[str]) -> None:
        self._in_store(lambda store: store.delete(keys))

    def _in_store(self, call: "Callable[[LocalStore], Coroutine[Any, Any, T]]") -> T:
        """Brokers write to the directory too, so the locks and ETags of their store apply."""

        from tierlog.tiering.local_store import LocalStore  # here: only snapshots write

        async def once() -> T:
            store = LocalStore(self._root)
            try:
                return await call(store)
            finally:
                await store.close()

        return asyncio.run(once())

    def keys(self, prefix: str) -> list[str]:
        """`os.walk` passes over directories that brokers remove at the same time, and `Path.rglob` fails."""
        walk = os.walk(self._root / prefix)
        files = (Path(folder, name) for folder, _, names in walk for name in names)
        return sorted(path.relative_to(self._root).as_posix() for path in files)

    def folders(self) -> list[str]:
        return sorted(path.name for path in self._root.iterdir() if path.is_dir())

    def put_new(self, key: str, body: bytes | IO[bytes], size: int, checksum: int) -> None:
        from tierlog.tiering.local_store import put_new_file

        source = BytesIO(body) if isinstance(body, bytes) else body
        try:
            put_new_file(self._root, key, source, checksum)
        except FileExistsError:
            require_same(self, key, size, checksum)
        except OSError as error:
            raise ObjectStoreError(f"{key}: {error}") from error


class S3Bucket:
    """An S3 bucket, below one prefix, with boto3."""

    def __init__(self, options: S3Options) -> None:
        from boto3.session import Session
        from botocore.exceptions import ProfileNotFound

        self._bucket = options.bucket
        self._prefix = f"{options.prefix}/" if options.prefix else ""
        try:
            made = Session(profile_name=options.profile)
            self._client = self._made_client(made, options)
        except ProfileNotFound as error:
            raise InvalidOption(f"`profile`: {error}") from None
        except ValueError as error:
            raise InvalidOption(f"`endpoint` or `region` is invalid: {error}") from None

    def _made_client(self, session: Any, options: S3Options) -> Any:
        from botocore.config import Config

        return session.client(
            "s3",
            endpoint_url=options.endpoint,
            region_name=options.region,
            aws_access_key_id=options.access_key,
            aws_secret_access_key=options.secret_key,
            aws_session_token=options.session_token,
            verify=options.ca_bundle,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"max_attempts": TRIES, "mode": "standard"},
                max_pool_connections=CONNECTIONS,
                s3={"addressing_style": options.addressing_style},
            ),
        )

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        wanted = (
            {} if start == 0 and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        )

        content = self._call(key, lambda: self._get({"Key": self._prefix + key, **wanted}))
        return content if end is None else check_range(key, content, start, end)

    def _get(self, wanted: dict[str, str]) -> bytes:
        """boto3 repeats a request that fails, but not one whose response ends early."""
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        tries = 1
        while True:
            body = self._client.get_object(Bucket=self._bucket, **wanted)["Body"]
            try:
                return bytes(body.read())
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                if tries == TRIES:
                    raise
                tries += 1

    def read_with_etag(self, key: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            return bytes(response["Body"].read()), str(response["ETag"])

        return self._call(key, get)

    def write(self, key: str, body: bytes, condition: Condition) -> str:
        wanted = {"IfNoneMatch": "*"} if isinstance(condition, Absent) else {"IfMatch": condition}

        def put() -> str:
            where = {"Bucket": self._bucket, "Key": self._prefix + key}
            return str(self._client.put_object(**where, Body=body, **wanted)["ETag"])

        return self._call(key, put)

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._call(key, partial(self._client.delete_object, Bucket=self._bucket, Key=self._prefix + key))

    def keys(self, prefix: str) -> list[str]:
        return [
            found["Key"][len(self._prefix) :]
            for page in self._list(prefix)
            for found in page.get("Contents", ())
        ]

    def folders(self) -> list[str]:
        return [
            found["Prefix"][len(self._prefix) : -1]
            for page in self._list("", Delimiter="/")
            for found in page.get("CommonPrefixes", ())
        ]

    def put_new(self, key: str, body: bytes | IO[bytes], size: int, checksum: int) -> None:
        def put() -> None:
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=body,
                ContentLength=size,
                ChecksumCRC32C=b64encode(checksum.to_bytes(4, "big")).decode(),
                IfNoneMatch="*",
            )

        try:
            self._call(key, put)
        except PreconditionFailed:
            require_same(self, key, size, checksum)

    def _list(self, prefix: str, **options: str) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2")
        return self._call(
            prefix, lambda: list(pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, **options))
        )

    def _call(self, key: str, call: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        place = f"s3://{self._bucket}/{self._prefix}{key}"
        try:
            return call()
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            if code in ("NoSuchKey", "404", "NotFound"):
                raise ObjectNotFound(key) from None
            if code in ("InvalidRange", "416"):
                raise CorruptObject(f"{key}: the object ends before the range") from None
            if code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
                raise PreconditionFailed(key) from None
            raise ObjectStoreError(f"{place}: {error}") from error
        except NoCredentialsError:
            raise ObjectStoreError(
                f"{place}: no credentials found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "AWS_PROFILE, or the options `accessKey` and `secretKey`, or `profile`"
            ) from None
        except BotoCoreError as error:
            raise ObjectStoreError(f"{place}: {error}") from error


def require_same(bucket: Bucket, key: str, size: int, checksum: int) -> None:
    """Read an object back. Raises CorruptObject unless it has this size and CRC-32C."""
    found = 0
    for start in range(0, size, READ_BACK_BYTES):
        found = crc32c(bucket.read(key, start, min(start + READ_BACK_BYTES, size)), found)
    if found != checksum:
        raise CorruptObject(f"{key}: another attempt has put an object with checksum {found:08x}")


def _s3_options(address: StoreAddress) -> S3Options:
    given = {
        "endpoint": address.endpoint,
        "region": address.region,
        "access_key": address.access_key,
        "secret_key": address.secret_key,
        "session_token": address.session_token,
        "profile": address.profile,
    }
    return S3Options.from_url(
        address.path, **{name: value for name, value in given.items() if value is not None}
    )
