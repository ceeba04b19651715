"""Leader with few entries in the quorum and in a page, so that a short log has pages of several levels."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from changed_bucket import verifier
from loop_steps import LoopSteps
from tier_node import START_MS, TierNode, content, produce

from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering import page_tree
from tierlog.tiering.bucket_audit import LISTED, UNREADABLE, BucketAuditor
from tierlog.tiering.copier import Attempt
from tierlog.tiering.format.manifest import decode_page, decode_root
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import ObjectNotFound, ObjectStoreError
from tierlog.tiering.verifier import UnreadablePage

LIMITS = page_tree.TreeLimits(entries=3, references=2, page_nodes=3)


@pytest.fixture(autouse=True)
def small_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits_for(budget_bytes: int, partitions: int, version: int) -> page_tree.TreeLimits:
        return LIMITS if version > 1 else page_tree.TreeLimits(entries=3, is_tree=False)

    monkeypatch.setattr(page_tree, "limits_for", limits_for)


async def uploaded(node: TierNode, batches: int = 400, **settings: str) -> tuple[Replica, bytes]:
    """A tiered topic, and its bytes."""
    replica = await node.create("t", local_retention_ms="-1", **settings)
    produce(replica, batches)
    found = replica.read(0, 1 << 24).slice
    assert found is not None
    data = content(found)
    while found.end_offset < replica.log_end_offset:
        found = replica.read(found.end_offset, 1 << 24).slice
        data += content(found)
    await node.log_manager.flush("t")
    await node.finish_tiering()
    return replica, data


async def remote_bytes(node: TierNode, replica: Replica) -> bytes:
    """All remote records, read as consumers do, with an empty cache."""
    log, offset, data = node.fresh_remote_log(), node.remote(replica).log_start_offset, b""
    while offset < (node.remote(replica).end_offset or 0):
        part = await log.read(replica.id, offset, 1 << 20, min_one=True)
        data += content(part)
        offset = part.end_offset
    return data


async def named_nodes(node: TierNode, replica: Replica) -> tuple[list[PageRef], list[RemoteSegment]]:
    """All pages and entries of the manifest, at any depth."""
    pages: list[PageRef] = []
    entries: list[RemoteSegment] = []

    async def collect(nodes: Sequence[ManifestNode]) -> None:
        for one in nodes:
            if isinstance(one, RemoteSegment):
                entries.append(one)
            else:
                pages.append(one)
                body = await node.store.get(node.keys.page(node.where(replica), one))
                await collect(decode_page(body, one).nodes)

    await collect(node.remote(replica).nodes)
    return pages, entries


async def test_records_below_pages_of_all_levels_are_found(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, data = await uploaded(node)
        remote = node.remote(replica)
        levels = [page.level for page in remote.pages]
        assert levels[0] >= 2 and levels == sorted(levels, reverse=True)
        assert len(remote.entries) <= LIMITS.entries
        assert await remote_bytes(node, replica) == data
        log, end = node.fresh_remote_log(), replica.log_end_offset
        for offset in range(0, end, 61):
            assert await log.offset_for_timestamp(replica.id, START_MS + offset) == (
                offset,
                START_MS + offset,
                0,
            )
            assert (await log.history(replica.id, offset)).end_offset > offset
        assert await log.offset_for_timestamp(replica.id, START_MS + end) is None
        assert await log.largest_timestamp(replica.id, -1) == (end - 1, START_MS + end - 1, 0)
        assert (await log.read_committed(replica.id, 0, 1 << 20, min_one=True))[1] == []
        _, entries = await named_nodes(node, replica)
        (status,) = await node.log_manager.status("t")
        assert (status.remote_segments, status.remote_bytes) == (len(entries), len(data))
        assert sum(entry.records for entry in entries) == end
        assert {entry.control_records for entry in entries} == {0}
        assert [entry.min_timestamp for entry in entries] == [entry.first_timestamp for entry in entries]


async def test_retention_takes_pages_of_all_levels_out_of_the_bucket(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, data = await uploaded(node)
        for kept in (len(data) * 2 // 3, len(data) // 3, 9000, 0):
            await node.alter("t", {"retention.bytes": str(kept)})
            await node.finish_tiering()
            remote = node.remote(replica)
            pages, entries = await named_nodes(node, replica)
            start = remote.log_start_offset
            assert sum(one.log_bytes for one in entries if one.last_offset >= start) <= max(kept + 4000, 0)
            assert all(page.level == 0 or page.last_offset >= start for page in pages)
            # at most one page of entries has segments below the log start
            assert sum(one.last_offset < start for one in entries) < LIMITS.page_nodes
            while node.metadata.image.delete_queue:
                node.clock.pass_time(3_600_000)
                await node.storage_cleaner.clean()
            assert await remote_bytes(node, replica) in data
            assert set(await node.objects(node.keys.data(node.where(replica)))) == {
                key for one in entries for key in keys_of(node, replica, one)
            }
            assert set(await node.objects(node.keys.manifests(node.where(replica)))) == {
                node.keys.root(node.where(replica)),
                *(node.keys.page(node.where(replica), page) for page in pages),
            }


def keys_of(node: TierNode, replica: Replica, entry: RemoteSegment) -> tuple[str, str]:
    where = node.where(replica)
    return node.keys.log(where, entry), node.keys.index(where, entry)


async def test_merged_segments_replace_others_in_pages_and_in_the_quorum(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, data = await uploaded(node)
        _, before = await named_nodes(node, replica)
        leaf = [entry for entry in before if entry.end_offset <= node.remote(replica).pages[0].end_offset][:2]
        await node.merger.merge(replica, leaf)
        await node.merger.merge(replica, list(node.remote(replica).entries[:2]))
        await node.finish_tiering()
        _, entries = await named_nodes(node, replica)
        assert len(entries) == len(before) - 2
        assert await remote_bytes(node, replica) == data
        root = decode_root(await node.store.get(node.keys.root(node.where(replica))))
        assert root.nodes == node.remote(replica).nodes
        while node.metadata.image.delete_queue:
            node.clock.pass_time(3_600_000)
            await node.storage_cleaner.clean()
        assert await remote_bytes(node, replica) == data
        assert len(await node.objects(node.keys.data(node.where(replica)))) == 2 * len(entries)
        with pytest.raises(ObjectNotFound):  # they are replaced already
            await node.merger.merge(replica, leaf)


async def test_walk_of_the_manifest_continues_after_its_pages_were_replaced_and_deleted(
    tmp_path: Path,
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, _ = await uploaded(node)
        log = node.fresh_remote_log()
        walk = log.entries(replica.id)
        first = await anext(walk)
        _, before = await named_nodes(node, replica)
        page = node.remote(replica).pages[0]
        await node.merger.merge(replica, [one for one in before if one.end_offset <= page.end_offset][-2:])
        while node.metadata.image.delete_queue:
            node.clock.pass_time(3_600_000)
            await node.storage_cleaner.clean()
        found = [first, *[entry async for entry in walk]]
        _, entries = await named_nodes(node, replica)
        assert found == entries
        assert log.quarantine.damaged == []


async def test_missing_object_below_pages_of_pages_is_in_quarantine(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, _ = await uploaded(node)
        log = node.fresh_remote_log()
        pages, entries = await named_nodes(node, replica)
        leaf = next(page for page in pages if not page.level and page not in node.remote(replica).pages)
        in_leaf = next(one for one in entries if one.base_offset == leaf.base_offset)
        segment, page_key = keys_of(node, replica, in_leaf)[0], node.keys.page(node.where(replica), leaf)
        for key, offset in ((segment, in_leaf.base_offset), (page_key, leaf.base_offset)):
            await node.store.delete([key])
            with pytest.raises(ObjectStoreError):
                await node.fresh_remote_log().read(replica.id, offset, 1 << 20, min_one=True)
            log = node.fresh_remote_log()
            with pytest.raises(ObjectStoreError):
                await log.read(replica.id, offset, 1 << 20, min_one=True)
            assert [one.place.key for one in log.quarantine.damaged] == [key]
            assert log.quarantine.due() == [] and log.quarantine.objects == 1


async def test_damaged_page_hides_only_its_own_segments_from_checks(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, _ = await uploaded(node)
        where = node.where(replica)
        pages, entries = await named_nodes(node, replica)
        damaged = [page for page in pages if page.level == 0][1]  # below a page of pages
        await node.store.put(node.keys.page(where, damaged), b"damaged")
        hidden = [one for one in entries if damaged.base_offset <= one.base_offset <= damaged.last_offset]

        found = [one async for one in verifier(node).entries(where)]
        unreadable = [one for one in found if isinstance(one, UnreadablePage)]
        assert [(one.base_offset, one.end_offset) for one in unreadable] == [
            (damaged.base_offset, damaged.last_offset + 1)
        ]
        assert unreadable[0].is_damaged
        assert len(found) == len(entries) - len(hidden) + 1

        log = node.fresh_remote_log()
        image = node.metadata.image
        audit = await BucketAuditor(node.store, node.keys, log, lambda: image, node.metadata.current).run(
            lambda _: asyncio.sleep(0)
        )
        assert audit.objects[UNREADABLE] == 2 * len(hidden)
        assert audit.objects[LISTED] >= 2 * (len(entries) - len(hidden)) and not audit.unknown


async def test_interrupted_replacement_is_abandoned(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica, _ = await uploaded(node)
        old = list(node.remote(replica).entries[:2])
        begun = asyncio.Event()

        async def upload(attempt: Attempt, base: int, last: int) -> RemoteSegment:
            begun.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

        replacing = asyncio.create_task(
            node.log_manager.editor.replace(
                node.where(replica), 0, lambda: node.remote(replica), old, (old[-1].end_offset,), upload
            )
        )
        await begun.wait()
        await node.finish_tiering()
        (copy,) = node.remote(replica).started  # it is running
        replacing.cancel()
        await asyncio.gather(replacing, return_exceptions=True)
        await node.finish_tiering()
        assert node.remote(replica).started == ()
        assert copy.uuid in node.metadata.image.delete_queue


async def test_pages_of_format_1_become_a_tree_after_the_upgrade(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), formats=(1, 1)) as node:
        replica, data = await uploaded(node, 100)
        remote = node.remote(replica)
        assert len(remote.pages) > LIMITS.references + 1 and {page.level for page in remote.pages} == {0}
        assert all(entry.fits_format_1 for entry in remote.entries)
        broker = node.metadata.image.brokers[1]
        await node.metadata.submit(
            c.RegisterBroker(
                broker_id=1,
                incarnation=broker.incarnation,
                host=broker.host,
                port=broker.port,
                admin_url=broker.admin_url,
                formats=(1, 2),
            )
        )
        assert not (await node.metadata.submit(c.UpdateFormat(version=2))).error
        await node.finish_tiering()
        assert node.remote(replica).pages[0].level > 0
        assert await remote_bytes(node, replica) == data


async def test_pages_are_encoded_and_decoded_in_threads(tmp_path: Path) -> None:
    """A page of hundreds of nodes takes milliseconds."""
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 60)
        await node.log_manager.flush("t")
        where, entries = node.where(replica), node.remote(replica).entries
        with LoopSteps("tiering/format/manifest.py", functions={"encode_page", "decode_page"}) as steps:
            page = await node.manager.write_page(where, uuid.UUID(int=1), entries)
            [*loaded] = await node.fresh_remote_log().indexes.page(where, page)
            assert steps.total == 0
            assert decode_page(await node.store.get(node.keys.page(where, page)), page).entries == entries
            assert steps.total == 1  # calls on the loop are seen
        assert loaded == list(entries)
