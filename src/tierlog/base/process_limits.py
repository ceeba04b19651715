"""Limits of the process: file descriptors and the share of logs in them, how the allocator keeps memory, and
how the interpreter collects garbage and shares its lock.

Called by the composition root at startup.
"""

import ctypes
import gc
import resource
import sys

OTHER_DESCRIPTORS = 512
"""Descriptors for other uses than logs and clients: metadata log, cached chunks, connections to the object
store, files that threads open for a moment.
"""

LEAST_DESCRIPTORS = 256
"""Minimum limit with which a node starts."""

ARENAS = 2
"""For malloc: one for the event loop, one for all other threads, which seldom allocate at the same time."""

MAPPED_FROM_BYTES = 256 << 10
"""Blocks of this size or more are mapped separately; setting it stops glibc from raising it."""

GC_THRESHOLDS = 5_000, 1, 5_000
"""Collections are 5,000 new objects apart. Each third one also visits the second generation, so those are
15,000 apart, and those of all objects 75 million. Requests create hardly any cycles, so new objects are state
that grows, such as members and transactional ids. The event loop waits while a collection visits its
generation and those below: about a millisecond for 10,000 objects."""

SWITCH_INTERVAL_S = 0.000_5
"""After this time a thread hands the interpreter lock to one that waits for it; Python's default is ten times
as long. The event loop needs the lock after each of its system calls, while threads of the object store,
disks and the metadata log compute."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h


def tune_interpreter() -> None:
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of RLIMIT_NOFILE to the hard limit. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # some kernels allow less than the hard limit (macOS)
            return soft
    return hard


def descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def share_of_logs(wanted: int, connections: int, limit: int) -> int:
    """Descriptors for logs: `wanted` if they fit into `limit` beside the connections, else what the
    connections leave, but at least a quarter: connections seldom reach their limit, and logs are always read.
    """
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(limit - connections - OTHER_DESCRIPTORS, limit // 4))


def keep_malloc_small() -> bool:
    """Make the allocator return freed memory to the kernel. Called before the process starts threads. Returns
    False, and changes nothing, if the C library is not glibc.

    glibc creates an arena for each thread, and takes blocks of up to 32 MiB from arenas once one of that size
    was freed. Threads that read, verify and upload segments then fragment the arenas: in `make soak` a broker
    grew from 70 MiB to 360 MiB within eight minutes. With few arenas, and with large blocks mapped
    separately, freed memory returns to the kernel.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS)) and bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
