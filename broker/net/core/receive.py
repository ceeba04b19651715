"""Receive buffers: hold received frames, and copy no byte more than once.

A listener has one receive buffer for all of its connections, since only one is read at a time. Frames that
arrive in one piece are handled in place. The first part of any other frame is copied into a buffer of the
frame's size, and the next read fills that buffer and the shared one with one system call. Idle connections
have no buffer.

Clients that have not logged in share a memory pool of their own, so they take no memory from those that have.
A buffer is reused when its frames are handled. If a handler keeps one of them, a new buffer takes its place.
"""

import mmap

from tierlog.broker.handlers.context import Authentication
from tierlog.broker.net.core.bounds import (
    LOGIN_FRAMES_BYTES,
    RECEIVE_BUFFER_BYTES,
    SPARE_BUFFER_BYTES,
)
from tierlog.broker.net.core.memory_pool import MemoryPool

SIZE_PREFIX = 4
REQUEST_HEADER_BYTES_MIN = 8
LOGGED_IN_BYTES_MAX = 2**31 - 1
"""`Authentication.frame_bytes_max` of a client that has logged in (handlers.sasl)."""
_SMALLEST_BUFFER_BITS = 16
"""The smallest buffer for a partial frame has 64 KiB."""


def must_log_in(authentication: Authentication | None) -> bool:
    """Whether the client has to log in and has not yet. False while it logs in again."""
    return authentication is not None and authentication.frame_bytes_max < LOGGED_IN_BYTES_MAX


class Buffers:
    """The shared receive buffer of a listener, and spare buffers for frames that arrive in pieces."""

    def __init__(self, memory_pool: MemoryPool) -> None:
        self.shared = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.memory_pool = memory_pool
        self.login_pool = MemoryPool(min(memory_pool.limit, LOGIN_FRAMES_BYTES))
        self._spare: dict[int, list[memoryview]] = {}  # by the binary logarithm of their size
        self._spare_bytes = 0

    def pool_for(self, authentication: Authentication | None) -> MemoryPool:
        """The memory pool of a client's frames."""
        return self.login_pool if must_log_in(authentication) else self.memory_pool

    def replace_shared(self) -> None:
        """Take a new shared buffer, since a handler keeps views of the old one."""
        self.shared = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    def take(self, size: int) -> memoryview:
        """A writable buffer of at least `size` bytes; its pages use memory only when bytes arrive."""
        bits = max((size - 1).bit_length(), _SMALLEST_BUFFER_BITS)
        spare = self._spare.get(bits)
        if spare:
            self._spare_bytes -= 1 << bits
            return spare.pop()
        # A power of two can be reused. Larger buffers are not, so a frame of 100 MiB does not take 128 MiB.
        return memoryview(mmap.mmap(-1, 1 << bits if 1 << bits <= SPARE_BUFFER_BYTES else size))

    def recycle(self, buffer: memoryview) -> None:
        """Keep a buffer for reuse, within SPARE_BUFFER_BYTES. No view may refer to it any more."""
        size = len(buffer)
        if size & (size - 1) == 0 and self._spare_bytes + size <= SPARE_BUFFER_BYTES:
            self._spare.setdefault(size.bit_length() - 1, []).append(buffer)
            self._spare_bytes += size


class PartialFrame:
    """A partly received frame: its buffer, and how many bytes it has and needs, size prefix included."""

    __slots__ = ("_buffers", "begun_at", "buffer", "have", "need", "pool", "reserved")

    def __init__(self, buffers: Buffers, begun_at: float) -> None:
        self._buffers = buffers
        self.buffer = memoryview(bytearray(SIZE_PREFIX))
        self.have = 0
        self.need = SIZE_PREFIX
        self.pool = buffers.memory_pool
        self.reserved = 0  # bytes of the pool
        self.begun_at = begun_at

    @property
    def missing(self) -> memoryview:
        """The part of the buffer that has not been received yet."""
        return self.buffer[self.have : self.need]

    @property
    def is_whole(self) -> bool:
        return self.have == self.need and self.need > SIZE_PREFIX

    @property
    def has_header(self) -> bool:
        """Whether the fixed part of the request header has arrived."""
        return self.have >= SIZE_PREFIX + REQUEST_HEADER_BYTES_MIN

    def grow(self, size: int) -> None:
        """Take a buffer for a frame of `size` bytes, size prefix excluded. The caller has reserved them in
        `pool`."""
        self.need = SIZE_PREFIX + size
        self.reserved = size
        grown = self._buffers.take(self.need)
        grown[: self.have] = self.buffer[: self.have]
        self.buffer = grown

    def release(self, kept: bool) -> None:
        """Release the memory when the frame is handled or its connection is closed. `kept`: a handler may
        still refer to the buffer, so it is not reused."""
        if self.need > SIZE_PREFIX:
            self.pool.release(self.reserved)
            self.reserved = 0
            if not kept:
                self._buffers.recycle(self.buffer)
