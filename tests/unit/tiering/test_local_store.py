"""Object store in a directory: what its deadlines cover, and a file system that is unmounted."""

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tierlog.tiering import local_store, object_store
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import ObjectStoreError


async def test_body_that_is_read_slowly_is_not_in_the_time_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate limit may make it slow, and a call that times out opens the circuit breaker."""
    inside = 0

    def call_deadline(call_s: float, size: int, what: str) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def counted():  # type: ignore[no-untyped-def]
            nonlocal inside
            inside += 1
            try:
                async with object_store.call_deadline(call_s, size, what):
                    yield
            finally:
                inside -= 1

        return counted()

    class SlowBody:
        size = 3 << 20

        async def read_into(self, buffer: memoryview) -> None:
            assert inside == 0

    monkeypatch.setattr(local_store, "call_deadline", call_deadline)
    store = LocalStore(tmp_path)
    assert (await store.put("k", SlowBody())).size == SlowBody.size
    await store.close()


async def test_directory_whose_file_system_was_unmounted_is_no_empty_store(tmp_path: Path) -> None:
    """The storage cleaner would find no leases, and forget the objects that it has to delete."""
    mounted, away = tmp_path / "mounted", tmp_path / "away"
    store = LocalStore(mounted)
    await store.put("leases/1", b"")
    mounted.rename(away)
    for is_gone in (True, False):
        if not is_gone:
            mounted.mkdir()  # the empty directory below the file system
        for prefix in ("leases/", ""):
            with pytest.raises(ObjectStoreError, match="not mounted"):
                [info async for info in store.list(prefix)]
        with pytest.raises(ObjectStoreError, match="not mounted"):
            await store.delete(["leases/1"])
        for work in (store.get("leases/1"), store.head("leases/1"), store.put("leases/2", b"")):
            with pytest.raises(ObjectStoreError, match="not mounted"):
                await work
    mounted.rmdir()
    away.rename(mounted)
    assert [info.key async for info in store.list("leases/")] == ["leases/1"]
    assert [info.key async for info in store.list("none/")] == []
    await store.delete(["leases/1"])
    assert [info.key async for info in store.list("")] == []
    await store.close()
