"""Manifest check: roots and documents that change behind the broker's back are noticed and written again."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changed_bucket import Store, manifest_check, path_of, spill, tiered
from connection_harness import until
from tier_node import CLUSTER, TierNode, produce

from tierlog.broker.remote.manifest_check import ManifestFault
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import ClusterImage
from tierlog.tiering.format.manifest import decode_root
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.manager import DAMAGED, MISSING, OUTDATED
from tierlog.tiering.object_store import CorruptObject


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    async with TierNode(tmp_path / "node", Store(LocalStore(tmp_path / "objects"))) as node:
        yield node


def root_of(node: TierNode, replica: Replica) -> Path:
    return path_of(node, node.keys.root(node.where(replica)))


def in_bucket(node: TierNode, replica: Replica) -> tuple[Any, ...]:
    root = decode_root(root_of(node, replica).read_bytes())
    return root.log_start_offset, root.nodes


async def more(node: TierNode, replica: Replica) -> None:
    produce(replica, 60, records=3)
    await node.log_manager.flush("t")
    await node.finish_tiering()


async def test_root_that_is_intact_has_no_fault(node: TierNode) -> None:
    replica = await tiered(node)
    check = manifest_check(node)
    assert await check.root(node.where(replica)) is None
    await spill(node, replica)
    await node.finish_tiering()
    assert await check.root(node.where(replica)) is None
    assert check.faults == 0


@pytest.mark.parametrize("fault", [MISSING, DAMAGED, OUTDATED])
async def test_root_with_a_fault_is_reported_once_and_written_again(node: TierNode, fault: str) -> None:
    replica = await tiered(node)
    old = root_of(node, replica).read_bytes()
    await more(node, replica)
    path = root_of(node, replica)
    right = in_bucket(node, replica)
    if fault == MISSING:
        path.unlink()
    else:
        path.write_bytes(old if fault == OUTDATED else path.read_bytes()[:-3])
    check, where = manifest_check(node), node.where(replica)
    assert await check.root(where) == ManifestFault(node.keys.root(where), fault)
    await node.finish_tiering()
    remote = node.remote(replica)
    assert in_bucket(node, replica) == right == (remote.log_start_offset, remote.nodes)
    assert await check.root(where) is None
    assert check.faults == 1


async def test_root_whose_stored_checksum_is_wrong_is_written_again(node: TierNode) -> None:
    """As a store with checksums reports it. The leader starts again, and has not written the root itself."""
    replica = await tiered(node)
    where, inner = node.where(replica), node.store.inner
    key, whole = node.keys.root(where), inner.get_with_etag
    damaged = (await inner.head(key)).etag

    async def corrupt(wanted: str) -> tuple[bytes, str]:
        if wanted == key and (await inner.head(key)).etag == damaged:
            raise CorruptObject(f"{key}: the checksum is wrong")
        return await whole(wanted)

    inner.get_with_etag = corrupt
    assert await manifest_check(node).root(where) == ManifestFault(key, DAMAGED)
    await node.finish_tiering()
    assert (await inner.head(key)).etag != damaged
    assert await manifest_check(node).root(where) is None


async def test_root_that_is_damaged_on_its_way_has_no_fault(node: TierNode) -> None:
    replica = await tiered(node)
    node.store.arm("corrupt", 0, "get")
    assert await manifest_check(node).root(node.where(replica)) is None


async def test_root_that_is_written_during_the_check_has_no_fault(node: TierNode) -> None:
    """The check reads the old root, and the leader writes a new one before the comparison."""
    replica = await tiered(node)
    where, inner = node.where(replica), node.store.inner
    old, read = await inner.get_with_etag(node.keys.root(where)), asyncio.Event()
    whole, go = inner.get_with_etag, asyncio.Event()

    async def slow(key: str) -> tuple[bytes, str]:
        if read.is_set():
            return await whole(key)
        read.set()
        await go.wait()
        return old

    inner.get_with_etag = slow
    check = manifest_check(node)
    checking = asyncio.ensure_future(check.root(where))
    await read.wait()
    await more(node, replica)
    go.set()
    assert await checking is None


async def test_root_of_a_topic_that_the_newest_image_lacks_has_no_fault(node: TierNode) -> None:
    """Another broker has deleted the root, and this broker's image does not show the deletion yet."""
    replica = await tiered(node)

    async def current() -> ClusterImage:
        return ClusterImage(cluster_id=CLUSTER)

    check = manifest_check(node, SimpleNamespace(image=node.metadata.image, current=current))
    root_of(node, replica).unlink()
    assert await check.root(node.where(replica)) is None
    assert check.faults == 0


@pytest.mark.parametrize("fault", [MISSING, DAMAGED, OUTDATED])
async def test_documents_with_a_fault_are_reported_and_written_again(node: TierNode, fault: str) -> None:
    replica = await tiered(node)
    await node.storage_cleaner.clean()
    key = node.keys.topic(replica.topic_id)
    old = path_of(node, key).read_bytes()
    await node.alter("t", {"retention.bytes": "1000000000"})
    await node.storage_cleaner.clean()
    paths = {key: path_of(node, key), node.keys.cluster(): path_of(node, node.keys.cluster())}
    right = {key: path.read_bytes() for key, path in paths.items()}
    check = manifest_check(node)
    assert [one async for one in check.documents()] == [None, None]
    for name, path in paths.items():
        if fault == MISSING:
            path.unlink()
        elif fault == DAMAGED:
            path.write_bytes(right[name][:-2])
        elif name == key:
            path.write_bytes(old)
    found = [one async for one in check.documents()]
    assert found[1] == ManifestFault(key, fault)
    if fault != OUTDATED:
        assert found[0] == ManifestFault(node.keys.cluster(), fault)
    await node.storage_cleaner.clean()
    assert {name: path.read_bytes() for name, path in paths.items()} == right
    assert [one async for one in check.documents()] == [None, None]


async def test_documents_are_checked_only_by_the_broker_that_writes_them(node: TierNode) -> None:
    await tiered(node)
    assert [one async for one in manifest_check(node).documents()] == []  # it has not written any yet


async def test_documents_are_written_again_without_another_change(node: TierNode) -> None:
    replica = await tiered(node)
    node.storage_cleaner.start()
    path = path_of(node, node.keys.topic(replica.topic_id))
    async with asyncio.timeout(10):
        await until(lambda: node.storage_cleaner._described_of is not None)
        path.unlink()
        assert [one async for one in manifest_check(node).documents()][1] is not None
        await until(path.exists)
