"""The monotonic clock of leases and timeouts."""

import time

import pytest

from tierlog.base.clock import SystemClock

SUSPENDED_S = 3600


def test_time_passes_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC of Linux stands still then: a lease by it would outlive the broker's session."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    passed_ns = {time.CLOCK_MONOTONIC: 0, boot_clock: SUSPENDED_S * 1_000_000_000}
    monkeypatch.setattr(time, "clock_gettime_ns", passed_ns.__getitem__)
    assert SystemClock().monotonic_ms() == SUSPENDED_S * 1000
