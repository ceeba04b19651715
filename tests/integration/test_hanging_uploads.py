"""Uploads that hang at a real S3 server keep neither other uploads nor deletions waiting."""

import asyncio
from pathlib import Path

import pytest
import s3_servers
from connection_harness import until
from s3_proxy import S3Proxy
from tier_node import TierNode, produce

from tierlog.broker.remote.tier_views import PartitionTierStatus
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.tiering import s3 as s3_store
from tierlog.tiering.manager import TierLimits
from tierlog.tiering.object_store import ObjectStoreTimeout
from tierlog.tiering.s3 import S3Options, S3Store

KEYS = {"access_key": s3_servers.ACCESS_KEY, "secret_key": s3_servers.SECRET_KEY}


async def hung(node: TierNode, proxy: S3Proxy, count: int) -> list[Replica]:
    """Partitions of topics of their own, whose uploads all hang."""
    replicas = [await node.create(f"hung-{number}") for number in range(count)]
    proxy.hold_puts(*(str(replica.topic_id) for replica in replicas))
    for replica in replicas:
        produce(replica, 20)
    return replicas


def uploading(node: TierNode) -> int:
    return sum(line.uploading for line in statuses(node) if line.topic.startswith("hung"))


def statuses(node: TierNode) -> list[PartitionTierStatus]:
    return [status for replica in node if (status := node.log_manager.status_of(replica)) is not None]


async def test_partitions_upload_while_the_uploads_of_two_others_hang(tmp_path: Path, proxy: S3Proxy) -> None:
    store = S3Store(S3Options.from_url(proxy.url(tmp_path.name), **KEYS))
    async with TierNode(tmp_path, store) as node:
        await hung(node, proxy, 2)
        await proxy.until_held(2)
        other = await node.create("other")
        produce(other, 20)
        await node.log_manager.flush("other")
        assert node.remote(other).end_offset == other.log_end_offset
        assert uploading(node) == 2
    await store.close()


async def test_uploads_that_hang_again_and_again_leave_most_slots_to_others(
    tmp_path: Path, proxy: S3Proxy
) -> None:
    store = S3Store(S3Options.from_url(proxy.url(tmp_path.name), **KEYS), call_s=0.5)
    async with TierNode(tmp_path, store, limits=TierLimits(copies_at_once=4)) as node:
        await hung(node, proxy, 6)

        def timed_out() -> int:
            return sum("timed out" in (line.last_error or "") for line in statuses(node))

        await until(lambda: timed_out() == 6)
        others = [await node.create(f"other-{number}") for number in range(3)]
        for other in others:
            produce(other, 20)
        await asyncio.gather(*(node.log_manager.flush(other.name.topic) for other in others))
        assert all(node.remote(other).end_offset == other.log_end_offset for other in others)
        assert uploading(node) <= 1
    await store.close()


async def test_objects_are_deleted_while_an_abandoned_upload_hangs(tmp_path: Path, proxy: S3Proxy) -> None:
    store = S3Store(S3Options.from_url(proxy.url(tmp_path.name), **KEYS))
    async with TierNode(tmp_path, store) as node:
        full = await node.create("full")
        produce(full, 20)
        await node.log_manager.flush("full")
        await node.storage_cleaner.clean()
        await hung(node, proxy, 1)
        await proxy.until_held(1)
        for topic in ("hung-0", "full"):
            await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name=topic),)))
        while node.metadata.image.delete_queue:
            await node.storage_cleaner.clean()
        assert not [key for key in await node.objects() if str(full.topic_id) in key]
        assert node.manager.counts.uploading == 0
    await store.close()


async def test_large_upload_that_hangs_ends_at_the_deadline_of_a_part(
    tmp_path: Path, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte would otherwise keep its slot for 18 minutes."""
    monkeypatch.setattr(s3_store, "PART_BYTES", 1 << 16)
    segment = tmp_path / "segment"
    segment.write_bytes(bytes(100 << 20))
    store = S3Store(S3Options.from_url(proxy.url(tmp_path.name), **KEYS), call_s=0.5)
    proxy.hold_puts("partNumber=3")
    with pytest.raises(ObjectStoreTimeout, match=r"part 3: timed out after 0\.5625 s"):
        await store.put("large", segment)
    await store.close()
