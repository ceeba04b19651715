"""Bytes of requests under way over all connections of a listener, and the line of those that wait for room.

As Kafka's memory pool (queued.max.request.bytes, KIP-72): a frame that does not arrive whole reserves its
size before it is received. Without room its connection is not read until it has its turn, first come, first
served. The room is free again as soon as the handler has returned, however long the answer takes: a Fetch may
wait for weeks, and must not hold up those whose frames arrive in pieces. Only a frame that a handler keeps
(net.dispatch.Call), or what it copied of one, has room until the request is carried out, also if it arrived
whole; it need not ask, as it is there already. So who holds room gives it back in time: a frame arrives
within its time-out, whatever else its connection is not read for, and a handler keeps records no longer than
it takes to append them.
"""

import asyncio
from collections.abc import Callable, Hashable


class Budget:
    """`used` may pass `limit` by one frame, so that none is too large to have its turn, and by one kept
    frame of each connection. `held` is what was received and lies with connections that are not read; it
    counts by itself, since it goes only once they have room.
    """

    __slots__ = ("_line", "held", "limit", "used", "waits")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.held = 0
        self.waits = 0
        self._line: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    @property
    def waiting(self) -> int:
        """Connections that are not read until there is room."""
        return len(self._line)

    def take(self, size: int) -> bool:
        """Whether there was room."""
        if self._line or self.used >= self.limit:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size
        self._serve()

    def wait(self, who: Hashable, size: int, granted: Callable[[], None]) -> None:
        """Takes `size` as soon as there is room, and calls `granted` in a later turn of the event loop."""
        self.waits += 1
        self._line[who] = size, granted

    def leave(self, who: Hashable) -> bool:
        """Whether it was still in the line; else it has been given what it waited for."""
        if self._line.pop(who, None) is None:
            return False
        self._serve()
        return True

    def _serve(self) -> None:
        while self._line and self.used < self.limit:
            who = next(iter(self._line))
            size, granted = self._line.pop(who)
            self.used += size
            asyncio.get_running_loop().call_soon(granted)
