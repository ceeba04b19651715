"""Uploads run beside the job of their partition: retention continues, and uploads that crawl make room."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_store import FaultyStore
from structlog.testing import capture_logs
from tier_node import TierNode, produce

from tierlog.broker.remote.failure_log import INTERVAL_MS
from tierlog.broker.replication.replica import Replica
from tierlog.tiering.manager import TierLimits
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import Body, Condition, ObjectInfo, ObjectStoreError

BATCHES = 20  # two rolled segments and an active one
FAILED = "tiering.failed"


async def reached(replica: Replica, condition: Callable[[], bool]) -> None:
    """Wait for a change of a replica."""
    changed = asyncio.Event()
    replica.listeners.append(lambda _: changed.set())
    while not condition():
        changed.clear()
        await changed.wait()


def is_short(replica: Replica) -> bool:
    return replica.log_start_offset > 300 and len(replica.segments) <= 5


async def test_retention_does_not_wait_for_the_partitions_own_upload(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t", retention_bytes="9000")
        await node.finish_tiering()
        store.arm("hold", 0, "put")
        produce(replica, BATCHES)
        await store.fired.wait()
        assert (await node.log_manager.status("t"))[0].uploading
        produce(replica, 100)
        await reached(replica, lambda: is_short(replica))
        assert node.remote(replica).log_start_offset == replica.log_start_offset
        store.gate.set()
        await node.log_manager.flush("t")
        await node.finish_tiering()
        assert node.remote(replica).started == ()


async def test_retention_does_not_wait_for_a_copy_slot(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store, limits=TierLimits(copies_at_once=1)) as node:
        first, second = await node.create("first"), await node.create("second", retention_bytes="9000")
        await node.finish_tiering()
        store.arm("hold", 0, "put")
        produce(first, BATCHES)
        await store.fired.wait()
        produce(second, 100)
        await reached(second, lambda: is_short(second))
        assert not node.remote(second).started
        store.gate.set()
        await node.finish_tiering()
        assert node.remote(second).end_offset == second.log.active_base_offset


async def test_upload_that_retention_passes_ends_and_is_abandoned(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t", retention_bytes="9000")
        await node.finish_tiering()
        store.arm("hold", 0, "put")
        produce(replica, BATCHES)
        await store.fired.wait()
        produce(replica, 100)
        await node.finish_tiering()  # although the store still holds the put
        assert node.remote(replica).started == ()
        assert node.remote(replica).end_offset == replica.log.active_base_offset
        assert node.manager.counts.uploading == 0


class TricklingStore(MemoryStore):
    """Reads the bodies of some keys a byte at a time, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.words: tuple[str, ...] = ()
        self.released = asyncio.Event()
        self.both_trickle = asyncio.Event()
        self._trickling = 0

    async def put(
        self, key: str, body: "bytes | Path | Body", *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        if key.endswith(".log") and any(word in key for word in self.words):
            self._trickling += 1
            if self._trickling == 2:
                self.both_trickle.set()
            content = bytearray(body.size)
            for at in range(body.size):
                await body.read_into(memoryview(content)[at : at + 1])
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.released.wait(), 0.005)
            body = bytes(content)
        return await super().put(key, body, crc32c=crc32c, condition=condition)


async def test_uploads_that_crawl_give_their_slots_to_others(tmp_path: Path) -> None:
    store = TricklingStore()
    limits = TierLimits(copies_at_once=2, crawl_window_seconds=0.1, crawl_bytes_per_second=20_000)
    async with TierNode(tmp_path, store, limits=limits) as node:
        slow = [await node.create(f"slow-{number}") for number in range(4)]
        store.words = tuple(str(replica.topic_id) for replica in slow)
        for replica in slow:
            produce(replica, BATCHES)
        await store.both_trickle.wait()
        others = [await node.create(f"other-{number}") for number in range(3)]
        for replica in others:
            produce(replica, BATCHES)
        await asyncio.gather(*(node.log_manager.flush(replica.name.topic) for replica in others))
        assert all(node.remote(replica).end_offset == replica.log_end_offset for replica in others)
        gave_up = [node.log_manager.status_of(replica).last_error for replica in slow]
        assert any("gave its slot up" in (error or "") for error in gave_up)
        store.released.set()
        await node.finish_tiering()
        assert all(node.remote(replica).end_offset for replica in slow)


async def test_upload_that_crawls_keeps_its_slot_while_no_other_waits(tmp_path: Path) -> None:
    store = TricklingStore()
    limits = TierLimits(copies_at_once=1, crawl_window_seconds=0.001, crawl_bytes_per_second=1 << 30)
    async with TierNode(tmp_path, store, limits=limits) as node:
        replica = await node.create("slow")
        store.words = (str(replica.topic_id),)
        store.released.set()
        produce(replica, BATCHES)
        await node.log_manager.flush("slow")
        assert node.remote(replica).end_offset == replica.log_end_offset


class RefusingStore(FaultyStore):
    """Refuses every call, as with expired credentials."""

    code = "AccessDenied"

    async def _next(self, operation: str) -> str:
        self.calls.append(operation)
        self._called.set()
        refused = ObjectStoreError(f"call {len(self.calls)}: {self.code}")
        refused.code = self.code
        raise refused


async def test_refusals_are_logged_once_an_interval_and_not_for_each_partition(tmp_path: Path) -> None:
    store = RefusingStore(MemoryStore())
    async with TierNode(tmp_path, store) as node:
        replicas = [await node.create(f"t{number}") for number in range(20)]
        with capture_logs() as logs:
            for replica in replicas:
                produce(replica, BATCHES)
            await store.until_called(100)
            assert [line["partitions"] for line in logs if line["event"] == FAILED] == [1]
            node.clock.pass_time(INTERVAL_MS)
            await store.until_called(len(store.calls) + 40)
        [_, line] = [line for line in logs if line["event"] == FAILED]
        assert line["partitions"] == len(replicas) and "AccessDenied" in line["error"]
        with capture_logs() as logs:
            store.code = "NoSuchBucket"
            await store.until_called(len(store.calls) + 40)
        [line] = [line for line in logs if line["event"] == FAILED]
        assert "NoSuchBucket" in line["error"], "another kind of failure"


@pytest.fixture(autouse=True)
def _fast_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierlog.broker.remote.remote_log_manager.BACKOFF_MAX_S", 0.05)
