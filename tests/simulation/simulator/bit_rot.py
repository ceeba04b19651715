"""Bit rot: flips bits in batches of one replica, anywhere from the first byte on.

Some bits flip in the active segment just as the node is killed, so recovery is the first to read them. In
half of these cases all nodes are killed, so the replica still counts as in sync. Other bits flip under a
running process, in synced and committed batches, old segments too: reads or the scrubber find them. In half
of the runs bits flip on every replica, each time in another batch: every record is intact on some replica,
and repair must not lose it. One more bit flips once all faults are healed, since few disks may lose data
under faults. A flip is pending until its batch has changed or is gone.
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
from tierlog.broker.storage.checkpoints import RECOVERY_POINTS, read_offsets
from tierlog.records.batch import HEADER_SIZE, BatchHeader, iter_batches
from tierlog.records.errors import RecordsError

FLIPS_A_SECOND = 2.0
WHILE_RUNNING = 0.6
ALL_KILLED = 0.5
ON_ALL_REPLICAS = 0.5
"""Share of the runs. No other bits flip in them, because a disk may lose data only when all are intact."""

TRIES_A_SECOND = 8.0
"""Rate in these runs: the preconditions seldom hold."""

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
        on_all = rng.random() < ON_ALL_REPLICAS
        while True:
            await asyncio.sleep(rng.expovariate(TRIES_A_SECOND if on_all else FLIPS_A_SECOND))
            number = rng.choice(sorted(self._brokers))
            broker, under_a_process = self._brokers[number], on_all or rng.random() < WHILE_RUNNING
            found = (
                self._synced_batches(broker) if under_a_process else self._newest_segment_batches(broker.disk)
            )
            batches = list(found) if broker.is_up else []
            if on_all:
                batches = [one for one in batches if self._is_unread_by_recovery(broker, *one)]
            if not batches or not may_lose(broker):
                continue
            path, (at, header) = rng.choice(batches)
            where = at + self._draw_byte(header, rng, in_records=on_all)
            if under_a_process:
                self._flip(number, path, at, header, where, rng)
                self._faults["flipped under a process"] += 1
                if on_all:
                    self._flip_others(number, path.parent.name, header, rng)
                asyncio.get_running_loop().call_later(rng.uniform(0, SCRUBBED_WITHIN_S), self.start_scrubs)
            elif where - at != EPOCH_LOW_BYTE:
                self._flip(number, path, at, header, where, rng)
                for one in sorted(self._brokers) if rng.random() < ALL_KILLED else (number,):
                    stop(one)

    def flip_one(self, rng: random.Random) -> bool:
        """Flip a bit on one replica, mostly where no CRC covers it. False if nothing is synced."""
        found = [(n, one) for n in sorted(self._brokers) for one in self._synced_batches(self._brokers[n])]
        if found:
            number, (path, (at, header)) = rng.choice(found)
            where = rng.choice((OFFSET_LOW_BYTE, OFFSET_LOW_BYTE, EPOCH_LOW_BYTE, rng.randrange(header.size)))
            self._flip(number, path, at, header, at + where, rng)
            self._faults["flipped when all was well"] += 1
        return bool(found)

    def _flip_others(self, first: int, name: str, header: BatchHeader, rng: random.Random) -> None:
        """Flip bits on the other replicas of the partition, each in a batch that the others still have."""
        flipped = {header.base_offset}
        for number in sorted(self._brokers):
            broker = self._brokers[number]
            found = self._synced_batches(broker) if broker.is_up and number != first else ()
            batches = [
                (path, batch)
                for path, batch in found
                if path.parent.name == name
                and batch[1].base_offset not in flipped
                and self._is_unread_by_recovery(broker, path, batch)
            ]
            if batches:
                path, (at, lost) = rng.choice(batches)
                flipped.add(lost.base_offset)
                self._flip(number, path, at, lost, at + self._draw_byte(lost, rng, in_records=True), rng)
                self._faults["flipped on another replica too"] += 1

    def _draw_byte(self, header: BatchHeader, rng: random.Random, *, in_records: bool) -> int:
        """`in_records`: recovery truncates a log at a wrong header even in segments that it does not read
        whole."""
        if in_records and header.size > HEADER_SIZE:
            return rng.randrange(HEADER_SIZE, header.size)
        return rng.choice((rng.randrange(EPOCH_LOW_BYTE + 1), rng.randrange(header.size)))

    def _is_unread_by_recovery(self, broker: SimBroker, path: Path, batch: tuple[int, BatchHeader]) -> bool:
        """Recovery truncates at damage in the segments that it reads, whatever other replicas have."""
        replica = next(one for one in broker.replicas or () if one.log.directory == path.parent)
        points = read_offsets(broker.files, path.parent.parent / RECOVERY_POINTS)
        point = points.get(replica.name, 0)
        read_from = max((one.base_offset for one in replica.segments if one.base_offset < point), default=0)
        return batch[1].next_offset <= read_from

    def _flip(
        self, number: int, path: Path, at: int, header: BatchHeader, where: int, rng: random.Random
    ) -> None:
        self.count += 1
        with path.open("r+b") as file:
            file.seek(at)
            before = file.read(header.size)
            content = bytearray(before)
            content[where - at] ^= 1 << rng.randrange(8)
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
