"""Upload watch: pays for the bytes of one upload, and limits its time.

The body is paid for in portions (`RateLimit`), so that a large segment neither takes the link at full speed
nor keeps others waiting for all of its bytes. The time stands still while the upload waits for the rate. An
upload that crawls gives its slot up if partitions wait for it (`CopySlots.give_up`). Called by the tier
manager, on the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tierlog.base.segments import SegmentExport
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.copier import SegmentBody
from tierlog.tiering.object_store import ObjectStoreTimeout
from tierlog.tiering.rate_limit import RateLimit

PORTION_BYTES = 8 << 20
"""Bytes that are paid for at a time: a part of an upload to S3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTimes:
    """Limits in seconds. `stall`: when the upload is reported. `crawl_window`, `crawl_bytes`: an upload that
    reads less of its body in a window crawls."""

    total: float
    stall: float
    crawl_window: float
    crawl_bytes: float


class UploadWatch:
    """A body whose reads are paid for and counted, and the time of its upload."""

    def __init__(
        self,
        body: SegmentBody,
        what: str,
        times: UploadTimes,
        *,
        rate: RateLimit,
        paid_bytes: int,
        on_stall: Callable[[], None],
        give_up: Callable[[], bool],
    ) -> None:
        """`paid_bytes`: the first bytes, for which the caller has paid. `give_up`: called while the upload
        crawls; whether it ends."""
        self.size, self.base_offset, self.end_offset = body.size, body.base_offset, body.end_offset
        self._body = body
        self._what = what
        self._times = times
        self._rate = rate
        self._paid_bytes = paid_bytes
        self._on_stall = on_stall
        self._give_up = give_up
        self._read_bytes = 0
        self._waited_s = 0.0
        self._waits_since: float | None = None
        self._reason = f"timed out after {times.total:g} s"
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises ObjectStoreTimeout if the upload ends at its deadline, or because it crawls."""
        began = self._now()
        try:
            async with asyncio.timeout(self._times.total) as self._limit:
                self._check_stall(began)
                self._begin_window()
                yield
        except TimeoutError as error:
            if not self._limit.expired():
                raise
            raise ObjectStoreTimeout(f"{self._what}: {self._reason}") from error
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def read_into(self, buffer: memoryview) -> None:
        for at in range(0, len(buffer), PORTION_BYTES):
            portion = buffer[at : at + PORTION_BYTES]
            await self._pay(len(portion))
            await self._body.read_into(portion)
            self._read_bytes += len(portion)

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        return self._body.finish()

    async def _pay(self, size: int) -> None:
        covered = min(size, self._paid_bytes)
        self._paid_bytes -= covered
        if size == covered:
            return
        until, self._waits_since = self._limit.when(), self._now()
        self._limit.reschedule(None)
        await self._rate.take(size - covered)
        waited, self._waits_since = self._now() - self._waits_since, None
        self._waited_s += waited
        self._limit.reschedule(None if until is None else until + waited)

    def _waited(self) -> float:
        """Seconds of waits for the rate until now."""
        return self._waited_s + (0 if self._waits_since is None else self._now() - self._waits_since)

    def _check_stall(self, began: float) -> None:
        due = began + self._times.stall + self._waited()
        if self._now() < due:
            self._at("stall", due, lambda: self._check_stall(began))
        else:
            self._on_stall()

    def _begin_window(self) -> None:
        read, waited = self._read_bytes, self._waited()
        self._at("window", self._now() + self._times.crawl_window, lambda: self._end_window(read, waited))

    def _end_window(self, read: int, waited: float) -> None:
        """`read`, `waited`: at the beginning of the window."""
        share = 1 - (self._waited() - waited) / self._times.crawl_window  # the part without waits
        crawls = self._read_bytes - read < self._times.crawl_bytes * share
        is_sending = (
            self._read_bytes < self.size and self._waits_since is None
        )  # the last part has a deadline
        if crawls and is_sending and self._give_up():
            sent = f"{self._read_bytes - read} bytes in {self._times.crawl_window:g} s"
            self._reason = f"gave its slot up, since it sent only {sent} while others waited"
            self._limit.reschedule(self._now())
        else:
            self._begin_window()

    def _at(self, name: str, when: float, call: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_at(when, call)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
