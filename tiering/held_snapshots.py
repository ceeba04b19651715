"""Held snapshots: what the storage cleaner must not delete, and when the leases of snapshots end.

A lease ends once cleaners have seen the same renewal for its length. Each adds up time on its monotonic
clock, and notes it in the lease for the cleaner after it. A cleaner sees a renewal later than it was written,
so no lease ends early, whatever wall clocks say (docs/adr/0041). Owned by the storage cleaner.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import gather_at_most
from tierlog.metadata.delete_queue import Deletion, QueuedDelete
from tierlog.tiering.format.snapshots import SHARES, Lease
from tierlog.tiering.object_store import ObjectStoreError, deadline
from tierlog.tiering.snapshots import Snapshots

IsHeld = Callable[[Deletion], bool]

_log = structlog.get_logger("tierlog.tiering")

WRITES_AT_ONCE = 16  # leases that are written or removed at a time

LOOK_INTERVAL_MS = 30_000
"""Time between two looks: one request, and one for each snapshot. Less while there are short leases."""


@dataclass(slots=True)
class _Seen:
    """A version of a lease, and since when this cleaner has seen it."""

    renewals: int
    watched_ms: int
    since_ms: int  # monotonic


class HeldSnapshots:
    """The snapshots in the bucket, as one cleaner sees them."""

    def __init__(self, snapshots: Snapshots, clock: Clock, look_s: float) -> None:
        """`look_s`: deadline of a look, in seconds."""
        self._snapshots = snapshots
        self._clock = clock
        self._look_s = look_s
        self._seen: dict[UUID, _Seen] = {}
        self.live: tuple[Lease, ...] = ()
        """As of the last look."""
        self.is_held: IsHeld = held_by(())
        """Another object only after the leases have changed."""
        self.next_look_ms = 0  # monotonic

    def forget(self) -> None:
        """Another broker may have been the cleaner."""
        self._seen.clear()
        self.live, self.is_held, self.next_look_ms = (), held_by(()), 0

    async def remove_leftovers(self) -> None:
        """Delete what creations that failed have left in the bucket. Raises ObjectStoreError."""
        async with deadline(self._look_s, "leftovers of snapshots"):
            await self._snapshots.remove_leftovers()

    async def look(self) -> None:
        """Read all leases, and end those whose time is over. Raises ObjectStoreError, also for one that
        cannot be read: nothing may be deleted then."""
        async with deadline(self._look_s, "snapshots"):
            leases = await self._snapshots.leases()
            now_ms = self._clock.monotonic_ms()
            calls = [self._has_ended(lease, etag, now_ms) for lease, etag in leases]
            ended = await gather_at_most(WRITES_AT_ONCE, calls)
        live = [lease for (lease, _), has_ended in zip(leases, ended, strict=True) if not has_ended]
        await self._remove([lease.id for lease, _ in leases if lease.is_ended])
        self._seen = {lease.id: self._seen[lease.id] for lease in live}
        if [(one.id, one.is_ready) for one in live] != [(one.id, one.is_ready) for one in self.live]:
            self.is_held = await asyncio.to_thread(held_by, live)  # up to millions of ranges
        self.live = tuple(live)
        shortest_ms = min((lease.lease_ms for lease in live), default=LOOK_INTERVAL_MS)
        self.next_look_ms = now_ms + min(LOOK_INTERVAL_MS, shortest_ms // SHARES)

    async def _remove(self, ended: list[UUID]) -> None:
        """Delete what ended snapshots consist of. They hold nothing, so a failure only delays it."""
        try:
            async with deadline(self._look_s, "ended snapshots"):
                await gather_at_most(WRITES_AT_ONCE, [self._snapshots.remove(one) for one in ended])
        except ObjectStoreError as error:
            _log.warning("snapshot.cleanup_failed", error=str(error))

    async def _has_ended(self, lease: Lease, etag: str, now_ms: int) -> bool:
        """Note for how long the lease was seen. Returns whether it holds nothing any more."""
        if lease.is_ended:
            return True
        seen = self._seen.get(lease.id)
        if seen is None or (seen.renewals, seen.watched_ms) != (lease.renewals, lease.watched_ms):
            seen = self._seen[lease.id] = _Seen(lease.renewals, lease.watched_ms, now_ms)
        passed_ms = now_ms - seen.since_ms
        noted = lease.watched(_watched_ms(lease, passed_ms))
        if not noted.is_ended and passed_ms < lease.lease_ms / SHARES:
            return False
        if not await self._snapshots.write(noted, etag):
            return False  # it was renewed at the same time
        self._seen[lease.id] = _Seen(noted.renewals, noted.watched_ms, now_ms)
        if noted.is_ended:
            _log.info("snapshot.ended", snapshot=str(lease.id), name=lease.name, lease_ms=lease.lease_ms)
        return noted.is_ended


@safeguard("a lease ends after its time has passed on the storage cleaner's clock")
def _watched_ms(lease: Lease, passed_ms: int) -> int:
    return lease.watched_ms + passed_ms


def held_by(leases: Iterable[Lease]) -> IsHeld:
    """Whether the leases hold a deletion's object: it has some of their offsets, or is of a deleted topic of
    theirs."""
    ranges: dict[tuple[UUID, int], list[tuple[int, int]]] = {}
    for lease in leases:
        for topic in lease.topics:
            for held in topic.held:
                place = topic.topic_id, held.partition
                ranges.setdefault(place, []).append((held.start_offset, held.end_offset))
    disjoint = {place: list(_merged(found)) for place, found in ranges.items()}
    topics = {topic_id for topic_id, _ in ranges}

    def is_held(line: Deletion) -> bool:
        if not isinstance(line, QueuedDelete):
            return line.uuid in topics
        return any(
            line.base_offset < end and line.last_offset >= start
            for start, end in disjoint.get((line.topic_id, line.partition), ())
        )

    return is_held


def _merged(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) without overlaps, in order."""
    start, end = min(ranges)
    for following in sorted(ranges):
        if following[0] > end:
            yield start, end
            start, end = following
        end = max(end, following[1])
    yield start, end
