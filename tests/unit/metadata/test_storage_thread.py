"""Storage thread: how long a job takes, and what happens to a cancelled caller."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tierlog.base.clock import SystemClock
from tierlog.metadata.quorum.storage import StorageThread


class Clock(SystemClock):
    ms = 0

    def monotonic_ms(self) -> int:
        return self.ms


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_busy_time_starts_at_the_end_of_the_previous_job(disk: ThreadPoolExecutor) -> None:
    clock, ends = Clock(), [threading.Event(), threading.Event()]
    thread = StorageThread(clock, disk, "")
    assert thread.busy_ms == 0
    first, second = (asyncio.ensure_future(thread.run(end.wait)) for end in ends)
    await asyncio.sleep(0)
    clock.ms = 300
    assert thread.busy_ms == 300
    ends[0].set()
    await first
    clock.ms = 500
    assert thread.busy_ms == 200
    ends[1].set()
    await second
    clock.ms = 900
    assert thread.busy_ms == 0


async def test_cancelled_caller_still_waits_for_the_disk(disk: ThreadPoolExecutor) -> None:
    thread, may_continue, written = (
        StorageThread(SystemClock(), disk, ""),
        threading.Event(),
        threading.Event(),
    )
    disk.submit(may_continue.wait)
    writing = asyncio.ensure_future(thread.run(written.set))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.sleep(0)
    assert not writing.done()
    may_continue.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert written.is_set() and thread.busy_ms == 0
