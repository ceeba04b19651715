"""Frames out of a stream of bytes: received in place, cut, never copied more than once.

A listener has one receive buffer for all of its connections, as only one of them is read at any moment.
Frames that arrived whole are handled where they lie. The begun part of one that did not goes into a buffer
of the frame's own size, and the next read fills that one and the shared one with one system call. So an
idle connection holds no buffer, and of a stream of large frames only first parts are copied.

A buffer is reused as soon as its frames were handled, unless a handler kept one: then it is left to whoever
holds views of it, and a new one is taken.
"""

import mmap
import struct

from tierlog.broker.net.bounds import RECEIVE_BUFFER_BYTES, SPARE_BUFFER_BYTES
from tierlog.broker.net.budget import Budget
from tierlog.protocol.primitives import MalformedFrame

SIZE_PREFIX = 4
REQUEST_HEADER_BYTES_MIN = 8
_LEAST_POWER = 16


class Buffers:
    """The shared receive buffer of a listener, and spare buffers for frames that arrive in pieces."""

    def __init__(self, budget: Budget) -> None:
        self.shared = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.budget = budget
        self._spare: dict[int, list[memoryview]] = {}
        self._spare_bytes = 0

    def replace_shared(self) -> None:
        """Leaves the shared buffer to a handler that keeps views of it."""
        self.shared = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    def take(self, size: int) -> memoryview:
        """A writable buffer of at least `size` bytes; its pages cost memory only once bytes arrive."""
        power = max((size - 1).bit_length(), _LEAST_POWER)
        spare = self._spare.get(power)
        if spare:
            self._spare_bytes -= 1 << power
            return spare.pop()
        # an exact size above the kept sizes: a frame that claims 100 MiB must not claim 128
        return memoryview(mmap.mmap(-1, 1 << power if 1 << power <= SPARE_BUFFER_BYTES else size))

    def give_back(self, buffer: memoryview) -> None:
        """Nobody holds views of this buffer any more."""
        size = len(buffer)
        if size & (size - 1) == 0 and self._spare_bytes + size <= SPARE_BUFFER_BYTES:
            self._spare.setdefault(size.bit_length() - 1, []).append(buffer)
            self._spare_bytes += size


class Partial:
    """A frame that has not arrived whole: its buffer, the bytes that it has, the bytes that it needs."""

    __slots__ = ("_buffers", "begun_at", "buffer", "have", "need", "room")

    def __init__(self, buffers: Buffers, begun_at: float) -> None:
        self._buffers = buffers
        self.buffer = memoryview(bytearray(SIZE_PREFIX))
        self.have = 0
        self.need = SIZE_PREFIX
        self.room = 0  # of the budget
        self.begun_at = begun_at

    @property
    def rest(self) -> memoryview:
        """Where the next bytes go."""
        return self.buffer[self.have : self.need]

    @property
    def is_whole(self) -> bool:
        return self.have == self.need and self.need > SIZE_PREFIX

    @property
    def has_header(self) -> bool:
        """Whether the fixed part of the request header is there."""
        return self.have >= SIZE_PREFIX + REQUEST_HEADER_BYTES_MIN

    def grow(self, size: int) -> None:
        """Takes a buffer for a frame of so many bytes, for which the budget had room."""
        self.need = SIZE_PREFIX + size
        self.room = size
        grown = self._buffers.take(self.need)
        grown[: self.have] = self.buffer[: self.have]
        self.buffer = grown

    def release(self, kept: bool) -> None:
        """The frame was handled, or will never be whole."""
        if self.need > SIZE_PREFIX:
            self._buffers.budget.give(self.room)
            self.room = 0
            if not kept:
                self._buffers.give_back(self.buffer)


def frame_size(buffer: memoryview, at: int, frame_bytes_max: int) -> int:
    """The size of the frame that begins at `at`, without the prefix; raises MalformedFrame."""
    size: int = _SIZE(buffer, at)[0]
    if not 0 < size <= frame_bytes_max:
        raise MalformedFrame(f"a frame of {size} bytes")
    return size


_SIZE = struct.Struct(">i").unpack_from
