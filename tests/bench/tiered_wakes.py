"""Lag of the event loop while the tiered partitions of one broker are woken, shown, read and deleted.

`PYTHONPATH=tests/support python tests/bench/tiered_wakes.py [--partitions N] [--uploads]` prints one line
of JSON. Quorum, replicas and remote log manager are real, the store is in memory. Ticks are due every
millisecond. Without `--uploads` nothing is read.
"""

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path

import structlog
from tier_node import TierNode, produce

from tierlog.broker.gateway.tier_status import status_response
from tierlog.metadata.controller import commands as c
from tierlog.tiering.memory_store import MemoryStore

TICK_S = 0.001


async def measure(partitions: int, uploads: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        async with TierNode(Path(directory), MemoryStore()) as node:
            lag = {"remote_log_copy_max_lag_ms": "1000000000"}
            await node.create("t", partitions, segment_bytes="2000", local_retention_ms="-1", **lag)
            await node.finish_tiering()
            found: dict[str, object] = {"partitions": partitions}
            manager = node.log_manager
            found["idle"] = await lag_of(node.finish_tiering())
            if uploads:
                for replica in node:
                    produce(replica, 12)
                found["with_uploads"] = await lag_of(node.finish_tiering())
                found["with_entries"] = await lag_of(node.finish_tiering())
            found["copy_lag_check"] = await lag_of(manager.lags.check())
            statuses = await manager.status()
            found["status"] = await lag_of(manager.status())
            found["status_response"] = await lag_of(status_response("partitions", statuses))
            found["behind"] = await lag_of(manager.behind())
            if uploads:
                found["reads"] = await lag_of(read_all(node))
                found["commit_after_reads"] = await lag_of(commit(node))
            found["deletion"] = await lag_of(delete_all(node))
            return found


async def read_all(node: TierNode) -> None:
    """Read the first segment of each partition, so that its index and first chunk are cached."""
    for replica in node:
        await node.remote_log.read(replica.id, 0, 700, min_one=True)


async def commit(node: TierNode) -> None:
    """Change the remote state of one partition."""
    replica = next(iter(node))
    await node.move_log_start(replica, replica.log_start_offset + 1)
    await node.finish_tiering()


async def delete_all(node: TierNode) -> None:
    await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
    while node.remote_log.index_bytes or node.cache.bytes:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(TICK_S)


async def lag_of(work: Coroutine[object, object, object]) -> dict[str, float]:
    """The lag while this work runs."""
    lags: list[float] = []
    busy: list[float] = []
    ticks = asyncio.create_task(tick(lags, busy))
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    await work
    took = time.perf_counter() - began
    ticks.cancel()
    lags.sort()
    return {
        "seconds": round(took, 2),
        "lag_p99_ms": round(lags[len(lags) * 99 // 100] * 1000, 1),
        "lag_max_ms": round(lags[-1] * 1000, 1),
        "cpu_between_ticks_max_ms": round(max(busy) * 1000, 1),
    }


async def tick(lags: list[float], busy: list[float]) -> None:
    """`busy`: the loop's own CPU time between ticks, which other processes do not change."""
    while True:
        began, used = time.perf_counter(), time.thread_time()
        await asyncio.sleep(TICK_S)
        lags.append(time.perf_counter() - began - TICK_S)
        busy.append(time.thread_time() - used)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--uploads", action="store_true")
    chosen = parser.parse_args()
    print(json.dumps(asyncio.run(measure(chosen.partitions, chosen.uploads))))


if __name__ == "__main__":
    main()
