"""Object store in a directory: what its deadlines cover."""

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tierlog.tiering import local_store, object_store
from tierlog.tiering.local_store import LocalStore


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
