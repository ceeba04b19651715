"""Mistakes of operators with identities: a second process of a live broker, and disks that are put back.

Data directories of one node a run go back to an earlier image: as a copy of their files, as a snapshot of
their blocks, which keeps inodes and change times, or after another disk was in their place for a while. The
directory of the metadata does not: with a voter that forgets its votes no Raft keeps its promises. In part of
those runs one partition loses its end later: its directory alone is put back, or its last segment removed.
"""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from simulator.broker import DIRECTORIES, SimBroker
from simulator.disk import Disk
from simulator.partitions import PartitionWitness
from tierlog.base.files import OsFiles
from tierlog.broker.storage.checkpoints import (
    HIGH_WATERMARKS,
    META_PROPERTIES,
    PARTITION_METADATA,
    read_offsets,
)
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.quorum.node import MetadataUnavailable
from tierlog.records.batch import iter_batches
from tierlog.records.errors import RecordsError

TWINS, RESTORED = 0.3, 0.3
"""Of the runs: the share with second processes of live brokers, and with disks that are put back."""

ONE_PARTITION = 0.7
"""Of the runs with disks that are put back: the share in which one partition loses its end later."""

TWINS_A_SECOND, TWIN_S, EMPTY = 2.0, (0.5, 5.0), 0.5
COPIED_S, DOWN_S = (0.2, 3.0), (0.0, 0.5)
CHECKPOINTED_S = 3.0
"""`log.flush.offset.checkpoint.interval.ms`: what was committed before is written down after that time."""

LOOK_S = 0.01
WAYS = ("files", "blocks", "swapped")


class Twin(SimBroker):
    """A second process with the id of a broker, on another host, with a copy of its disk or an empty one.

    It registers as any broker does, so it waits while the other one has a session. Once it has the place it
    keeps its session, and opens no logs, so it is never let in. It does not vote: a second voter of an id is
    not heard.
    """

    def __init__(self, real: SimBroker, rng: random.Random, told: Counter[str]) -> None:
        disk = Disk(real.disk.copy())
        if rng.random() < EMPTY:
            for name in DIRECTORIES:
                disk.wipe_directory(disk.root / name)
        others = tuple(
            voter
            for voter in real.settings.controller_quorum_voters
            if not voter.startswith(f"{real.node_id}@")
        )
        settings = replace(real.settings, process_roles=("broker",), controller_quorum_voters=others)
        run = (real._loop, real._network, real._brokers)
        super().__init__(real.node_id, settings, disk, *run, rng, real._observer)
        self.name = f"twin-{real.node_id}"
        self._told = told

    def kill(self) -> None:
        """For good. Its session ends by itself."""
        if self._end():
            self._network.listen(self.name, None)

    async def _open(self, *_: object) -> None:
        self._told["twin in the place"] += 1
        await asyncio.get_running_loop().create_future()


class Twins:
    """Twins of brokers, one at a time. While there is one, and until the broker is in sync again after it,
    nobody else may lose anything: the twin may take the place at any moment, and with it goes what the
    broker's replicas are trusted to hold."""

    def __init__(
        self,
        brokers: Mapping[int, SimBroker],
        rng: random.Random,
        witness: PartitionWitness,
        told: Counter[str],
    ) -> None:
        self._brokers, self._rng, self._witness, self._told = brokers, rng, witness, told
        self.of: SimBroker | None = None
        """The broker that may lose its place."""

    async def play(
        self, may_lose: Callable[[SimBroker], bool], strikes: Sequence[Callable[[SimBroker], None]]
    ) -> None:
        """For ever. `may_lose`: whether a disk may lose what it has. `strikes`: what happens to the broker
        just before its twin starts."""
        while True:
            await asyncio.sleep(self._rng.expovariate(TWINS_A_SECOND))
            real = self._brokers[self._rng.choice(sorted(self._brokers))]
            await _until(lambda real=real: may_lose(real))  # type: ignore[misc]
            self.of = real
            twin = Twin(real, random.Random(self._rng.random()), self._told)
            self._told["twin"] += 1
            self._rng.choice(strikes)(real)
            twin.start()
            try:
                await asyncio.sleep(self._rng.uniform(*TWIN_S))
            finally:
                twin.kill()
            await self._all_is_known()
            await _until(lambda real=real: self._witness.is_in_sync(real))  # type: ignore[misc]
            self.of = None

    async def _all_is_known(self) -> None:
        """What the twin asked for is committed by now, or never will be."""
        while True:
            await asyncio.sleep(LOOK_S)
            for broker in self._brokers.values():
                if broker.metadata is not None:
                    with suppress(MetadataUnavailable):
                        await MetadataClient(broker.metadata).current(timeout_s=1.0)
                        return


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
        if self._copy is None:
            return
        if self._way == "blocks":  # and it serves under another epoch than when it was copied
            self._broker.kill()
            self._broker.start()
        await self._strike(witness, self._restore)

    async def shorten_one(self, witness: PartitionWitness) -> None:
        """The same for one partition, whose directory is put back, or whose last segment is removed. The
        checkpoints that lie beside it stay: only a log that they prove to be too short is noticed."""
        if self._copy is not None and self._rng.random() < ONE_PARTITION:
            await asyncio.sleep(CHECKPOINTED_S)
            await self._strike(witness, self._shorten)

    def _restore(self, copy: Path) -> None:
        self._told["restored"] += 1
        self._broker.put_back(copy, keeps=META_PROPERTIES if self._way == "blocks" else "")

    def _shorten(self, copy: Path) -> None:
        self._broker.kill()
        root = self._broker.disk.root
        found: list[tuple[Path, Path | None]] = []  # a directory, and a copy of it that is too short
        for name in DIRECTORIES:
            proven = read_offsets(OsFiles(), root / name / HIGH_WATERMARKS)
            for partition, end in sorted(proven.items()):
                path, older = root / name / str(partition), copy / name / str(partition)
                if not path.is_dir():
                    continue
                if older.is_dir() and _end(older) < end and _is_of_one_topic(path, older):
                    found.append((path, older))
                if segments := _segments(path):
                    found += [(path, None)] if int(segments[-1].stem) < end else []
        if found:
            path, replaced_by = self._rng.choice(found)
            self._told["shortened"] += 1
            if replaced_by is not None:
                self._broker.disk.wipe_directory(path)
                shutil.copytree(replaced_by, path)
            else:
                for file in path.glob(f"{_segments(path)[-1].stem}.*"):
                    file.unlink()

    async def _strike(self, witness: PartitionWitness, strike: Callable[[Path], None]) -> None:
        """When most depends on it, as one of two in sync; not at all if it is that nowhere, or alone."""
        await _until(lambda: witness.is_in_sync(self._broker))
        self._other.kill()
        await _until(lambda: witness.is_fenced(self._other))
        if self._copy is not None and witness.is_one_of_two(self._broker):
            strike(self._copy)
            self._broker.start()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
            self._third.kill()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
        self._third.start()
        self._other.start()


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def _end(directory: Path) -> int:
    """The log end offset in it. Not all of it need be whole, as it was copied while it was written."""
    segments = _segments(directory)
    end = int(segments[-1].stem) if segments else 0
    with suppress(RecordsError):
        for _, header in iter_batches(segments[-1].read_bytes()) if segments else ():
            end = header.next_offset
    return end


def _is_of_one_topic(one: Path, other: Path) -> bool:
    """Not a namesake's."""
    texts = [path / PARTITION_METADATA for path in (one, other)]
    return all(text.exists() for text in texts) and texts[0].read_bytes() == texts[1].read_bytes()


async def _until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(LOOK_S)
