"""Cleaner throttle: the thread rests and stops within a batch, and keeps below the rate."""

import threading
from pathlib import Path

import pytest
from compaction import NOW, append, dirty_of, open_log
from manual_clock import ManualClock

from tierlog.base.clock import SystemClock
from tierlog.broker.storage.cleaner import SLICE_RECORDS, Cleaner, CleanerThrottler, CleaningStopped, take_job
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord

RECORDS = 5000


class Counting(CleanerThrottler):
    rests = 0

    def rest(self) -> None:
        self.rests += 1
        super().rest()


@pytest.fixture(params=[Codec.NONE, Codec.ZSTD])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> PartitionLog:
    """One large batch in which half of the keys occur twice."""
    log = open_log(tmp_path, TopicConfig(cleanup_policy=("compact",)))
    keys = [b"key %d" % (n % (RECORDS * 2 // 3)) for n in range(RECORDS)]
    append(log, [NewRecord(NOW, key, b"v" * 20) for key in keys], codec=request.param)
    log.roll(NOW)
    log.flush()
    return log


def cleaner_of(log: PartitionLog, throttler: CleanerThrottler) -> Cleaner:
    return Cleaner(take_job(log, dirty_of(log), NOW), throttler, 1 << 20)


def test_the_thread_rests_within_a_large_batch(log: PartitionLog) -> None:
    throttler = Counting(SystemClock(), threading.Event(), lambda: 1e12)
    cleaner = cleaner_of(log, throttler)
    (group,) = cleaner.build_offset_map()
    assert throttler.rests >= RECORDS // SLICE_RECORDS
    throttler.rests = 0
    assert cleaner.clean(group) is not None
    assert throttler.rests >= RECORDS // SLICE_RECORDS


def test_a_stop_interrupts_a_large_batch(log: PartitionLog) -> None:
    stop = threading.Event()
    cleaner = cleaner_of(log, CleanerThrottler(SystemClock(), stop, lambda: 1e12))
    stop.set()
    with pytest.raises(CleaningStopped):
        cleaner.build_offset_map()
    assert cleaner.keys < RECORDS * 2 // 3


def test_reads_and_writes_stay_below_the_rate() -> None:
    class Waits(threading.Event):
        waited_s = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited_s += timeout
            clock.now += round(timeout * 1000)
            return False

    clock, stop = ManualClock(), Waits()
    throttler = CleanerThrottler(clock, stop, lambda: 1000)
    for _ in range(50):
        throttler.spend(100)
    assert stop.waited_s == pytest.approx(5.0)


def test_a_changed_rate_applies_from_the_next_step() -> None:
    class Waits(threading.Event):
        waited_s = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited_s += timeout
            clock.now += round(timeout * 1000)
            return False

    clock, stop, rates = ManualClock(), Waits(), [1e12]
    throttler = CleanerThrottler(clock, stop, lambda: rates[-1])
    throttler.spend(1_000_000)
    assert stop.waited_s < 0.001
    rates.append(1000)
    throttler.spend(500)
    assert stop.waited_s == pytest.approx(0.5, abs=0.001)
