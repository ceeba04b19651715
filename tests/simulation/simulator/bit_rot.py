"""Bit rot: flips bits in batches of one replica, anywhere from the first byte on.

Some bits flip in the active segment just as the node is killed, so recovery is the first to read them. In
half of these cases all nodes are killed, so the replica still counts as in sync. Other bits flip under a
running process, in synced and committed batches, old segments too: reads or the scrubber find them. Once all
faults are healed, one more bit flips, or one on each replica of a partition, each in another batch: every
record is then intact on some replica, and repair must not lose it. A flip is pending until its batch has
changed or is gone.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from simulator.broker import DIRECTORIES, SimBroker
from simulator.disk import Disk
from tierlog.records.batch import HEADER_SIZE, BatchHeader, iter_batches
from tierlog.records.errors import RecordsError

FLIPS_A_SECOND = 2.0
WHILE_RUNNING = 0.6
ALL_KILLED = 0.5
ON_ALL_REPLICAS = 0.5
"""Share of the runs in which a bit flips on each replica of a partition once all faults are healed. Under
faults it would seldom be safe: a disk may lose data only if all others are intact.
"""

SCRUBBED_WITHIN_S = 3.0
"""The scrubber of a running process starts within this time."""

SHORT_SEGMENTS = 0.3
"""Share of the runs. Recovery reads the segments from the recovery point on, so it reads little in these."""

OFFSET_LOW_BYTE = 7
"""The low byte of a batch's base offset. A wrong one still looks plausible, and only the end of the previous
batch shows the damage. A random byte is seldom this one.
"""

EPOCH_LOW_BYTE = 15
"""The low byte of a batch's leader epoch. Above the recovery point only the batches have the epochs, so
recovery accepts any plausible one."""


def short_segments(seed: int) -> tuple[tuple[str, str], ...]:
    """Settings of the run's topic. A separate generator keeps other draws the same."""
    short = random.Random(f"segments {seed}").random() < SHORT_SEGMENTS
    return (("segment.bytes", "300"),) if short else ()


class Flip(NamedTuple):
    """`before`, `content`: the batch before and after the flip; `end_offset`: the offset after the batch.
    A move to another log directory takes it along.
    """

    path: Path
    position: int
    end_offset: int
    before: bytes
    content: bytes

    @property
    def is_pending(self) -> bool:
        return any(self.copies())

    def copies(self) -> Iterator[Path]:
        """The files that have the flipped batch."""
        for directory in DIRECTORIES:
            path = self.path.parents[2] / directory / self.path.parent.name / self.path.name
            with suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self.position)
                if file.read(len(self.content)) == self.content:
                    yield path


class BitRot:
    """The flips of one run."""

    def __init__(self, topic: str, brokers: Mapping[int, SimBroker], faults: Counter[str]) -> None:
        self._topic, self._brokers, self._faults = topic, brokers, faults
        self.count = 0
        self._flips: dict[int, list[Flip]] = {}

    def is_pending(self, broker: SimBroker) -> bool:
        """Whether the broker's disk has a damaged batch."""
        return any(flip.is_pending for flip in self._flips.get(broker.node_id, ()))

    def was_in(self, broker: SimBroker, path: Path) -> bool:
        """Whether a bit is flipped on the broker's disk, or was in this file: two checks that run together
        may both read a batch that the first one repairs."""
        flips = self._flips.get(broker.node_id, ())
        place = path.parent.name, path.name
        return self.is_pending(broker) or place in {(one.path.parent.name, one.path.name) for one in flips}

    def is_pending_elsewhere(self, broker: SimBroker) -> bool:
        """Whether another disk has a damaged batch: this one may be the only one with those records."""
        return any(self.is_pending(one) for one in self._brokers.values() if one is not broker)

    def start_scrubs(self) -> bool:
        """Start the scrubbers of brokers with damage to repair. Returns False if there is none."""
        pending = [broker for broker in self._brokers.values() if self._needs_repair(broker)]
        for broker in pending:
            if broker.scrubber is not None and broker.process is not None:
                broker.process.context.run(broker.scrubber.begin)
        return bool(pending)

    def _needs_repair(self, broker: SimBroker) -> bool:
        """Damage below a log start stays until retention deletes it."""
        starts = {replica.log.directory.name: replica.log_start_offset for replica in broker.replicas or ()}
        flips = self._flips.get(broker.node_id, ())
        return any(one.end_offset > starts.get(one.path.parent.name, 0) and one.is_pending for one in flips)

    def undo_pending(self) -> None:
        """Undo the flips that are left at the end, below log starts: no replica repairs or serves them, but
        the witnesses read whole files.
        """
        for flip in (one for flips in self._flips.values() for one in reversed(flips)):
            for path in flip.copies():
                with path.open("r+b") as file:
                    file.seek(flip.position)
                    file.write(flip.before)

    async def flip_bits(
        self,
        rng: random.Random,
        may_lose: Callable[[SimBroker], bool],
        stop: Callable[[int], None],
    ) -> None:
        """Runs until cancelled. `may_lose`: whether a broker's disk may lose data now."""
        while True:
            await asyncio.sleep(rng.expovariate(FLIPS_A_SECOND))
            number = rng.choice(sorted(self._brokers))
            broker, under_a_process = self._brokers[number], rng.random() < WHILE_RUNNING
            found = (
                self._synced_batches(broker) if under_a_process else self._newest_segment_batches(broker.disk)
            )
            batches = list(found) if broker.is_up else []
            if not batches or not may_lose(broker):
                continue
            path, (at, header) = rng.choice(batches)
            byte = rng.choice((rng.randrange(EPOCH_LOW_BYTE + 1), rng.randrange(header.size)))
            if under_a_process:
                self._flip(number, path, at, header, byte, rng)
                self._faults["flipped under a process"] += 1
                asyncio.get_running_loop().call_later(rng.uniform(0, SCRUBBED_WITHIN_S), self.start_scrubs)
            elif byte != EPOCH_LOW_BYTE:
                self._flip(number, path, at, header, byte, rng)
                for one in sorted(self._brokers) if rng.random() < ALL_KILLED else (number,):
                    stop(one)

    def flip_when_all_is_well(self, rng: random.Random) -> bool:
        """Flip a bit on one replica, or one on each replica of a partition. False if nothing is synced."""
        if rng.random() < ON_ALL_REPLICAS and self._flip_on_all(rng):
            return True
        found = [(n, one) for n in sorted(self._brokers) for one in self._synced_batches(self._brokers[n])]
        if found:
            number, (path, (at, header)) = rng.choice(found)
            byte = rng.choice((OFFSET_LOW_BYTE, OFFSET_LOW_BYTE, EPOCH_LOW_BYTE, rng.randrange(header.size)))
            self._flip(number, path, at, header, byte, rng)
            self._faults["flipped when all was well"] += 1
        return bool(found)

    def _flip_on_all(self, rng: random.Random) -> bool:
        """Flip a bit in the records of one batch on each replica of a partition, each in another batch which
        all of them have, the last one on the leader: followers that truncate at their damage lose it. False
        if no partition has enough such batches.
        """
        replicas: dict[str, dict[int, dict[int, tuple[Path, tuple[int, BatchHeader]]]]] = {}
        for number, broker in sorted(self._brokers.items()):
            for path, batch in self._synced_batches(broker):
                held = replicas.setdefault(path.parent.name, {}).setdefault(number, {})
                held[batch[1].base_offset] = path, batch
        names = []
        for name, held_by in sorted(replicas.items()):
            common = set.intersection(*map(set, held_by.values()))
            if len(held_by) > 1 and len(common) >= len(held_by):
                names.append((name, sorted(common)))
        if not names:
            return False
        name, common = rng.choice(names)
        leaders = {
            number
            for number, broker in self._brokers.items()
            for replica in broker.replicas or ()
            if replica.is_leader and replica.log.directory.name == name
        }
        order = sorted(replicas[name], key=leaders.__contains__)
        for number, offset in zip(order, sorted(rng.sample(common, len(order))), strict=True):
            path, (at, header) = replicas[name][number][offset]
            self._flip(number, path, at, header, rng.randrange(HEADER_SIZE, header.size), rng)
            self._faults["flipped on each replica"] += 1
        return True

    def _flip(
        self, number: int, path: Path, at: int, header: BatchHeader, byte: int, rng: random.Random
    ) -> None:
        """`byte`: its position in the batch."""
        self.count += 1
        with path.open("r+b") as file:
            file.seek(at)
            before = file.read(header.size)
            content = bytearray(before)
            content[byte] ^= 1 << rng.randrange(8)
            file.seek(at)
            file.write(content)
        flip = Flip(path, at, header.next_offset, before, bytes(content))
        self._flips.setdefault(number, []).append(flip)

    def _newest_segment_batches(self, disk: Disk) -> Iterator[tuple[Path, tuple[int, BatchHeader]]]:
        """The batches of the newest segment of each partition."""
        for name in DIRECTORIES:
            for partition in sorted((disk.root / name).glob(f"{self._topic}-?")):
                path = max(partition.glob("*.log"), default=None)
                yield from _batches(path) if path is not None else ()

    def _synced_batches(self, broker: SimBroker) -> Iterator[tuple[Path, tuple[int, BatchHeader]]]:
        """Batches that are synced and committed."""
        for replica in sorted(broker.replicas or (), key=lambda one: one.name):
            if replica.name.topic == self._topic and replica.failed is None and not replica.log.damage:
                for part in replica.segments:
                    for path, batch in _batches(part.path_log) if part.size_bytes else ():
                        if batch[1].next_offset <= min(replica.high_watermark, replica.log.recovery_point):
                            yield path, batch


def _batches(path: Path) -> Iterator[tuple[Path, tuple[int, BatchHeader]]]:
    """Batches up to a torn one."""
    with suppress(RecordsError):
        for batch in iter_batches(path.read_bytes()):
            yield path, batch
