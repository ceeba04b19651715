"""The metered store, over a real store."""

import asyncio

import pytest

from tierlog.tiering.format.keys import kind_of
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.metered_store import MeteredStore
from tierlog.tiering.object_store import Absent, CorruptObject, ObjectNotFound, PreconditionFailed

KEYS = {
    "c/data/0f/t/0/00000000000000000000-00000000000000000009-1-u.log": "segment",
    "c/data/0f/t/0/00000000000000000000-00000000000000000009-1-u.idx": "index",
    "c/manifests/0f/t/0/00000000000000000000-00000000000000000009-u.page": "page",
    "c/manifests/0f/t/0/root": "root",
    "c/topics/t.json": "document",
    "c/cluster.json": "document",
    "c/data/0f/t/0/": "other",
    "": "other",
}


@pytest.mark.parametrize(("key", "kind"), KEYS.items())
def test_kind_of_an_object_by_its_key(key: str, kind: str) -> None:
    assert kind_of(key) == kind


async def test_calls_are_counted_by_operation_kind_and_outcome() -> None:
    store = MeteredStore(MemoryStore())
    await store.put("c/manifests/root", b"12345", condition=Absent())
    with pytest.raises(PreconditionFailed):
        await store.put("c/manifests/root", b"12", condition=Absent())
    assert await store.get("c/manifests/root", 1, 3) == b"23"
    with pytest.raises(CorruptObject):
        await store.get("c/manifests/root", 1, 30)
    with pytest.raises(ObjectNotFound):
        await store.head("x.log")
    assert [info.key async for info in store.list("c/")] == ["c/manifests/root"]
    assert (await store.get_with_etag("c/manifests/root"))[0] == b"12345"
    await store.delete(["c/manifests/root"])
    assert dict(store.counts.requests) == {
        ("put", "root", "ok"): 1,
        ("put", "root", "precondition_failed"): 1,
        ("get", "root", "ok"): 2,
        ("get", "root", "corrupt"): 1,
        ("head", "segment", "not_found"): 1,
        ("list", "other", "ok"): 1,
        ("delete", "root", "ok"): 1,
    }
    assert dict(store.counts.bytes) == {("put", "root"): 5, ("get", "root"): 7}
    assert {operation: seconds.count for operation, seconds in store.counts.seconds.items()} == {
        "put": 2,
        "get": 3,
        "head": 1,
        "list": 1,
        "delete": 1,
    }


async def test_time_of_a_list_is_without_the_work_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MeteredStore(MemoryStore()), [0.0]
    for name in ("a", "b", "c"):
        await store.put(name, b"1")
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    async for _ in store.list(""):
        now[0] += 60
    assert now == [180.0]
    seconds = store.counts.seconds["list"]
    assert (seconds.count, seconds.total) == (1, 0.0)
