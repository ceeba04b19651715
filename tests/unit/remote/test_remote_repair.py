"""Remote repair: damaged objects whose records are still on the local disk are uploaded again, and the local
copy stays until then."""

from pathlib import Path
from typing import Any

import pytest
from faulty_store import FaultyStore
from tier_node import TierNode, content, flip_a_bit, produce

from tierlog.broker.remote.remote_repair import FIRST_RETRY_MS
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.records import RemoteSegment
from tierlog.records import chunks
from tierlog.tiering import planner, segment_index
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # a constant, not a collaborator: these small segments have several chunks
    for module in (chunks, segment_index):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    async with TierNode(tmp_path / "node", FaultyStore(LocalStore(tmp_path / "objects"))) as node:
        yield node


async def kept(node: TierNode) -> Replica:
    """A topic whose records are in both tiers."""
    replica = await node.create("t", local_retention_ms="-1")
    produce(replica, 60)
    await node.log_manager.flush("t")
    await node.finish_tiering()
    assert len(node.remote(replica).entries) > 4
    return replica


async def drop_locally(node: TierNode) -> None:
    await node.alter("t", {"local.retention.ms": "0"})
    await node.finish_tiering()


def path_of(node: TierNode, key: str) -> Path:
    path: Path = node.store.inner._path(key)
    return path


def flip(node: TierNode, key: str, at: int = 100) -> None:
    data = bytearray(path_of(node, key).read_bytes())
    data[at] ^= 0x10
    path_of(node, key).write_bytes(data)


async def find_damage(node: TierNode, replica: Replica, entry: RemoteSegment) -> None:
    with pytest.raises(ObjectStoreError):
        await node.remote_log.read(replica.id, entry.base_offset, 5000, min_one=True)
    assert node.remote_log.quarantine.objects == 1


async def remote_bytes(node: TierNode, replica: Replica) -> bytes:
    """Everything that the bucket has, by a broker with an empty cache."""
    log, offset, found = node.fresh_remote_log(), 0, b""
    while offset < (node.remote(replica).end_offset or 0):
        part = await log.read(replica.id, offset, 5000, min_one=True)
        offset, found = part.end_offset, found + content(part)
    return found


async def test_local_copy_of_a_damaged_range_stays_until_it_is_uploaded_again(node: TierNode) -> None:
    replica = await kept(node)
    before, entry = await remote_bytes(node, replica), node.remote(replica).entries[2]
    flip(node, node.keys.log(replica.id, entry))
    await find_damage(node, replica, entry)

    await drop_locally(node)
    assert replica.local_log_start_offset == entry.base_offset
    assert node.log_manager.droppable_end(replica) == entry.base_offset
    await node.remote_repair.repair_all()
    assert node.remote_repair.restored == 1
    restored = node.remote(replica).entries[2]
    assert restored.uuid != entry.uuid
    assert (restored.base_offset, restored.end_offset) == (entry.base_offset, entry.end_offset)
    assert restored.log_crc32c == entry.log_crc32c
    await node.finish_tiering()
    assert replica.local_log_start_offset == node.remote(replica).end_offset
    assert await remote_bytes(node, replica) == before
    assert node.remote_log.quarantine.due() == [] and node.remote_log.quarantine.objects == 0


async def test_damaged_chunk_is_taken_from_several_local_segments(node: TierNode) -> None:
    """The remote segments were merged, so no local segment has the same offsets."""
    replica = await kept(node)
    before, run = await remote_bytes(node, replica), node.remote(replica).entries[1:4]
    await node.merger.merge(replica, run)
    merged = node.remote(replica).entries[1]
    assert (merged.base_offset, merged.end_offset) == (run[0].base_offset, run[-1].end_offset)
    flip(node, node.keys.log(replica.id, merged), at=merged.log_bytes // 2)
    with pytest.raises(CorruptObject):
        await node.remote_log.read(replica.id, run[1].base_offset + run[1].records // 2, 5000, min_one=True)
    await node.remote_repair.repair_all()
    assert node.remote_repair.restored == 1
    await drop_locally(node)
    assert replica.local_log_start_offset == node.remote(replica).end_offset
    assert await remote_bytes(node, replica) == before


@pytest.mark.parametrize("is_missing", [False, True])
async def test_damaged_or_missing_index_is_built_again(node: TierNode, is_missing: bool) -> None:
    replica = await kept(node)
    before, entry = await remote_bytes(node, replica), node.remote(replica).entries[1]
    key = node.keys.index(replica.id, entry)
    if is_missing:
        path_of(node, key).unlink()
    else:
        flip(node, key)
    await find_damage(node, replica, entry)
    await node.remote_repair.repair_all()
    await drop_locally(node)
    assert replica.local_log_start_offset == node.remote(replica).end_offset
    assert await remote_bytes(node, replica) == before


async def test_range_without_an_intact_copy_stays_as_it_is(node: TierNode) -> None:
    replica = await kept(node)
    entry = node.remote(replica).entries[0]
    await drop_locally(node)
    path_of(node, node.keys.log(replica.id, entry)).unlink()
    await find_damage(node, replica, entry)
    objects, remote = await node.objects(), node.remote(replica)
    for _ in range(3):
        await node.remote_repair.repair_all()
        node.clock.pass_time(FIRST_RETRY_MS)
    assert node.remote_repair.restored == 0
    assert (await node.objects(), node.remote(replica)) == (objects, remote)


async def test_damaged_local_copy_does_not_replace_a_damaged_object(node: TierNode) -> None:
    replica = await kept(node)
    entry = node.remote(replica).entries[1]
    flip_a_bit(replica, entry.base_offset)
    flip(node, node.keys.log(replica.id, entry))
    await find_damage(node, replica, entry)
    await node.remote_repair.repair_all()
    await node.finish_tiering()
    assert node.remote_repair.restored == 0
    assert node.remote(replica).entries[1] == entry
    assert node.remote(replica).started == ()


async def test_follower_keeps_a_range_that_it_knows_to_be_damaged(node: TierNode) -> None:
    replica = await kept(node)
    entry = node.remote(replica).entries[2]
    flip(node, node.keys.log(replica.id, entry))
    await find_damage(node, replica, entry)
    damaged_from = node.remote_log.quarantine.damaged_from(replica.id, replica.local_log_start_offset)
    assert damaged_from == entry.base_offset
    policy, segments = planner.TierPolicy(local_retention_ms=0), replica.segments
    now_ms, remote = node.clock.now_ms(), node.remote(replica)
    start = planner.follower_local_start(remote, segments, policy, 0, now_ms, damaged_from)
    assert start == entry.base_offset
    assert node.remote_log.quarantine.damaged_from(replica.id, entry.end_offset) > entry.end_offset
