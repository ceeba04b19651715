"""Object stores are checked before their first use; one that ignores conditional puts is refused."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import s3_servers
from s3_proxy import S3Proxy
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.tiering import store_health
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import Condition, ObjectInfo, ObjectStore
from tierlog.tiering.s3 import S3Options, S3Store
from tierlog.tiering.store_health import BreakerState, HealthyStore
from tierlog.tiering.store_probe import UnsuitableStore, probe_store

KEYS = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_servers.S3Server]:
    """Does not verify signatures, so a proxy can change headers."""
    with s3_servers.running("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


async def probe(store: ObjectStore) -> None:
    await probe_store(store, "cluster/probe/1")


async def test_suitable_store_is_used_and_keeps_no_object_of_the_probe(s3: s3_servers.S3Server) -> None:
    inner = S3Store(S3Options.from_url(s3.url("probed"), **KEYS))
    tasks = TaskGroup(lambda name, failure: None)
    store = HealthyStore(inner, tasks, check=probe)
    await store.put("k", b"x")
    assert [info.key async for info in store.list("")] == ["k"]
    await store.close()


async def test_store_whose_proxy_drops_conditions_is_refused(
    moto: s3_servers.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_health, "CHECK_PAUSE_S", 0)
    async with S3Proxy(moto).running() as proxy:
        proxy.drops_conditions = True
        tasks = TaskGroup(lambda name, failure: None)
        store = HealthyStore(S3Store(S3Options.from_url(proxy.url("p"), **KEYS)), tasks, check=probe)
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(UnsuitableStore, match="ignores conditional puts"):
                    await store.put("k", b"x")
        assert [line["event"] for line in logs] == ["the object store is refused"]
        assert store.health.state is BreakerState.REFUSED
        assert [info.key async for info in store.inner.list("")] == []
        await store.close()


class Overwriting(MemoryStore):
    """Ignores conditions with an ETag."""

    async def put(  # type: ignore[no-untyped-def]
        self, key, body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        return await super().put(
            key, body, crc32c=crc32c, condition=None if isinstance(condition, str) else condition
        )


class Unranged(MemoryStore):
    """Serves each range from the start."""

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        await super().get_into(key, 0, buffer)


class Stale(MemoryStore):
    """Serves the first version forever."""

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await super().get_with_etag(key)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return b"tierlog probes this store"


class Recomputing(MemoryStore):
    """Accepts any checksum, and returns that of the content."""

    async def put(  # type: ignore[no-untyped-def]
        self, key, body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        return await super().put(key, body, condition=condition)


class Trusting(Recomputing):
    """Accepts any checksum, and returns it."""

    async def head(self, key: str) -> ObjectInfo:
        return replace(await super().head(key), crc32c=0)


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (Overwriting, "If-Match"),
        (Unranged, "another range"),
        (Stale, "former bytes"),
        (Trusting, "wrong CRC-32C"),
    ],
)
async def test_store_that_breaks_a_promise_is_unsuitable(store: type[MemoryStore], reason: str) -> None:
    with pytest.raises(UnsuitableStore, match=re.escape(reason)):
        await probe(store())


async def test_probe_passes_on_tierlogs_own_stores(tmp_path: Path) -> None:
    from tierlog.tiering.local_store import LocalStore

    for store in (MemoryStore(), LocalStore(tmp_path), Recomputing()):
        await probe(store)
        assert [info.key async for info in store.list("")] == []
        await store.close()
