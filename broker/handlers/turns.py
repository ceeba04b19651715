"""Processing of large requests: handles a few of their entries in each turn of the event loop.

Between two turns other connections are served, and heartbeats and elections continue. Called by handlers of
requests with an unbounded number of entries.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from tierlog.base.files import Part
from tierlog.broker.handlers.context import ExtensibleReply, Pending, RawReply, Reply
from tierlog.broker.handlers.error_counts import counter_of
from tierlog.protocol.codec import array_writer
from tierlog.protocol.schema import Message

ENTRIES_PER_TURN = 200
"""Entries that take some microseconds each: about 5 ms of the event loop."""

T = TypeVar("T")
R = TypeVar("R")


async def in_turns(
    items: Iterable[T],
    work: Callable[[T], R],
    per_turn: int = ENTRIES_PER_TURN,
    weigh: Callable[[T], int] = lambda item: 1,
) -> list[R]:
    """The results of `work` for all items. `weigh`: number of entries that an item counts as."""
    done: list[R] = []
    for some in weighted_slices(items, per_turn, weigh):
        if done:
            await asyncio.sleep(0)
        done += map(work, some)
    return done


def before_later_requests(work: Coroutine[Any, Any, Reply]) -> Pending:
    """A reply whose work reads in several turns. Later requests of its connection start when it is done, so
    that it shows none of their changes."""
    return Pending(work, blocks_later_until=asyncio.get_running_loop().create_future())


def weighted_slices(
    items: Iterable[T], weight_max: int = ENTRIES_PER_TURN, weigh: Callable[[T], int] = lambda item: 1
) -> Iterator[list[T]]:
    """Split the items into slices. A slice ends with the item that brings its weight to `weight_max` or
    more."""
    some: list[T] = []
    weight = 0
    for item in items:
        some.append(item)
        weight += weigh(item)
        if weight >= weight_max:
            yield some
            some, weight = [], 0
    if some:
        yield some


class ResponseEncoder:
    """Encodes a response with nested arrays in pieces, and yields to the event loop after every
    ENTRIES_PER_TURN entries.

    Call `add` in the order of the message's bytes, which `protocol.codec.ArrayWriter` encodes.
    """

    def __init__(self) -> None:
        self.errors: Counter[int] = Counter()
        self._parts: list[Part] = []
        self._pieces: list[bytes] = []
        self._entries = 0

    async def add(self, piece: bytes, entries: int = 0) -> None:
        self._pieces.append(piece)
        self._entries += entries
        if self._entries >= ENTRIES_PER_TURN:
            self._join()
            self._entries = 0
            await asyncio.sleep(0)

    def reply(self) -> RawReply:
        self._join()
        return RawReply(self._parts, self.errors)

    def _join(self) -> None:
        self._parts.append(b"".join(self._pieces))
        self._pieces.clear()


async def respond_in_turns(
    response: Message,
    version: int,
    array: str,
    count: int,
    elements: Iterable[Any],
    per_turn: int = ENTRIES_PER_TURN,
    weigh: Callable[[Any], int] = lambda element: 1,
) -> Reply:
    """Build and encode the response a few elements per turn.

    `array`: name of the array field. `count`: total number of elements, which precedes them in the encoding.
    """
    rest = weighted_slices(elements, per_turn, weigh)
    some = next(rest, [])
    if len(some) == count:
        setattr(response, array, some)
        return response
    kind: Any = type(response)
    writer = array_writer(kind, version, array)
    errors: Counter[int] = Counter()
    count_errors = counter_of(kind, errors)
    encoded: list[Part] = []

    while some:
        encoded.append(writer.elements(some))
        if count_errors is not None:
            count_errors(kind(**{array: some}))
        await asyncio.sleep(0)
        some = next(rest, [])

    def with_items(more: list[Any]) -> ExtensibleReply:
        nonlocal count
        if more:
            count += len(more)
            encoded.append(writer.elements(more))
            if count_errors is not None:
                count_errors(kind(**{array: more}))
        parts = [writer.before(response, count), *encoded, writer.after(response)]
        return ExtensibleReply(parts, errors, with_items=with_items)

    return with_items([])
