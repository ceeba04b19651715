"""Upload watch: portions, and a time that stands still while an upload waits for the rate."""

import asyncio

import pytest

from tierlog.base.segments import SegmentExport
from tierlog.records.chunks import ChunkBuilder
from tierlog.tiering.object_store import ObjectStoreTimeout
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.upload_watch import PORTION_BYTES, UploadTimes, UploadWatch

SIZE = 3 * PORTION_BYTES + 5
HUGE, SLOW = 1 << 60, 1


class Zeros:
    """A segment of zeros, which takes no time to read. `hangs`: its reads do not end."""

    size, base_offset, end_offset = SIZE, 0, 1
    hangs = False

    async def read_into(self, buffer: memoryview) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    def finish(self) -> tuple[SegmentExport, ChunkBuilder]:
        raise NotImplementedError


class NotedRate(RateLimit):
    def __init__(self, rate: int) -> None:
        super().__init__(rate)
        self.taken: list[int] = []
        self.waits = asyncio.Event()

    async def take(self, size_bytes: int) -> None:
        self.taken.append(size_bytes)
        self.waits.set()
        await super().take(size_bytes)


class Watched:
    def __init__(
        self,
        rate: RateLimit,
        *,
        total: float = 60,
        window: float = 60,
        stall: float = 60,
        paid_bytes: int = 0,
    ) -> None:
        self.body = Zeros()
        self.stalls = self.requests_to_end = 0
        times = UploadTimes(total=total, stall=stall, crawl_window=window, crawl_bytes=1)
        self.watch = UploadWatch(
            self.body,
            "copy",
            times,
            rate=rate,
            paid_bytes=paid_bytes,
            on_stall=self._stalled,
            give_up=self._give_up,
        )

    def _stalled(self) -> None:
        self.stalls += 1

    def _give_up(self) -> bool:
        self.requests_to_end += 1
        return True

    async def read(self) -> None:
        async with self.watch.running():
            await self.watch.read_into(memoryview(bytearray(SIZE)))


async def test_large_segment_is_paid_for_in_portions() -> None:
    rate = NotedRate(HUGE)
    await Watched(rate, paid_bytes=PORTION_BYTES).read()
    assert rate.taken == [PORTION_BYTES, PORTION_BYTES, 5]


async def test_second_portion_waits_until_the_first_is_paid_off() -> None:
    rate = NotedRate(SLOW)
    reading = asyncio.ensure_future(Watched(rate).read())
    for _ in range(20):
        await asyncio.sleep(0)
    assert rate.taken == [PORTION_BYTES, PORTION_BYTES] and not reading.done()
    rate.change(HUGE)
    await reading


async def test_time_stands_still_while_an_upload_waits_for_the_rate() -> None:
    rate = NotedRate(SLOW)
    await rate.take(HUGE)
    watched = Watched(rate, total=0.1, window=0.1, stall=0.1)
    reading = asyncio.ensure_future(watched.read())
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, passed.set)  # several times each limit
    await passed.wait()
    assert not reading.done() and (watched.stalls, watched.requests_to_end) == (0, 0)
    rate.change(HUGE << 40)
    await reading


async def test_upload_that_crawls_ends() -> None:
    watched = Watched(RateLimit(), window=0.005, stall=0.001)
    watched.body.hangs = True
    with pytest.raises(
        ObjectStoreTimeout, match=r"copy: gave its slot up, since it sent only 0 bytes in 0\.005 s"
    ):
        await watched.read()
    assert (watched.stalls, watched.requests_to_end) == (1, 1)


async def test_upload_ends_at_its_deadline() -> None:
    watched = Watched(RateLimit(), total=0.005)
    watched.body.hangs = True
    with pytest.raises(ObjectStoreTimeout, match=r"copy: timed out after 0\.005 s"):
        await watched.read()
