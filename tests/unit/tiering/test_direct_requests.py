"""Direct requests: what is sent without botocore's client, and what becomes of failures."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tierlog.tiering.object_store import Absent, CorruptObject, ObjectNotFound, ObjectStoreError
from tierlog.tiering.s3 import S3Store
from tierlog.tiering.s3_client import SendBody
from tierlog.tiering.s3_options import S3Options

OF_BOTOCORE = "amz-sdk-request"
"""A header that only botocore's client adds."""

ETAG = 'ETag: "e"\r\nContent-Range: bytes 3-8/9\r\nContent-Length: '


class Server:
    """Answers all requests with 200, or with the next of `responses`. Keeps the head of each request."""

    def __init__(self) -> None:
        self.heads: list[list[str]] = []
        self.responses: list[bytes] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:])
                await reader.readexactly(int(headers.get("content-length", 0)))
                self.heads.append(head)
                body = b"sample" if head[0].startswith("GET") else b""
                usual = f"HTTP/1.1 200 OK\r\n{ETAG}{len(body)}\r\n\r\n".encode() + body
                writer.write(self.responses.pop(0) if self.responses else usual)
        writer.close()

    def store(self, **options: Any) -> S3Store:
        endpoint = f"http://127.0.0.1:{self.port}"
        return S3Store(
            S3Options(
                bucket="bucket", prefix="a b", endpoint=endpoint, access_key="k", secret_key="s", **options
            )
        )


def error(status: str, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code></Error>"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def sorted_head(head: list[str]) -> list[str]:
    """Without what differs in each request of botocore's."""
    return [head[0], *sorted(line.lower() for line in head[1:] if not line.lower().startswith("amz-sdk-"))]


async def send_part(store: S3Store, number: int) -> None:
    """As `put` sends each part of a large body."""
    client = await store._open()
    arguments = {
        **store._address("k+ü"),
        "UploadId": "u/+=",
        "PartNumber": number,
        "ChecksumCRC32C": "AAAAAA==",
    }
    await store._threads.run(
        lambda: client.call("upload_part", {**arguments, "Body": SendBody(memoryview(b"part"))})
    )


CALLS: dict[str, Callable[[S3Store], Awaitable[Any]]] = {
    "range": lambda store: store.get("k+ü", 3, 9),
    "get": lambda store: store.get("k+ü"),
    "head": lambda store: store.head("k+ü"),
    "put": lambda store: store.put("k+ü", b"content"),
    "put if absent": lambda store: store.put("k+ü", b"content", condition=Absent()),
    "put if the same": lambda store: store.put("k+ü", b"content", condition="e"),
}


@pytest.mark.parametrize(
    "options", [{}, {"session_token": "t"}, {"storage_class": "STANDARD_IA", "tags": "a=b&c=d"}]
)
@pytest.mark.parametrize("name", CALLS)
async def test_repeated_calls_send_what_botocore_sends(
    name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: now)
    async with Server().running() as server:
        store = server.store(**options)
        results = [await CALLS[name](store) for _ in range(3)]
        await store.close()
    assert results[0] == results[1] == results[2]
    assert [OF_BOTOCORE in "\n".join(head) for head in server.heads] == [True, False, False]
    first, second, third = (sorted_head(head) for head in server.heads)
    assert first == second == third
    assert any("authorization: aws4-hmac-sha256" in line for line in first)


async def test_parts_of_an_upload_send_what_botocore_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: now)
    async with Server().running() as server:
        store = server.store()
        await send_part(store, 1)
        await send_part(store, 1)
        await store.close()
    first, second = server.heads
    assert OF_BOTOCORE in "\n".join(first)
    assert OF_BOTOCORE not in "\n".join(second)
    assert sorted_head(second)[1:] == sorted_head(first)[1:]
    assert sorted(second[0].split("?")[1].split()[0].split("&")) == ["partNumber=1", "uploadId=u%2F%2B%3D"]


@pytest.mark.parametrize(
    ("name", "response", "expected"),
    [
        ("get", error("404 Not Found", "NoSuchKey"), ObjectNotFound),
        ("put", error("400 Bad Request", "BadDigest"), CorruptObject),
        ("put", error("200 OK", "InternalError"), ObjectStoreError),
    ],
)
async def test_a_failure_is_read_by_botocore_without_another_request(
    name: str, response: bytes, expected: type[Exception]
) -> None:
    async with Server().running() as server:
        store = server.store(attempts=1)
        await CALLS[name](store)
        server.responses.append(response)
        with pytest.raises(expected):
            await CALLS[name](store)
        await store.close()
    assert len(server.heads) == 2


async def test_an_address_that_the_store_refuses_is_learned_again() -> None:
    async with Server().running() as server:
        store = server.store(attempts=1)
        await store.head("k")
        server.responses.append(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        with pytest.raises(ObjectStoreError):
            await store.head("k")
        await store.head("k")
        await store.head("k")
        await store.close()
    assert [OF_BOTOCORE in "\n".join(head) for head in server.heads] == [True, False, True, False]


async def test_a_request_that_botocore_would_build_otherwise_is_not_learned() -> None:
    async with Server().running() as server:
        store = server.store()
        client = await store._open()
        client.api.meta.events.register(
            "before-sign.s3", lambda request, **_: request.headers.add_header("X-Plugin", "1")
        )
        for _ in range(2):
            await store.head("k")
        await store.close()
    assert all("x-plugin: 1" in sorted_head(head) for head in server.heads)
