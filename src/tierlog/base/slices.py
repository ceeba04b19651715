"""What a read of either tier returns: whole record batches as bytes or file slices, in offset order."""

from typing import NamedTuple

from tierlog.base.files import Part


class LogSlice(NamedTuple):
    """`size` bytes of whole batches (the first holds the offset asked for); `end_offset` is exclusive."""

    parts: tuple[Part, ...]
    size: int
    base_offset: int
    end_offset: int


def empty_slice(offset: int) -> LogSlice:
    """A read that found nothing: the offset is at the end of what may be read."""
    return LogSlice((), 0, offset, offset)
