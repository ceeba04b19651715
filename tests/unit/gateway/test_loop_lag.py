"""Event loop lag, with a manual clock."""

import asyncio

from structlog.testing import capture_logs

from tierlog.broker.gateway.loop_lag import LAG_BOUNDS_S, WARN_EVERY_S, WARN_LAG_S, LoopLag


class ManualClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def turn_after(clock: ManualClock, seconds: float) -> None:
    """Keep the loop busy for this long, then take a sample."""
    clock.now += seconds
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_pauses_are_counted_by_length_and_long_ones_are_logged() -> None:
    clock = ManualClock()
    lag = LoopLag(clock, sample_every_s=0)
    with capture_logs() as lines:
        lag.start()
        await turn_after(clock, 0.02)
        assert lag.seconds.total == clock.now - 100.0
        assert lines == []
        for pause in (WARN_LAG_S * 2, WARN_LAG_S * 3, WARN_LAG_S * 5):
            await turn_after(clock, pause)
        assert [(line["log_level"], line["worst_ms"]) for line in lines] == [("warning", 200)]
        clock.now += WARN_EVERY_S
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [line["worst_ms"] for line in lines] == [200, round(WARN_EVERY_S * 1000)]
        counted = lag.seconds.count
        lag.stop()
        await turn_after(clock, 1.0)
        assert lag.seconds.count == counted
    assert lag.seconds.buckets[LAG_BOUNDS_S.index(0.025)] == 1
    assert lag.seconds.buckets[-1] == 0
    assert [bound for bound, _ in lag.seconds.cumulative()][-1] is None
    assert list(lag.seconds.cumulative())[-1][1] == lag.seconds.count
