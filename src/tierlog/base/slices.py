"""Result of a local or remote read: whole record batches as bytes or file slices, in offset order."""

from typing import NamedTuple

from tierlog.base.files import Part


class LogSlice(NamedTuple):
    """`size` bytes of whole batches; the first contains the requested offset. `end_offset` is exclusive."""

    parts: tuple[Part, ...]
    size: int
    base_offset: int
    end_offset: int


def empty_slice(offset: int) -> LogSlice:
    """The result of a read at the end of the readable records."""
    return LogSlice((), 0, offset, offset)
