"""Tiering that is switched off and on again (KIP-950): what is deleted, what stays, where copies continue."""

import asyncio
import random
import uuid
from pathlib import Path

import pytest
from awaited_image import image_when
from faulty_store import FaultyStore
from tier_node import START_MS, TIERED, TierNode, produce
from tier_pair import Pair, catch_up, opened_pair, send

from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.config.topic import TopicConfig
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.tiering.format.manifest import decode_root
from tierlog.tiering.memory_store import MemoryStore

OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
ON = {"remote.storage.enable": "true"}
LOCAL_PART = {"local_retention_ms": "-1", "local_retention_bytes": "8000"}


async def finish_jobs(*managers: RemoteLogManager) -> None:
    """Returns once no partition has anything left to do."""
    for manager in managers:
        manager.wake_all()
        while jobs := manager.jobs():
            await asyncio.wait(jobs)


async def data_objects(node: TierNode) -> set[str]:
    return {key for key in await node.objects() if "/data/" in key}


async def manifest_objects(node: TierNode, replica: Replica) -> set[str]:
    where, entries = node.where(replica), node.remote(replica).entries
    return {key for one in entries for key in (node.keys.log(where, one), node.keys.index(where, one))}


async def delete_due(node: TierNode) -> None:
    while node.metadata.image.delete_queue:
        await node.storage_cleaner.clean()


async def records(node: TierNode, replica: Replica, start: int) -> dict[int, bytes]:
    """The batches from an offset up to the high watermark, as consumers get them, by base offset."""
    found: dict[int, bytes] = {}
    while start < replica.high_watermark:
        data = await node.fetch(replica, start)
        for at, header in iter_batches(data):
            found[header.base_offset] = data[at : at + header.size]
            start = header.next_offset
    return found


async def tiered_log(node: TierNode, **settings: str) -> Replica:
    """A log whose beginning is only remote, its middle in both tiers, and its end only local."""
    replica = await node.create("t", **{**LOCAL_PART, **settings})
    produce(replica, 60)
    await finish_jobs(node.log_manager)
    end = node.remote(replica).end_offset
    assert end is not None and 0 < replica.local_log_start_offset < end < replica.log_end_offset
    return replica


async def test_switching_off_deletes_what_is_remote_and_keeps_what_is_local(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=1000) as node:
        replica = await tiered_log(node)
        start, objects = replica.local_log_start_offset, await data_objects(node)
        before = await records(node, replica, start)
        assert await node.alter("t", OFF) == ErrorCode.NONE
        await finish_jobs(node.log_manager)
        assert node.remote(replica).log_start_offset == replica.log_start_offset == start
        assert replica.local_log_start_offset == start
        assert replica.read(start - 1, 1).error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await records(node, replica, start) == before
        root = decode_root(await node.store.get(node.keys.root(node.where(replica))))
        assert (root.entries, root.pages, root.log_start_offset) == ((), (), start)
        assert await node.log_manager.status("t") == []
        await node.storage_cleaner.clean()
        assert await data_objects(node) == objects, "reads may be under way"
        node.clock.pass_time(1001)
        await delete_due(node)
        assert not await data_objects(node)


async def test_log_that_is_local_from_its_start_loses_no_record(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", local_retention_ms="-1")
        produce(replica, 60)
        await finish_jobs(node.log_manager)
        before = await records(node, replica, 0)
        for settings in (OFF, ON, OFF, ON):
            await node.alter("t", settings)
            await finish_jobs(node.log_manager)
            root = decode_root(await node.store.get(node.keys.root(node.where(replica))))
            assert root.entries == node.remote(replica).entries
        await delete_due(node)
        assert await data_objects(node) == await manifest_objects(node, replica) != set()
        await node.alter("t", {"local.retention.ms": "0"})
        await finish_jobs(node.log_manager)
        assert replica.local_log_start_offset == node.remote(replica).end_offset
        assert await records(node, replica, 0) == before


@pytest.mark.parametrize("how", ["nothing", "DeleteRecords", "retention"])
async def test_copies_continue_at_the_local_log_start_after_tiering_is_on_again(
    tmp_path: Path, how: str
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiered_log(node)
        was_remote = node.remote(replica).end_offset or 0
        await node.alter("t", OFF)
        await finish_jobs(node.log_manager)
        produce(replica, 60)
        if how == "DeleteRecords":
            await node.move_log_start(replica, was_remote + 7)
        if how == "retention":
            await node.alter("t", {"retention.bytes": "12000"})
        await finish_jobs(node.log_manager)
        start = replica.log_start_offset
        assert node.remote(replica).log_start_offset == start
        assert start > was_remote or how == "nothing"
        before = await records(node, replica, start)
        await node.alter("t", {**ON, "retention.bytes": "-1", "local.retention.ms": "0"})
        await node.log_manager.flush("t")
        await finish_jobs(node.log_manager)
        remote = node.remote(replica)
        assert remote.first_offset is not None and remote.first_offset <= start
        assert remote.end_offset == replica.local_log_start_offset == replica.log_end_offset
        assert await records(node, replica, start) == before
        await delete_due(node)
        assert await data_objects(node) == await manifest_objects(node, replica)


async def test_log_start_that_an_earlier_version_moved_is_committed(tmp_path: Path) -> None:
    """Until then, retention of a topic that was switched off moved only the log start of the replica."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", local_retention_ms="-1")
        produce(replica, 30)
        await finish_jobs(node.log_manager)
        off = {**TIERED, "remote.storage.enable": "false", "retention.bytes": "9000"}
        replica.update_config(TopicConfig.parse(off))
        replica.log.has_been_tiered = False
        await finish_jobs(node.log_manager)
        produce(replica, 60)
        assert replica.apply_retention(node.clock.now_ms()) > 0
        start = replica.log_start_offset
        assert start > (node.remote(replica).end_offset or 0)
        replica.update_config(TopicConfig.parse(TIERED))
        await node.log_manager.flush("t")
        assert node.remote(replica).log_start_offset == node.remote(replica).first_offset == start
        assert node.remote(replica).end_offset == replica.log_end_offset
        await delete_due(node)
        assert await data_objects(node) == await manifest_objects(node, replica)


async def test_upload_under_way_when_tiering_is_switched_off_leaves_no_object(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        store.arm("hold", 1, "put")
        produce(replica, 60)
        await store.fired.wait()
        await node.alter("t", OFF)
        store.gate.set()
        await finish_jobs(node.log_manager)
        assert node.remote(replica).first_offset is None and not node.remote(replica).started
        assert len(await records(node, replica, 0)) == 60
        await delete_due(node)
        assert not await data_objects(node)


async def test_tiering_is_switched_off_while_the_store_is_unavailable(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await tiered_log(node)
        start = replica.local_log_start_offset
        store.down = True
        await node.alter("t", OFF)
        await image_when(
            node.metadata,
            lambda image: image.remote_partition(*node.where(replica)).log_start_offset == start,
        )
        store.down = False
        await finish_jobs(node.log_manager)
        assert replica.log_start_offset == start
        await delete_due(node)
        assert not await data_objects(node)


async def test_read_only_tier_stays_readable_and_expires(tmp_path: Path) -> None:
    store = MemoryStore()
    async with TierNode(tmp_path, store) as node:
        replica = await tiered_log(node)
        assert await node.alter("t", {"remote.storage.enable": "false"}) == ErrorCode.INVALID_CONFIG
        assert await node.alter("t", {"remote.log.copy.disable": "true"}) == ErrorCode.NONE
        before = await records(node, replica, 0)
    async with TierNode(tmp_path, store) as node:
        (replica,) = node
        assert await records(node, replica, 0) == before
        await node.alter("t", {"retention.bytes": "15000"})
        await finish_jobs(node.log_manager)
        start = node.remote(replica).entries[0].base_offset
        assert 0 < start == replica.log_start_offset < replica.local_log_start_offset
        local = {"local.retention.bytes": "1", "local.retention.ms": "1"}
        assert await node.alter("t", {"retention.ms": "1", **local}) == ErrorCode.NONE
        await finish_jobs(node.log_manager)
        assert node.remote(replica).first_offset is None
        await delete_due(node)
        assert not await data_objects(node)


async def test_flush_of_a_topic_that_was_switched_off_is_refused(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await tiered_log(node)
        await node.alter("t", OFF)
        with pytest.raises(TierRefused, match=r"remote\.storage\.enable=true"):
            await node.log_manager.flush("t")


# -- with a follower


def leader(pair: Pair) -> Replica:
    return pair.leader if pair.leader.is_leader else pair.follower


def follower(pair: Pair) -> Replica:
    return pair.follower if pair.leader.is_leader else pair.leader


async def follower_with_less(pair: Pair) -> int:
    """The follower has deleted what is remote from its disk, and the leader has not. Returns the follower's
    local log start."""
    pair.produce(60)
    catch_up(pair.follower, pair.leader)
    await pair.finish_tiering()
    assert pair.leader.local_log_start_offset == 0
    config = pair.follower.config
    pair.follower.update_config(TopicConfig.parse(TIERED))
    await pair.other.log_manager.apply_followers_retention()
    pair.follower.update_config(config)
    start = pair.follower.local_log_start_offset
    assert start > 0
    return start


async def test_followers_delete_only_what_is_below_the_log_start_once_tiering_is_off(tmp_path: Path) -> None:
    async with opened_pair(tmp_path, MemoryStore(), **LOCAL_PART) as pair:
        pair.produce(60)
        catch_up(pair.follower, pair.leader)
        await pair.finish_tiering()
        start = pair.leader.local_log_start_offset
        assert start > 0
        await pair.node.alter("t", {**OFF, "local.retention.bytes": "1"})
        await pair.finish_tiering()
        await pair.other.log_manager.apply_followers_retention()
        assert pair.follower.local_log_start_offset == 0, "it does not know the log start yet"
        catch_up(pair.follower, pair.leader)
        await pair.other.log_manager.apply_followers_retention()
        assert pair.follower.log_start_offset == pair.follower.local_log_start_offset == start
        await pair.elect(2)
        await pair.finish_tiering()
        before = await records(pair.node, pair.leader, start)
        assert await records(pair.node, pair.follower, start) == before


async def test_leader_with_less_on_disk_moves_the_log_start_once_tiering_is_off(tmp_path: Path) -> None:
    async with opened_pair(tmp_path, MemoryStore(), local_retention_ms="-1") as pair:
        start = await follower_with_less(pair)
        await pair.node.alter("t", OFF)
        await pair.finish_tiering()
        assert (pair.remote.log_start_offset, pair.remote.first_offset) == (0, None)
        catch_up(pair.follower, pair.leader)
        await pair.elect(2)
        await pair.finish_tiering()
        assert pair.remote.log_start_offset == pair.follower.log_start_offset == start
        assert pair.follower.read(start - 1, 1).error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert min(await records(pair.node, pair.follower, start)) == start


async def test_leader_with_less_on_disk_than_is_remote_uploads_nothing(tmp_path: Path) -> None:
    """It is not known whether the other replica, which has the records, comes back."""
    async with opened_pair(tmp_path, MemoryStore(), local_retention_ms="-1") as pair:
        start = await follower_with_less(pair)
        before = await records(pair.node, pair.leader, 0)
        await pair.node.alter("t", OFF)
        await pair.finish_tiering()
        await pair.node.alter("t", {**ON, "remote.log.copy.disable": "true"})
        catch_up(pair.follower, pair.leader)
        await pair.elect(2)
        await pair.node.alter("t", {"remote.log.copy.disable": "false"})
        await pair.finish_tiering()
        (status,) = await pair.other.log_manager.status("t")
        assert f"elect a replica that has the offsets between, or delete the records before {start}" in (
            status.last_error or ""
        )
        assert (pair.remote.log_start_offset, pair.remote.first_offset) == (0, None)
        catch_up(pair.leader, pair.follower)
        await pair.elect(1)
        await pair.finish_tiering()
        assert (pair.remote.first_offset, pair.remote.end_offset) == (0, pair.leader.log.active_base_offset)
        catch_up(pair.follower, pair.leader)
        await pair.elect(2)
        await pair.finish_tiering()
        assert await records(pair.node, pair.follower, 0) == before


async def test_deposed_leader_keeps_local_data_that_its_successor_deleted_remotely(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with opened_pair(tmp_path, store, local_retention_ms="-1") as pair:
        pair.produce(8)
        pair.leader.log.roll(START_MS)
        await pair.finish_tiering()
        pair.produce(8)
        catch_up(pair.follower, pair.leader)
        store.arm("hold", 2, "put")  # the manifest root, after the log and its index
        pair.leader.log.roll(START_MS)
        pair.node.log_manager.wake_all()
        await store.fired.wait()
        assert pair.remote.end_offset == 80
        await pair.elect(2)
        await pair.node.alter("t", {**OFF, "local.retention.ms": "0"})
        await finish_jobs(pair.other.log_manager)
        await pair.node.alter("t", {**ON, "remote.log.copy.disable": "true"})
        store.gate.set()
        await pair.finish_tiering()
        assert pair.leader.local_log_start_offset == 0
        assert (pair.remote.log_start_offset, pair.remote.first_offset) == (0, None)


STEPS = ("produce", "produce", "finish tiering", "switch", "switch", "elect", "delete local", "restart")


@pytest.mark.parametrize("seed", range(10))
async def test_no_order_of_events_loses_a_record_that_was_never_copied(tmp_path: Path, seed: int) -> None:
    """Switching off may delete only what is remote at that time."""
    rng, written = random.Random(seed), dict[int, bytes]()
    local = rng.choice([{}, LOCAL_PART, {"local_retention_ms": "-1"}])
    async with opened_pair(tmp_path, MemoryStore(), **local) as pair:
        node, is_on, deletable_end, sequence = pair.node, True, 0, 0
        for _ in range(25):
            match rng.choice(STEPS):
                case "produce":
                    for _ in range(rng.randint(1, 30)):
                        assert send(leader(pair), sequence).error == ErrorCode.NONE
                        sequence += 5
                case "finish tiering":
                    await pair.finish_tiering()
                case "switch":
                    if is_on:
                        deletable_end = leader(pair).log.active_base_offset  # at most this is remote
                    is_on = not is_on
                    await node.alter("t", ON if is_on else OFF)
                case "elect":
                    await elect_other(pair)
                case "delete local":
                    await node.log_manager.apply_followers_retention()
                    await pair.other.log_manager.apply_followers_retention()
                case "restart" if pair.leader.is_leader:
                    pair.follower.close(clean=False)
                    pair.follower = pair.other.open(pair.leader)
            catch_up(follower(pair), leader(pair))
            assert leader(pair).log_start_offset <= deletable_end
            found = await records(node, leader(pair), deletable_end)
            assert found.items() >= {at: data for at, data in written.items() if at >= deletable_end}.items()
            written |= found
        await node.alter("t", ON)
        await pair.finish_tiering()
        for _ in range(2):
            await elect_other(pair)
            await pair.finish_tiering()
        last, remote = leader(pair), pair.remote
        assert (remote.end_offset or remote.copied_end_offset or 0) == last.log.active_base_offset
        kept = await records(node, last, last.log_start_offset)
        assert kept == {at: data for at, data in written.items() if at >= min(kept)}
        await pair.fence(1, False)  # it is the storage cleaner
        await delete_due(node)
        assert await data_objects(node) == await manifest_objects(node, last)


async def elect_other(pair: Pair) -> None:
    catch_up(follower(pair), leader(pair))
    await pair.elect(2 if pair.leader.is_leader else 1)


async def test_store_is_not_needed_once_nothing_is_remote(tmp_path: Path) -> None:
    """An operator may remove the bucket then."""
    async with TierNode(tmp_path, FaultyStore(MemoryStore())) as node:
        replica = await tiered_log(node)
        await node.alter("t", OFF)
        await finish_jobs(node.log_manager)
        await delete_due(node)
        node.store.down = True
        node.manager.forget(node.where(replica))  # as after a restart
        await finish_jobs(node.log_manager)


async def test_damaged_page_of_before_does_not_delete_what_was_uploaded_since(tmp_path: Path) -> None:
    """Tiering off and on uploads the same offsets again, and only a damaged page's range is known."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await tiered_log(node)
        where, entries = node.where(replica), node.remote(replica).entries
        page = await node.manager.write_page(where, uuid.UUID(int=5), entries[:2])
        await node.store.put(node.keys.page(where, page), b"damaged")
        line = QueuedDelete(
            uuid=page.uuid,
            is_page=True,
            topic_id=where.topic_id,
            partition=where.partition,
            base_offset=page.base_offset,
            last_offset=page.last_offset,
            leader_epoch=-1,
            queued_ms=0,
        )
        listed = await manifest_objects(node, replica)
        await node.manager.delete([line], lambda _: entries[0].end_offset)
        gone = {node.keys.log(where, entries[0]), node.keys.index(where, entries[0])}
        assert await data_objects(node) == listed - gone


async def test_flush_ends_if_tiering_is_switched_off_meanwhile(tmp_path: Path) -> None:
    async with TierNode(tmp_path, FaultyStore(MemoryStore())) as node:
        await tiered_log(node)
        node.store.down = True
        flush = asyncio.ensure_future(node.log_manager.flush("t"))
        await asyncio.sleep(0)
        assert not flush.done()
        assert await node.alter("t", OFF) == ErrorCode.NONE
        with pytest.raises(TierRefused, match=r"remote\.storage\.enable is false"):
            await flush
