"""Scrubber: slowly reads all local logs and checks every batch, and checks suspected segments at once.

A segment is suspected after a read that found no valid batch, by a follower that rejects what it fetched, and
by the cleaner. Damage is reported to `LogRepair`, which decides what to do. Reading happens in short steps in
threads of the log's directory, with pauses on the event loop in between to keep to
`log.scrub.max.bytes.per.second`.

A pass begins every `log.scrub.interval.ms` (`base/pass_schedule.py`). Data in the page cache is read from
there; the disk below is checked once the page has been evicted. Built by the composition root; metrics show
the counts.
"""

import asyncio
import random
from bisect import bisect_right

import structlog

from tierlog.base.pass_schedule import PassSchedule
from tierlog.base.tasks import TaskGroup
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_events import DamageFound, DamageSuspected, ReplicaEvent
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.damage import is_known
from tierlog.broker.storage.segment import Segment
from tierlog.broker.storage.segment_scrub import SegmentScrub
from tierlog.config.node import NodeSettings

MIN_BATCH_BYTES = 16 << 10
"""Minimum size that a batch counts for: checking a small batch takes as long, and the limit bounds time."""

MAX_SUSPECTS = 1_000
"""Suspected segments that may wait; on a failing disk there are more, and the next pass finds those."""

LOGS_PER_TURN = 100
"""Empty logs that a pass skips before other requests run."""

TRUST_S = 60.0
"""How long suspicions of a segment are ignored after it was checked and found intact."""

_log = structlog.get_logger("tierlog.scrubber")


class Scrubber:
    def __init__(
        self,
        settings: NodeSettings,
        replicas: ReplicaManager,
        tasks: TaskGroup,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._tasks = tasks
        self._suspects: dict[tuple[Replica, Segment], str] = {}
        self._trusted: dict[Segment, float] = {}  # until when
        self._suspicion = asyncio.Event()
        self._schedule = PassSchedule(settings.log_scrub_interval_ms, rng)
        self._running: list[asyncio.Task[None]] = []
        self.bytes_read = self.batches_read = self.passes = 0
        self.progress = 1.0
        """Part of the logs that the current pass has checked; 1 between two passes."""

    def start(self) -> None:
        self._running = [
            self._tasks.repeat("scrub logs", self._turn),
            self._tasks.repeat("look for damage", self._check_suspects),
        ]

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings; a changed interval restarts the wait for the next pass."""
        self._settings = settings
        self._schedule.set_interval(settings.log_scrub_interval_ms)

    async def stop(self) -> None:
        """A thread that hangs on the disk is not waited for."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def begin(self) -> None:
        """Start a pass, unless one is running."""
        if self.progress == 1.0:
            self._schedule.request()

    def on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, DamageSuspected):
            self.suspect(event.replica, event.offset, event.why)

    def suspect(self, replica: Replica, offset: int, why: str) -> None:
        """Check the segment that holds an offset soon, and the next one, which a read from there may have
        reached, unless the damage is known.
        """
        if is_known(replica.log.damage, offset):
            return
        now = asyncio.get_running_loop().time()
        self._trusted = {segment: until for segment, until in self._trusted.items() if until > now}
        segments = replica.log.segment_files
        at = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
        for segment in segments[at : at + 2]:
            if segment not in self._trusted and len(self._suspects) < MAX_SUSPECTS:
                self._suspects.setdefault((replica, segment), why)
                self._suspicion.set()

    async def scrub_all(self) -> None:
        """One pass over all local logs. Unexpected errors of single logs are raised after all others were
        checked.
        """
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
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.progress = 1.0
        self.passes += 1
        if unexpected:
            raise ExceptionGroup("scrubbing", unexpected)

    async def scrub(self, replica: Replica) -> None:
        """Check all current segments of a replica."""
        for segment in replica.log.segment_files:
            await self._read(replica, segment, "scrubbed")

    async def _turn(self) -> None:
        await self._schedule.wait()
        await self.scrub_all()

    async def _check_suspects(self) -> None:
        if not self._suspects:
            await self._suspicion.wait()
        self._suspicion.clear()
        while self._suspects:
            replica, segment = key = next(iter(self._suspects))
            why = self._suspects[key]
            try:
                await self._read(replica, segment, why, unthrottled=True)
            finally:
                del self._suspects[key]

    async def _read(self, replica: Replica, segment: Segment, why: str, *, unthrottled: bool = False) -> None:
        """Check one segment. A failure must not prevent the check of others."""
        try:
            scrub = await self._scrub_segment(replica, segment, unthrottled=unthrottled)
        except FileNotFoundError:
            return  # it was deleted or compacted
        except OSError as failure:  # the directory handles it
            _log.error("log.read_failed", partition=str(replica.name), error=str(failure))
            return
        if scrub is None:
            return
        if not scrub.found and unthrottled:
            self._trusted[segment] = asyncio.get_running_loop().time() + TRUST_S
            _log.warning("log.intact", file=str(segment.path()), noticed=why)
        elif scrub.found:
            self._replicas.emit(DamageFound(replica, segment, scrub.found, why))

    async def _scrub_segment(
        self, replica: Replica, segment: Segment, *, unthrottled: bool
    ) -> SegmentScrub | None:
        """Read a segment; None if there is nothing to read, or it has changed."""
        loop, log = asyncio.get_running_loop(), replica.log
        if not (self._is_here(replica) and log.has(segment) and segment.size):
            return None
        scrub = SegmentScrub(log, segment)
        while not scrub.done:
            began, batches = loop.time(), scrub.batches
            size = await loop.run_in_executor(replica.log_dir.threads, scrub.step)
            batches = scrub.batches - batches
            self.bytes_read += size
            self.batches_read += batches
            if not (self._is_here(replica) and scrub.is_current):
                return None
            cost = max(size, batches * MIN_BATCH_BYTES)
            took_s = loop.time() - began
            rest_s = cost / self._settings.log_scrub_max_bytes_per_second - took_s
            await asyncio.sleep(0 if unthrottled else max(rest_s, 0))
        return scrub if self._is_here(replica) and scrub.is_current else None

    def _is_here(self, replica: Replica) -> bool:
        return self._replicas.holds(replica) and replica.failed is None
