"""Request memory pool of a listener, as Kafka's (queued.max.request.bytes, KIP-72).

A frame that does not arrive whole reserves its size before it is received. Without free memory its connection
is not read until it has its turn, in order of arrival. The memory is released when the handler returns,
however long the response takes: a Fetch may wait for weeks. A frame that a handler keeps (`Pending.keeps`),
or the bytes that it copied, stay reserved until the request is carried out, even if the frame arrived whole;
they need not wait, since they are already received.

Memory is therefore released in time: a frame arrives within its timeout, and a handler keeps records only
until they are appended.
"""

from collections.abc import Callable, Hashable


class MemoryPool:
    """`used` may exceed `limit` by one frame, so that no frame is too large, and by one kept frame of each
    connection. `held`: bytes received from connections that are not read; they do not count as used.
    """

    __slots__ = ("_waiters", "held", "limit", "used", "waits")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.held = 0
        self.waits = 0
        self._waiters: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    @property
    def waiting(self) -> int:
        """Connections that wait for memory."""
        return len(self._waiters)

    @property
    def is_overheld(self) -> bool:
        """Whether more than the limit was received and cannot be handled yet."""
        return self.held > self.limit

    def try_allocate(self, size: int) -> bool:
        """Reserve memory if some is free and no connection waits."""
        if self._waiters or self.used >= self.limit:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        self.used -= size
        self._serve()

    def wait_for(self, owner: Hashable, size: int, granted: Callable[[], None]) -> None:
        """Reserve `size` when memory is free, and call `granted`, which must not handle requests itself."""
        self.waits += 1
        self._waiters[owner] = size, granted

    def cancel_wait(self, owner: Hashable) -> bool:
        """False if the owner no longer waits: its memory is reserved."""
        if self._waiters.pop(owner, None) is None:
            return False
        self._serve()
        return True

    def _serve(self) -> None:
        while self._waiters and self.used < self.limit:
            owner = next(iter(self._waiters))
            size, granted = self._waiters.pop(owner)
            self.used += size
            granted()
