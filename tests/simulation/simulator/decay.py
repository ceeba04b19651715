"""Bits that flip on a disk at rest, of what a CRC covers, on one replica at a time.

Only where a start after a kill looks: in the segment that a partition appends to. The node is killed in the
same moment, so nothing of it was read before; in part of the cases all others with it, so that it is still in
sync as far as anybody knows when it comes back.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.broker import DIRECTORIES, SimBroker
from simulator.disk import Disk
from tierlog.broker.records.batch import iter_batches

FLIPS_A_SECOND = 0.7
ALL_KILLED = 0.5
COVERED_FROM = 16
"""Of a batch: the magic byte, the CRC, and all behind it; not its offset, length and leader epoch."""


async def flip_bits(
    brokers: Mapping[int, SimBroker],
    topic: str,
    rng: random.Random,
    may_decay: Callable[[SimBroker], bool],
    stop: Callable[[int], None],
) -> None:
    """For ever. `may_decay`: whether a disk may lose what it has."""
    while True:
        await asyncio.sleep(rng.expovariate(FLIPS_A_SECOND))
        number = rng.choice(sorted(brokers))
        broker = brokers[number]
        logs = _appended_to(broker.disk, topic)
        if broker.is_up and logs and may_decay(broker):
            _flip(rng.choice(logs), rng)
            for one in sorted(brokers) if rng.random() < ALL_KILLED else (number,):
                stop(one)


def _appended_to(disk: Disk, topic: str) -> list[Path]:
    """The newest segment of each partition, if there is anything in it."""
    found = [
        max(partition.glob("*.log"), default=None)
        for name in DIRECTORIES
        for partition in sorted((disk.root / name).glob(f"{topic}-?"))
    ]
    return [path for path in found if path is not None and path.stat().st_size > 0]


def _flip(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    at, header = rng.choice(list(iter_batches(content)))
    where = rng.randrange(at + COVERED_FROM, at + header.size)
    with path.open("r+b") as file:
        file.seek(where)
        file.write(bytes([content[where] ^ 1 << rng.randrange(8)]))
