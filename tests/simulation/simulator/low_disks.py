"""Low disks: disks of brokers that for a moment have less free space than `log.dir.free.bytes.min`.

Topics of these runs drop uploaded segments on low disks, and keep all segments locally until then. A process
has enough space left for a run, and continues. With the fault "full" it mostly ends before it drops anything.
Called by Tiering, during the faults and once all segments are remote.
"""

import asyncio
import random
from collections.abc import Mapping

from simulator.broker import SimBroker

FREE_BYTES_MIN = 1 << 20
"""log.dir.free.bytes.min: half of it is more than what a run writes."""

LOCAL_BYTES = -2
"""local.retention.bytes of a topic: as much as retention.bytes."""

LOW_A_SECOND = 1.0
LOW_FOR_S = 2.0
"""A disk is low for at most this long. The product checks free space four times a second."""


async def lower(brokers: Mapping[int, SimBroker], rng: random.Random) -> None:
    """Take free space from a disk now and then, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(rng.expovariate(LOW_A_SECOND))
        disk = brokers[rng.choice(sorted(brokers))].disk
        disk.free_bytes = rng.randrange(FREE_BYTES_MIN // 2, FREE_BYTES_MIN)
        loop.call_later(rng.uniform(0, LOW_FOR_S), disk.clear_full)
