"""Exceptions that are kept, or that several callers raise: neither the frames nor the memory that those refer
to live longer for it. Used by stores and caches."""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def without_frames(failure: E) -> E:
    """A failure that is kept or dropped: its frames refer to memory that a chunk was loaded into."""
    causes: list[BaseException | None] = [failure]
    while causes:
        if (cause := causes.pop()) is not None:
            cause.__traceback__ = None
            causes += cause.__cause__, cause.__context__
    return failure


def raise_again(failure: BaseException | None) -> None:
    """Raise a failure that was kept, without a frame that refers to it: they would keep each other, and the
    memory of a chunk, until the garbage collector finds them."""
    try:
        if failure is not None:
            raise failure
    finally:
        del failure
