"""Requests of `tier verify`, over a real directory store whose files change behind their back."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changed_bucket import PAGE_SEGMENTS, Store, path_of, spill, tiered, verifier
from tier_node import TierNode

from tierlog.broker.gateway import tier_checks
from tierlog.broker.gateway.tier_checks import VerifyRequest
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.records import RemoteSegment
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import ObjectNotFound, ObjectStoreError, ObjectStoreTimeout


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    async with TierNode(tmp_path / "node", Store(LocalStore(tmp_path / "objects"))) as node:
        yield node


def serving(node: TierNode) -> Any:
    return SimpleNamespace(remote=SimpleNamespace(verifier=verifier(node)))


async def verify(node: TierNode, replica: Replica, entry: RemoteSegment, position: int = 0) -> Any:
    wanted = VerifyRequest("t", 0, entry.base_offset, entry.uuid, position)
    return await tier_checks._verify(serving(node), node.where(replica), wanted)


async def test_unreadable_page_is_a_row_and_the_segments_behind_it_follow(node: TierNode) -> None:
    replica = await tiered(node)
    page = await spill(node, replica)
    path_of(node, page).unlink()
    rows = await tier_checks._segments(serving(node), node.where(replica), 0)
    assert page in rows[0]["error"] and rows[0]["base_offset"] == 0
    assert [row["base_offset"] for row in rows[1:]] == [row["end_offset"] for row in rows[:-1]]
    assert len(rows) == 1 + len(node.remote(replica).entries)


async def test_missing_page_during_a_run_is_an_error_and_not_a_deletion(node: TierNode) -> None:
    replica = await tiered(node)
    entry = node.remote(replica).entries[PAGE_SEGMENTS - 1]
    page = await spill(node, replica)
    path_of(node, page).unlink()
    found = await verify(node, replica, entry)
    assert found["position"] is None and page in found["errors"][0]


async def test_object_that_the_store_refuses_is_an_error(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    key = node.keys.log(node.where(replica), entry)
    node.store.failures[key] = ObjectStoreError("403 InvalidObjectState")
    found = await verify(node, replica, entry)
    assert found == {"position": None, "errors": ["403 InvalidObjectState"]}
    node.store.failures[key] = ObjectStoreTimeout("no response")
    with pytest.raises(ObjectStoreTimeout):
        await verify(node, replica, entry)


async def test_segment_that_left_the_manifest_is_not_found(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    await node.move_log_start(replica, entry.end_offset)
    with pytest.raises(ObjectNotFound):
        await verify(node, replica, entry)


async def test_missing_object_is_an_error_in_each_run(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    path_of(node, node.keys.index(node.where(replica), entry)).unlink()
    one = serving(node)
    wanted = VerifyRequest("t", 0, entry.base_offset, entry.uuid)
    for _ in range(2):  # the second one within the back-off
        found = await tier_checks._verify(one, node.where(replica), wanted)
        assert "is missing" in found["errors"][0]


async def test_damage_in_the_last_bytes_of_an_index_is_an_error(node: TierNode) -> None:
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    path = path_of(node, node.keys.index(node.where(replica), entry))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert (await verify(node, replica, entry))["errors"]


async def test_request_ends_in_time_and_says_where_to_continue(
    node: TierNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tierlog.records import chunks
    from tierlog.tiering import segment_index

    for module in (chunks, segment_index):  # constants, not collaborators
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(tier_checks, "VERIFY_S_PER_REQUEST", 0.0)
    replica = await tiered(node)
    [entry, *_] = node.remote(replica).entries
    position, positions = 0, []
    while position is not None:
        found = await verify(node, replica, entry, position)
        assert found["errors"] == []
        position = found["position"]
        positions.append(position)
    assert len(positions) > 2 and positions == [*sorted(positions[:-1]), None]
