"""Object store failures at every call of a copy, read and deletion: nothing is lost or served wrong."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_store import FAULTS, FaultyStore
from structlog.testing import capture_logs
from tier_node import TierNode, produce

from tierlog.base.tasks import TaskGroup
from tierlog.broker.remote import remote_storage_cleaner
from tierlog.metadata.controller import commands as c
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.tiering.format.manifest import decode_root
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.manager import TierLimits
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.store_health import BreakerOpen, HealthyStore

SHORT_TIMEOUTS = TierLimits(copy_seconds=5, small_seconds=5)  # longer than the slowest disk takes for a copy
BATCHES, RECORDS = 20, 5  # two rolled segments and an active one
COPY_CALLS = 16  # more than the puts, gets and heads of a flush of this size
DELETE_CALLS = 5  # the root, the description; then lists of manifests and data, and the segments


async def read_back(node: TierNode, replica) -> None:
    """Every record is there, once, in order, with the value that was produced; read errors are retried."""
    seen: list[int] = []
    offset = replica.log_start_offset
    while offset < replica.high_watermark:
        try:
            data = await asyncio.wait_for(node.fetch(replica, offset), 0.5)
        except (ObjectStoreError, TimeoutError):
            continue
        for at, _ in iter_batches(data):
            for record in iter_records(data, at, max_bytes=1 << 20):
                assert record.value == b"%060d" % record.offset
                seen.append(record.offset)
        offset = seen[-1] + 1
    assert seen == list(range(replica.log_start_offset, replica.high_watermark))


def limits(fault: str) -> TierLimits:
    """A call that stalls times out soon."""
    return SHORT_TIMEOUTS if fault == "stall" else TierLimits()


def make_store(kind: str, directory: Path) -> FaultyStore:
    return FaultyStore(MemoryStore() if kind == "memory" else LocalStore(directory / "bucket"))


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_failure_at_every_call_of_a_copy(tmp_path: Path, kind: str, fault: str) -> None:
    cases = (copy_with_fault(tmp_path / str(at), kind, fault, at) for at in range(COPY_CALLS))
    fired = await asyncio.gather(*cases)
    assert sum(fired) >= 8  # at least this many calls failed


async def copy_with_fault(directory: Path, kind: str, fault: str, at: int) -> bool:
    """Whether the call number `at` was made, and so had the fault."""
    store = make_store(kind, directory)
    async with TierNode(directory, store, limits=limits(fault)) as node:
        replica = await node.create("t")
        store.arm(fault, at, "put", "get", "head")
        produce(replica, BATCHES, records=RECORDS)
        await node.log_manager.flush("t")
        fired = store.fired.is_set()
        store.disarm()
        await node.finish_tiering()
        assert replica.log_end_offset == BATCHES * RECORDS
        assert replica.local_log_start_offset == replica.log_end_offset
        assert node.remote(replica).started == ()
        await read_back(node, replica)
        root = decode_root(await store.get(node.keys.root(node.where(replica))))
        assert root.entries == node.remote(replica).entries
        await nothing_is_an_orphan(node, replica)
        return fired


@pytest.mark.parametrize("fault", FAULTS)
async def test_failure_at_every_call_of_a_read(tmp_path: Path, fault: str) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        produce(replica, BATCHES, records=RECORDS)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        for at in range(6):
            node.remote_log = node.fresh_remote_log()
            store.arm(fault, at, "get")
            if fault == "stall":  # the reader goes away; all that share the stalled call would wait with it
                reading = asyncio.ensure_future(read_once(node, replica))
                await store.fired.wait()
                reading.cancel()
                await asyncio.wait([reading])
                node.remote_log = node.fresh_remote_log()
            await read_back(node, replica)
            assert store.fired.is_set()


async def read_once(node: TierNode, replica) -> None:
    offset = 0
    while offset < replica.high_watermark:
        data = await node.fetch(replica, offset)
        offset = list(iter_batches(data))[-1][1].next_offset


@pytest.mark.parametrize("fault", FAULTS)
async def test_failure_at_every_call_of_a_deletion(tmp_path: Path, fault: str) -> None:
    await asyncio.gather(*(delete_with_fault(tmp_path / str(at), fault, at) for at in range(DELETE_CALLS)))


async def delete_with_fault(directory: Path, fault: str, at: int) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(directory, store, limits=limits(fault)) as node:
        replica = await node.create("t")
        produce(replica, BATCHES, records=RECORDS)
        await node.log_manager.flush("t")
        await node.storage_cleaner.clean()
        topic_id = str(replica.topic_id)
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        await node.finish_tiering()
        store.arm(fault, at, "delete", "list")
        for _ in range(3):
            with suppress(ObjectStoreError):
                await node.storage_cleaner.clean()
        await cleaned_up(node)
        assert store.fired.is_set()
        assert [key for key in await node.objects() if topic_id in key] == []


async def test_produce_and_retention_continue_while_the_store_is_unavailable(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t", retention_bytes="9000")
        await node.finish_tiering()
        store.down = True
        produce(replica, 100)
        retained = asyncio.Event()
        replica.listeners.append(lambda r: retained.set() if r.log_start_offset > 300 and few(r) else None)
        if not (replica.log_start_offset > 300 and few(replica)):
            await retained.wait()
        assert sum(info.size_bytes for info in replica.segments) < 9000 + 2 * 4000
        (line,) = await node.log_manager.status("t")
        assert "503" in (line.last_error or "")
        assert replica.read(replica.log_start_offset, 1000).error == ErrorCode.NONE
        store.down = False
        await node.log_manager.flush("t")
        assert (await node.log_manager.status("t"))[0].last_error is None
        await read_back(node, replica)


def few(replica) -> bool:
    return len(replica.segments) <= 5


async def test_failing_partition_does_not_stop_another(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    limits = TierLimits(copy_seconds=30, small_seconds=30, stall_seconds=0.001)
    async with TierNode(tmp_path, store, limits=limits) as node:
        replica = await node.create("stuck")
        await node.finish_tiering()
        store.arm("stall", 0, "put")
        produce(replica, BATCHES)
        await store.fired.wait()
        other = await node.create("other")
        produce(other, BATCHES)
        await node.log_manager.flush("other")
        assert node.remote(other).end_offset == other.log_end_offset
        assert (await node.log_manager.status("stuck"))[0].uploading
        assert node.manager.counts.stalls > 0


async def test_store_outage_fills_neither_the_quorums_log_nor_the_delete_queue(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        await node.finish_tiering()
        store.down = True
        before = len(store.calls)
        produce(replica, BATCHES)
        await store.until_called(before + 8)  # a copy that fails, and several attempts to try again
        assert len(node.metadata.image.delete_queue) + len(node.remote(replica).started) == 1
        store.down = False
        await node.log_manager.flush("t")
        await read_back(node, replica)
        await nothing_is_an_orphan(node, replica)


async def test_status_shows_store_failures_and_local_offsets_are_explained(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t", local_retention_ms="-1")
        produce(replica, BATCHES, records=RECORDS)
        await node.log_manager.flush("t")
        reported: list[str | None] = []
        node.log_manager.listeners.append(
            lambda where: reported.append(node.log_manager.status_of(replica).last_error)
        )
        store.down = True
        before = len(store.calls)
        produce(replica, BATCHES, records=RECORDS)
        await store.until_called(before + 5)
        place = await node.log_manager.explain("t", 0, 3)
        assert (place.tier, place.also_remote) == ("local", None)
        assert 1 <= reported.count("503 Slow Down") <= 2  # when it failed, and when that copy was given up
        store.down = False
        await node.log_manager.flush("t")
        await node.finish_tiering()
        assert reported[-1] is None


async def test_error_of_a_failed_copy_ends_with_the_next_copy_that_succeeds(tmp_path: Path) -> None:
    """A long backlog is no reason to show a failure that is over."""
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        await node.finish_tiering()
        seen: list[tuple[int | None, str | None]] = []

        def note(_: object) -> None:
            line = node.log_manager.status_of(replica)
            seen.append((line.remote_end_offset, line.last_error))

        node.log_manager.listeners.append(note)
        store.arm("fail", 0, "put")
        produce(replica, BATCHES, records=RECORDS)
        await node.log_manager.flush("t")
        assert any(error is not None for _, error in seen)
        copied = [error for end, error in seen if end is not None]
        assert len(copied) > 1 and copied[0] is None


async def test_copy_that_waits_for_a_slot_is_not_announced(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store, limits=TierLimits(copies_at_once=1)) as node:
        first, second = await node.create("first"), await node.create("second")
        await node.finish_tiering()
        store.arm("hold", 0, "put")
        produce(first, BATCHES)
        await store.fired.wait()
        produce(second, BATCHES)
        for _ in range(100):
            await asyncio.sleep(0)
        await node.create("later")  # commits after whatever the second one has submitted by now
        assert len(node.remote(first).started) == 1
        assert node.remote(second).started == ()
        store.gate.set()
        await asyncio.gather(node.log_manager.flush("first"), node.log_manager.flush("second"))
        for replica in (first, second):
            assert node.remote(replica).end_offset == replica.log_end_offset


async def test_flush_fails_at_once_while_the_store_is_unavailable(tmp_path: Path) -> None:
    faulty, tasks = FaultyStore(MemoryStore()), TaskGroup(lambda name, failure: None)
    store = HealthyStore(faulty, tasks)
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        faulty.down = True
        produce(replica, BATCHES)
        with pytest.raises(BreakerOpen, match="the object store is unavailable: 503 Slow Down"):
            await node.log_manager.flush("t")
        with pytest.raises(BreakerOpen):
            await node.log_manager.flush("t")
        faulty.down = False
        await node.finish_tiering()
        await node.log_manager.flush("t")
        assert node.remote(replica).end_offset == replica.log_end_offset
    await tasks.close()


async def test_cleanup_does_not_log_each_retry_of_an_outage(tmp_path: Path, monkeypatch) -> None:
    """The store's health reports the outage once."""
    monkeypatch.setattr(remote_storage_cleaner, "RETRY_S", 0.0)
    faulty, tasks, rounds = FaultyStore(MemoryStore()), TaskGroup(lambda name, failure: None), asyncio.Queue()
    store = HealthyStore(faulty, tasks)
    async with TierNode(tmp_path, store) as node:
        await node.create("t")
        faulty.down = True
        while store.health.is_available:
            with suppress(ObjectStoreError):
                await node.storage_cleaner.clean()
        clean = node.storage_cleaner.clean

        async def counted() -> float:
            rounds.put_nowait(None)
            return await clean()

        node.storage_cleaner.clean = counted
        with capture_logs() as lines:
            node.storage_cleaner.start()
            for _ in range(5):
                await rounds.get()
        assert [line for line in lines if line["event"] == "cleanup.failed"] == []
    await tasks.close()


async def test_topic_deleted_during_its_upload_leaves_no_objects(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        await node.finish_tiering()
        topic_id = str(replica.topic_id)
        for at in range(2):
            store.arm("hold", at, "put")
        produce(replica, BATCHES)
        await store.fired.wait()
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        keeping = asyncio.ensure_future(node.storage_cleaner.clean())
        await asyncio.sleep(0)
        store.gate.set()
        await keeping
        await node.finish_tiering()
        await cleaned_up(node)
        assert [key for key in await node.objects() if topic_id in key] == []


async def nothing_is_an_orphan(node: TierNode, replica) -> None:
    """Every object is named by the manifest, or was announced and is deleted by the queue."""
    await cleaned_up(node)
    where, remote = node.where(replica), node.remote(replica)
    named = {node.keys.log(where, entry) for entry in remote.entries}
    named |= {node.keys.index(where, entry) for entry in remote.entries}
    assert set(await node.objects(node.keys.data(where))) == named


async def cleaned_up(node: TierNode) -> None:
    """Delete everything that may be deleted; what has failed is tried again after its back-off."""
    tried = False
    while not tried or node.metadata.image.delete_queue or node.storage_cleaner.failing:
        with suppress(ObjectStoreError):
            await node.storage_cleaner.clean()
            tried = True
