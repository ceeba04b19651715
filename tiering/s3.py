"""S3 object store on aioboto3: one client; total time, attempts and memory of each call are limited.

Checksums are CRC-32C: sent with each put, verified by the server, and returned by head. Bodies over 8 MiB
are uploaded in parts, two at a time, which are read from the file as needed. Each part has its own deadline,
so that an upload that hangs ends soon, however large it is. aioboto3 takes a second to
import, so it is imported in a thread at the first call. All errors of the server become the errors of
`object_store`. A crash during an upload leaves invisible parts, which `abort_uploads` removes.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import crc32c as crc

from tierlog.tiering.object_store import (
    CALL_S,
    Absent,
    Condition,
    CorruptObject,
    InvalidStoreUrl,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreTimeout,
    PreconditionFailed,
    call_deadline,
    exact_range,
)

T = TypeVar("T")

PART_BYTES = 8 << 20  # smaller bodies are uploaded in one request
_PARTS_MAX = 10_000  # S3's limit
_PARTS_AT_ONCE = 2  # bounds the memory of one upload: this many times the part size
_DELETE_BATCH = 1000  # S3's limit for DeleteObjects
_LIST_KEYS = 50
"""Keys of one response to a list request: the S3 client parses it on the event loop, 54 µs a key."""
_ABORTS_MAX = 500  # of one call, which ends within a minute
_CONNECTIONS = 32
_CONNECT_SECONDS = 5
_READ_SECONDS = 30  # without a byte
_ATTEMPTS = 3
_ABORT_SECONDS = 5  # for the abort of an upload that has failed, perhaps because its time was over

_BUCKET = r"[A-Za-z0-9._-]{1,255}"  # as in botocore; S3-compatible servers have different rules
_ENDPOINT = r"https?://[^/?#\s]+/?"

_NOT_FOUND = frozenset({"NoSuchKey", "404", "NotFound"})
_PRECONDITION = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})
_DAMAGED = frozenset(
    {
        "BadDigest",
        "XAmzContentChecksumMismatch",
        "InvalidDigest",
        "XAmzContentSHA256Mismatch",
        "InvalidRange",  # the object ends before the first byte
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Address of the bucket. Credentials normally come from the AWS chain (environment, profile, instance
    role)."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_url(cls, url: str, **options: str) -> "S3Options":
        """`s3://bucket/prefix?endpoint=…&region=…`, with a percent-encoded prefix. Raises InvalidStoreUrl for
        unknown or invalid parts."""
        parts = urlsplit(url)
        try:
            pairs = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise InvalidStoreUrl(f"{url!r}: invalid query, expected key=value") from None
        if empty := sorted(name for name, values in pairs.items() if not all(values)):
            raise InvalidStoreUrl(f"{url!r}: {', '.join(empty)} has no value: give one, or leave it out")
        query = {name: values[-1] for name, values in pairs.items()}
        if unknown := sorted(query.keys() - {"endpoint", "region"}):
            raise InvalidStoreUrl(
                f"unknown parameter {', '.join(unknown)} in an s3:// URL; allowed: endpoint, region"
            )
        if not re.fullmatch(_BUCKET, parts.netloc):
            raise InvalidStoreUrl(f"invalid bucket name {parts.netloc!r}")
        if "endpoint" in query and not re.fullmatch(_ENDPOINT, query["endpoint"]):
            raise InvalidStoreUrl(f"invalid endpoint {query['endpoint']!r}: expected http://host:port")
        return cls(bucket=parts.netloc, prefix=unquote(parts.path).strip("/"), **{**query, **options})


class S3Store:
    """Objects in one bucket, below one prefix. The client is opened at the first call."""

    def __init__(self, options: S3Options, *, call_s: float = CALL_S) -> None:
        """`call_s`: total seconds of a call, besides those for its bytes."""
        self._options = options
        self._call_s = call_s
        self._prefix = f"{options.prefix}/" if options.prefix else ""
        self._opening = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._client: Any = None

    async def put(
        self, key: str, body: bytes | Path, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        size = (await asyncio.to_thread(body.stat)).st_size if isinstance(body, Path) else len(body)
        in_parts = size > PART_BYTES
        put = self._put_parts if in_parts else self._put_whole
        limited = None if in_parts else size
        try:
            return await self._guard(key, lambda: put(key, body, size, crc32c, condition), limited)
        except ObjectNotFound as error:  # S3's response to If-Match if the object does not exist
            raise PreconditionFailed(f"{key}: no object with ETag {condition}") from error

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        if start == 0 and end is None:
            return (await self.get_with_etag(key))[0]
        byte_range = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        size = 0 if end is None else end - start
        content, response = await self._guard(key, lambda: self._get(key, Range=byte_range), size)
        return exact_range(key, content, start, start + response["ContentLength"] if end is None else end)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        content, response = await self._guard(key, lambda: self._get(key))
        return exact_range(key, content, 0, response["ContentLength"]), _etag(response)

    async def head(self, key: str) -> ObjectInfo:
        async def request() -> Any:
            return await self._client.head_object(**self._address(key), ChecksumMode="ENABLED")

        response = await self._guard(key, request)
        return ObjectInfo(key, response["ContentLength"], _etag(response), _whole_checksum(response))

    async def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), _DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[at : at + _DELETE_BATCH]]
            await self._guard("delete", lambda batch=batch: self._delete(batch))  # type: ignore[misc]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        continuation: dict[str, str] = {}
        where = {"Bucket": self._options.bucket, "Prefix": self._prefix + prefix, "MaxKeys": _LIST_KEYS}
        while True:

            async def request(continuation: dict[str, str] = continuation) -> Any:
                return await self._client.list_objects_v2(**where, **continuation)

            response = await self._guard(prefix, request)
            for found in response.get("Contents", ()):
                yield ObjectInfo(found["Key"].removeprefix(self._prefix), found["Size"], _etag(found))
            if not response.get("IsTruncated"):
                return
            continuation = {"ContinuationToken": response["NextContinuationToken"]}

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        due = await self._uploads(prefix, older_than_s)
        for upload in due:
            await self._guard(upload["Key"], lambda upload=upload: self._abort(upload))  # type: ignore[misc]
        return len(due)

    async def _uploads(self, prefix: str, older_than_s: float) -> Sequence[dict[str, Any]]:
        """About _ABORTS_MAX unfinished uploads. All are listed before any is aborted, because some servers
        skip others after that. Some refuse the id of an upload as a marker: without it, further uploads of
        the same key are found by the next call."""
        due: list[dict[str, Any]] = []
        following: dict[str, str] = {}
        where = {"Bucket": self._options.bucket, "Prefix": self._prefix + prefix, "MaxUploads": _LIST_KEYS}
        while True:

            async def request(following: dict[str, str] = following) -> Any:
                return await self._client.list_multipart_uploads(**where, **following)

            response = await self._guard(prefix, request)
            date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
            if date is None:
                raise ObjectStoreError(f"{prefix}: the store's response has no Date")
            now = parsedate_to_datetime(date)
            due += [
                upload
                for upload in response.get("Uploads", ())
                if (now - upload["Initiated"]).total_seconds() >= older_than_s
            ]
            if not response.get("IsTruncated") or len(due) >= _ABORTS_MAX:
                return due
            following = {"KeyMarker": response["NextKeyMarker"]}

    async def close(self) -> None:
        await self._resources.aclose()
        self._client = None

    def _address(self, key: str) -> dict[str, str]:
        return {"Bucket": self._options.bucket, "Key": self._prefix + key}

    async def _guard(self, what: str, call: Callable[[], Awaitable[T]], size: int | None = 0) -> T:
        """Run a call of `size` bytes with an open client and a deadline, and translate its exceptions into
        object store errors. None: the requests of the call have deadlines of their own."""
        try:
            async with nullcontext() if size is None else self._deadline(what, size):
                await self._open()
                return await call()
        except Exception as error:
            translated = _translate(what, error)
            if translated is None:
                raise
            raise translated from error

    def _deadline(self, what: str, size: int = 0) -> AbstractAsyncContextManager[None]:
        return call_deadline(what, size, self._call_s)

    async def _open(self) -> None:
        async with self._opening:
            if self._client is not None:
                return
            modules = await asyncio.to_thread(_import_client)
            options = self._options
            session = modules.session(
                aws_access_key_id=options.access_key,
                aws_secret_access_key=options.secret_key,
                botocore_session=modules.core,
            )
            config = modules.config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                max_pool_connections=_CONNECTIONS,
                retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
                s3={"addressing_style": "path" if options.endpoint else "auto"},
                # this class sends CRC-32C itself; the library's default needs trailers, which some stores
                # lack
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            client = session.client(
                "s3", region_name=options.region, endpoint_url=options.endpoint, config=config
            )
            self._client = await self._resources.enter_async_context(client)

    async def _put_whole(
        self, key: str, body: bytes | Path, size: int, checksum: int | None, condition: Condition
    ) -> ObjectInfo:
        content = await asyncio.to_thread(_read, body, 0, size)
        given = crc.crc32c(content) if checksum is None else checksum
        response = await self._client.put_object(
            **self._address(key), Body=content, ChecksumCRC32C=_base64(given), **_condition(condition)
        )
        return ObjectInfo(key, size, _etag(response), given)

    async def _put_parts(
        self, key: str, body: bytes | Path, size: int, checksum: int | None, condition: Condition
    ) -> ObjectInfo:
        async with self._deadline(key):
            upload = await self._client.create_multipart_upload(
                **self._address(key), ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
            )
        address = {**self._address(key), "UploadId": upload["UploadId"]}
        try:
            parts, whole = await self._upload_parts(address, body, size)
            if checksum is not None and whole != checksum:
                raise CorruptObject(f"{key}: the body has checksum {whole:08x}, expected {checksum:08x}")
            async with self._deadline(key):
                response = await self._client.complete_multipart_upload(
                    **address,
                    MultipartUpload={"Parts": parts},
                    ChecksumCRC32C=_base64(whole),
                    ChecksumType="FULL_OBJECT",
                    **_condition(condition),
                )
        except BaseException:
            with suppress(Exception):  # report the first failure
                async with asyncio.timeout(_ABORT_SECONDS):
                    await self._client.abort_multipart_upload(**address)
            raise
        return ObjectInfo(key, size, _etag(response))

    async def _upload_parts(
        self, address: dict[str, str], body: bytes | Path, size: int
    ) -> tuple[Sequence[dict[str, Any]], int]:
        """The parts in order, and the CRC-32C of all bytes that were sent."""
        part_bytes = max(PART_BYTES, -(-size // _PARTS_MAX))
        starts = range(0, size, part_bytes)
        parts: list[dict[str, Any]] = []
        whole = 0
        for first in range(0, len(starts), _PARTS_AT_ONCE):
            window = starts[first : first + _PARTS_AT_ONCE]
            contents = [
                await asyncio.to_thread(_read, body, start, min(start + part_bytes, size)) for start in window
            ]
            for content in contents:
                whole = crc.crc32c(content, whole)
            sends = [self._send(address, first + at + 1, content) for at, content in enumerate(contents)]
            parts += await _all(sends)
        return parts, whole

    async def _send(self, address: dict[str, str], number: int, content: bytes) -> dict[str, Any]:
        checksum = _base64(crc.crc32c(content))
        async with self._deadline(f"{address['Key']}, part {number}", len(content)):
            response = await self._client.upload_part(
                **address, PartNumber=number, Body=content, ChecksumCRC32C=checksum
            )
        return {"PartNumber": number, "ETag": response["ETag"], "ChecksumCRC32C": checksum}

    async def _get(self, key: str, **more: str) -> tuple[bytes, Any]:
        response = await self._client.get_object(**self._address(key), **more)
        async with response["Body"] as stream:
            return await stream.read(), response

    async def _abort(self, upload: dict[str, str]) -> None:
        address = {"Bucket": self._options.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        with suppress(self._client.exceptions.NoSuchUpload):  # another process ended it
            await self._client.abort_multipart_upload(**address)

    async def _delete(self, batch: Sequence[dict[str, str]]) -> None:
        response = await self._client.delete_objects(
            Bucket=self._options.bucket, Delete={"Objects": batch, "Quiet": True}
        )
        errors = [error for error in response.get("Errors", ()) if error.get("Code") not in _NOT_FOUND]
        if errors:
            raise ObjectStoreError(f"{len(errors)} objects could not be deleted; first error: {errors[0]}")


@dataclass(frozen=True, slots=True)
class _ClientModules:
    session: Any
    config: Any
    core: Any


def _import_client() -> _ClientModules:
    """Import the client and load the service description (1 MB of JSON), which would block the event loop."""
    import aioboto3
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

    core = AioSession()
    loader = core.get_component("data_loader")
    for description in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", description)
    loader.load_data("endpoints")
    return _ClientModules(aioboto3.Session, AioConfig, core)


def _translate(what: str, error: Exception) -> ObjectStoreError | None:
    """The object store error for a client exception; None for a bug, and for what is such an error
    already."""
    from aiohttp import ClientError as HttpError
    from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, ReadTimeoutError

    if isinstance(error, ClientError):
        return _translate_response(what, error)
    if isinstance(error, (ConnectTimeoutError, ReadTimeoutError, TimeoutError)):
        return ObjectStoreTimeout(f"{what}: {type(error).__name__}: {error}")
    if isinstance(error, (BotoCoreError, HttpError, OSError)):
        return ObjectStoreError(f"{what}: {type(error).__name__}: {error}")
    return None


def _translate_response(what: str, error: Any) -> ObjectStoreError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    if code in _NOT_FOUND:
        return ObjectNotFound(what)
    if code in _PRECONDITION or status == "412":
        return PreconditionFailed(f"{what}: {code}")
    if code in _DAMAGED:
        return CorruptObject(f"{what}: {error}")
    return ObjectStoreError(f"{what}: {error}")


def _condition(condition: Condition) -> dict[str, str]:
    if condition is None:
        return {}
    return {"IfNoneMatch": "*"} if isinstance(condition, Absent) else {"IfMatch": condition}


def _etag(response: Any) -> str:
    return str(response["ETag"]).strip('"')


def _base64(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def _whole_checksum(response: Any) -> int | None:
    """CRC-32C of the complete object.

    None if the server has no checksum, or only one computed from the checksums of the parts.
    """
    text = response.get("ChecksumCRC32C", "")
    in_parts = "-" in _etag(response)
    if not text or "-" in text or (in_parts and response.get("ChecksumType") != "FULL_OBJECT"):
        return None
    return int.from_bytes(base64.b64decode(text), "big")


def _read(body: bytes | Path, start: int, end: int) -> bytes:
    if not isinstance(body, Path):
        return body[start:end]
    with open(body, "rb") as file:
        file.seek(start)
        return exact_range(str(body), file.read(end - start), start, end)


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
