"""S3 object store: time and attempts of each call, and memory of each upload, are limited.

Checksums are CRC-32C: sent with each put, verified by the server, and returned by head. Bodies over 8 MiB
are uploaded in parts, two at a time, which are read when they are sent; the checksum of the object is
combined from theirs. Each part has its own deadline, so that an upload that hangs ends soon, however large
it is. Ranges are received into the caller's buffer (ADR 0030). All errors of the server become the errors
of `object_store`. A crash during an upload leaves invisible parts, which `abort_uploads`
removes.
"""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c as checksum_of

from tierlog.base.checksums import crc32c_combine
from tierlog.base.failures import raise_again, without_frames
from tierlog.base.types import InvariantViolation
from tierlog.tiering.buffers import BufferPool
from tierlog.tiering.http_connections import IoThreads
from tierlog.tiering.object_store import (
    CALL_TIMEOUT_S,
    Absent,
    Body,
    Condition,
    CorruptObject,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    as_body,
    call_deadline,
    check_range,
    checksum_error,
    range_error,
)
from tierlog.tiering.s3_client import (
    S3Client,
    SendBody,
    base64_checksum,
    is_transient,
    is_unknown_upload,
    translate,
)
from tierlog.tiering.s3_options import S3Options

PART_BYTES = 8 << 20  # smaller bodies are uploaded in one request
_PARTS_MAX = 10_000  # S3's limit
_PARTS_AT_ONCE = 2  # bounds the memory of one upload: this many times the part size
_KEPT_BYTES = 2 * PART_BYTES  # body buffers are kept for later uploads up to this total
_DELETE_BATCH = 1000  # S3's limit for DeleteObjects
_LIST_KEYS = 50
"""Keys of one response to a list request: parsing holds the interpreter lock, 54 µs a key."""
_ABORTS_MAX = 500  # in one call, which must end within a minute
_FIRST_BACKOFF_S = 0.2  # at most, and twice as long before each further attempt
_OTHER_SHARE = 4
"""One in so many threads is never taken by ranges: consumers of cold data keep neither uploads nor manifests
nor deletions waiting."""
_ABORT_TIMEOUT_S = 5  # for the abort of an upload that has failed, perhaps because its time was over


class S3Store:
    """Objects in one bucket, below one prefix. The client is opened at the first call."""

    def __init__(
        self, options: S3Options, *, call_s: float = CALL_TIMEOUT_S, rng: random.Random | None = None
    ) -> None:
        """`call_s`: total seconds of a call, besides those for its bytes. `rng`: for the backoff's jitter."""
        self._options = options
        self._call_s = call_s
        self._rng = rng or random.Random()
        self._prefix = f"{options.prefix}/" if options.prefix else ""
        self._opening = asyncio.Lock()
        self._threads = IoThreads(options.connections)
        self._reads = asyncio.Semaphore(max(1, options.connections - options.connections // _OTHER_SHARE))
        """Ranges that are received at a time."""
        self._bodies = BufferPool(_KEPT_BYTES)
        self._client: S3Client | None = None

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        source = await as_body(body)
        put = self._put_parts if source.size > PART_BYTES else self._put_whole
        try:
            return await put(key, source, crc32c, _condition(condition))
        except ObjectNotFound as error:
            if isinstance(condition, str):  # S3's response to If-Match if the object does not exist
                raise PreconditionFailed(f"{key}: no object with ETag {condition}") from error
            raise ObjectStoreError(f"{key}: the store responded with 404 to a put") from error

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        if start == 0 and end is None:
            return (await self.get_with_etag(key))[0]
        if end is not None:
            content = bytearray(end - start)
            await self.get_into(key, start, memoryview(content))
            return bytes(content)
        rest, response = await self._get(key, Range=f"bytes={start}-")
        if not str(response.get("ContentRange", "")).startswith(f"bytes {start}-"):
            raise CorruptObject(
                f"{key}: requested bytes from {start}, received {response.get('ContentRange')}"
            )
        return rest

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        size = len(buffer)
        if not size:
            return
        response = await self._call(
            "get_object",
            key,
            size,
            buffer,
            **self._address(key),
            Range=f"bytes={start}-{start + size - 1}",
        )
        with _parsing(key):
            received = response["ContentLength"]
        is_range = str(response.get("ContentRange", "")).startswith(f"bytes {start}-{start + size - 1}/")
        if received != size or not is_range:
            raise range_error(key, start, size, received)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        content, response = await self._get(key, ChecksumMode="ENABLED")
        with _parsing(key):
            stored = _whole_checksum(response)
        if stored is not None and (found := checksum_of(content)) != stored:
            raise checksum_error(key, found, stored)
        return content, _etag(response)

    async def head(self, key: str) -> ObjectInfo:
        response = await self._call("head_object", key, **self._address(key), ChecksumMode="ENABLED")
        with _parsing(key):
            return ObjectInfo(key, response["ContentLength"], _etag(response), _whole_checksum(response))

    async def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), _DELETE_BATCH):
            batch = [{"Key": self._prefix + key} for key in keys[at : at + _DELETE_BATCH]]
            delete = {"Objects": batch, "Quiet": True}
            response = await self._call(
                "delete_objects", "delete", Bucket=self._options.bucket, Delete=delete
            )
            errors = [error for error in response.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
            if errors:
                raise ObjectStoreError(
                    f"{len(errors)} objects could not be deleted; first error: {errors[0]}"
                )

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        continuation: dict[str, Any] = {}
        where: dict[str, Any] = {
            "Bucket": self._options.bucket,
            "Prefix": self._prefix + prefix,
            "MaxKeys": _LIST_KEYS,
        }
        while True:
            response = await self._call("list_objects_v2", prefix, **where, **continuation)
            with _parsing(prefix):
                is_last = not response["IsTruncated"]  # without it, this is no listing, such as an empty body
                infos = [
                    ObjectInfo(found["Key"].removeprefix(self._prefix), found["Size"], _etag(found))
                    for found in response.get("Contents", ())
                ]
                continuation = {} if is_last else {"ContinuationToken": response["NextContinuationToken"]}
            for info in infos:
                yield info
            if is_last:
                return

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        due = await self._uploads(prefix, older_than_s)
        failures: list[ObjectStoreError] = []
        for upload in due:
            try:
                await self._abort(upload)
            except ObjectStoreError as failure:  # the store may refuse only this one
                failures.append(failure)
        if failures:
            raise failures[0]
        return len(due)

    async def _uploads(self, prefix: str, older_than_s: float) -> Sequence[dict[str, Any]]:
        """About _ABORTS_MAX unfinished uploads. All are listed before any is aborted, because some servers
        skip uploads if others are aborted during the listing. Some servers refuse UploadIdMarker, so only
        KeyMarker is sent: if a page ends within a key, the next call finds its other uploads."""
        due: list[dict[str, Any]] = []
        following: dict[str, Any] = {}
        where: dict[str, Any] = {
            "Bucket": self._options.bucket,
            "Prefix": self._prefix + prefix,
            "MaxUploads": _LIST_KEYS,
        }
        while True:
            response = await self._call("list_multipart_uploads", prefix, **where, **following)
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
        self._threads.close()
        if self._client is not None:
            self._client.close()

    def _address(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._options.bucket, "Key": self._prefix + key}

    async def _call(
        self, operation: str, what: str, size: int = 0, into: memoryview | None = None, **arguments: Any
    ) -> Any:
        """Run an operation that transfers `size` bytes, with a deadline and several attempts. Raises object
        store errors."""
        try:
            # outside of the deadline: loading botocore takes a second and sends nothing to the store
            client = await self._open()
            async with call_deadline(self._call_s, size, what):
                with _parsing(what):
                    work = partial(client.call, operation, arguments)
                    for attempt in range(1, self._options.attempts):
                        try:
                            return await self._run(work, into)
                        except Exception as error:
                            if not is_transient(error):
                                raise
                            without_frames(error)  # the next attempt does not wait for the garbage collector
                        await asyncio.sleep(_FIRST_BACKOFF_S * 2 ** (attempt - 1) * self._rng.random())
                    return await self._run(work, into)
        except Exception as error:
            translated = translate(self._place(what, error), error)
            if translated is None:
                raise
            try:
                raise translated from error
            finally:
                del translated  # it refers to this frame

    async def _run(self, work: Callable[[], Any], into: memoryview | None) -> Any:
        if into is None:
            return await self._threads.run(work)
        async with self._reads:
            return await self._threads.run(work, into)

    def _place(self, what: str, error: Exception) -> str:
        """The subject of an error message: with the endpoint, for operators, if the store was not reached."""
        if self._client is None or not isinstance(error, OSError):
            return what
        return f"{self._client.endpoint}: {what}"

    async def _open(self) -> S3Client:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(S3Client, self._options, self._threads)
            return self._client

    async def _get(self, key: str, **more: Any) -> tuple[bytes, Any]:
        response = await self._call("get_object", key, **self._address(key), **more)
        content = response["Body"].read()
        with _parsing(key):
            size = response["ContentLength"]
        return check_range(key, content, 0, size), response

    async def _put_whole(
        self, key: str, body: Body, expected: int | None, condition: dict[str, Any]
    ) -> ObjectInfo:
        content = self._buffer(body.size)
        await body.read_into(content)
        sent = SendBody(content, expected)  # the server compares the checksum
        response = await self._call(
            "put_object",
            key,
            body.size,
            **self._address(key),
            **self._options.new_object_arguments,
            **condition,
            Body=sent,
        )
        return ObjectInfo(key, body.size, _etag(response), sent.checksum)

    async def _put_parts(
        self, key: str, body: Body, expected: int | None, condition: dict[str, Any]
    ) -> ObjectInfo:
        upload = await self._call(
            "create_multipart_upload",
            key,
            **self._address(key),
            **self._options.new_object_arguments,
            ChecksumAlgorithm="CRC32C",
            ChecksumType="FULL_OBJECT",
        )
        with _parsing(key):
            address = {**self._address(key), "UploadId": upload["UploadId"]}
        try:
            parts, checksum = await self._upload_parts(key, address, body)
            if expected not in (None, checksum):
                raise checksum_error(key, checksum, expected)
            return await self._complete(
                key, address, condition, parts, ObjectInfo(key, body.size, "", checksum)
            )
        except BaseException:
            with suppress(Exception):  # report the first failure
                async with asyncio.timeout(_ABORT_TIMEOUT_S):
                    await self._call("abort_multipart_upload", key, **address)
            raise

    def _buffer(self, size: int) -> memoryview:
        """A buffer for a body, which returns to the pool when nothing refers to it."""
        if not size:
            return memoryview(bytearray())
        buffer = self._bodies.take(size, above_budget=True)
        if buffer is None:
            raise InvariantViolation("the pool has refused a buffer above its budget")
        return buffer.view(0, size)

    async def _complete(
        self,
        key: str,
        address: dict[str, Any],
        condition: dict[str, Any],
        parts: Sequence[dict[str, Any]],
        expected: ObjectInfo,
    ) -> ObjectInfo:
        """`expected`: the object, except for its ETag."""
        try:
            response = await self._call(
                "complete_multipart_upload",
                key,
                **address,
                **condition,
                MultipartUpload={"Parts": parts},
                ChecksumCRC32C=base64_checksum(expected.crc32c or 0),
                ChecksumType="FULL_OBJECT",
            )
        except ObjectStoreError as error:
            if not is_unknown_upload(error.__cause__):
                raise
            with suppress(ObjectStoreError):  # perhaps an attempt has succeeded, and its response was lost
                found = await self.head(key)
                if replace(found, etag="") == expected:
                    return found
            raise
        return replace(expected, etag=_etag(response))

    async def _upload_parts(
        self, key: str, address: dict[str, Any], body: Body
    ) -> tuple[Sequence[dict[str, Any]], int]:
        """The parts in order, and the CRC-32C of all bytes that were sent."""
        part_bytes = max(PART_BYTES, -(-body.size // _PARTS_MAX))
        buffers = [self._buffer(part_bytes) for _ in range(_PARTS_AT_ONCE)]
        sends: list[asyncio.Task[tuple[dict[str, Any], int, int]]] = []
        # raised first: a failed part may only be its consequence
        body_error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for at in range(0, body.size, part_bytes):
                    number = len(sends)
                    if number >= _PARTS_AT_ONCE:  # until the buffer is free again
                        await asyncio.wait([sends[number - _PARTS_AT_ONCE]])
                    part = buffers[number % _PARTS_AT_ONCE][: body.size - at]
                    try:
                        await body.read_into(part)
                    except Exception as error:
                        body_error = error
                        raise
                    sends.append(group.create_task(self._send(key, address, number + 1, part)))
        except BaseExceptionGroup as failures:
            first, body_error = body_error or failures.exceptions[0], None
            try:
                raise_again(first)
            finally:
                del first
        checksum = 0
        for _, of_part, size in (send.result() for send in sends):
            checksum = crc32c_combine(checksum, of_part, size)
        return [send.result()[0] for send in sends], checksum

    async def _abort(self, upload: dict[str, str]) -> None:
        address: dict[str, Any] = {"Bucket": self._options.bucket, "Key": upload["Key"]}
        address["UploadId"] = upload["UploadId"]
        try:
            await self._call("abort_multipart_upload", upload["Key"], **address)
        except ObjectStoreError as error:
            if not is_unknown_upload(error.__cause__):  # another process ended it
                raise

    async def _send(
        self, key: str, address: dict[str, Any], number: int, content: memoryview
    ) -> tuple[dict[str, Any], int, int]:
        """The part as the completion names it, its CRC-32C and its size."""
        what, sent = f"{key}, part {number}", SendBody(content)
        response = await self._call(
            "upload_part", what, len(content), **address, PartNumber=number, Body=sent
        )
        with _parsing(what):
            named = {"PartNumber": number, "ChecksumCRC32C": base64_checksum(sent.checksum)}
            return {**named, "ETag": response["ETag"]}, sent.checksum, len(content)


def _condition(condition: Condition) -> dict[str, Any]:
    if condition is None:
        return {}
    return {"IfNoneMatch": "*"} if isinstance(condition, Absent) else {"IfMatch": condition}


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Read a response. One that lacks a field, or has a malformed one, raises CorruptObject: it may come from
    a proxy."""
    try:
        yield
    except OSError:  # some are ValueErrors, too
        raise
    except (LookupError, ValueError) as error:
        raise CorruptObject(f"{what}: malformed response: {error!r}") from error


def _etag(response: Any) -> str:
    """Raises CorruptObject without one, as in a success response that comes from no S3 server."""
    if not response.get("ETag"):
        raise CorruptObject("the response has no ETag")
    return str(response["ETag"]).strip('"')


def _whole_checksum(response: Any) -> int | None:
    """CRC-32C of the complete object.

    None if the server has no checksum, or only one computed from the checksums of the parts.
    """
    text = response.get("ChecksumCRC32C", "")
    in_parts = "-" in _etag(response)
    if not text or "-" in text or (in_parts and response.get("ChecksumType") != "FULL_OBJECT"):
        return None
    return int.from_bytes(base64.b64decode(text, validate=True), "big")
