"""Settings of an s3:// URL as a server sees them: encryption, storage class, tags, connections."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import s3_servers
from s3_proxy import S3Proxy

from tierlog.tiering import s3 as s3_store
from tierlog.tiering.s3 import S3Options, S3Store

KEYS = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}
PART = 5 << 20
SIZES = {"whole": 1000, "in-parts": 2 * PART + 5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_servers.S3Server]:
    """moto keeps encryption, storage class and tags; versitygw and MinIO keep only some of them."""
    with s3_servers.running("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


async def test_objects_in_parts_have_the_settings_of_whole_ones(
    server: s3_servers.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "PART_BYTES", PART)
    settings = "&sse=AES256&storage_class=STANDARD_IA&tags=team%3Dlogs%26tier%3Dcold"
    store = S3Store(S3Options.from_url(server.url("settings") + settings, **KEYS))
    for key, size in SIZES.items():
        await store.put(key, b"x" * size)
    await store.close()
    client = server.minio_client()
    for key in SIZES:
        tags = client.get_object_tags(s3_servers.BUCKET, f"settings/{key}")
        assert dict(tags or {}) == {"team": "logs", "tier": "cold"}
        metadata: Any = client.stat_object(s3_servers.BUCKET, f"settings/{key}").metadata
        assert metadata["x-amz-server-side-encryption"] == "AES256"
        assert metadata["x-amz-storage-class"] == "STANDARD_IA"


async def test_more_calls_than_connections_wait_for_one(server: s3_servers.S3Server) -> None:
    async with S3Proxy(server).running() as proxy:
        store = S3Store(S3Options.from_url(f"{proxy.url('pool')}&connections=3", **KEYS))
        await store.put("k", b"content")
        proxy.hang()
        gets = [asyncio.ensure_future(store.get("k")) for _ in range(20)]
        await proxy.until_gets(3)
        for _ in range(100):
            await asyncio.sleep(0)
        assert proxy.connections <= 3 and proxy.gets.total() == 3
        proxy.resume()
        assert await asyncio.gather(*gets) == [b"content"] * 20
        assert proxy.connections <= 3
        await store.close()
