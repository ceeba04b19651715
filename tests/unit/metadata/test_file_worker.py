"""The thread for a node's files: how long it has been at a piece of work, and who gives up waiting."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tierlog.base.clock import SystemClock
from tierlog.metadata.quorum.storage_thread import StorageThread


class Clock(SystemClock):
    ms = 0

    def monotonic_ms(self) -> int:
        return self.ms


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_it_counts_from_the_end_of_the_piece_of_work_before(disk: ThreadPoolExecutor) -> None:
    clock, ends = Clock(), [threading.Event(), threading.Event()]
    worker = StorageThread(clock, disk, "")
    assert worker.busy_ms == 0
    first, second = (asyncio.ensure_future(worker.run(end.wait)) for end in ends)
    await asyncio.sleep(0)
    clock.ms = 300
    assert worker.busy_ms == 300
    ends[0].set()
    await first
    clock.ms = 500
    assert worker.busy_ms == 200
    ends[1].set()
    await second
    clock.ms = 900
    assert worker.busy_ms == 0


async def test_who_is_cancelled_still_waits_for_the_disk(disk: ThreadPoolExecutor) -> None:
    worker, goes_on, written = StorageThread(SystemClock(), disk, ""), threading.Event(), threading.Event()
    disk.submit(goes_on.wait)
    writing = asyncio.ensure_future(worker.run(written.set))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.sleep(0)
    assert not writing.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert written.is_set() and worker.busy_ms == 0
