"""Window over the records of a batch: walks over them while the rest of the batch is still compressed.

Walks are generators over a window. They yield a step that decompresses the next piece, which may run in a
thread, or None to let the event loop serve others. A position may be beyond the end of `data` if the head of
the record there was already read: the bytes up to it are decompressed but not kept. Called by `walk.py`;
created by batch validation and lookups by timestamp.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from tierlog.records.errors import MemoryLimitExceeded, RecordsError

Step = Callable[[], None] | None
"""A step that may run in a thread; None: yield to the event loop."""

T = TypeVar("T")


class Window:
    """`data`: the bytes that are decompressed and not yet dropped. `on_piece` gets each piece, in order, in
    the step that decompresses it. It may raise RecordsError, as may `pieces`."""

    __slots__ = ("_fault", "_on_piece", "_piece", "_pieces", "_prefetched", "data", "ended")

    def __init__(self, pieces: Iterator[bytes], on_piece: Callable[[bytes], None] | None = None) -> None:
        self.data = b""
        self.ended = False
        """No data follows `data`."""
        self._pieces = pieces
        self._on_piece = on_piece
        self._piece: bytes | None = None
        self._prefetched: deque[bytes] = deque()
        self._fault: RecordsError | None = None

    def prefetch(self, max_bytes: int) -> bool:
        """Decompress pieces at once, up to about `max_bytes`. Returns whether nothing is left to decompress:
        all pieces were taken, or a fault was found. Returns False after MemoryLimitExceeded, because another
        attempt may have more memory, and after an empty piece, which marks a long scan.
        """
        size = 0
        try:
            for piece in self._pieces:
                self._prefetched.append(piece)
                size += len(piece)
                if size > max_bytes or not piece:
                    return False
        except RecordsError as error:
            self._fault = error
        return not isinstance(self._fault, MemoryLimitExceeded)

    def pull(self) -> None:
        """The step of a walk: take the next piece. `read_next` raises its exceptions in the walk."""
        try:
            self._piece = self._prefetched.popleft() if self._prefetched else self._pull()
            if self._on_piece is not None and self._piece:
                self._on_piece(self._piece)
        except RecordsError as error:
            self._fault = error

    def read_next(self, position: int) -> Generator[Step, None, int]:
        """Append the next piece to `data` and drop the data before a position. Returns the number of bytes
        dropped, by which all positions decrease.
        """
        yield self.pull
        piece, self._piece = self._piece, None
        if self._fault is not None and piece is None:
            raise self._fault
        if piece is None:
            self.ended = True
            return 0
        size = len(self.data)
        if position >= size:
            self.data = piece
            return size
        self.data = self.data[position:] + piece
        return position

    def fill(self, position: int, need: int) -> Generator[Step, None, int]:
        """Read until `need` bytes follow a position or the data ends. Returns as `read_next`."""
        dropped = 0
        while not self.ended and position - dropped + need > len(self.data):
            dropped += yield from self.read_next(position - dropped)
        return dropped

    def _pull(self) -> bytes | None:
        return None if self._fault is not None else next(self._pieces, None)


def run_all_steps(walk: Generator[Step, None, T]) -> T:
    """Run all steps without yielding. Returns the result of the walk."""
    while True:
        try:
            step = next(walk)
        except StopIteration as end:
            found: T = end.value
            return found
        if step is not None:
            step()
