"""The scrubber: reads all local logs again, slowly, and holds every batch to its CRC; and looks at once where
somebody has met what may be damage.

Suspicion comes from a read that found no batch, a follower that refuses what it is given, and the cleaner; it
names an offset, and the segment that holds it is read. What is found is told to `LogRepair`, the one place
that judges what to do. Reading happens in short steps in the threads of the log's directory, with a rest on
the event loop between them that keeps to `log.scrub.max.bytes.per.second`.

A pass begins once in `log.scrub.interval.ms`, the first one after a part of it drawn by lot: so nodes that
are restarted often are read as often in the mean, and nothing of it has to be kept. What is in the page cache
is read from there: the disk under it is looked at when it has left. Built by the composition root; metrics
show the counts.
"""

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.damage import is_known, segments_of
from tierlog.broker.storage.segment import Damage, Segment
from tierlog.broker.storage.segment_scrub import SegmentScrub
from tierlog.config.node import NodeSettings

BATCH_BYTES_LEAST = 16 << 10
"""What a batch counts for at the least: small ones cost as much to look at, and time is what is rationed."""

SUSPECTS_MAX = 1_000
"""Segments that wait to be looked at; a disk that dies has more, and a pass finds those."""

LOOKED_AT_A_TURN = 100
"""Empty logs that a pass goes by before requests have their turn."""

TRUSTED_S = 60.0
"""So long nobody's suspicion is heard of a segment that was read and is whole."""

FoundDamage = Callable[[Replica, Segment, Sequence[Damage], str], None]
_log = structlog.get_logger("tierlog.scrubber")


class Scrubber:
    def __init__(
        self,
        settings: NodeSettings,
        replicas: ReplicaManager,
        tasks: TaskGroup,
        rng: random.Random,
        found_damage: FoundDamage,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._tasks = tasks
        self._found_damage = found_damage
        self._suspects: dict[tuple[Replica, Segment], str] = {}
        self._trusted: dict[Segment, float] = {}  # until when
        self._suspicion = asyncio.Event()
        self._changed = asyncio.Event()
        self._asked = False
        self._part = rng.random()  # of the interval, before the first pass: brokers are not to scrub at once
        self._running: list[asyncio.Task[None]] = []
        self.bytes_read = self.batches_read = self.passes = 0
        self.progress = 1.0
        """Share of the logs that the pass under way has gone through; 1 between two passes."""

    def start(self) -> None:
        self._replicas.suspected = self.suspect
        self._running = [
            self._tasks.repeat("scrub logs", self._turn),
            self._tasks.repeat("look for damage", self._look_at_suspects),
        ]

    def configure(self, settings: NodeSettings) -> None:
        """As the settings are now; the wait for the next pass begins anew with another interval."""
        before, self._settings = self._settings, settings
        if before.log_scrub_interval_ms != settings.log_scrub_interval_ms:
            self._changed.set()

    async def stop(self) -> None:
        """A thread that the disk does not let go of is not waited for."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def begin(self) -> None:
        """A pass at once, unless one is under way."""
        if self.progress == 1.0:
            self._asked = True
            self._changed.set()

    def suspect(self, replica: Replica, offset: int, why: str) -> None:
        """The segment that holds an offset is read soon, and the next one, into which a read from there may
        have gone; unless it is known to be damaged there.
        """
        if is_known(replica.log.damage, offset):
            return
        now = asyncio.get_running_loop().time()
        self._trusted = {segment: until for segment, until in self._trusted.items() if until > now}
        segments = segments_of(replica.log)
        at = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
        for segment in segments[at : at + 2]:
            if segment not in self._trusted and len(self._suspects) < SUSPECTS_MAX:
                self._suspects.setdefault((replica, segment), why)
                self._suspicion.set()

    async def scrub_all(self) -> None:
        """One pass over all logs that are here. Raises what was not expected of a log, after all others."""
        self.progress = 0.0
        replicas = list(self._replicas)
        unexpected: list[Exception] = []
        for number, replica in enumerate(replicas):
            try:
                await self.scrub(replica)
            except Exception as failure:
                failure.add_note(f"partition {replica.name}")
                unexpected.append(failure)
            self.progress = (number + 1) / len(replicas)
            if number % LOOKED_AT_A_TURN == 0:
                await asyncio.sleep(0)
        self.progress = 1.0
        self.passes += 1
        if unexpected:
            raise ExceptionGroup("scrubbing", unexpected)

    async def scrub(self, replica: Replica) -> None:
        """All segments that it has now."""
        for segment in segments_of(replica.log):
            await self._read(replica, segment, "scrubbed")

    async def _turn(self) -> None:
        interval_s = self._settings.log_scrub_interval_ms / 1000
        self._changed.clear()
        try:
            async with asyncio.timeout(interval_s * self._part if interval_s else None):
                await self._changed.wait()
        except TimeoutError:
            self._asked = True
        if self._asked:
            self._part, self._asked = 1.0, False
            await self.scrub_all()

    async def _look_at_suspects(self) -> None:
        if not self._suspects:
            await self._suspicion.wait()
        self._suspicion.clear()
        while self._suspects:
            replica, segment = key = next(iter(self._suspects))
            why = self._suspects[key]
            try:
                await self._read(replica, segment, why, hurried=True)
            finally:
                del self._suspects[key]

    async def _read(self, replica: Replica, segment: Segment, why: str, *, hurried: bool = False) -> None:
        """What keeps one segment from being read must not keep the others from it."""
        try:
            scrub = await self._through(replica, segment, hurried=hurried)
        except FileNotFoundError:
            return  # it was deleted, or compacted, meanwhile
        except OSError as failure:  # the directory has noted it
            _log.error("cannot read a log", partition=str(replica.name), error=str(failure))
            return
        if scrub is None:
            return
        if not scrub.found and hurried:
            self._trusted[segment] = asyncio.get_running_loop().time() + TRUSTED_S
            _log.warning("a log was suspected, and is whole", file=str(segment.path()), noticed=why)
        elif scrub.found:
            self._found_damage(replica, segment, scrub.found, why)

    async def _through(self, replica: Replica, segment: Segment, *, hurried: bool) -> SegmentScrub | None:
        """None if there is nothing to read, or no more."""
        loop, log = asyncio.get_running_loop(), replica.log
        if not (self._is_here(replica) and log.has(segment) and segment.size):
            return None
        scrub = SegmentScrub(log, segment)
        while not scrub.done:
            began, batches = loop.time(), scrub.batches
            size = await loop.run_in_executor(replica.room.threads, scrub.step)
            batches = scrub.batches - batches
            self.bytes_read += size
            self.batches_read += batches
            if not (self._is_here(replica) and scrub.is_current):
                return None
            cost = max(size, batches * BATCH_BYTES_LEAST)
            took_s = loop.time() - began
            rest_s = cost / self._settings.log_scrub_max_bytes_per_second - took_s
            await asyncio.sleep(0 if hurried else max(rest_s, 0))
        return scrub if self._is_here(replica) and scrub.is_current else None

    def _is_here(self, replica: Replica) -> bool:
        return self._replicas.holds(replica) and replica.failed is None
