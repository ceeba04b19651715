"""Metric values of the remote tier."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changed_bucket import PAGE_SEGMENTS, manifest_check, spill, tiered, verifier
from faulty_store import FaultyStore
from prometheus_client.parser import text_string_to_metric_families
from tier_node import TierNode, produce

from tierlog.broker.gateway import tier_metrics
from tierlog.broker.gateway.exposition import PARTITIONS_PER_TURN, exposition, lazy_slices
from tierlog.broker.remote.bucket_scrubber import BucketScrubber
from tierlog.broker.remote.manifest_recovery import ManifestRecovery
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.remote import dropped_alone, dropped_with_segments
from tierlog.metadata.image import ClusterImage
from tierlog.tiering import remote_log
from tierlog.tiering.bucket_audit import BucketAuditor
from tierlog.tiering.manager import TierLimits
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.metered_store import StoreCounts
from tierlog.tiering.store_health import HealthyStore
from tierlog.tiering.tier_counts import RequestCounts


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=60_000) as node:
        yield node


def serving(node: TierNode) -> Any:
    return SimpleNamespace(
        clock=node.clock,
        tiering=node.log_manager,
        storage_cleaner=node.storage_cleaner,
        manifest_recovery=ManifestRecovery(1, node.metadata, node.manager, node.tasks),
        remote_repair=SimpleNamespace(restored=0),
    )


def complete_serving(node: TierNode) -> Any:
    """Also the parts of the tier that no other test here needs."""
    manifests = manifest_check(node)
    auditor = BucketAuditor(
        node.store, node.keys, node.remote_log, lambda: node.metadata.image, node.metadata.current
    )
    scrubber = BucketScrubber(
        NodeSettings(node_id=1), node.metadata, verifier(node), auditor, manifests, node.tasks, node.rng
    )
    healthy = HealthyStore(node.store, node.tasks)
    tier = SimpleNamespace(
        log=node.remote_log,
        cache=node.cache,
        manager=node.manager,
        store=healthy,
        store_counts=StoreCounts(),
        state_machine=SimpleNamespace(starts=RequestCounts()),
    )
    parts = {"remote": tier, "merger": node.merger, "bucket_scrubber": scrubber, "manifest_check": manifests}
    return SimpleNamespace(**vars(serving(node)), **parts)


async def scraped(serving: Any, image: ClusterImage) -> dict[str, float]:
    """The samples without labels, as Prometheus reads them."""
    text = (await exposition(tier_metrics.tier_families(serving, image))).decode()
    families = text_string_to_metric_families(text)
    return {one.name: one.value for family in families for one in family.samples if not one.labels}


async def test_upload_that_stalls_is_counted(tmp_path: Path) -> None:
    limits = TierLimits(stall_seconds=0, stall_seconds_per_mib=0)
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store, limits=limits) as node:
        one = complete_serving(node)
        replica = await node.create("t")
        before = await scraped(one, node.metadata.image)
        assert before["tierlog_remote_copy_stalls_total"] == 0
        assert before["kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent"] == 1
        store.arm("hold", 0, "put")
        produce(replica, 60)
        flush = asyncio.ensure_future(node.log_manager.flush("t"))
        await store.fired.wait()
        await asyncio.sleep(0)  # the alarm is due
        during = await scraped(one, node.metadata.image)
        assert during["tierlog_remote_copy_stalls_total"] == 1
        assert during["tierlog_remote_copies_running"] == 1
        assert during["kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent"] == 7 / 8
        store.gate.set()
        await flush


async def test_refused_readers_are_counted(node: TierNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_log, "READERS_MAX", 4)  # a constant, not a collaborator
    with node.remote_log.admit(3), node.remote_log.admit(6) as admitted:
        assert admitted == 1
        values = await scraped(complete_serving(node), node.metadata.image)
    assert values["tierlog_remote_readers"] == 4
    assert values["tierlog_remote_readers_refused_total"] == 5


async def test_topics_whose_copies_are_disabled_have_no_upload_lag(node: TierNode) -> None:
    for name, disabled in (("copied", "false"), ("kept", "true")):
        produce(await node.create(name, remote_log_copy_disable=disabled), 60)
    node.log_manager.wake_all()
    families = dict(tier_metrics._upload_lag(serving(node), node.metadata.image))
    for name, samples in families.items():
        if name and "remotecopylag" in name:
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
    assert delete_lags(node)["segments"] == {(): 0}  # the manifest has the page now
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
