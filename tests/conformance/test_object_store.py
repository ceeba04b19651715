"""Conformance suite of the object store port, run against every implementation."""

import asyncio
import fcntl
import io
import os
import uuid
from pathlib import Path

import crc32c
import pytest
import s3_servers

from tierlog.tiering.object_store import (
    Absent,
    CorruptObject,
    InvalidStoreUrl,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
)
from tierlog.tiering.s3_client import SendBody
from tierlog.tiering.stores import check_store_url, store_from_url

STORES = ["memory", "directory", *s3_servers.available()]
REAL_STORES = [
    name for name in STORES if name != "moto"
]  # moto accepts any checksum, and checks conditions late
PARTS_BODY_BYTES = (33 << 20) + 7  # five parts, the last one short


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Starts each S3 server at its first use."""
    running = {}
    exits = []

    def start(name):
        if name not in running:
            context = s3_servers.running(name, tmp_path_factory.mktemp(name))
            running[name] = context.__enter__()
            exits.append(context)
        return running[name]

    yield start
    for context in exits:
        context.__exit__(None, None, None)


@pytest.fixture(params=STORES)
async def store(request, servers, tmp_path):
    if request.param == "memory":
        url, keys = "memory://", {}
    elif request.param == "directory":
        url, keys = f"file://{tmp_path}/objects", {}
    else:
        url = servers(request.param).url(f"test/{uuid.uuid4()}")
        keys = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}
    opened = store_from_url(url, **keys)
    yield opened
    await opened.close()


async def listed(store, prefix=""):
    return [info.key async for info in store.list(prefix)]


async def test_get_returns_the_put_bytes(store):
    info = await store.put("a/b.log", b"content", crc32c=crc32c.crc32c(b"content"))
    assert (info.key, info.size) == ("a/b.log", 7)
    assert await store.get("a/b.log") == b"content"
    assert await store.get_with_etag("a/b.log") == (b"content", info.etag)
    head = await store.head("a/b.log")
    assert (head.key, head.size, head.etag) == ("a/b.log", 7, info.etag)
    assert head.crc32c in (None, crc32c.crc32c(b"content"))


async def test_empty_object_can_be_stored(store):
    await store.put("empty", b"")
    assert await store.get("empty") == b""
    assert (await store.head("empty")).size == 0


async def test_put_of_a_file(store, tmp_path):
    path = tmp_path / "segment.log"
    path.write_bytes(b"0123456789" * 1000)
    await store.put("f", path, crc32c=crc32c.crc32c(path.read_bytes()))
    assert await store.get("f") == path.read_bytes()


async def test_ranges_are_exact(store):
    await store.put("r", b"0123456789")
    assert await store.get("r", 3, 7) == b"3456"
    assert await store.get("r", 3) == b"3456789"
    assert await store.get("r", 4, 4) == b""
    assert await store.get("r", 0, 10) == b"0123456789"


async def test_ranges_are_received_into_the_callers_buffer(store):
    await store.put("r", bytes(range(256)) * (3 << 12))
    buffer = bytearray(b"-" * ((2 << 20) + 7))
    await store.get_into("r", 100, memoryview(buffer)[5:-2])
    assert buffer[:5] == b"-----"
    assert buffer[5:-2] == (bytes(range(256)) * (3 << 12))[100 : 100 + (2 << 20)]
    assert buffer[-2:] == b"--"
    await store.get_into("r", 0, memoryview(buffer)[:0])


async def test_a_range_past_the_end_fills_no_buffer(store):
    await store.put("r", b"0123456789")
    for start, size in ((5, 6), (10, 1), (20, 5)):
        with pytest.raises(CorruptObject):
            await store.get_into("r", start, memoryview(bytearray(size)))
    with pytest.raises(ObjectNotFound):
        await store.get_into("missing", 0, memoryview(bytearray(1)))


async def test_buffer_of_a_cancelled_get_is_not_written_to(store):
    content = b"x" * (8 << 20)
    await store.put("r", content)
    for turns in range(12):
        buffer = bytearray(len(content))
        getting = asyncio.ensure_future(store.get_into("r", 0, memoryview(buffer)))
        for _ in range(turns):
            await asyncio.sleep(0)
        getting.cancel()
        await asyncio.wait([getting])
        buffer[:] = bytes(len(content))
        await store.get_into("r", 0, memoryview(bytearray(len(content))))  # takes as long as the other
        assert buffer.count(0) == len(content)


class Pieces:
    """A body of ascending numbers; fails before the byte `fails_at`."""

    def __init__(self, size, fails_at=None):
        self.size = size
        self._at = 0
        self._fails_at = size if fails_at is None else fails_at

    async def read_into(self, buffer):
        await asyncio.sleep(0)
        if self._at + len(buffer) > self._fails_at:
            raise ValueError("the body failed")
        buffer[:] = numbers(self._at, len(buffer))
        self._at += len(buffer)


def numbers(start, size):
    repeated = bytes(range(251)) * (size // 251 + 2)
    return repeated[start % 251 : start % 251 + size]


@pytest.mark.parametrize("size", [0, 1000, PARTS_BODY_BYTES])
async def test_body_is_read_once_while_it_is_sent(store, size):
    info = await store.put("body", Pieces(size))
    content = numbers(0, size)
    assert (info.size, info.crc32c) == (size, crc32c.crc32c(content))
    assert await store.get("body") == content


@pytest.mark.parametrize("size", [1000, PARTS_BODY_BYTES])
async def test_body_that_fails_leaves_no_object(store, size):
    with pytest.raises(ValueError, match="the body failed"):
        await store.put("body", Pieces(size, size - 1))
    with pytest.raises(ObjectNotFound):
        await store.head("body")


async def test_a_range_past_the_end_is_never_served_short(store):
    await store.put("r", b"0123456789")
    for start, end in ((5, 11), (10, 12), (20, 30)):
        with pytest.raises(CorruptObject):
            await store.get("r", start, end)


@pytest.mark.parametrize("source", ["bytes", "file"])
async def test_large_body_is_uploaded_in_parts(store, tmp_path, source):
    content = bytes(range(251)) * (PARTS_BODY_BYTES // 251 + 1)
    content = content[:PARTS_BODY_BYTES]
    body: bytes | Path = content
    if source == "file":
        body = tmp_path / "large"
        body.write_bytes(content)
    info = await store.put("large", body, crc32c=crc32c.crc32c(content))
    assert info.size == PARTS_BODY_BYTES
    head = await store.head("large")
    assert head.size == PARTS_BODY_BYTES
    assert head.crc32c in (None, crc32c.crc32c(content))
    for start in (0, (16 << 20) - 5, (32 << 20) - 5, PARTS_BODY_BYTES - 10):
        assert await store.get("large", start, start + 10) == content[start : start + 10]


@pytest.mark.parametrize("store", REAL_STORES, indirect=True)
@pytest.mark.parametrize("size", [1000, PARTS_BODY_BYTES])
async def test_body_with_a_wrong_checksum_is_refused(store, size):
    with pytest.raises(CorruptObject):
        await store.put("wrong", bytes(size), crc32c=1)
    with pytest.raises(ObjectNotFound):
        await store.head("wrong")


async def test_missing_object_is_not_found(store):
    for call in (
        store.get("no/such"),
        store.get("no/such", 1, 2),
        store.get_with_etag("no/such"),
        store.head("no/such"),
    ):
        with pytest.raises(ObjectNotFound):
            await call


async def test_delete_is_idempotent_and_takes_many(store):
    keys = [f"d/{number}" for number in range(5)]
    for key in keys:
        await store.put(key, b"x")
    await store.put("kept", b"x")
    await store.delete([*keys, "d/never"])
    await store.delete(keys)
    await store.delete([])
    assert await listed(store) == ["kept"]


async def test_list_gives_every_key_of_a_prefix_in_order(store):
    keys = ["a.log", "a/1", "a/10", "a/2", "a-b", "b/c/d", "b/c.d", "c"]
    for key in keys:
        await store.put(key, key.encode())
    assert await listed(store) == sorted(keys)
    assert await listed(store, "a/") == ["a/1", "a/10", "a/2"]
    assert await listed(store, "a/1") == ["a/1", "a/10"]
    assert await listed(store, "b/c") == ["b/c.d", "b/c/d"]
    assert await listed(store, "zz/") == []
    assert [info.size async for info in store.list("b/")] == [5, 5]


async def test_list_continues_over_all_pages_of_the_server(store):
    keys = [f"many/{number:03}" for number in range(120)]
    await asyncio.gather(*(store.put(key, b"x") for key in keys))
    assert await listed(store, "many/") == keys


async def test_put_if_absent_succeeds_once(store):
    await store.put("once", b"first", condition=Absent())
    with pytest.raises(PreconditionFailed):
        await store.put("once", b"second", condition=Absent())
    assert await store.get("once") == b"first"


async def test_conditional_put_replaces_the_expected_version(store):
    first = await store.put("root", b"1")
    second = await store.put("root", b"2", condition=first.etag)
    with pytest.raises(PreconditionFailed):
        await store.put("root", b"3", condition=first.etag)
    assert await store.get("root") == b"2"
    await store.put("root", b"4", condition=second.etag)
    assert await store.get("root") == b"4"


async def test_conditional_put_of_a_missing_object_fails(store):
    with pytest.raises(PreconditionFailed):
        await store.put("missing", b"x", condition="0123456789abcdef0123456789abcdef")
    assert await listed(store) == []


@pytest.mark.parametrize("store", REAL_STORES, indirect=True)
async def test_one_of_many_concurrent_conditional_puts_succeeds(store):
    first = await store.put("root", b"start")
    bodies = [f"writer {number}".encode() for number in range(8)]
    results = await asyncio.gather(
        *(store.put("root", body, condition=first.etag) for body in bodies), return_exceptions=True
    )
    won = [
        body for body, result in zip(bodies, results, strict=True) if not isinstance(result, BaseException)
    ]
    lost = [result for result in results if isinstance(result, BaseException)]
    assert len(won) == 1
    assert all(isinstance(result, ObjectStoreError) for result in lost)
    assert await store.get("root") == won[0]


async def test_readers_never_see_a_partial_overwrite(store):
    bodies = [bytes([value]) * 50_000 for value in range(6)]
    await store.put("o", bodies[0])

    async def write():
        for body in bodies:
            await store.put("o", body)

    async def read():
        return [await store.get("o") for _ in range(12)]

    _, *reads = await asyncio.gather(write(), read(), read())
    assert all(content in bodies for contents in reads for content in contents)


@pytest.mark.parametrize("name", s3_servers.available())
async def test_objects_are_visible_to_other_s3_clients(servers, name):
    server = servers(name)
    prefix = f"outside/{uuid.uuid4()}"
    store = store_from_url(
        server.url(prefix), access_key=s3_servers.ACCESS_KEY, secret_key=s3_servers.SECRET_KEY
    )
    await store.put("x/one.log", b"segment")
    client = server.minio_client()
    found = await asyncio.to_thread(
        lambda: list(client.list_objects(s3_servers.BUCKET, prefix + "/", recursive=True))
    )
    assert [(item.object_name, item.size) for item in found] == [(f"{prefix}/x/one.log", 7)]
    assert client.get_object(s3_servers.BUCKET, f"{prefix}/x/one.log").data == b"segment"
    client.put_object(s3_servers.BUCKET, f"{prefix}/y", io.BytesIO(b"theirs"), 6)
    assert await store.get("y") == b"theirs"
    await store.close()


@pytest.mark.parametrize("name", [name for name in s3_servers.available() if name == "versitygw"])
async def test_unfinished_uploads_are_aborted_by_prefix_and_age(servers, name):
    """MinIO lists them for complete keys only, and removes them itself after a day. In moto all began in
    2010."""
    keys = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}
    store = store_from_url(servers(name).url(f"uploads/{uuid.uuid4()}"), **keys)
    await store.put("cluster-1/kept", b"object")
    started = [f"cluster-1/data/{number}" for number in range(60)]  # more than one page of the list
    for key in [*started, "cluster-10/data/other"]:
        address = store._address(key)
        upload = await store._call("create_multipart_upload", key, **address)
        part = {"UploadId": upload["UploadId"], "PartNumber": 1, "Body": SendBody(memoryview(b"part"))}
        await store._call("upload_part", key, **address, **part)
    assert await store.abort_uploads("cluster-1/", 86_400) == 0
    begun = -2  # the store's clock has whole seconds in its responses
    assert await store.abort_uploads("cluster-1/", begun) == len(started)
    assert await store.abort_uploads("cluster-1/", begun) == 0
    assert await store.abort_uploads("cluster-10/", begun) == 1
    assert await listed(store) == ["cluster-1/kept"]
    await store.close()


async def test_unreachable_server_raises_object_store_error():
    store = store_from_url(
        "s3://b/p?endpoint=http://127.0.0.1:9&region=us-east-1", access_key="a", secret_key="b"
    )
    with pytest.raises(ObjectStoreError):
        await store.get("x")
    await store.close()


async def test_processes_that_share_a_directory_do_not_take_each_others_temporary_files(tmp_path):
    """Two containers on one mount may have the same process id."""
    stores = [store_from_url(f"file://{tmp_path}/objects") for _ in range(2)]
    puts = [
        store.put(f"{number}/{n}", b"%d %d" % (number, n))
        for n in range(50)
        for number, store in enumerate(stores)
    ]
    await asyncio.gather(*puts)
    for number, store in enumerate(stores):
        assert [await store.get(f"{number}/{n}") for n in range(50)] == [
            b"%d %d" % (number, n) for n in range(50)
        ]
        await store.close()


async def test_directory_store_removes_temporary_files_of_crashed_processes(tmp_path):
    private = tmp_path / "objects" / ".tierlog"
    private.mkdir(parents=True)
    (private / "crashed.tmp").write_bytes(b"half")
    written = os.open(private / "written.tmp", os.O_CREAT | os.O_WRONLY)
    fcntl.flock(written, fcntl.LOCK_EX)
    await store_from_url(f"file://{tmp_path}/objects").close()
    assert [path.name for path in private.glob("*.tmp")] == ["written.tmp"]
    os.close(written)


async def test_open_directory_store_removes_temporary_files_of_crashed_processes(tmp_path):
    store, private = store_from_url(f"file://{tmp_path}/objects"), tmp_path / "objects" / ".tierlog"
    (private / "crashed.tmp").write_bytes(b"half")
    writing = [store.put(f"data/{number}", b"%d" % number) for number in range(100)]
    removing = [store.abort_uploads("data/", 86_400) for _ in range(100)]
    assert sum((await asyncio.gather(*removing, *writing))[:100]) >= 1
    assert list(private.glob("*.tmp")) == []
    assert len(await listed(store)) == 100
    await store.close()


async def test_directory_store_is_reopened_and_refuses_keys_outside(tmp_path):
    store = store_from_url(f"file://{tmp_path}/objects")
    await store.put("a/b", b"x")
    for key in ("../x", "/x", "a//b", "a/./b", ".tierlog/x"):
        with pytest.raises(ObjectStoreError):
            await store.put(key, b"x")
    await store.close()
    again = store_from_url(f"file://{tmp_path}/objects")
    assert await again.get("a/b") == b"x"
    assert [path.name for path in tmp_path.iterdir()] == ["objects"]
    await again.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "objects",
        "file://relative/dir",
        "file:relative",
        "file:relative/dir",
        "file:",
        "file:////",
        "file:///",
        "gs://b",
        "s3:///p",
        "s3://b?regoin=x",
        "s3://b?endpoint",
        "s3://b?region=",
        "s3://b?endpoint=&region=eu-west-1",
        "s3://b?region=eu-west-1&region=",
        "s3://b?endpoint=minio:9000",
        "s3://b?path_style=yes",
        "s3://b?sse=rot13",
        "s3://b?sse_kms_key=k",
        "s3://b?sse=AES256&sse_kms_key=k",
        "s3://b?connections=0",
        "s3://b?attempts=many",
        "s3://b?read_timeout_ms=-1",
        "s3://b?tags=team",
        "s3://a b",
        "s3://[b",
    ],
)
def test_invalid_store_url_is_refused(url):
    for use in (store_from_url, check_store_url):
        with pytest.raises(InvalidStoreUrl):
            use(url)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("file:relative", "give its full path, as in file:///"),
        ("s3://bucket?region=", "region has no value: give one, or leave it out"),
    ],
)
def test_invalid_store_url_is_refused_with_advice(url, advice):
    with pytest.raises(InvalidStoreUrl, match=advice):
        check_store_url(url)


async def test_prefix_of_an_s3_url_is_percent_decoded(servers):
    """As the path of a file:// URL: otherwise other tools find the objects under another name."""
    server = servers("versitygw")
    store = store_from_url(
        server.url("a%20team/100%25"), access_key=s3_servers.ACCESS_KEY, secret_key=s3_servers.SECRET_KEY
    )
    await store.put("x", b"object")
    await store.close()
    client = server.minio_client()
    assert await asyncio.to_thread(
        lambda: client.get_object(s3_servers.BUCKET, "a team/100%/x").data == b"object"
    )


async def test_failure_to_open_the_client_raises_object_store_error(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "there-is-no-such-profile")
    store = store_from_url("s3://bucket?endpoint=http://127.0.0.1:1")
    with pytest.raises(ObjectStoreError, match="there-is-no-such-profile"):
        await store.get("key")
    await store.close()
