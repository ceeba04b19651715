"""Objects that a snapshot holds stay until its lease ends, and its roots list the same records."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from immutables import Map
from msgspec.structs import replace
from tier_node import TierNode, produce

from tierlog.base.types import TopicPartition
from tierlog.broker.remote import remote_storage_cleaner
from tierlog.broker.remote.remote_storage_cleaner import ROOTS_AT_ONCE
from tierlog.broker.remote.tier_snapshots import held_bytes
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.tiering.format.manifest import TopicDocument, decode_root
from tierlog.tiering.format.snapshots import Lease
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.snapshots import SnapshotEnded, SnapshotError, SnapshotNotFound

LEASE_MS = 600_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[TierNode]:
    async with TierNode(tmp_path, MemoryStore()) as node:
        yield node


async def tiered(node: TierNode) -> Replica:
    replica = await node.create("t")
    produce(replica, 60)
    await node.log_manager.flush("t")
    await node.storage_cleaner.clean()  # describes the topic
    return replica


async def take(
    node: TierNode, name: str | None = "s", lease_ms: int = LEASE_MS, number: int = 1, created_ms: int = 0
) -> Lease:
    topics = (await node.manager.described_topics())[0]
    return await node.manager.snapshots.create(
        uuid.UUID(int=number), list(topics.values()), lease_ms, created_ms, name
    )


async def delete_first_segments(node: TierNode, replica: Replica) -> set[str]:
    """Delete the records of two segments. Returns the keys of their objects."""
    entries = node.remote(replica).entries[:2]
    await node.move_log_start(replica, entries[1].end_offset)
    await node.finish_tiering()
    where = node.where(replica)
    return {key for one in entries for key in (node.keys.log(where, one), node.keys.index(where, one))}


async def mark_all(node: TierNode) -> None:
    await node.metadata.submit(
        c.StartRemoteDeletes(grace_ms=0, uuids=tuple(node.metadata.image.delete_queue))
    )


async def clean_after(node: TierNode, ms: int) -> None:
    node.clock.pass_time(ms)
    for _ in range(4):
        await node.storage_cleaner.clean()


async def test_held_objects_stay_and_go_after_the_lease(node: TierNode) -> None:
    replica = await tiered(node)
    await take(node)
    gone = await delete_first_segments(node, replica)
    await clean_after(node, 60_000)  # sees the snapshot
    await clean_after(node, LEASE_MS // 2)
    assert gone <= set(await node.objects())
    await clean_after(node, LEASE_MS // 2 - 1000)
    assert gone <= set(await node.objects())
    await clean_after(node, 61_000)
    await clean_after(node, 60_000)
    assert not gone & set(await node.objects())
    with pytest.raises(SnapshotEnded, match="has ended"):
        await node.manager.snapshots.find("s")
    left = [key for key in await node.objects() if "/snapshots/" in key]
    assert left == [node.keys.snapshot_name("s")]


async def test_renewed_lease_holds(node: TierNode) -> None:
    replica = await tiered(node)
    lease = await take(node)
    gone = await delete_first_segments(node, replica)
    await clean_after(node, 60_000)
    for _ in range(5):
        await clean_after(node, LEASE_MS - 60_000)
        assert gone <= set(await node.objects())
        assert (await node.manager.snapshots.renew(lease.id)).watched_ms == 0


async def test_new_cleaner_continues_with_the_time_that_the_last_one_noted(node: TierNode) -> None:
    replica = await tiered(node)
    await take(node)
    gone = await delete_first_segments(node, replica)
    for _ in range(8):
        node.storage_cleaner.snapshots.forget()
        await clean_after(node, 0)
        await clean_after(node, LEASE_MS // 4)
    assert not gone & set(await node.objects())


async def test_lease_ends_although_nothing_is_deleted(node: TierNode) -> None:
    await tiered(node)
    await take(node, name=None)
    await clean_after(node, 60_000)
    await clean_after(node, LEASE_MS)
    await clean_after(node, 60_000)
    assert not [key for key in await node.objects() if "/snapshots/" in key]


async def test_renewal_wins_against_the_end_or_fails(node: TierNode) -> None:
    await tiered(node)
    lease = await take(node)
    await clean_after(node, 60_000)
    node.clock.pass_time(LEASE_MS)
    snapshots = node.manager.snapshots
    write = snapshots.write

    async def renewed_before(noted: Lease, etag: str) -> bool:
        if noted.is_ended:
            snapshots.write = write  # type: ignore[method-assign]
            await write(replace(noted.renewed(), is_ended=False), etag)
        return await write(noted, etag)

    snapshots.write = renewed_before  # type: ignore[method-assign]
    await node.storage_cleaner.clean()
    assert await snapshots.find("s")
    await snapshots.end("s")
    with pytest.raises(SnapshotEnded):
        await snapshots.renew(lease.id)


async def test_objects_of_a_deleted_topic_stay_while_a_snapshot_holds_them(node: TierNode) -> None:
    replica = await tiered(node)
    lease = await take(node)
    where = node.where(replica)
    root = decode_root(await node.store.get(node.keys.root(where)))
    await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    await node.finish_tiering()
    await clean_after(node, 60_000)
    objects = set(await node.objects())
    assert {node.keys.log(where, entry) for entry in root.entries} <= objects
    assert node.keys.root(where) not in objects
    copied = await node.manager.snapshots.root(lease, where)
    assert copied.entries == root.entries
    await node.manager.snapshots.end("s")
    await clean_after(node, 60_000)
    await clean_after(node, 60_000)
    assert not [key for key in await node.objects() if "/data/" in key]


async def test_description_that_comes_back_late_is_removed_before_the_data(node: TierNode) -> None:
    replica = await tiered(node)
    key = node.keys.topic(replica.topic_id)
    description = await node.store.get(key)
    await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    await node.finish_tiering()
    await node.storage_cleaner._describe(node.metadata.image, {})
    await node.store.put(key, description)
    for _ in range(3):
        await clean_after(node, 60_000)
    assert not [key for key in await node.objects() if "/data/" in key or "/topics/" in key]


async def test_snapshots_are_read_only_after_no_root_lists_the_objects(node: TierNode) -> None:
    """A reader that takes a snapshot with an old root is seen, or finds a newer root."""
    replica = await tiered(node)
    where = node.where(replica)
    key = node.keys.root(where)
    old = await node.store.get(key)
    gone = await delete_first_segments(node, replica)
    await node.store.put(key, old)  # as if the leader had not written it yet
    node.manager.forget(where)
    seen: list[bool] = []
    look = node.storage_cleaner.snapshots.look

    async def checked() -> None:
        listed = decode_root(await node.store.get(key)).entries
        seen.append(not gone & {node.keys.log(where, one) for one in listed})
        await look()

    node.storage_cleaner.snapshots.look = checked  # type: ignore[method-assign]
    await clean_after(node, 60_000)
    assert seen[-1]
    assert not gone & set(await node.objects())


async def test_root_of_a_manifest_that_the_quorum_has_not_read_is_not_replaced(node: TierNode) -> None:
    """After a recovery of the quorum, the bucket may know more than the image."""
    replica = await tiered(node)
    where = node.where(replica)
    root = await node.store.get(node.keys.root(where))
    await delete_first_segments(node, replica)
    await mark_all(node)
    await node.store.put(node.keys.root(where), root)
    image = replace(node.metadata.image, unread_manifests=Map({where: 0}))
    [line, *_] = [image.delete_queue[uuid] for uuid in image.deleting]
    cleaner = node.storage_cleaner
    assert not await cleaner._without_listed(image, [line])
    assert await node.store.get(node.keys.root(where)) == root
    assert await cleaner._without_listed(node.metadata.image, [line]) == []
    cleaner._waiting.clear()
    assert await cleaner._without_listed(node.metadata.image, [line]) == [line]


async def test_lease_that_cannot_be_read_stops_deletions(node: TierNode) -> None:
    replica = await tiered(node)
    lease = await take(node)
    await node.store.put(node.keys.snapshot_lease(lease.id), b"damaged")
    gone = await delete_first_segments(node, replica)
    node.clock.pass_time(60_000)
    with pytest.raises(ObjectStoreError, match=str(lease.id)):
        await node.storage_cleaner.clean()
    assert gone <= set(await node.objects())
    await node.manager.snapshots.end(str(lease.id))
    await clean_after(node, 60_000)
    assert not gone & set(await node.objects())


@pytest.mark.parametrize("name", ["", "x.tmp", f"{uuid.UUID(int=1)}.json.bak", f"{uuid.UUID(int=1)}"])
async def test_objects_that_are_no_leases_stop_nothing(node: TierNode, name: str) -> None:
    """Some tools put an object for each folder."""
    replica = await tiered(node)
    await node.store.put(node.keys.snapshot_leases() + name, b"")
    gone = await delete_first_segments(node, replica)
    await clean_after(node, 60_000)
    assert not gone & set(await node.objects())


async def test_lease_with_the_key_of_another_is_named_and_can_be_ended(node: TierNode) -> None:
    replica = await tiered(node)
    lease, copied = await take(node), uuid.UUID(int=7)
    data = await node.store.get(node.keys.snapshot_lease(lease.id))
    await node.store.put(node.keys.snapshot_lease(copied), data)
    gone = await delete_first_segments(node, replica)
    node.clock.pass_time(60_000)
    with pytest.raises(ObjectStoreError, match=f"tierlog tier snapshots end {copied}"):
        await node.storage_cleaner.clean()
    await node.manager.snapshots.end(str(copied))
    await node.manager.snapshots.end(str(lease.id))
    await clean_after(node, 60_000)
    assert not gone & set(await node.objects())


async def test_end_of_an_unknown_id_is_refused(node: TierNode) -> None:
    with pytest.raises(SnapshotNotFound):
        await node.manager.snapshots.end(str(uuid.UUID(int=1)))


async def test_failed_creation_leaves_nothing(node: TierNode, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await node.create("t", partitions=20)
    produce(replica, 60)
    await node.log_manager.flush("t")
    await node.storage_cleaner.clean()
    get, failing = node.store.get, node.keys.root(node.where(replica)._replace(partition=7))

    async def fail_once(key: str) -> bytes:
        if key == failing:
            raise ObjectStoreError("503 Slow Down")
        return await get(key)

    monkeypatch.setattr(node.store, "get", fail_once)
    with pytest.raises(ObjectStoreError, match="503"):
        await take(node)
    assert not [key for key in await node.objects() if "/snapshots/" in key]


async def test_roots_without_a_lease_are_removed(node: TierNode) -> None:
    await tiered(node)
    lease, other = await take(node), await take(node, "other", number=2)
    await node.store.delete([node.keys.snapshot_lease(lease.id)])
    await node.storage_cleaner.snapshots.remove_leftovers()
    left = [key for key in await node.objects() if key.startswith(node.keys.all_snapshot_roots())]
    assert left and all(key.startswith(node.keys.snapshot_roots(other.id)) for key in left)


async def test_index_of_held_offsets_is_built_when_the_leases_change(node: TierNode) -> None:
    """It may have millions of ranges, and is needed before each batch of deletions."""
    await tiered(node)
    lease = await take(node)
    held = node.storage_cleaner.snapshots
    await held.look()
    before = held.is_held
    await node.manager.snapshots.renew(lease.id)
    await held.look()
    assert held.is_held is before
    await take(node, "other", number=2)
    await held.look()
    assert held.is_held is not before


async def test_held_entries_cost_no_requests_of_roots(
    node: TierNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await tiered(node)
    await take(node)
    await delete_first_segments(node, replica)
    await mark_all(node)
    cleaner = node.storage_cleaner
    await cleaner.snapshots.look()
    read = list[object]()

    async def count(*arguments: object) -> list[object]:
        read.extend(arguments)
        return []

    monkeypatch.setattr(cleaner, "_without_listed", count)
    await cleaner._delete(list(node.metadata.image.delete_queue.values()))
    assert read == []


async def test_roots_are_read_at_the_same_time(node: TierNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.create("t", partitions=40)
    topic_id = node.replicas[TopicPartition("t", 0)].topic_id
    line = QueuedDelete(
        uuid=uuid.UUID(int=1),
        topic_id=topic_id,
        partition=0,
        base_offset=0,
        last_offset=1,
        log_bytes=1,
        leader_epoch=0,
        is_page=False,
        queued_ms=0,
    )
    lines = [replace(line, uuid=uuid.UUID(int=number), partition=number) for number in range(40)]
    running, most = 0, 0

    async def ensure(*_: object) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return True

    monkeypatch.setattr(node.manager, "ensure_unlisted", ensure)
    assert await node.storage_cleaner._without_listed(node.metadata.image, lines) == lines
    assert most == ROOTS_AT_ONCE


async def test_one_of_two_creators_gets_the_name(node: TierNode) -> None:
    await tiered(node)
    results = await asyncio.gather(take(node), take(node, number=2), return_exceptions=True)
    [winner] = [one for one in results if isinstance(one, Lease)]
    [loser] = [one for one in results if isinstance(one, SnapshotError)]
    assert "by another process" in str(loser) or "exists" in str(loser)
    assert (await node.manager.snapshots.find("s")).id == winner.id
    assert [lease.id for lease, _ in await node.manager.snapshots.leases()] == [winner.id]


async def test_names_and_leases_are_checked(node: TierNode) -> None:
    await tiered(node)
    await take(node)
    with pytest.raises(SnapshotError, match="exists"):
        await take(node, number=2)
    with pytest.raises(ValueError, match="invalid snapshot name"):
        await take(node, "a/b", number=2)
    with pytest.raises(SnapshotError, match="invalid snapshot name"):
        await take(node, "now", number=2)
    with pytest.raises(SnapshotError, match="lease"):
        await take(node, "b", lease_ms=1, number=2)
    with pytest.raises(SnapshotError, match="no snapshot"):
        await node.manager.snapshots.find("other")
    await node.manager.snapshots.end("s")
    assert (await take(node, number=3)).topics[0].name == "t"


async def test_newest_snapshot_as_of_a_time_or_index_is_found(node: TierNode) -> None:
    replica = await tiered(node)
    first = await take(node, None, created_ms=60_000)
    produce(replica, 60)
    await node.log_manager.flush("t")
    second = await take(node, None, number=2, created_ms=120_000)
    snapshots = node.manager.snapshots
    assert (await snapshots.find("1970-01-01T00:01:30Z")).id == first.id
    assert (await snapshots.find("1970-01-01T01:02:00+01:00")).id == second.id
    assert (await snapshots.find(f"@{second.metadata_index - 1}", ["t"])).id == first.id
    with pytest.raises(SnapshotError, match="no snapshot of these topics as of"):
        await snapshots.find("1970-01-01T00:00:59Z")
    with pytest.raises(SnapshotError, match="no snapshot of these topics as of"):
        await snapshots.find(f"@{second.metadata_index}", ["other"])


async def test_snapshot_holds_what_its_roots_list_and_no_more(node: TierNode) -> None:
    replica = await tiered(node)
    await take(node)
    lease = await node.manager.snapshots.find("s")
    root = await node.manager.snapshots.root(lease, node.where(replica))
    [held] = lease.topics[0].held
    assert (held.start_offset, held.end_offset) == (0, root.nodes[-1].end_offset)
    assert root == decode_root(await node.store.get(node.keys.root(node.where(replica))))


async def test_topic_that_is_deleted_during_the_creation_is_refused(node: TierNode) -> None:
    await tiered(node)
    gone = TopicDocument(topic_id=uuid.UUID(int=5), name="gone", partitions=1, configs={})
    with pytest.raises(SnapshotError, match="'gone' is not in the bucket"):
        await node.manager.snapshots.create(uuid.UUID(int=1), [gone], LEASE_MS, 0)
    assert await node.manager.snapshots.leases() == []


async def test_entries_behind_many_held_ones_are_marked(
    node: TierNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot may hold hundreds of thousands of older entries."""
    monkeypatch.setattr(remote_storage_cleaner, "FOUND_AT_ONCE", 2)
    replica = await tiered(node)
    await take(node)
    held = await delete_first_segments(node, replica)
    free = await node.create("free")
    produce(free, 60)
    await node.log_manager.flush("free")
    node.clock.pass_time(1)
    gone = await delete_first_segments(node, free)
    await clean_after(node, 60_000)
    objects = set(await node.objects())
    assert held <= objects and not gone & objects


async def test_ended_snapshot_that_cannot_be_removed_delays_no_deletion(
    node: TierNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await tiered(node)
    lease = await take(node)
    etag = (await node.store.get_with_etag(node.keys.snapshot_lease(lease.id)))[1]
    assert await node.manager.snapshots.write(lease.ended(), etag)
    gone = await delete_first_segments(node, replica)

    async def fail(snapshot_id: uuid.UUID) -> None:
        raise ObjectStoreError("503 Slow Down")

    monkeypatch.setattr(node.manager.snapshots, "remove", fail)
    await clean_after(node, 60_000)
    assert not gone & set(await node.objects())


async def test_held_bytes_are_of_each_lease_alone(node: TierNode) -> None:
    replica = await tiered(node)
    lease = await take(node)
    await delete_first_segments(node, replica)
    queued = list(node.metadata.image.delete_queue.values())
    later = replace(lease, topics=tuple(replace(one, held=()) for one in lease.topics))
    expected = sum(line.log_bytes for line in queued if isinstance(line, QueuedDelete))
    assert expected and held_bytes([lease, later], queued) == [expected, 0]
