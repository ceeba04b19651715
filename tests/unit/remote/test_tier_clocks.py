"""Wrong clocks delete no object early, and none that a manifest names."""

import uuid
from pathlib import Path

from tier_node import Clock, TierNode, produce

from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.remote import SPILL_TIMEOUT_MS
from tierlog.metadata.records import PageRef
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.memory_store import MemoryStore

GRACE_MS = 3_600_000
PAGE = uuid.UUID(int=77)


async def begin_page(node: TierNode, replica: Replica) -> PageRef:
    """Commits StartSpill, and puts a page of the two oldest entries, which is not yet committed."""
    oldest = node.remote(replica).entries[:2]
    started = await node.metadata.submit(
        c.StartSpill(
            topic_id=replica.topic_id,
            partition=0,
            leader_epoch=replica.leader_epoch,
            uuid=PAGE,
            base_offset=oldest[0].base_offset,
            last_offset=oldest[-1].last_offset,
        )
    )
    assert started.error == ErrorCode.NONE
    return await node.manager.write_page(node.where(replica), PAGE, oldest)


async def commit_page(node: TierNode, replica: Replica, page: PageRef) -> ErrorCode:
    command = c.SpillEntries(
        topic_id=replica.topic_id, partition=0, leader_epoch=replica.leader_epoch, page=page
    )
    return (await node.metadata.submit(command)).error


async def tiered(node: TierNode) -> Replica:
    replica = await node.create("t")
    produce(replica, 60)
    await node.log_manager.flush("t")
    return replica


async def test_cleaner_with_a_clock_ahead_deletes_no_page_that_is_committed_later(
    tmp_path: Path,
) -> None:
    ahead = Clock()
    ahead.wall_ms += 3 * GRACE_MS
    async with TierNode(tmp_path, MemoryStore(), grace_ms=GRACE_MS, cleaner_clock=ahead) as node:
        replica = await tiered(node)
        page = await begin_page(node, replica)
        await node.storage_cleaner.clean()
        assert await commit_page(node, replica, page) == ErrorCode.NONE
        await node.storage_cleaner.clean()
        assert node.keys.page(node.where(replica), page) in await node.objects()


async def test_page_whose_deletion_has_begun_is_never_committed(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=GRACE_MS) as node:
        replica = await tiered(node)
        page = await begin_page(node, replica)
        node.clock.pass_time(SPILL_TIMEOUT_MS + GRACE_MS)
        await node.storage_cleaner.clean()
        assert node.keys.page(node.where(replica), page) not in await node.objects()
        assert await commit_page(node, replica, page) == ErrorCode.INVALID_REQUEST
        assert not node.remote(replica).pages


async def test_wall_clock_jump_ends_no_grace(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=GRACE_MS) as node:
        replica = await tiered(node)
        everything = await node.objects()
        await node.move_log_start(replica, node.remote(replica).entries[1].end_offset)
        node.clock.wall_ms += 100 * GRACE_MS
        await node.storage_cleaner.clean()
        assert set(everything) <= set(await node.objects())
        node.clock.wall_ms -= 200 * GRACE_MS
        node.clock.pass_time(GRACE_MS)
        await node.storage_cleaner.clean()
        assert not node.metadata.image.delete_queue


async def test_objects_queued_with_a_clock_far_ahead_are_deleted(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=GRACE_MS) as node:
        replica = await tiered(node)
        node.clock.wall_ms += 1000 * GRACE_MS
        await node.move_log_start(replica, node.remote(replica).entries[1].end_offset)
        node.clock.wall_ms -= 1000 * GRACE_MS
        await node.storage_cleaner.clean()
        node.clock.pass_time(GRACE_MS)
        await node.storage_cleaner.clean()
        assert not node.metadata.image.delete_queue
