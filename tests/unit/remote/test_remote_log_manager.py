"""Remote log manager and storage cleaner with a real quorum, replicas and store: upload, read, retention,
deletion."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from awaited_image import image_when
from faulty_store import FaultyStore
from loop_steps import LoopSteps
from structlog.testing import capture_logs
from tier_node import START_MS, TIERED, TierNode, produce

from tierlog.broker.remote.remote_storage_cleaner import ABORT_INTERVAL_MS, FAILED_IN_A_ROW_MAX
from tierlog.broker.remote.tier_views import TierRefused
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller import commands as c
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.tiering.format.manifest import TopicDocument, decode_root, decode_topic
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.manager import KEYS_PER_REQUEST, UPLOAD_AGE_S, TierLimits
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import ObjectInfo, ObjectStoreError
from tierlog.tiering.planner import ROOT_SEGMENTS
from tierlog.tiering.rate_limit import RateLimit


def whole_log(replica) -> bytes:
    """All bytes while everything is still local."""
    data, offset = b"", replica.log_start_offset
    while offset < replica.log_end_offset:
        found = replica.read(offset, 1 << 20).slice
        data += b"".join(part.read() for part in found.parts)
        offset = found.end_offset
    return data


async def read_all(node: TierNode, replica, max_bytes: int = 3000) -> bytes:
    data, offset = b"", replica.log_start_offset
    while offset < replica.high_watermark:
        part = await node.fetch(replica, offset, max_bytes)
        batches = list(iter_batches(part))
        assert batches[0][1].base_offset <= offset <= batches[0][1].last_offset
        data += part
        offset = batches[-1][1].next_offset
    return data


async def test_remote_reads_return_the_produced_bytes(tmp_path: Path) -> None:
    async with TierNode(tmp_path, LocalStore(tmp_path / "bucket")) as node:
        replica = await node.create("t", local_retention_ms="-1")
        produce(replica, 60)
        before = whole_log(replica)
        await node.log_manager.flush("t")
        await node.metadata.submit(c.AlterConfigs(resources=(_set("t", "local.retention.ms", "0"),)))
        await node.finish_tiering()
        assert replica.local_log_start_offset == replica.log_end_offset == 300
        assert node.remote(replica).end_offset == 300
        assert await read_all(node, replica) == before
        assert await read_all(node, replica, 1 << 20) == before


async def test_rolled_segments_are_uploaded_automatically(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 40)
        image = await image_when(
            node.metadata,
            lambda image: (
                image.remote_partition(*node.where(replica)).end_offset == replica.log.active_base_offset
            ),
        )
        assert image.remote_partition(*node.where(replica)).started == ()
        await node.finish_tiering()
        assert replica.local_log_start_offset == replica.log.active_base_offset
        root = decode_root(await node.store.get(node.keys.root(node.where(replica))))
        assert root.entries == node.remote(replica).entries


class RootCountingStore(MemoryStore):
    """`roots`: successful puts of manifest roots."""

    roots = 0

    async def put(self, key: str, *body: Any, **more: Any) -> ObjectInfo:
        info = await super().put(key, *body, **more)
        self.roots += key.endswith("/root")
        return info


async def test_one_root_lists_several_small_segments(tmp_path: Path) -> None:
    store = RootCountingStore()
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        produce(replica, 400)
        await node.finish_tiering()
        copied = len(node.remote(replica).entries)
        assert copied > 2 * ROOT_SEGMENTS
        assert store.roots <= -(-copied // ROOT_SEGMENTS) + 2
        root = decode_root(await store.get(node.keys.root(node.where(replica))))
        assert root.entries == node.remote(replica).entries
        assert replica.local_log_start_offset == replica.log.active_base_offset


async def test_root_does_not_wait_for_a_copy_that_waits_for_a_slot(tmp_path: Path) -> None:
    store = RootCountingStore()
    async with TierNode(tmp_path, store, limits=TierLimits(copies_at_once=1)) as node:
        one, other = await node.create("one"), await node.create("other")
        produce(one, 200)
        produce(other, 200)
        await node.finish_tiering()
        copied = len(node.remote(one).entries) + len(node.remote(other).entries)
        assert store.roots > copied // 4


async def test_timestamp_is_found_in_a_remote_segment(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 40)
        await node.log_manager.flush("t")
        for target in (0, 1, 57, 199):
            found = await node.remote_log.offset_for_timestamp(node.where(replica), START_MS + target)
            assert found == (target, START_MS + target, 0)
        assert await node.remote_log.offset_for_timestamp(node.where(replica), START_MS + 200) is None


async def test_retention_raises_the_log_start_and_deletes_objects_after_the_grace(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=1000) as node:
        replica = await node.create("t")
        produce(replica, 60)
        await node.log_manager.flush("t")
        everything = await node.objects(f"{node.keys.cluster_id}/data/")
        first_end = node.remote(replica).entries[1].end_offset
        await node.move_log_start(replica, first_end)
        await node.finish_tiering()
        assert replica.log_start_offset == first_end
        await node.storage_cleaner.clean()
        assert await node.objects(f"{node.keys.cluster_id}/data/") == everything
        node.clock.pass_time(1001)
        await node.storage_cleaner.clean()
        left = await node.objects(f"{node.keys.cluster_id}/data/")
        assert left == everything[4:]
        assert not node.metadata.image.delete_queue


async def test_retention_by_bytes_over_both_tiers_keeps_the_newest_segments(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", retention_bytes="9000")
        produce(replica, 100)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        kept = sum(entry.log_bytes for entry in node.remote(replica).entries)
        assert 9000 <= kept < 9000 + 4000
        assert replica.log_start_offset == node.remote(replica).entries[0].base_offset > 0


async def test_deleted_topic_leaves_no_objects(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        await node.create("kept")
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.storage_cleaner.clean()
        where = node.where(replica)
        document = decode_topic(await node.store.get(node.keys.topic(where.topic_id)))
        assert (document.name, document.partitions) == ("t", 1)
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        await node.finish_tiering()
        while node.metadata.image.delete_queue:
            await node.storage_cleaner.clean()
        assert not [key for key in await node.objects() if str(where.topic_id) in key]
        assert len(await node.objects(node.keys.topics())) == 1


class RefusingStore(MemoryStore):
    """Refuses to put or delete keys that contain a text, as a bucket's policy may."""

    refused = ""

    async def put(self, key: str, *args, **more):
        self._refuse([key])
        return await super().put(key, *args, **more)

    async def get(self, key: str, *args):
        self._refuse([key])
        return await super().get(key, *args)

    async def delete(self, keys: Sequence[str]) -> None:
        self._refuse(keys)
        await super().delete(keys)

    def _refuse(self, keys: Sequence[str]) -> None:
        if self.refused and any(self.refused in key for key in keys):
            raise ObjectStoreError("403 Forbidden")


async def test_document_that_cannot_be_written_stops_no_deletion_and_no_other_document(
    tmp_path: Path,
) -> None:
    store = RefusingStore()
    async with TierNode(tmp_path, store) as node:
        refused, replica = await node.create("refused"), await node.create("t")
        store.refused = key = node.keys.topic(refused.topic_id)
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.move_log_start(replica, node.remote(replica).entries[1].end_offset)
        with capture_logs() as lines:
            while node.metadata.image.delete_queue:
                await node.storage_cleaner.clean()
            for _ in range(3):
                await node.storage_cleaner.clean()
        assert node.keys.topic(replica.topic_id) in await node.objects()
        assert len(node.storage_cleaner.failing) == 1
        failed = [line for line in lines if line["event"] == "cleanup.object.failed"]
        assert [(line["what"], line["key"]) for line in failed] == [("describe", str(refused.topic_id))]
        store.refused = ""
        while node.storage_cleaner.failing:
            await node.storage_cleaner.clean()
        assert key in await node.objects()


async def test_deletions_continue_beside_entries_that_fail(tmp_path: Path) -> None:
    store = RefusingStore()
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        produce(replica, 40)
        await node.log_manager.flush("t")
        failing, *others = (entry.uuid for entry in node.remote(replica).entries)
        store.refused = str(failing)
        await node.storage_cleaner.clean()
        await node.move_log_start(replica, node.remote(replica).entries[3].end_offset)
        while len(node.metadata.image.delete_queue) > 1:
            await node.storage_cleaner.clean()
        await node.move_log_start(replica, node.remote(replica).end_offset)  # queued while one entry fails
        while len(node.metadata.image.delete_queue) > 1 or not node.storage_cleaner.failing:
            await node.storage_cleaner.clean()
        assert not [key for key in await node.objects() if any(str(one) in key for one in others)]
        index = node.metadata.image.index
        for _ in range(10):
            await node.storage_cleaner.clean()
        assert node.metadata.image.index == index, "retries write nothing to the quorum's log"
        store.refused = ""
        while node.metadata.image.delete_queue:
            await node.storage_cleaner.clean()
        assert not node.storage_cleaner.failing


async def test_all_deletions_wait_while_the_store_refuses_each_of_them(tmp_path: Path) -> None:
    store = RefusingStore()
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        produce(replica, 400)
        await node.log_manager.flush("t")
        assert len(node.remote(replica).entries) > 6 * FAILED_IN_A_ROW_MAX
        cleaner = node.storage_cleaner
        await cleaner.clean()
        store.refused = "/data/"
        await node.move_log_start(replica, node.remote(replica).end_offset)
        with capture_logs() as lines:
            while not any(line["event"] == "cleanup.blocked" for line in lines):
                await cleaner.clean()
            assert len(cleaner.failing) == FAILED_IN_A_ROW_MAX
            for _ in range(10 * FAILED_IN_A_ROW_MAX):
                await cleaner.clean()
        assert len(cleaner.failing) < 4 * FAILED_IN_A_ROW_MAX, "one is tried per back-off, and that grows"
        assert len([line for line in lines if line["event"] == "cleanup.blocked"]) == 1
        store.refused = ""
        while node.metadata.image.delete_queue:
            await cleaner.clean()
        assert not cleaner.failing


async def test_description_that_cannot_be_read_stops_no_deletion(tmp_path: Path) -> None:
    store = RefusingStore()
    async with TierNode(tmp_path, store) as node:
        replica, gone = await node.create("t"), uuid.uuid4()
        document = TopicDocument(topic_id=gone, name="gone", partitions=1, configs={})
        await node.manager.describe_topic(document)  # by another broker, before the topic was deleted
        store.refused = node.keys.topic(gone)
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.move_log_start(replica, node.remote(replica).entries[1].end_offset)
        while node.metadata.image.delete_queue:
            await node.storage_cleaner.clean()
        store.refused = ""
        while node.keys.topic(gone) in await node.objects():
            await node.storage_cleaner.clean()


class UploadsStore(MemoryStore):
    """Records each search for unfinished uploads. `refuses`: without the permission for it."""

    def __init__(self) -> None:
        super().__init__()
        self.searched: list[tuple[str, float]] = []
        self.refuses = False

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        self.searched.append((prefix, older_than_s))
        if self.refuses:
            raise ObjectStoreError("403 Forbidden")
        return 1


async def test_unfinished_uploads_are_aborted_at_first_and_each_hour(tmp_path: Path) -> None:
    store = UploadsStore()
    async with TierNode(tmp_path, store) as node:
        for _ in range(3):
            await node.storage_cleaner.clean()
        assert store.searched == [(f"{node.keys.cluster_id}/", UPLOAD_AGE_S)]
        node.clock.pass_time(ABORT_INTERVAL_MS)
        await node.storage_cleaner.clean()
        assert len(store.searched) == 2
        node.clock.pass_time(ABORT_INTERVAL_MS)
        store.refuses = True
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        assert len(node.storage_cleaner.failing) == 1
        assert node.keys.topic(replica.topic_id) in await node.objects()
        store.refuses = False
        while node.storage_cleaner.failing:
            await node.storage_cleaner.clean()


class CountingStore(MemoryStore):
    """Counts the keys of each request to delete."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[int] = []

    async def delete(self, keys: Sequence[str]) -> None:
        self.deleted.append(len(keys))
        await super().delete(keys)


async def test_deletion_of_a_large_topic_is_a_few_commits_and_bounded_requests(tmp_path: Path) -> None:
    store = CountingStore()
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t", partitions=2)
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.storage_cleaner.clean()
        for number in range(2 * KEYS_PER_REQUEST):  # segments of a page, and of copies that never finished
            await store.put(f"{node.keys.data(node.where(replica))}{number}", b"")
        before = node.metadata.image.index
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        await node.finish_tiering()
        while node.metadata.image.delete_queue:
            await node.storage_cleaner.clean()
        assert node.metadata.image.index - before == 3  # deleted, marked, confirmed
        assert max(store.deleted) == KEYS_PER_REQUEST
        assert not [key for key in await node.objects() if str(replica.topic_id) in key]


async def test_topic_described_by_another_broker_during_a_round_is_not_deleted(tmp_path: Path) -> None:
    """A broker with old metadata, after a pause or with a disk that hung, does not know the topic."""
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        store.arm("hold", 0, "list")
        keeping = asyncio.ensure_future(node.storage_cleaner.clean())
        await store.fired.wait()
        replica = await node.create("t")
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.manager.describe_topic(
            TopicDocument(topic_id=replica.topic_id, name="t", partitions=1, configs={})
        )
        store.gate.set()
        await keeping
        assert node.keys.root(node.where(replica)) in await node.objects()


async def test_manifest_written_after_its_topic_was_deleted_is_deleted(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), grace_ms=1000) as node:
        replica = await node.create("t")
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.storage_cleaner.clean()
        where = node.where(replica)
        root = await node.store.get(node.keys.root(where))
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        await node.finish_tiering()
        await node.storage_cleaner.clean()
        await node.store.put(node.keys.root(where), root)  # another broker was writing it
        node.clock.pass_time(1001)
        await node.storage_cleaner.clean()
        assert not [key for key in await node.objects() if str(where.topic_id) in key]


@pytest.mark.parametrize("rounds_between", [0, 1])
async def test_broker_that_becomes_cleaner_again_reads_the_topic_documents_again(
    tmp_path: Path, rounds_between: int
) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        key = node.keys.topic(replica.topic_id)
        register = c.RegisterBroker(
            broker_id=0,
            incarnation=uuid.UUID(int=8),
            host="h",
            port=2,
            admin_url="http://h:2",
            formats=node.formats,
        )
        epoch = (await node.metadata.submit(register)).broker_epoch
        await node.metadata.submit(c.FenceBroker(broker_id=0, broker_epoch=epoch, fenced=False))
        for _ in range(rounds_between):
            await node.storage_cleaner.clean()
        await node.store.delete([key])  # the other's doing
        await node.metadata.submit(c.FenceBroker(broker_id=0, broker_epoch=epoch, fenced=True))
        await node.storage_cleaner.clean()
        assert decode_topic(await node.store.get(key)).name == "t"


async def test_partition_led_again_has_one_listener(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        await node.finish_tiering()
        listeners = len(replica.listeners)
        for tiered in ("false", "true", "false", "true"):
            replica.update_config(TopicConfig.parse({**TIERED, "remote.storage.enable": tiered}))
            await node.finish_tiering()
        await node.finish_tiering()
        assert len(replica.listeners) == listeners


async def test_tiering_continues_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        produce(replica, 30)
        await node.log_manager.flush("t")
    async with TierNode(tmp_path, store) as node:
        replica = next(iter(node))
        produce(replica, 30)
        await node.log_manager.flush("t")
        assert node.remote(replica).end_offset == 300
        root, _ = node.manager._roots[node.where(replica)]
        assert root.entries is node.remote(replica).entries, "the cached root is no second copy of them"
        data = await read_all(node, replica)
        records = [r for at, _ in iter_batches(data) for r in iter_records(data, at, max_bytes=1 << 20)]
        assert [record.offset for record in records] == list(range(300))


async def test_explain_returns_the_location_of_an_offset(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", local_retention_ms="-1")
        produce(replica, 40)
        await node.log_manager.flush("t")
        produce(replica, 1)
        both = await node.log_manager.explain("t", 0, 7)
        assert (both.tier, both.base_offset, both.last_offset) == ("local", 5, 9)
        assert both.also_remote == node.keys.log(node.where(replica), node.remote(replica).entries[0])
        newest = await node.log_manager.explain("t", 0, 201)
        assert (newest.tier, newest.also_remote, newest.position) == ("local", None, 0)
        assert Path(newest.location).is_file()
        await node.metadata.submit(c.AlterConfigs(resources=(_set("t", "local.retention.ms", "0"),)))
        await node.finish_tiering()
        remote = await node.log_manager.explain("t", 0, 7)
        assert (remote.tier, remote.base_offset, remote.location) == ("remote", 5, both.also_remote)
        stored = await node.store.get(remote.location, remote.position, remote.position + remote.batch_bytes)
        assert next(iter_batches(stored))[1].base_offset == 5
        with pytest.raises(TierRefused, match="has offsets 0 to 204"):
            await node.log_manager.explain("t", 0, 205)
        with pytest.raises(TierRefused, match="has no partition 9: it has 1"):
            await node.log_manager.explain("t", 9, 0)
        with pytest.raises(TierRefused, match="there is no topic 'u'"):
            await node.log_manager.explain("u", 0, 0)


async def test_status_covers_both_tiers(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t", partitions=2)
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        first, second = await node.log_manager.status()
        assert (first.topic, first.partition) == ("t", 0)
        assert (first.remote_start_offset, first.remote_end_offset) == (0, 200)
        assert (first.local_log_start_offset, first.log_end_offset) == (200, 200)
        assert (first.pending_bytes, first.last_error) == (0, None)
        assert first.remote_bytes == sum(entry.log_bytes for entry in node.remote(replica).entries)
        assert (second.remote_end_offset, second.remote_bytes) == (None, 0)


async def test_remote_log_copy_disable_stops_uploads(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        produce(replica, 20)
        await node.log_manager.flush("t")
        end = node.remote(replica).end_offset
        await node.metadata.submit(c.AlterConfigs(resources=(_set("t", "remote.log.copy.disable", "true"),)))
        produce(replica, 60)
        await node.finish_tiering()
        assert node.remote(replica).end_offset == end
        with pytest.raises(TierRefused, match=r"remote\.log\.copy\.disable is set"):
            await node.log_manager.flush("t")
        assert await node.fetch(replica, 0), "what is remote stays readable"
        await node.metadata.submit(c.AlterConfigs(resources=(_set("t", "remote.log.copy.disable", "false"),)))
        await node.log_manager.flush("t")
        assert node.remote(replica).end_offset == replica.log_end_offset


async def test_flush_is_refused_if_it_cannot_succeed(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.create("plain", remote_storage_enable="false")
        with pytest.raises(TierRefused, match=r"remote\.storage\.enable"):
            await node.log_manager.flush("plain")
        with pytest.raises(TierRefused, match="leads no partition"):
            await node.log_manager.flush("missing")


def _set(topic: str, key: str, value: str) -> c.ConfigResource:
    change = c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
    return c.ConfigResource(scope=c.ConfigScope.TOPIC, name=topic, changes=(change,))


class WatchedRate(RateLimit):
    """Says when a copy waits."""

    def __init__(self) -> None:
        super().__init__(1)
        self.requested = asyncio.Event()

    async def take(self, size_bytes: int) -> None:
        self.requested.set()
        await super().take(size_bytes)


async def test_status_of_many_partitions_takes_many_turns(tmp_path: Path) -> None:
    most = []
    for partitions in (60, 240):
        async with TierNode(tmp_path / str(partitions), MemoryStore()) as node:
            await node.create("t", partitions)
            await node.finish_tiering()
            with LoopSteps("broker/remote", "tiering") as steps:
                assert len(await node.log_manager.status()) == partitions
            most.append(steps.most)
    assert most[1] < most[0] * 1.5, "it would be four times as much"


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("retention_ms", ["604800000", "-1"])
async def test_segments_of_a_compacted_topic_leave_the_disk_by_default(
    tmp_path: Path, policy: str, retention_ms: str
) -> None:
    """Otherwise they would never be compacted, and fill the disk."""
    settings = {"cleanup_policy": policy, "retention_ms": retention_ms, "local_retention_ms": "-2"}
    async with TierNode(tmp_path, MemoryStore()) as node:
        node.clock.wall_ms = START_MS
        replica = await node.create("t", **settings)
        produce(replica, 60)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        assert replica.local_log_start_offset == 0
        node.clock.pass_time(8 * 86_400_000)
        await node.finish_tiering()
        assert replica.local_log_start_offset == replica.log_end_offset


async def test_copy_that_waits_for_the_rate_is_not_announced(tmp_path: Path) -> None:
    """The wait is neither a stall nor a part of the time-out, and leaves nothing to abandon."""
    limits = TierLimits(stall_seconds=0, stall_seconds_per_mib=0)
    async with TierNode(tmp_path, MemoryStore(), limits=limits) as node:
        rate = node.manager.copy_rate = WatchedRate()
        await rate.take(1 << 60)
        rate.requested.clear()
        replica = await node.create("t")
        produce(replica, 60)
        node.log_manager.wake_all()
        await rate.requested.wait()
        await asyncio.sleep(0)
        assert not node.remote(replica).started and node.manager.counts.stalls == 0
        rate.change(1 << 80)
        await node.finish_tiering()
        assert node.remote(replica).entries
