"""S3 store: responses that only some conditions allow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tierlog.tiering import s3 as s3_store
from tierlog.tiering.object_store import (
    Absent,
    Condition,
    CorruptObject,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
)
from tierlog.tiering.s3 import S3Store
from tierlog.tiering.s3_options import S3Options

NO_SUCH_KEY = b"<Error><Code>NoSuchKey</Code></Error>"
NO_OBJECTS = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"


@asynccontextmanager
async def store_behind(status: str, body: bytes) -> AsyncIterator[S3Store]:
    """Its server answers every request like this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"s3://bucket?endpoint=http://127.0.0.1:{port}&attempts=1"
        store = S3Store(S3Options.from_url(url, access_key="a", secret_key="s"))
        yield store
        await store.close()


@pytest.fixture
async def store() -> AsyncIterator[S3Store]:
    """Its server answers every request with 404."""
    async with store_behind("404 Not Found", NO_SUCH_KEY) as store:
        yield store


async def test_replacing_a_missing_object_fails_its_condition(store: S3Store) -> None:
    with pytest.raises(PreconditionFailed):
        await store.put("k", b"", condition="etag")


@pytest.mark.parametrize("condition", [None, Absent()])
async def test_404_of_another_put_is_no_lost_race(store: S3Store, condition: Condition) -> None:
    with pytest.raises(ObjectStoreError) as raised:
        await store.put("k", b"", condition=condition)
    assert not isinstance(raised.value, (PreconditionFailed, ObjectNotFound))


@pytest.mark.parametrize("body", [b"", b"<html><body>welcome</body></html>"])
async def test_success_without_a_listing_is_no_empty_listing(body: bytes) -> None:
    """The storage cleaner would delete what snapshots hold if it found no leases."""
    async with store_behind("200 OK", body) as store:
        with pytest.raises(CorruptObject):
            [info async for info in store.list("leases/")]
    async with store_behind("200 OK", NO_OBJECTS) as store:
        assert [info async for info in store.list("leases/")] == []


@pytest.mark.parametrize("body", [b"", b"<html><body>welcome</body></html>"])
async def test_success_without_a_result_deletes_nothing(body: bytes) -> None:
    """The objects would stay forever: the storage cleaner forgets what it has deleted."""
    async with store_behind("200 OK", body) as store:
        with pytest.raises(ObjectStoreError):
            await store.delete(["k"])
    async with store_behind("200 OK", b"<DeleteResult/>") as store:
        await store.delete(["k"])


class Pieces:
    """A body of many parts that counts what was read of it."""

    size = 10_000

    def __init__(self) -> None:
        self.read_bytes = 0

    async def read_into(self, buffer: memoryview) -> None:
        self.read_bytes += len(buffer)


async def test_body_is_not_read_ahead_of_two_parts_that_are_sent(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of an upload does not depend on its size."""
    monkeypatch.setattr(s3_store, "PART_BYTES", 1000)
    body, sent, go = Pieces(), list[int](), asyncio.Semaphore(0)

    async def send(key: str, address: object, number: int, content: memoryview) -> tuple[Any, int, int]:
        sent.append(number)
        await go.acquire()
        return {"PartNumber": number}, 0, len(content)

    monkeypatch.setattr(store, "_send", send)
    upload = asyncio.create_task(store._upload_parts("k", {}, body))
    for done in range(11):
        for _ in range(20):
            await asyncio.sleep(0)
        assert body.read_bytes == min(body.size, (done + 2) * 1000) == 1000 * len(sent)
        go.release()
    parts, _ = await upload
    assert [part["PartNumber"] for part in parts] == [*range(1, 11)]


async def test_ranges_leave_connections_to_uploads_and_manifests() -> None:
    ranges, received, all_sent = 8, 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Responds to every request but GET."""
        nonlocal received
        while request := await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            if request.startswith(b"GET"):
                received += 1
                if received == 3:
                    all_sent.set()
                continue
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "e"\r\n\r\n')
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"s3://bucket?endpoint=http://127.0.0.1:{port}&attempts=1&connections=4"
        store = S3Store(S3Options.from_url(url, access_key="a", secret_key="s"))
        buffers = [memoryview(bytearray(8)) for _ in range(ranges)]
        reads = [asyncio.ensure_future(store.get_into("cold", 0, buffer)) for buffer in buffers]
        await all_sent.wait()
        assert (await store.head("root")).etag == "e"
        assert received == 3 and not any(read.done() for read in reads)
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)
        await store.close()
