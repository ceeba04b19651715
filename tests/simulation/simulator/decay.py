"""Bits that flip on disks at rest: anywhere in a batch, from its first byte on.

Some flip in what a start reads: in the segment that a partition appends to. The node is killed in the same
moment, so nothing of it was read before; in part of the cases all others with it, so that it is still in sync
as far as anybody knows when it comes back. Others flip under a running process, in what is synced and
committed, old segments too: whoever reads there may meet them, or the scrubber, which is asked to look later.
In part of the runs they flip on every replica, each time in another batch: all records are whole somewhere,
and repair must not give them up. Under faults few disks may lose anything, so one more bit flips once all is
healed. A flip is pending until the batch is not there any more as it left it.
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
from tierlog.records.batch import BatchHeader, iter_batches
from tierlog.records.errors import RecordsError

FLIPS_A_SECOND = 2.0
UNDER_A_PROCESS = 0.6
ALL_KILLED = 0.5
ON_ALL_REPLICAS = 0.5
"""Of the runs: in these no bit flips otherwise, since a disk may lose something only when all are whole."""

TRIED_A_SECOND = 8.0
"""Then: seldom are all whole, and settled."""

LOOKED_AT_S = 3.0
"""The scrubber of a running process is asked to begin within that time."""

SHORT_SEGMENTS = 0.3
"""Of the runs: a start reads the segments from the recovery point on, so it reads little in these."""

LENGTH = range(8, 12)
"""The bytes of a batch's length: where that is wrong, batches behind it may count as damaged with it."""

LEAST_OF_OFFSET = 7
"""The byte of a batch with the least bits of its base offset. With one of them less the batch still seems to
lie in this log, and the next one to follow a gap: only the end of the batch before it tells. A byte drawn at
random is seldom this one.
"""

LEAST_OF_EPOCH = 15
"""The byte of a batch with the least bits of its leader epoch. Above the recovery point nothing but the
batches tells the epochs, so a start believes one that is plausible."""


def short_segments(seed: int) -> tuple[tuple[str, str], ...]:
    """What the topic of a run sets for that; drawn apart, for other runs to stay."""
    short = random.Random(f"segments {seed}").random() < SHORT_SEGMENTS
    return (("segment.bytes", "300"),) if short else ()


class Flip(NamedTuple):
    """`content`: the batch as it is since; `end_offset`: where it ends."""

    path: Path
    position: int
    end_offset: int
    content: bytes

    @property
    def is_pending(self) -> bool:
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                return file.read(len(self.content)) == self.content
        except FileNotFoundError:
            return False


class Decay:
    """Of one run."""

    def __init__(self, topic: str, brokers: Mapping[int, SimBroker], told: Counter[str]) -> None:
        self._topic, self._brokers, self._told = topic, brokers, told
        self.count = 0
        self._flips: dict[int, list[Flip]] = {}

    def is_pending(self, broker: SimBroker) -> bool:
        """Whether something on its disk is not as it was written."""
        return any(flip.is_pending for flip in self._flips.get(broker.node_id, ()))

    def is_pending_elsewhere(self, broker: SimBroker) -> bool:
        """Whether bits have flipped on another disk: this one may be all that has those records."""
        return any(self.is_pending(one) for one in self._brokers.values() if one is not broker)

    def look(self) -> bool:
        """Has those scrubbers begin a pass that would find something; False if nothing is left to repair."""
        pending = [broker for broker in self._brokers.values() if self._has_to_repair(broker)]
        for broker in pending:
            if broker.scrubber is not None and broker.process is not None:
                broker.process.context.run(broker.scrubber.begin)
        return bool(pending)

    def _has_to_repair(self, broker: SimBroker) -> bool:
        """What lies below a log start stays until retention deletes it."""
        starts = {replica.log.directory: replica.log_start_offset for replica in broker.replicas or ()}
        flips = self._flips.get(broker.node_id, ())
        return any(one.end_offset > starts.get(one.path.parent, 0) and one.is_pending for one in flips)

    async def flip_bits(
        self,
        rng: random.Random,
        may_decay: Callable[[SimBroker], bool],
        stop: Callable[[int], None],
    ) -> None:
        """For ever. `may_decay`: whether a disk may lose what it has."""
        on_all = rng.random() < ON_ALL_REPLICAS
        while True:
            await asyncio.sleep(rng.expovariate(TRIED_A_SECOND if on_all else FLIPS_A_SECOND))
            number = rng.choice(sorted(self._brokers))
            broker, under_a_process = self._brokers[number], on_all or rng.random() < UNDER_A_PROCESS
            found = self._settled(broker) if under_a_process else self._appended_to(broker.disk)
            batches = list(found) if broker.is_up else []
            if on_all:
                batches = [one for one in batches if self._is_unread_by_a_start(broker, *one)]
            if not batches or not may_decay(broker):
                continue
            path, (at, header) = rng.choice(batches)
            where = at + rng.choice((rng.randrange(LEAST_OF_EPOCH + 1), rng.randrange(header.size)))
            if under_a_process:
                self._flip(number, path, at, header, where, rng)
                self._told["flipped under a process"] += 1
                if on_all and where - at not in LENGTH:
                    self._flip_others(number, path.parent.name, header, rng)
                asyncio.get_running_loop().call_later(rng.uniform(0, LOOKED_AT_S), self.look)
            elif where - at != LEAST_OF_EPOCH:
                self._flip(number, path, at, header, where, rng)
                for one in sorted(self._brokers) if rng.random() < ALL_KILLED else (number,):
                    stop(one)

    def flip_one(self, rng: random.Random) -> bool:
        """When all is well: in a batch of any replica, mostly where no CRC covers it. False if nothing is
        synced yet."""
        found = [(n, one) for n in sorted(self._brokers) for one in self._settled(self._brokers[n])]
        if found:
            number, (path, (at, header)) = rng.choice(found)
            where = rng.choice((LEAST_OF_OFFSET, LEAST_OF_OFFSET, LEAST_OF_EPOCH, rng.randrange(header.size)))
            self._flip(number, path, at, header, at + where, rng)
            self._told["flipped when all was well"] += 1
        return bool(found)

    def _flip_others(self, first: int, name: str, header: BatchHeader, rng: random.Random) -> None:
        """Of the same partition, in batches that none of the others lost."""
        flipped = {header.base_offset}
        for number in sorted(self._brokers):
            broker = self._brokers[number]
            found = self._settled(broker) if broker.is_up and number != first else ()
            batches = [
                (path, batch)
                for path, batch in found
                if path.parent.name == name
                and batch[1].base_offset not in flipped
                and self._is_unread_by_a_start(broker, path, batch)
            ]
            if batches:
                path, (at, lost) = rng.choice(batches)
                flipped.add(lost.base_offset)
                end = rng.choice((LEAST_OF_EPOCH + 1, lost.size))
                self._flip(number, path, at, lost, at + rng.randrange(LENGTH.stop, end), rng)
                self._told["flipped on another replica too"] += 1

    def _is_unread_by_a_start(self, broker: SimBroker, path: Path, batch: tuple[int, BatchHeader]) -> bool:
        """What a start reads it would cut at the damage, whatever the others have."""
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
            file.seek(where)
            [byte] = file.read(1)
            file.seek(where)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
            file.seek(at)
            flip = Flip(path, at, header.next_offset, file.read(header.size))
        self._flips.setdefault(number, []).append(flip)

    def _appended_to(self, disk: Disk) -> Iterator[tuple[Path, tuple[int, BatchHeader]]]:
        """The batches of the newest segment of each partition."""
        for name in DIRECTORIES:
            for partition in sorted((disk.root / name).glob(f"{self._topic}-?")):
                path = max(partition.glob("*.log"), default=None)
                yield from _batches(path) if path is not None else ()

    def _settled(self, broker: SimBroker) -> Iterator[tuple[Path, tuple[int, BatchHeader]]]:
        """The batches that are synced and committed."""
        for replica in sorted(broker.replicas or (), key=lambda one: one.name):
            if replica.name.topic == self._topic and replica.failed is None and not replica.log.damage:
                for part in replica.segments:
                    for path, batch in _batches(part.path_log) if part.size_bytes else ():
                        if batch[1].next_offset <= min(replica.high_watermark, replica.recovery_point):
                            yield path, batch


def _batches(path: Path) -> Iterator[tuple[Path, tuple[int, BatchHeader]]]:
    """Up to what a loss of power has torn."""
    with suppress(RecordsError):
        for batch in iter_batches(path.read_bytes()):
            yield path, batch
