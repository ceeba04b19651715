"""Buffer pool: reused regions of memory for chunks of remote segments, within a byte budget.

A new region costs 0.6 CPU seconds per GB, because the kernel has to clear and map each of its pages, and the
broker's allocator returns every large block to the kernel (`keep_malloc_small`). A buffer therefore returns
to the pool, with its pages, as soon as nothing refers to it or to a view of it, in whatever thread that
happens.

Invariants: buffers in use and kept regions together are within the budget, except that one buffer is given
if only responses hold others, and that a load which has waited for long takes one above the budget. Responses
hold at most half of the budget, or one buffer. Called by the chunk cache.
"""

import ctypes
import mmap
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tierlog.records.chunks import CHUNK_BYTES

SMALLEST_BYTES = 4096
"""Sizes are powers of two from here to CHUNK_BYTES, so that a region serves many chunks. Larger ones hold a
single large batch and are not kept."""

Notify = Callable[[], None]


class BufferPool:
    def __init__(self, budget_bytes: int, on_released: Notify = lambda: None) -> None:
        """`on_released`: called, in any thread, when a buffer has returned or no response holds it any
        more."""
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        """Total size of the buffers that something refers to."""
        self.lent_bytes = 0
        """Total size of the buffers that responses hold."""
        self._kept: dict[int, list[mmap.mmap]] = {}
        self._kept_bytes = 0
        self._on_released = on_released
        self._lock = (
            threading.RLock()
        )  # a buffer may be released during any allocation, also one of this class

    def take(self, size: int, *, above_budget: bool = False) -> "Buffer | None":
        """A buffer of at least `size` bytes with arbitrary content, or None if the budget is used up, unless
        `above_budget`. Raises OSError if the system has no memory."""
        size = _rounded(size)
        with self._lock:
            fits = self.used_bytes + size <= self.budget_bytes
            if not fits and self.used_bytes > self.lent_bytes and not above_budget:
                return None
            self.used_bytes += size
            kept = self._kept.get(size)
            if kept:
                self._kept_bytes -= size
                return Buffer(self, kept.pop(), size)
            while self._kept_bytes and self.used_bytes + self._kept_bytes > self.budget_bytes:
                self._unmap_one()
        try:
            region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except BaseException:
            with self._lock:
                self.used_bytes -= size
            self._on_released()
            raise
        return Buffer(self, region, size)

    def lend(self, buffer: "Buffer", start: int, end: int) -> memoryview | None:
        """A view for a response, which may live for long. None if responses hold half of the budget."""
        with self._lock:
            if not buffer.loans:
                if self.lent_bytes and self.lent_bytes + buffer.size > self.budget_bytes // 2:
                    return None
                self.lent_bytes += buffer.size
            buffer.loans += 1
        return buffer.view(start, end, on_released=self._loan_ended)

    def _loan_ended(self, buffer: "Buffer") -> None:
        with self._lock:
            buffer.loans -= 1
            if buffer.loans:
                return
            self.lent_bytes -= buffer.size
        self._on_released()

    def give_back(self, region: mmap.mmap, size: int) -> None:
        """Called by the buffer that nothing refers to any more."""
        with self._lock:
            self.used_bytes -= size
            if size <= CHUNK_BYTES and self.used_bytes + self._kept_bytes + size <= self.budget_bytes:
                self._kept.setdefault(size, []).append(region)
                self._kept_bytes += size
        self._on_released()

    def _unmap_one(self) -> None:
        """Unmap the smallest region that is kept for later."""
        size = min(size for size, kept in list(self._kept.items()) if kept)  # a buffer may be released here
        self._kept[size].pop()
        self._kept_bytes -= size


class Buffer:
    """`size` bytes of a pool, from the start of a page."""

    __slots__ = ("_pool", "_region", "loans", "size")

    def __init__(self, pool: BufferPool, region: mmap.mmap, size: int) -> None:
        self.size = size
        self.loans = 0
        """Views that responses hold."""
        self._pool = pool
        self._region = region

    def view(self, start: int, end: int, on_released: "Callable[[Buffer], None] | None" = None) -> memoryview:
        """Bytes [start, end). The view, and every slice of it, keeps the buffer; `on_released` is called when
        the last of them is gone."""
        exporter = _exporter_type(self.size).from_buffer(self._region)
        exporter.buffer = self
        exporter.on_released = on_released
        return memoryview(exporter).cast("B")[start:end]

    def __del__(self) -> None:
        self._pool.give_back(self._region, self.size)


@lru_cache(maxsize=64)
def _exporter_type(size: int) -> Any:
    """Type of an object that owns the views of a buffer: a memoryview refers to the object that exports its
    bytes, and only ctypes allows Python code to define one (before PEP 688)."""

    def released(exporter: Any) -> None:
        if exporter.on_released is not None:
            exporter.on_released(exporter.buffer)

    return type("Exporter", (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": size, "__del__": released})


def _rounded(size: int) -> int:
    if size > CHUNK_BYTES:
        return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    return max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
