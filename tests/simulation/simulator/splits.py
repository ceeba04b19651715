"""Network splits: nodes form two groups that cannot reach each other for a while. Clients reach both."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from simulator.network import Network

LASTS_S = (0.2, 3.0)


async def split(
    names: Sequence[str], network: Network, rng: random.Random, a_second: float, faults: Counter[str]
) -> None:
    """Runs until cancelled. `a_second` is the rate of splits."""
    while True:
        await asyncio.sleep(rng.expovariate(a_second))
        some = rng.sample(names, rng.randrange(1, len(names)))
        pairs = [(one, other) for one in some for other in names if other not in some]
        faults["split"] += 1
        for one, other in pairs:
            network.cut(one, other)
            network.cut(other, one)
        await asyncio.sleep(rng.uniform(*LASTS_S))
        for one, other in pairs:
            network.mend(one, other)
            network.mend(other, one)
