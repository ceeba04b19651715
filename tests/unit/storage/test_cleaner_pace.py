"""How the cleaner shares interpreter and disk: it breathes and stops within batches, and keeps to a rate."""

import threading
from pathlib import Path

import pytest
from compaction import NOW, append, dirty_of, open_log
from hands import Hands

from tierlog.base.clock import SystemClock
from tierlog.broker.storage.cleaner import SLICE_RECORDS, Cleaner, CleanerThrottler, CleaningStopped, take_job
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord

RECORDS = 5000


class Counting(CleanerThrottler):
    breaths = 0

    def breathe(self) -> None:
        self.breaths += 1
        super().breathe()


@pytest.fixture(params=[Codec.NONE, Codec.ZSTD])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> PartitionLog:
    """One large batch, in which half of the keys come twice."""
    log = open_log(tmp_path, TopicConfig(cleanup_policy=("compact",)))
    keys = [b"key %d" % (n % (RECORDS * 2 // 3)) for n in range(RECORDS)]
    append(log, [NewRecord(NOW, key, b"v" * 20) for key in keys], codec=request.param)
    log.roll(NOW)
    log.flush()
    return log


def cleaning_of(log: PartitionLog, pace: CleanerThrottler) -> Cleaner:
    return Cleaner(take_job(log, dirty_of(log), NOW), pace, 1 << 20)


def test_the_thread_breathes_within_a_large_batch(log: PartitionLog) -> None:
    pace = Counting(SystemClock(), threading.Event(), lambda: 1e12)
    cleaning = cleaning_of(log, pace)
    (group,) = cleaning.build_offset_map()
    assert pace.breaths >= RECORDS // SLICE_RECORDS
    pace.breaths = 0
    assert cleaning.clean(group) is not None
    assert pace.breaths >= RECORDS // SLICE_RECORDS


def test_a_stop_is_obeyed_within_a_large_batch(log: PartitionLog) -> None:
    stop = threading.Event()
    cleaning = cleaning_of(log, CleanerThrottler(SystemClock(), stop, lambda: 1e12))
    stop.set()
    with pytest.raises(CleaningStopped):
        cleaning.build_offset_map()
    assert cleaning.keys < RECORDS * 2 // 3


def test_what_is_read_and_written_stays_below_the_rate() -> None:
    class Waits(threading.Event):
        waited_s = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited_s += timeout
            clock.now += round(timeout * 1000)
            return False

    clock, stop = Hands(), Waits()
    pace = CleanerThrottler(clock, stop, lambda: 1000)
    for _ in range(50):
        pace.spend(100)
    assert stop.waited_s == pytest.approx(5.0)


def test_a_rate_that_changes_holds_from_the_next_step_on() -> None:
    class Waits(threading.Event):
        waited_s = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited_s += timeout
            clock.now += round(timeout * 1000)
            return False

    clock, stop, rates = Hands(), Waits(), [1e12]
    pace = CleanerThrottler(clock, stop, lambda: rates[-1])
    pace.spend(1_000_000)
    assert stop.waited_s < 0.001
    rates.append(1000)
    pace.spend(500)
    assert stop.waited_s == pytest.approx(0.5, abs=0.001)
