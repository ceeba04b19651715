"""Keeps the C allocator from holding on to memory that Python has given back.

glibc makes an arena for each thread, and takes blocks of up to 32 MiB from arenas as soon as one of that size
was freed. Threads that read, check and upload segments then leave holes that nobody fills: `make soak` saw a
broker of 70 MiB pass 360 MiB within eight minutes. With few arenas, and large blocks mapped each by itself,
what is freed goes back to the kernel. Called once by the process, before it starts threads.
"""

import ctypes

ARENAS = 2
"""The event loop's, and one for all other threads, which seldom allocate at the same moment."""

MAPPED_FROM_BYTES = 256 << 10
"""A block of this size is mapped and unmapped by itself; setting it stops glibc from raising it."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h


def keep_malloc_small() -> bool:
    """False where the C library is not glibc, and then nothing has changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS)) and bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
