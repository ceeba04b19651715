"""Window over the decompressed records of a batch: a walk reads it while the rest is still compressed.

Walks are generators over a window. They yield a step that decompresses the next piece, which may run in a
thread, or None to let the event loop serve others. A position in `data` may be beyond its end, in a record
whose head was already read: such bytes are decompressed but not kept. Called by `walk.py`; created by batch
validation and lookups by timestamp.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from tierlog.records.errors import MemoryLimitExceeded, RecordsError

Step = Callable[[], None] | None
"""A step that may run in a thread; None: yield to the event loop."""

T = TypeVar("T")


class Window:
    """`also` gets each piece, in order, in the same step. It may raise RecordsError, as may `pieces`."""

    __slots__ = ("_also", "_fault", "_piece", "_pieces", "_waiting", "data", "ended")

    def __init__(self, pieces: Iterator[bytes], also: Callable[[bytes], None] | None = None) -> None:
        self.data = b""
        self.ended = False
        """No data follows `data`."""
        self._pieces = pieces
        self._also = also
        self._piece: bytes | None = None
        self._waiting: deque[bytes] = deque()
        self._fault: RecordsError | None = None

    def prefetch(self, most_bytes: int) -> bool:
        """Take pieces until there are more than `most_bytes`. Returns whether these are all, or all before a
        fault. MemoryLimitExceeded is no fault: another attempt may hold more.
        """
        size = 0
        try:
            for piece in self._pieces:
                self._waiting.append(piece)
                size += len(piece)
                if size > most_bytes or not piece:
                    return False
        except RecordsError as error:
            self._fault = error
        return not isinstance(self._fault, MemoryLimitExceeded)

    def pull(self) -> None:
        """The step: take the next piece. The walk raises its exceptions."""
        try:
            self._piece = self._waiting.popleft() if self._waiting else self._pull()
            if self._also is not None and self._piece:
                self._also(self._piece)
        except RecordsError as error:
            self._fault = error

    def more(self, position: int) -> Generator[Step, None, int]:
        """Continue with the next piece. Drops data before a position, and returns by how much all positions
        decrease.
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
        """Continue until `need` bytes follow a position, or no more come. Returns as `more`."""
        forgotten = 0
        while not self.ended and position - forgotten + need > len(self.data):
            forgotten += yield from self.more(position - forgotten)
        return forgotten

    def _pull(self) -> bytes | None:
        return None if self._fault is not None else next(self._pieces, None)


def at_once(walk: Generator[Step, None, T]) -> T:
    """Run all steps at once. Returns the result of the walk."""
    while True:
        try:
            step = next(walk)
        except StopIteration as end:
            found: T = end.value
            return found
        if step is not None:
            step()
