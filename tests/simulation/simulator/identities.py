"""Operator mistakes with identities: a second process with a live broker's id, and restored data directories.

The data directories of one node are restored from a copy of their files, from a block snapshot (which keeps
inodes and change times), or after another disk was in their place. The metadata directory is not restored:
Raft gives no guarantees with a voter that forgets its votes. In most of these runs one partition later
loses its end, because only its directory is restored, or its last segment is removed.
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
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.records.batch import iter_batches
from tierlog.records.errors import RecordsError

TWINS, RESTORED = 0.3, 0.3
"""Shares of the runs with second processes of live brokers, and with restored directories."""

ONE_PARTITION = 0.7
"""Share of the runs with restored directories in which one partition loses its end later."""

TWINS_PER_SECOND, TWIN_LIFETIME_S, EMPTY_DISK = 2.0, (0.5, 5.0), 0.5
COPY_AFTER_S, DOWN_S = (0.2, 3.0), (0.0, 0.5)
CHECKPOINT_WAIT_S = 3.0
"""`log.flush.offset.checkpoint.interval.ms`: after this wait the checkpoints cover earlier commits."""

POLL_S = 0.01
METHODS = ("files", "blocks", "swapped")
"""How a node's directories are restored: from a copy of the files, a block snapshot, or the disk put back."""


class Twin(SimBroker):
    """A second process with the id of a broker, on another host, with a copy of its disk or an empty one.

    It registers as any broker does, so it waits while the other process has a session. Once registered, it
    keeps its session and opens no logs, so it is never unfenced. It does not vote, because the quorum ignores
    a second voter with the same id.
    """

    def __init__(self, real: SimBroker, rng: random.Random, faults: Counter[str]) -> None:
        disk = Disk(real.disk.copy())
        if rng.random() < EMPTY_DISK:
            for name in DIRECTORIES:
                disk.wipe_directory(disk.root / name)
        others = tuple(
            voter
            for voter in real.settings.controller_quorum_voters
            if not voter.startswith(f"{real.node_id}@")
        )
        settings = replace(real.settings, process_roles=("broker",), controller_quorum_voters=others)
        run = (real._loop, real._network, real._brokers)
        super().__init__(real.node_id, settings, disk, *run, rng, real.observer)
        self.name = f"twin-{real.node_id}"
        self._faults = faults

    def kill(self) -> None:
        """End the twin, which is not started again. Its session expires."""
        if self._end_process():
            self._network.listen(self.name, None)

    async def open_logs(self, *_: object) -> None:
        self._faults["twin in the place"] += 1
        await asyncio.get_running_loop().create_future()


class Twins:
    """Twins of brokers, one at a time.

    While a twin exists, and until its broker is in sync again, no other broker may lose data: the twin may
    register at any moment, and then the broker's replicas no longer count as in sync.
    """

    def __init__(
        self,
        brokers: Mapping[int, SimBroker],
        rng: random.Random,
        witness: PartitionWitness,
        faults: Counter[str],
    ) -> None:
        self._brokers, self._rng, self._witness, self._faults = brokers, rng, witness, faults
        self.of: SimBroker | None = None
        """The broker that a twin may replace."""

    async def play(
        self, may_lose: Callable[[SimBroker], bool], events: Sequence[Callable[[SimBroker], None]]
    ) -> None:
        """Runs until cancelled.

        `may_lose`: whether a broker's disk may lose data now. `events`: one of these happens to the broker
        just before its twin starts.
        """
        while True:
            await asyncio.sleep(self._rng.expovariate(TWINS_PER_SECOND))
            real = self._brokers[self._rng.choice(sorted(self._brokers))]
            await _until(lambda real=real: may_lose(real))  # type: ignore[misc]
            self.of = real
            twin = Twin(real, random.Random(self._rng.random()), self._faults)
            self._faults["twin"] += 1
            self._rng.choice(events)(real)
            twin.start()
            try:
                await asyncio.sleep(self._rng.uniform(*TWIN_LIFETIME_S))
            finally:
                twin.kill()
            await self._await_commits()
            await _until(lambda real=real: self._witness.is_in_sync(real))  # type: ignore[misc]
            self.of = None

    async def _await_commits(self) -> None:
        """Wait until every request of the twin is committed or can no longer be."""
        while True:
            await asyncio.sleep(POLL_S)
            for broker in self._brokers.values():
                if broker.metadata is not None:
                    with suppress(MetadataUnavailable):
                        await broker.metadata.current(timeout_s=1.0)
                        return


class DirectoryRestore:
    """Copies one node's disk during the faults, and restores it when the cluster has recovered.

    No other disk has lost data by then, so a loss of the records that the copy lacks is noticed.
    """

    def __init__(self, brokers: Mapping[int, SimBroker], rng: random.Random, faults: Counter[str]) -> None:
        self._brokers, self._rng, self._faults = brokers, rng, faults
        self._method = rng.choice(METHODS)
        self._broker, self._other, self._third = (brokers[n] for n in rng.sample(sorted(brokers), 3))
        self._copy: Path | None = None

    async def copy(self, may_lose: Callable[[SimBroker], bool]) -> None:
        """`may_lose`: whether a broker's disk may lose data now."""
        await asyncio.sleep(self._rng.uniform(*COPY_AFTER_S))
        self._copy = self._broker.disk.copy()
        if self._method == "swapped":
            await _until(lambda: may_lose(self._broker))
            self._broker.wipe_directories()
        elif self._method == "blocks":
            self._broker.kill()
        await asyncio.sleep(self._rng.uniform(*DOWN_S))
        self._broker.start()

    async def restore(self, witness: PartitionWitness) -> None:
        if self._copy is None:
            return
        if self._method == "blocks":  # the copy must have an earlier broker epoch
            self._broker.kill()
            self._broker.start()
        await self._run_as_one_of_two(witness, self._restore_directories)

    async def shorten_one(self, witness: PartitionWitness) -> None:
        """Restore the directory of one partition, or remove its last segment.

        The checkpoints stay, because only they show that the log is too short.
        """
        if self._copy is not None and self._rng.random() < ONE_PARTITION:
            await asyncio.sleep(CHECKPOINT_WAIT_S)
            await self._run_as_one_of_two(witness, self._shorten)

    def _restore_directories(self, copy: Path) -> None:
        self._faults["restored"] += 1
        self._broker.restore(copy, keeps=META_PROPERTIES if self._method == "blocks" else "")

    def _shorten(self, copy: Path) -> None:
        self._broker.kill()
        root = self._broker.disk.root
        found: list[tuple[Path, Path | None]] = []  # a directory, and a shorter copy of it
        for name in DIRECTORIES:
            checkpointed = read_offsets(OsFiles(), root / name / HIGH_WATERMARKS)
            for partition, end in sorted(checkpointed.items()):
                path, older = root / name / str(partition), copy / name / str(partition)
                if not path.is_dir():
                    continue
                if older.is_dir() and _end_offset(older) < end and _have_same_topic_id(path, older):
                    found.append((path, older))
                if segments := _segments(path):
                    found += [(path, None)] if int(segments[-1].stem) < end else []
        if found:
            path, replaced_by = self._rng.choice(found)
            self._faults["shortened"] += 1
            if replaced_by is not None:
                self._broker.disk.wipe_directory(path)
                shutil.copytree(replaced_by, path)
            else:
                for file in path.glob(f"{_segments(path)[-1].stem}.*"):
                    file.unlink()

    async def _run_as_one_of_two(self, witness: PartitionWitness, damage: Callable[[Path], None]) -> None:
        """Do the damage if the broker is one of two in-sync replicas after another broker was stopped."""
        await _until(lambda: witness.is_in_sync(self._broker))
        self._other.kill()
        await _until(lambda: witness.is_fenced(self._other))
        if self._copy is not None and witness.is_one_of_two(self._broker):
            damage(self._copy)
            self._broker.start()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
            self._third.kill()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
        self._third.start()
        self._other.start()


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def _end_offset(directory: Path) -> int:
    """The log end offset. The last batch may be incomplete, as the directory was copied during writes."""
    segments = _segments(directory)
    end = int(segments[-1].stem) if segments else 0
    with suppress(RecordsError):
        for _, header in iter_batches(segments[-1].read_bytes()) if segments else ():
            end = header.next_offset
    return end


def _have_same_topic_id(one: Path, other: Path) -> bool:
    """Whether both directories are of the same topic id."""
    texts = [path / PARTITION_METADATA for path in (one, other)]
    return all(text.exists() for text in texts) and texts[0].read_bytes() == texts[1].read_bytes()


async def _until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(POLL_S)
