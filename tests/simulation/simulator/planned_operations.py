"""Planned operations on brokers: clean restarts, moves of replicas to another log directory (KIP-113), and
starts with other settings, for one process or until the run ends.

Settings of topics and of the cluster must apply whatever a broker's own file says (guarantee 24). All brokers
have the same `broker.session.timeout.ms`: docs/explanation/limits.md says why.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from simulator.broker import DIRECTORIES, SimBroker
from tierlog.config.node import NodeSettings
from tierlog.protocol.errors import ErrorCode

STOPPED, REHOUSED = 0.25, 0.25
"""Shares of the runs in which brokers are restarted cleanly, and in which replicas change their directory."""

STOP_EVERY_S, DOWN_S = 1.5, 1.0
REHOUSE_EVERY_S = 0.5

MISCONFIGURE_EVERY_S = 1.5
MISCONFIGURED_S = (0.5, 5.0)
STAYS_MISCONFIGURED = 0.3
"""Share of the brokers with different settings that keep them until the run ends or they are chosen again."""

TOPIC_CONFIGS_KEPT = (("retention.ms", "-1"),)
"""Settings of the topics in runs whose brokers have different settings. Without a retention of its own, a
topic has its leader's, as in Kafka."""

DIFFERENT_SETTINGS: Mapping[str, tuple[object, ...]] = {
    "min.insync.replicas": (1, 1, 3),
    "unclean.leader.election.enable": (True,),
    "log.segment.bytes": (500, 3000, 1 << 20),
    "log.retention.ms": (1,),
    "log.retention.check.interval.ms": (500,),
    "replica.lag.time.max.ms": (400, 5000),
}
SETTING_DIFFERS = 0.6
"""Share of DIFFERENT_SETTINGS that a chosen broker gets."""


async def restart_brokers(brokers: Mapping[int, SimBroker], rng: random.Random, done: Counter[str]) -> None:
    """Runs until cancelled. A broker that is killed while it stops is started by its killer."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / STOP_EVERY_S))
        broker = brokers[rng.choice(sorted(brokers))]
        process = broker.process
        if not broker.stop():
            continue
        done["clean stops"] += 1
        await asyncio.sleep(rng.uniform(0, DOWN_S))
        if broker.process is process:
            broker.start()


async def rehouse_replicas(brokers: Mapping[int, SimBroker], rng: random.Random, done: Counter[str]) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / REHOUSE_EVERY_S))
        broker, where = brokers[rng.choice(sorted(brokers))], rng.choice(DIRECTORIES)
        if broker.process is None or broker.replicas is None or not broker.process.runs:
            continue
        names = sorted(replica.name for replica in broker.replicas)
        if names:
            error = broker.process.context.run(
                broker.node.moves.move, rng.choice(names), str(broker.disk.root / where)
            )
            done["directory moves"] += error is ErrorCode.NONE


async def misconfigure(
    brokers: Mapping[int, SimBroker], rng: random.Random, stop: Callable[[int], None]
) -> None:
    """Runs until cancelled. `stop` kills a broker, which is started again a moment later."""
    right = {number: broker.settings for number, broker in brokers.items()}
    while True:
        await asyncio.sleep(rng.expovariate(1 / MISCONFIGURE_EVERY_S))
        number = rng.choice(sorted(brokers))
        broker = brokers[number]
        broker.settings = _misconfigured_settings(right[number], rng)
        stop(number)
        await asyncio.sleep(rng.uniform(*MISCONFIGURED_S))
        if rng.random() > STAYS_MISCONFIGURED:
            broker.settings = right[number]
            stop(number)


def _misconfigured_settings(settings: NodeSettings, rng: random.Random) -> NodeSettings:
    chosen = {
        name: rng.choice(values)
        for name, values in DIFFERENT_SETTINGS.items()
        if rng.random() < SETTING_DIFFERS
    }
    fields = {name.replace(".", "_"): value for name, value in chosen.items()}
    return replace(settings, explicit=settings.explicit.union(chosen), **fields)  # type: ignore[arg-type]
