"""Allocator settings that return freed memory to the kernel.

glibc creates an arena for each thread, and takes blocks of up to 32 MiB from arenas once one of that size was
freed. Threads that read, verify and upload segments then fragment the arenas: in `make soak` a broker grew
from 70 MiB to 360 MiB within eight minutes. With few arenas, and with large blocks mapped separately, freed
memory returns to the kernel. Called once by the process, before it starts threads.
"""

import ctypes

ARENAS = 2
"""One for the event loop, one for all other threads, which seldom allocate at the same time."""

MAPPED_FROM_BYTES = 256 << 10
"""Blocks of this size or more are mapped separately; setting it stops glibc from raising it."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h


def keep_malloc_small() -> bool:
    """Returns False, and changes nothing, if the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS)) and bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
