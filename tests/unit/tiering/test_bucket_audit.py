"""Bucket audit, over a real directory store."""

from pathlib import Path
from typing import Any

import pytest
from changed_bucket import PAGE_SEGMENTS, Store, spill, tiered
from tier_node import TierNode

from tierlog.tiering import bucket_audit
from tierlog.tiering.bucket_audit import LISTED, UNKNOWN, UNREADABLE, BucketAudit, BucketAuditor
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import ObjectStoreError, ObjectStoreUnavailable


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    async with TierNode(tmp_path / "node", Store(LocalStore(tmp_path / "objects"))) as node:
        yield node


async def audit(node: TierNode) -> tuple[BucketAudit, list[int]]:
    """The result, and the sizes of the groups."""
    groups: list[int] = []

    async def pace(objects: int) -> None:
        groups.append(objects)

    log = node.fresh_remote_log()
    auditor = BucketAuditor(node.store, node.keys, log, lambda: node.metadata.image, node.metadata.current)
    return await auditor.run(pace), groups


async def test_objects_are_classified_in_small_groups(
    node: TierNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_audit, "GROUP_MAX", 4)  # a constant, not a collaborator
    replica = await tiered(node)
    await spill(node, replica)
    await node.finish_tiering()
    orphan = node.keys.data(node.where(replica)) + "stray.log"
    await node.store.put(orphan, b"123")
    found, groups = await audit(node)
    assert [info.key for info in found.unknown] == [orphan]
    segments = PAGE_SEGMENTS + len(node.remote(replica).entries)
    assert found.objects == {LISTED: 2 * segments + 2, UNKNOWN: 1}  # page and root
    assert max(groups) == 4 and sum(groups) == found.objects.total()


async def test_object_of_the_check_of_the_store_is_known(node: TierNode) -> None:
    await node.store.put(node.keys.probe(3), b"1")
    assert (await audit(node))[0].objects == {LISTED: 1}


async def test_objects_of_a_page_that_the_store_refuses_are_unreadable(node: TierNode) -> None:
    replica = await tiered(node)
    page = await spill(node, replica)
    await node.finish_tiering()
    node.store.failures[page] = ObjectStoreError("403 AccessDenied")
    found, _ = await audit(node)
    segments = len(node.remote(replica).entries)
    assert found.objects == {LISTED: 2 * segments + 2, UNREADABLE: 2 * PAGE_SEGMENTS}
    node.store.failures[page] = ObjectStoreUnavailable("503")
    with pytest.raises(ObjectStoreUnavailable):
        await audit(node)
