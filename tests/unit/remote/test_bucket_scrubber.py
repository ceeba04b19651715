"""Bucket scrubber and remote verifier, over a real directory store whose files change behind their back."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changed_bucket import PAGE_SEGMENTS, Store, key_of, manifest_check, path_of, spill, tiered, verifier
from connection_harness import until
from tier_node import TierNode

from tierlog.broker.remote import bucket_scrubber
from tierlog.broker.remote.bucket_scrubber import TRIES, BucketScrubber
from tierlog.config.node import NodeSettings
from tierlog.tiering.bucket_audit import BucketAuditor
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import (
    CorruptObject,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreUnavailable,
)
from tierlog.tiering.verifier import UnreadablePage

SETTINGS = NodeSettings(node_id=1, remote_log_scrub_max_requests_per_second=1_000_000)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bucket_scrubber, "RETRY_S", 0.001)  # a constant, not a collaborator
    async with TierNode(tmp_path / "node", Store(LocalStore(tmp_path / "objects"))) as node:
        yield node


def scrubber(node: TierNode, settings: NodeSettings = SETTINGS) -> BucketScrubber:
    image = lambda: node.metadata.image  # noqa: E731
    auditor = BucketAuditor(node.store, node.keys, node.remote_log, image, node.metadata.current)
    manifests = manifest_check(node)
    return BucketScrubber(settings, node.metadata, verifier(node), auditor, manifests, node.tasks, node.rng)


async def test_segment_that_cannot_be_checked_is_counted_and_passed_over(node: TierNode) -> None:
    replica = await tiered(node)
    segments = len(node.remote(replica).entries)
    node.store.failures[key_of(node, replica, 0)] = ObjectStoreError("403 InvalidObjectState")
    path_of(node, key_of(node, replica, 1)).unlink()
    one = scrubber(node)
    await one.scrub_all()
    assert (one.unchecked, one.damaged, one.segments) == (1, 1, segments - 1)
    assert one.progress == 1.0


async def test_pass_that_is_requested_between_two_turns_begins(node: TierNode) -> None:
    one = scrubber(node, replace(SETTINGS, remote_log_scrub_interval_ms=0))
    one.begin()
    one.start()
    async with asyncio.timeout(10):
        await until(lambda: one.passes == 1)


async def test_segment_whose_check_always_fails_does_not_end_the_pass(node: TierNode) -> None:
    replica = await tiered(node)
    node.store.failures[key_of(node, replica, 0)] = ObjectStoreUnavailable("500")
    one = scrubber(node)
    await one.scrub_all()
    assert (one.unchecked, one.damaged) == (1, 0)
    assert one.segments == len(node.remote(replica).entries) - 1


async def test_store_that_responds_again_is_scrubbed_completely(node: TierNode) -> None:
    replica = await tiered(node)
    key, tries = key_of(node, replica, 1), iter(range(TRIES - 2))

    class Recovers(dict[str, ObjectStoreError]):
        def __contains__(self, key_of_call: object) -> bool:
            return key_of_call == key and next(tries, None) is not None

    node.store.failures = Recovers({key: ObjectStoreUnavailable("503")})
    one = scrubber(node)
    await one.scrub_all()
    assert (one.unchecked, one.damaged) == (0, 0)
    assert one.segments == len(node.remote(replica).entries)


async def test_segments_behind_an_unreadable_page_are_checked(node: TierNode) -> None:
    replica = await tiered(node)
    first, second, third = [await spill(node, replica) for _ in range(3)]
    path_of(node, first).unlink()
    node.store.failures[second] = ObjectStoreError("403 AccessDenied")
    found = [entry async for entry in verifier(node).entries(node.where(replica))]
    assert [type(entry) is UnreadablePage for entry in found[:3]] == [True, True, False]
    assert [one.is_damaged for one in found[:2] if isinstance(one, UnreadablePage)] == [True, False]
    assert [one.base_offset for one in found] == [0, *(one.end_offset for one in found[:-1])]
    one = scrubber(node)
    await one.scrub_all()
    assert (one.damaged, one.unchecked) == (1, 1)
    assert one.segments == PAGE_SEGMENTS + len(node.remote(replica).entries)
    assert third in await node.objects()


async def test_page_that_retention_deletes_during_a_pass_is_no_damage(node: TierNode) -> None:
    replica = await tiered(node)
    keys = [await spill(node, replica) for _ in range(2)]
    end = node.remote(replica).entries[0].base_offset
    entries = verifier(node).entries(node.where(replica))
    first = await anext(entries)
    path_of(node, keys[1]).unlink()
    await node.move_log_start(replica, end)
    found = [first, *[entry async for entry in entries]]
    assert not any(isinstance(entry, UnreadablePage) for entry in found)
    assert found[-1].end_offset == replica.log_end_offset


async def test_missing_object_is_quarantined_as_missing(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    one, where = verifier(node), node.where(replica)
    path_of(node, node.keys.log(where, entry)).unlink()
    for _ in range(2):  # also within the back-off
        with pytest.raises(CorruptObject, match="is missing"):
            await one.check_objects(where, entry)
    quarantine = one._log.quarantine
    assert (quarantine.missing_objects, quarantine.damaged_reads) == (1, 0)


async def test_segment_that_retention_deleted_is_no_damage(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    await node.move_log_start(replica, entry.end_offset)
    path_of(node, node.keys.log(node.where(replica), entry)).unlink(missing_ok=True)
    one = verifier(node)
    with pytest.raises(ObjectNotFound):
        await one.check_objects(node.where(replica), entry)
    assert one._log.quarantine.objects == 0


async def test_check_reads_at_once_what_is_in_quarantine(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    one, where = verifier(node), node.where(replica)
    path = path_of(node, node.keys.log(where, entry))
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptObject):
        await one.check_objects(where, entry)
    path.write_bytes(data)
    one.recheck_now(where, entry)
    await one.check_objects(where, entry)
    assert one._log.quarantine.objects == 0


async def test_index_is_read_completely(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    where = node.where(replica)
    path = path_of(node, node.keys.index(where, entry))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptObject):
        await verifier(node).check_index(where, entry)


async def test_findings_of_a_former_leader_and_auditor_are_dropped(node: TierNode) -> None:
    replica = await tiered(node)
    path_of(node, key_of(node, replica, 0)).unlink()
    one = scrubber(node)
    await one.scrub_all()
    assert one.damaged == 1 and one.audit.objects.total() > 0
    one.configure(NodeSettings(node_id=2))  # as if another broker led, and had the lowest id
    assert one.damaged == 0 and one.audit.objects.total() == 0


async def test_pass_that_fails_is_over(node: TierNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await tiered(node)
    one = scrubber(node)
    monkeypatch.setattr(one, "_scrub_partition", None)
    with pytest.raises(TypeError):
        await one.scrub_all()
    assert one.progress == 1.0


async def test_pass_finds_roots_and_documents_and_the_next_one_finds_them_right(node: TierNode) -> None:
    replica = await tiered(node)
    await node.storage_cleaner.clean()
    keys = [node.keys.root(node.where(replica)), node.keys.topic(replica.topic_id)]
    for key in keys:
        path_of(node, key).unlink()
    one = scrubber(node)
    await one.scrub_all()
    assert [(fault.object, fault.fault) for fault in one.manifest_faults] == [
        (key, "missing") for key in keys
    ]
    assert one.audit.objects["unknown"] == 0
    await node.finish_tiering()
    await node.storage_cleaner.clean()
    await one.scrub_all()
    assert one.manifest_faults == []


async def test_root_that_the_store_refuses_is_counted_and_passed_over(node: TierNode) -> None:
    replica = await tiered(node)
    node.store.failures[node.keys.root(node.where(replica))] = ObjectStoreError("403 AccessDenied")
    one = scrubber(node)
    await one.scrub_all()
    assert (one.unchecked, one.manifest_faults) == (1, [])
    assert one.segments == len(node.remote(replica).entries)


@pytest.mark.parametrize("limit", ["requests", "bytes"])
async def test_pass_keeps_to_its_rates(node: TierNode, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Its pauses, with the time of its own requests, are as long as the rate demands."""
    replica = await tiered(node)
    rates = {
        "requests": {"remote_log_scrub_max_requests_per_second": 2},
        "bytes": {"remote_log_scrub_max_bytes_per_second": 1000},
    }[limit]
    one, slept, real, clock = scrubber(node, replace(SETTINGS, **rates)), [0.0], asyncio.sleep, time.monotonic

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    began = clock()
    await one.scrub_all()
    passed = sum(slept) + clock() - began
    segments = len(node.remote(replica).entries)
    assert one.segments == segments and one.bytes_read > 20_000
    least = {"requests": (1 + 4 * segments) / 2, "bytes": one.bytes_read / 1000}[limit]
    assert least <= passed <= 2 * least
