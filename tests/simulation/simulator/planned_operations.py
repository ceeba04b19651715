"""Planned operations on brokers: clean restarts, and moves of replicas to another log directory (KIP-113)."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

from simulator.broker import DIRECTORIES, SimBroker
from tierlog.protocol.errors import ErrorCode

STOPPED, REHOUSED = 0.25, 0.25
"""Shares of the runs in which brokers are restarted cleanly, and in which replicas change their directory."""

STOP_EVERY_S, DOWN_S = 1.5, 1.0
REHOUSE_EVERY_S = 0.5


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
