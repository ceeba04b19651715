"""Metric values of the remote tier."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changed_bucket import PAGE_SEGMENTS, spill, tiered
from tier_node import TierNode, produce

from tierlog.broker.gateway import tier_metrics
from tierlog.broker.gateway.exposition import PARTITIONS_PER_TURN, lazy_slices
from tierlog.metadata.controller.remote import dropped_alone, dropped_with_segments
from tierlog.tiering.memory_store import MemoryStore


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=60_000) as node:
        yield node


def serving(node: TierNode) -> Any:
    return SimpleNamespace(clock=node.clock, tiering=node.log_manager, storage_cleaner=node.storage_cleaner)


async def test_topics_whose_copies_are_disabled_have_no_upload_lag(node: TierNode) -> None:
    for name, disabled in (("copied", "false"), ("kept", "true")):
        produce(await node.create(name, remote_log_copy_disable=disabled), 60)
    node.log_manager.wake_all()
    families = dict(tier_metrics._upload_lag(serving(node), node.metadata.image))
    for name, samples in families.items():
        if name and "behind" not in name:
            assert {labels for labels, _ in samples} == {(), ("copied",)}


async def test_oldest_deletion_is_overdue_after_its_grace(node: TierNode) -> None:
    replica = await node.create("t")
    produce(replica, 60)
    await node.log_manager.flush("t")
    assert tier_metrics._overdue_s(serving(node), node.metadata.image) == 0
    await node.move_log_start(replica, replica.log_end_offset)
    await node.finish_tiering()
    assert node.metadata.image.delete_queue
    assert tier_metrics._overdue_s(serving(node), node.metadata.image) == 0
    node.clock.pass_time(3_600_000)
    assert 3000 < tier_metrics._overdue_s(serving(node), node.metadata.image) <= 3540


def test_slices_are_of_similar_work() -> None:
    heavy = PARTITIONS_PER_TURN / 2
    batches = list(lazy_slices([heavy] * 3 + [1.0] * PARTITIONS_PER_TURN, lambda work: work))
    assert [len(batch) for batch in batches] == [2, 1 + PARTITIONS_PER_TURN // 2, PARTITIONS_PER_TURN // 2]


def delete_lags(node: TierNode) -> dict[str, dict[Any, float]]:
    families = dict(tier_metrics._delete_queue(node.metadata.image, 1))
    prefix = tier_metrics.TOPICS + "remotedeletelag"
    return {name.removeprefix(prefix): dict(families[name]) for name in families if prefix in name}


async def test_delete_lag_is_the_bytes_and_segments_that_wait(node: TierNode) -> None:
    """Retention of segments and of a page, which is deleted with its segments."""
    replica = await tiered(node)
    assert delete_lags(node) == {"bytes": {(): 0}, "segments": {(): 0}}
    entries = node.remote(replica).entries
    await spill(node, replica)
    await node.finish_tiering()
    assert delete_lags(node)["segments"] == {(): 0}  # of the announced page there is nothing left
    end = entries[PAGE_SEGMENTS].end_offset
    await node.move_log_start(replica, end)
    gone = [entry for entry in entries if entry.end_offset <= end]
    assert len(gone) == PAGE_SEGMENTS + 1
    size = sum(entry.log_bytes for entry in gone)
    assert delete_lags(node) == {
        "bytes": {(): size, ("t",): size},
        "segments": {(): len(gone), ("t",): len(gone)},
    }


async def test_delete_lag_counts_no_page_that_another_one_replaces(node: TierNode) -> None:
    """An object of the old page waits for its deletion, and none of its segments does."""
    replica = await tiered(node)
    await spill(node, replica)
    [page] = node.remote(replica).pages
    dropped = dropped_alone(page)
    assert (dropped.log_bytes, dropped.segments) == (0, 0)
    dropped = dropped_with_segments(page)
    assert (dropped.log_bytes, dropped.segments) == (page.log_bytes, PAGE_SEGMENTS)
