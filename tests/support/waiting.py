"""Waits for changes that raise no event, such as files of another process."""

import time
from collections.abc import Callable


def until(holds: Callable[[], bool], what: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def some_moment(seconds: float) -> None:
    """Wait for a random time, so that each kill comes at another point."""
    time.sleep(seconds)
