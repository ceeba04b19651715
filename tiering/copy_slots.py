"""Copy slots: which partitions of a broker upload now.

Every second free slot goes to the partition whose copy is due first (`remote.log.copy.max.lag.ms`), or else
to the one with the most bytes to upload. The others go to the one that has waited longest, so that none
starves. Partitions whose last copy timed out share RETRY_SHARE of the slots: uploads that hang leave the
others to the rest. Uploads that crawl give their slots up to others, one at a time. Called by the remote log
manager, on the event loop.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

RETRY_SHARE = 4
"""One in so many slots, and at least one, may be held by partitions whose last copy timed out."""


@dataclass(slots=True, eq=False)
class CopySlot:
    """A slot that is held, or waited for."""

    lag_bytes: int
    due_ms: int | None
    timed_out: bool
    granted: "asyncio.Future[None]"


class CopySlots:
    def __init__(self, count: int) -> None:
        self._count = count
        self._for_retries = max(1, count // RETRY_SHARE)
        self._waiting: list[CopySlot] = []  # the one that has waited longest first
        self._holding: list[CopySlot] = []
        self._oldest_is_next = False
        self._given_up_at = -math.inf

    @property
    def has_free(self) -> bool:
        """Whether a copy that has not timed out gets a slot at once."""
        return len(self._holding) < self._count and not self._waiting

    @property
    def idle_ratio(self) -> float:
        """Fraction of the slots that are free now."""
        return 1 - len(self._holding) / self._count

    @asynccontextmanager
    async def slot(
        self, lag_bytes: int, *, due_ms: int | None = None, timed_out: bool = False
    ) -> AsyncIterator[CopySlot]:
        """Wait for a slot and hold it. `lag_bytes`: bytes of the partition that wait for their upload.
        `due_ms`: until when they must be copied; None: at some time. `timed_out`: its last copy did."""
        copy = CopySlot(lag_bytes, due_ms, timed_out, asyncio.get_running_loop().create_future())
        self._waiting.append(copy)
        self._grant()
        try:
            await copy.granted
            yield copy
        finally:
            (self._holding if copy in self._holding else self._waiting).remove(copy)
            self._grant()

    def give_up(self, slot: CopySlot, pause_s: float) -> bool:
        """Whether the holder of a slot, whose upload crawls, must end it and release the slot: another
        partition waits whose last copy did not time out. A retry keeps its slot. At most one slot is given up
        in `pause_s`, because on a slow link all uploads crawl, and each that ends has sent its bytes for
        nothing."""
        now = asyncio.get_running_loop().time()
        is_wanted = any(not copy.timed_out for copy in self._waiting)
        if slot.timed_out or not is_wanted or now - self._given_up_at < pause_s:
            return False
        self._given_up_at = now
        return True

    def _grant(self) -> None:
        while len(self._holding) < self._count and (copy := self._next()) is not None:
            self._waiting.remove(copy)
            self._holding.append(copy)
            if not copy.granted.done():  # cancelled: it is about to give the slot back
                copy.granted.set_result(None)

    def _next(self) -> CopySlot | None:
        retries = sum(copy.timed_out for copy in self._holding)
        able = [copy for copy in self._waiting if not copy.timed_out or retries < self._for_retries]
        if not able:
            return None
        oldest, self._oldest_is_next = self._oldest_is_next, not self._oldest_is_next
        return able[0] if oldest else min(able, key=_urgency)


def _urgency(copy: CopySlot) -> tuple[bool, int]:
    return (True, -copy.lag_bytes) if copy.due_ms is None else (False, copy.due_ms)
