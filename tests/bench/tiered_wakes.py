"""Lag of the event loop while the tiered partitions of one broker are woken.

`PYTHONPATH=tests/support python tests/bench/tiered_wakes.py [--partitions N] [--uploads]` prints one line
of JSON. Quorum, replicas and remote log manager are real, the store is in memory. Ticks are due every
millisecond.
"""

import argparse
import asyncio
import json
import logging
import tempfile
import time
from pathlib import Path

import structlog
from tier_node import TierNode, produce

from tierlog.tiering.memory_store import MemoryStore

TICK_S = 0.001


async def measure(partitions: int, uploads: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        async with TierNode(Path(directory), MemoryStore()) as node:
            await node.create("t", partitions, segment_bytes="2000", local_retention_ms="-1")
            await node.finish_tiering()
            found: dict[str, object] = {"partitions": partitions, "idle": await lag_of(node)}
            for replica in node if uploads else ():
                produce(replica, 12)
            if uploads:
                found["with_uploads"] = await lag_of(node)
                found["with_entries"] = await lag_of(node)
            return found


async def lag_of(node: TierNode) -> dict[str, float]:
    """Wake all partitions, and wait until nothing is left to do."""
    lags: list[float] = []
    busy: list[float] = []
    ticks = asyncio.create_task(tick(lags, busy))
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    await node.finish_tiering()
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
