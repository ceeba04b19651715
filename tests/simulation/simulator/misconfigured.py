"""Misconfigured brokers: an operator starts one with other settings, for one process or until the run ends.

Settings of topics and of the cluster must apply whatever a broker's own file says (guarantee 24). All brokers
have the same `broker.session.timeout.ms`: docs/explanation/limits.md says why.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from simulator.broker import SimBroker
from tierlog.config.node import NodeSettings

EVERY_S = 1.5
LASTS_S = (0.5, 5.0)
STAYS = 0.3
"""Share of these brokers that keep their settings until the run ends or they are chosen again."""

KEPT = (("retention.ms", "-1"),)
"""Settings of the topics in such a run. Without a retention of its own, a topic has its leader's, as in
Kafka."""

OTHERS: Mapping[str, tuple[object, ...]] = {
    "min.insync.replicas": (1, 1, 3),
    "unclean.leader.election.enable": (True,),
    "log.segment.bytes": (500, 3000, 1 << 20),
    "log.retention.ms": (1,),
    "log.retention.check.interval.ms": (500,),
    "replica.lag.time.max.ms": (400, 5000),
}
DIFFERS = 0.6
"""Share of these settings that differ on such a broker."""


async def misconfigure(
    brokers: Mapping[int, SimBroker], rng: random.Random, stop: Callable[[int], None]
) -> None:
    """Runs until cancelled. `stop` kills a broker, which is started again a moment later."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / EVERY_S))
        number = rng.choice(sorted(brokers))
        broker = brokers[number]
        right = broker.settings
        broker.settings = _misconfigured_settings(right, rng)
        stop(number)
        await asyncio.sleep(rng.uniform(*LASTS_S))
        if rng.random() > STAYS:
            broker.settings = right
            stop(number)


def _misconfigured_settings(settings: NodeSettings, rng: random.Random) -> NodeSettings:
    chosen = {name: rng.choice(values) for name, values in OTHERS.items() if rng.random() < DIFFERS}
    fields = {name.replace(".", "_"): value for name, value in chosen.items()}
    return replace(settings, explicit=settings.explicit.union(chosen), **fields)  # type: ignore[arg-type]
