"""Object stores are checked before their first use; one that ignores conditional puts is refused."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import s3_servers
from cli_process import json_output, run
from confluent_kafka.admin import AdminClient, NewTopic
from s3_proxy import S3Proxy
from scraping import metric
from structlog.testing import capture_logs
from waiting import until
from wire_client import Client

from tierlog.base.tasks import TaskGroup
from tierlog.cli.admin import AdminApi
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBrokerFactory
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
        assert [line["event"] for line in logs] == ["store.refused"]
        assert store.health.state is BreakerState.REFUSED
        assert [info.key async for info in store.inner.list("")] == []
        await store.close()


@contextmanager
def dropping_proxy(server: s3_servers.S3Server, prefix: str) -> Iterator[str]:
    """The URL of a proxy, in a thread of its own, that drops conditions."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = S3Proxy(server)
    proxy.drops_conditions = True
    running = proxy.running()
    asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(60)
    yield proxy.url(prefix)
    asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_broker_refuses_a_store_whose_proxy_drops_conditions_and_serves_local_data(
    moto: s3_servers.S3Server, tierlog_broker_factory: TierlogBrokerFactory
) -> None:
    """The broker starts, uploads nothing, deletes nothing, and says why in the log, the health, the status
    and in the metrics."""
    with dropping_proxy(moto, "refused") as url:
        broker = tierlog_broker_factory(
            {"remote.log.manager.task.interval.ms": 200},
            object_store=url,
            environment=s3_servers.CREDENTIALS,
        )
        until(
            lambda: metric(broker, "tierlog_object_store_available") == 0,
            "the store is not refused",
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {
            "remote.storage.enable": "true",
            "segment.bytes": "65536",
            "local.retention.ms": "0",
            "retention.ms": "-1",
        }
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(60)
        client = Client(broker.bootstrap)
        for _ in range(15):
            new = encode_batch([NewRecord(1_700_000_000_000, b"k", b"v" * 10_000, ())])
            assert client.produce("t", new).error_code == ErrorCode.NONE
        [read] = client.fetch("t", 0).responses[0].partitions
        client.close()
        assert read.error_code == ErrorCode.NONE and read.records
        health = json_output("cluster", "health", "--admin", broker.admin_url, code=5)[0]
        [what] = [problem["what"] for problem in health["problems"] if "object store" in problem["what"]]
        assert "lacks what tierlog needs" in what and "ignores conditional puts" in what
        api = AdminApi(broker.admin_url)
        assert api.get("/v1/tier/store")["state"] == "refused"
        [status] = api.get("/v1/tier/status", topic="t")["partitions"]
        assert status["remote_bytes"] == 0 and status["local_log_start_offset"] == 0
        refused = run("tier", "flush", "t", "--admin", broker.admin_url)
        assert refused.returncode != 0 and "ignores conditional puts" in refused.stderr
        [line] = [one for one in broker.log_tail().splitlines() if "store.refused" in one]
        assert "a proxy before it may drop the header" in line
    keys = [one.object_name for one in moto.minio_client().list_objects("tierlog", "refused", recursive=True)]
    assert keys == []


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
