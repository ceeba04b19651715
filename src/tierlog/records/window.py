"""A window over the plain records of a batch: what a walk looks at while the rest is still compressed.

Walks are generators over a window. They yield a step that takes the next piece, which may run in a thread as
it decompresses, or None when others should have their turn of the event loop. A position in `data` may lie
behind its end, in a record whose head was seen already: what is skipped so is decompressed and never kept.
Called by `walk.py`; made by the leader's batch validation and by time look-ups.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from tierlog.records.errors import HeldWhole, RecordsError

Step = Callable[[], None] | None
"""What may run in a thread; or None: others have their turn."""

T = TypeVar("T")


class Window:
    """`also` gets each piece, in order, in the same step; it may raise RecordsError, as `pieces` may."""

    __slots__ = ("_also", "_fault", "_piece", "_pieces", "_waiting", "data", "ended")

    def __init__(self, pieces: Iterator[bytes], also: Callable[[bytes], None] | None = None) -> None:
        self.data = b""
        self.ended = False
        """Nothing follows `data`."""
        self._pieces = pieces
        self._also = also
        self._piece: bytes | None = None
        self._waiting: deque[bytes] = deque()
        self._fault: RecordsError | None = None

    def prefetch(self, most_bytes: int) -> bool:
        """Takes pieces until there are more than so many bytes; True if that is all, or all up to a fault.
        HeldWhole is none: another look may hold more.
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
        return not isinstance(self._fault, HeldWhole)

    def pull(self) -> None:
        """The step: takes the next piece. What it raises is raised by the walk."""
        try:
            self._piece = self._waiting.popleft() if self._waiting else self._pull()
            if self._also is not None and self._piece:
                self._also(self._piece)
        except RecordsError as error:
            self._fault = error

    def more(self, position: int) -> Generator[Step, None, int]:
        """Goes on by one piece. Forgets what lies before a position, and returns by how much all positions
        are less from here on.
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
        """Goes on until `need` bytes follow a position, or there are no more; returns as `more`."""
        forgotten = 0
        while not self.ended and position - forgotten + need > len(self.data):
            forgotten += yield from self.more(position - forgotten)
        return forgotten

    def _pull(self) -> bytes | None:
        return None if self._fault is not None else next(self._pieces, None)


def at_once(walk: Generator[Step, None, T]) -> T:
    """All steps one after the other; what the walk finds."""
    while True:
        try:
            step = next(walk)
        except StopIteration as end:
            found: T = end.value
            return found
        if step is not None:
            step()
