"""Every call of the S3 store through a proxy with faults.

A call succeeds, or fails with the right error in time, and never returns wrong bytes.
"""

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import s3_servers
from s3_faults import FAULTS, FaultProxy

from tierlog.base.failures import without_frames
from tierlog.tiering import s3 as s3_store
from tierlog.tiering.buffers import BufferPool
from tierlog.tiering.object_store import (
    Absent,
    CorruptObject,
    ObjectInfo,
    ObjectStoreError,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    PreconditionFailed,
)
from tierlog.tiering.s3 import S3Options, S3Store

KEYS = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}
AT_NIGHT = pytest.mark.slow, pytest.mark.nightly
SERVERS = [
    pytest.param(name, marks=() if name == "versitygw" else AT_NIGHT)
    for name in s3_servers.available()
    if name != "moto"  # it verifies no checksum
]
"""One server by day: what overcomes the faults is the client, which is the same for both."""
PART = 5 << 20
CONTENT = bytes(range(251)) * 40
LARGE = CONTENT * (2 * PART // len(CONTENT))


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
async def proxy(server: s3_servers.S3Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server).running() as proxy:
        yield proxy


async def get_into(store: S3Store) -> bytes:
    buffer = bytearray(5000)
    await store.get_into("k", 100, memoryview(buffer))
    return bytes(buffer)


async def listed(store: S3Store) -> list[str]:
    return [info.key async for info in store.list("k")]


async def replace_k(store: S3Store) -> ObjectInfo:
    return await store.put("k", CONTENT[1:], condition=(await store.head("k")).etag)


async def start_upload(store: S3Store) -> None:
    """Leave an unfinished upload, as a crash does."""
    client = await store._open()
    address = store._address("unfinished")
    await store._threads.run(lambda: client.api.create_multipart_upload(**address), None)


async def unfinished(store: S3Store) -> int:
    return len(await store._uploads("unfinished", -60))


CALLS: dict[str, tuple[str, Callable[[S3Store], Awaitable[Any]], Any]] = {
    "put": ("PUT .*/new", lambda store: store.put("new", CONTENT), len(CONTENT)),
    "part": ("PUT .*/new.*partNumber=2", lambda store: store.put("new", LARGE), len(LARGE)),
    "create": ("POST .*/new.*uploads", lambda store: store.put("new", LARGE), len(LARGE)),
    "complete": ("POST .*/new.*uploadId", lambda store: store.put("new", LARGE), len(LARGE)),
    "put if absent": (
        "PUT .*/new",
        lambda store: store.put("new", CONTENT, condition=Absent()),
        len(CONTENT),
    ),
    "put if match": ("PUT .*/k", replace_k, len(CONTENT) - 1),
    "complete if absent": (
        "POST .*/new.*uploadId",
        lambda store: store.put("new", LARGE, condition=Absent()),
        len(LARGE),
    ),
    "uploads": ("GET .*uploads", lambda store: store.abort_uploads("unfinished", -60), 1),
    "abort": ("DELETE .*uploadId", lambda store: store.abort_uploads("unfinished", -60), 1),
    "get": ("GET .*/k", lambda store: store.get("k"), CONTENT),
    "range": ("GET .*/k", get_into, CONTENT[100:5100]),
    "head": ("HEAD .*/k", lambda store: store.head("k"), len(CONTENT)),
    "delete": ("POST .*delete", lambda store: store.delete(["k"]), None),
    "list": ("GET .*list-type=2", listed, ["k"]),
}
"""The request that has the fault, the call, and its result."""

UNDETECTED = {
    *((call, "flipped byte") for call in ("range", "list", "uploads")),
    ("delete", "flipped request"),
}
"""No checksum covers these responses: the readers of ranges have their own. MinIO does not verify that of a
request to delete objects."""

LOST = ("timeout after success", "short body")
"""The request was carried out, and its response did not arrive completely."""


def result(found: Any) -> Any:
    return found.size if isinstance(found, ObjectInfo) else found


UNANSWERED = ("stall", "timeout after success")


async def opened(url: str, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> S3Store:
    """Its time-out is short only for a fault that it ends: a busy machine must not reach it for others."""
    monkeypatch.setattr(s3_store, "PART_BYTES", PART)
    monkeypatch.setattr(s3_store, "_FIRST_BACKOFF_S", 0.001)
    timeout_ms = 600 if fault in UNANSWERED else 30_000
    store = S3Store(S3Options.from_url(f"{url}&read_timeout_ms={timeout_ms}", **KEYS))
    await store.put("k", CONTENT)
    return store


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
async def test_one_fault_is_overcome_or_reported(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, call: str, fault: str
) -> None:
    pattern, run, expected = CALLS[call]
    store = await opened(proxy.url(str(uuid.uuid4())), monkeypatch, fault)
    if call in ("uploads", "abort"):
        await start_upload(store)
    proxy.arm(fault, pattern)
    try:
        found = result(await run(store))
    except PreconditionFailed:  # the attempt before has met it
        assert "if" in call and fault in (*LOST, *REPORTED)
        assert await content_after(store, call) == expected
    except ObjectStoreError as error:
        assert fault in REPORTED, error
    else:
        assert found == expected or (call, fault) in UNDETECTED
        assert await content_after(store, call) == expected or (call, fault) in UNDETECTED
    assert proxy.fired == 1
    proxy.arm("", "")
    if call in ("put", "part", "create", "complete"):
        await store.put("new", LARGE)
        assert await store.get("new") == LARGE
    await store.close()


REPORTED = ("flipped byte", "flipped request", "error body", "no length", "bad checksum")
"""Another attempt would not help, or nothing shows that it would."""


async def content_after(store: S3Store, call: str) -> Any:
    """The result that the call should have had, by the state of the bucket after it."""
    if call == "delete":
        return None if await listed(store) == [] else "the object is not deleted"
    if call in ("uploads", "abort"):
        return 1 if await unfinished(store) == 0 else "the upload is not aborted"
    if call.endswith("if match"):
        return len(await store.get("k"))
    if call in ("put", "part", "create", "complete") or call.endswith("if absent"):
        return len(await store.get("new"))
    return CALLS[call][2]


@pytest.mark.parametrize("call", CALLS)
async def test_fault_that_stays_ends_the_call_with_its_error(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    pattern, run, _ = CALLS[call]
    for fault, expected in (
        ("slow down", ObjectStoreUnavailable),
        ("reset before", ObjectStoreUnavailable),
        ("stall", ObjectStoreTimeout),
    ):
        store = await opened(proxy.url(str(uuid.uuid4())), monkeypatch, fault)
        if call in ("uploads", "abort"):
            await start_upload(store)
        proxy.arm(fault, pattern, times=100)
        with pytest.raises(expected):
            await run(store)
        assert proxy.fired == 3  # attempts
        proxy.arm("", "")
        await store.close()


@pytest.mark.parametrize("call", CALLS)
async def test_bad_responses_that_stay_end_the_call_with_an_error(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    pattern, run, _ = CALLS[call]
    for fault in ("error body", "short body"):
        if fault == "short body" and call not in WITH_BODY:
            continue
        store = await opened(proxy.url(str(uuid.uuid4())), monkeypatch, fault)
        if call in ("uploads", "abort"):
            await start_upload(store)
        proxy.arm(fault, pattern, times=100)
        with pytest.raises(ObjectStoreUnavailable if fault == "short body" else ObjectStoreError):
            await run(store)
        assert 1 <= proxy.fired <= 3  # attempts
        proxy.arm("", "")
        await store.close()


WITH_BODY = ("create", "get", "range", "list", "uploads")
"""Calls whose response has a body, and which another attempt does not change."""


async def test_flipped_bytes_of_checked_bodies_are_found(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(proxy.url(str(uuid.uuid4())), monkeypatch)
    for fault, call in (("flipped request", "put"), ("flipped request", "part"), ("flipped byte", "get")):
        pattern, run, _ = CALLS[call]
        proxy.arm(fault, pattern)
        with pytest.raises(CorruptObject):
            await run(store)
    await store.close()


async def test_lost_connections_are_replaced(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool's connections are closed by the server while they are idle."""
    store = await opened(proxy.url(str(uuid.uuid4())), monkeypatch)
    await asyncio.gather(*(store.get("k") for _ in range(8)))
    proxy.arm("short body", "GET", times=2)
    assert await store.get("k") == CONTENT
    assert await asyncio.gather(*(store.get("k") for _ in range(8))) == [CONTENT] * 8
    await store.close()


async def test_failed_attempt_keeps_no_buffer(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also until the garbage collector runs: the memory of remote reads is bounded."""
    store = await opened(proxy.url(str(uuid.uuid4())), monkeypatch)
    pool = BufferPool(1 << 20)
    gc.disable()
    try:
        for fault, times in (("short body", 1), ("reset before", 2), ("short body", 100)):
            proxy.arm(fault, "GET .*/k", times)
            buffer = pool.take(5000)
            assert buffer is not None
            view = buffer.view(0, 5000)
            kept = None
            try:
                await store.get_into("k", 0, view)
            except ObjectStoreUnavailable as error:
                kept = without_frames(error)
            assert (kept is not None) == (times == 100)
            del view, buffer
            assert pool.used_bytes == 0, fault
    finally:
        gc.enable()
    await store.close()
