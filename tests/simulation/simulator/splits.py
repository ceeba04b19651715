"""Nodes fall into two groups that do not reach each other, for a while: each may take itself for the rest of
the cluster. Clients reach both."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from simulator.network import Network

LASTS_S = (0.2, 3.0)


async def split(
    names: Sequence[str], network: Network, rng: random.Random, a_second: float, told: Counter[str]
) -> None:
    """For ever."""
    while True:
        await asyncio.sleep(rng.expovariate(a_second))
        some = rng.sample(names, rng.randrange(1, len(names)))
        pairs = [(one, other) for one in some for other in names if other not in some]
        told["split"] += 1
        for one, other in pairs:
            network.cut(one, other)
            network.cut(other, one)
        await asyncio.sleep(rng.uniform(*LASTS_S))
        for one, other in pairs:
            network.mend(one, other)
            network.mend(other, one)
