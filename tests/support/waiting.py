"""Waiting for what nothing announces: the files of another process."""

import time
from collections.abc import Callable


def until(holds: Callable[[], bool], what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def some_moment(seconds: float) -> None:
    """So that a kill comes at another point each time."""
    time.sleep(seconds)
