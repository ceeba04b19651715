"""Mistakes of operators with identities: a second process of a live broker, and disks that are put back.

Data directories of one node a run go back to an earlier image: as a copy of their files, as a snapshot of
their blocks, which keeps inodes and change times, or after another disk was in their place for a while. The
directory of the metadata does not: with a voter that forgets its votes no Raft keeps its promises.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from simulator.broker import SimBroker
from simulator.partitions import PartitionWitness
from tierlog.broker.log.checkpoints import META_PROPERTIES
from tierlog.metadata.controller.commands import RegisterBroker
from tierlog.metadata.node import MetadataUnavailable

TWINS, RESTORED = 0.3, 0.3
"""Of the runs: the share with second processes of live brokers, and with disks that are put back."""

TWINS_A_SECOND = 2.0
COPIED_S, DOWN_S = (0.2, 3.0), (0.0, 0.5)
LOOK_S = 0.01
WAYS = ("files", "blocks", "swapped")


async def start_twins(
    rng: random.Random, brokers: Mapping[int, SimBroker], witness: PartitionWitness, told: Counter[str]
) -> None:
    """For ever. A twin has a copy of the disk, so that it may take the place of a dead process; it dies then,
    and does no more."""
    while True:
        await asyncio.sleep(rng.expovariate(TWINS_A_SECOND))
        known, asked = witness.image, brokers[rng.choice(sorted(brokers))].metadata
        number = rng.choice(sorted(brokers))
        broker = None if known is None else known.brokers.get(number)
        if broker is None or asked is None:
            continue
        twin = RegisterBroker(
            broker_id=number,
            incarnation=UUID(int=rng.getrandbits(128)),
            host=broker.host,
            port=broker.port,
            admin_url=broker.admin_url,
            start_fenced=True,
            directories=broker.directories,
            previous_epoch=broker.broker_epoch,
            min_in_sync=broker.min_in_sync,
        )
        told["twin"] += 1
        with suppress(MetadataUnavailable):
            await asked.submit(twin, timeout_s=1.0)


class PutBack:
    """The disk of one node, which is copied while things fail and put back once all is well: then no other
    disk may have lost anything, and what the copy lacks shows."""

    def __init__(self, brokers: Mapping[int, SimBroker], rng: random.Random, told: Counter[str]) -> None:
        self._brokers, self._rng, self._told = brokers, rng, told
        self._way = rng.choice(WAYS)
        self._broker, self._other, self._third = (brokers[n] for n in rng.sample(sorted(brokers), 3))
        self._copy: Path | None = None

    async def copy(self, may_lose: Callable[[SimBroker], bool]) -> None:
        """`may_lose`: whether a disk may lose what it has."""
        await asyncio.sleep(self._rng.uniform(*COPIED_S))
        self._copy = self._broker.disk.copy()
        if self._way == "swapped":
            await _until(lambda: may_lose(self._broker))
            self._broker.wipe_directories()
        elif self._way == "blocks":
            self._broker.kill()
        await asyncio.sleep(self._rng.uniform(*DOWN_S))
        self._broker.start()

    async def put_back(self, witness: PartitionWitness) -> None:
        """When most depends on it, as one of two in sync; not at all if it is that nowhere, or alone."""
        if self._copy is None:
            return
        if self._way == "blocks":  # and it serves under another epoch than when it was copied
            self._broker.kill()
            self._broker.start()
        await _until(lambda: witness.is_in_sync(self._broker))
        self._other.kill()
        await _until(lambda: witness.is_fenced(self._other))
        if witness.is_one_of_two(self._broker):
            self._told["restored"] += 1
            self._broker.put_back(self._copy, keeps=META_PROPERTIES if self._way == "blocks" else "")
            self._broker.start()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
            self._third.kill()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
        self._third.start()
        self._other.start()


async def _until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(LOOK_S)
