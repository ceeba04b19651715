"""Threads of one log directory: a slow disk delays only the work on its own directory.

A LogDirectory owns them (`tierlog.base.daemon_threads`), and submits work on the event loop.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

DISK_THREADS = 8
"""Per directory; a file system commits several fsyncs together."""

T = TypeVar("T")


async def wait_for_disk(tasks: "Collection[asyncio.Future[Any]]", timeout_s: float) -> bool:
    """Wait until all tasks of one disk are done. Returns False once no task has completed for `timeout_s`:
    the disk hangs.
    """
    pending = set(tasks)
    while pending:
        ended, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not ended:
            return False
    return True


def chunks(work: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split work into chunks of at most `size` items."""
    for at in range(0, len(work), size):
        yield work[at : at + size]
