"""Complete transactions of one partition whose markers may not be committed yet: they hold the last stable
offset. Owned by the producer state, which stores them behind its snapshot's entries.

Invariant: markers are added in the order of offsets.
"""

import struct
from collections import deque
from collections.abc import Iterator

from tierlog.base.types import require

_HEADER = struct.Struct(">4sHi")  # magic, version, number of transactions
_MAGIC, _VERSION = b"TLCT", 1
_ENTRY = struct.Struct(">qq")  # offset of the marker, first offset


class CompleteTransactions:
    __slots__ = ("_first_by_marker", "_lowest")

    def __init__(self) -> None:
        self._first_by_marker: dict[int, int] = {}
        self._lowest: deque[tuple[int, int]] = deque()
        """Those with a smaller first offset than all later ones. A start after a crash knows no high
        watermark, so it adds all transactions of a segment: to search all of them would take too long."""

    @property
    def first_offset(self) -> int:
        """The smallest first offset; -1 if there are none."""
        return self._lowest[0][1] if self._lowest else -1

    def add(self, marker_offset: int, first_offset: int) -> None:
        self._first_by_marker[marker_offset] = first_offset
        while self._lowest and self._lowest[-1][1] >= first_offset:
            self._lowest.pop()
        self._lowest.append((marker_offset, first_offset))

    def drop_below(self, high_watermark: int) -> bool:
        """Remove those with committed markers. Returns whether there were any."""
        if not self._first_by_marker or next(iter(self._first_by_marker)) >= high_watermark:
            return False
        self._first_by_marker = {
            at: first for at, first in self._first_by_marker.items() if at >= high_watermark
        }
        while self._lowest and self._lowest[0][0] < high_watermark:
            self._lowest.popleft()
        return True

    def encode(self) -> Iterator[bytes]:
        """Nothing if there are none."""
        if self._first_by_marker:
            yield _HEADER.pack(_MAGIC, _VERSION, len(self._first_by_marker))
            yield from (_ENTRY.pack(at, first) for at, first in self._first_by_marker.items())

    def decode(self, content: bytes, at: int) -> None:
        """Add those of a snapshot; older ones have none. Ignores unknown versions. Raises struct.error."""
        if len(content) - at < _HEADER.size:
            return
        magic, version, count = _HEADER.unpack_from(content, at)
        if (magic, version) == (_MAGIC, _VERSION):
            at += _HEADER.size
            for entry in _ENTRY.iter_unpack(content[at : at + count * _ENTRY.size]):
                self.add(*entry)

    def check(self) -> None:
        """Raise InvariantViolation if an invariant is broken."""
        markers = list(self._first_by_marker)
        require(markers == sorted(markers), "complete transactions are not in order")
        lowest = min(self._first_by_marker.values(), default=-1)
        require(lowest == self.first_offset, f"first offset {lowest}, {self.first_offset}")
