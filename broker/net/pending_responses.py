"""Pending responses of one connection, sent in the order of their requests. Called by `net.connection`."""

import asyncio
from collections import deque
from typing import Any

from tierlog.base.files import Part
from tierlog.broker.net.memory_pool import MemoryPool


class ResponseSlot:
    """The place of one response. `parts` of None close the connection."""

    __slots__ = ("done", "future", "parts", "request_bytes", "reserved")

    def __init__(self, request_bytes: int = 0) -> None:
        self.done = False
        self.future: asyncio.Future[Any] | None = None  # cancelled if the connection closes first
        self.parts: list[Part] | None = []
        self.request_bytes = request_bytes
        self.reserved = 0  # bytes of the memory pool, for a kept frame


class PendingResponses:
    """Slots in order, and the bytes of requests whose responses are not ready."""

    __slots__ = ("_slots", "bytes")

    def __init__(self) -> None:
        self._slots: deque[ResponseSlot] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    def wait(self, slot: ResponseSlot) -> None:
        """Add a request whose response is not ready."""
        self._slots.append(slot)
        self.bytes += slot.request_bytes

    def answer_later(self, parts: list[Part] | None) -> None:
        """Add a response that is ready but must wait for earlier ones."""
        slot = ResponseSlot()
        slot.done, slot.parts = True, parts
        self._slots.append(slot)

    def answer(self, slot: ResponseSlot, parts: list[Part] | None) -> None:
        """Set the response of a request."""
        self.bytes -= slot.request_bytes
        slot.done, slot.parts = True, parts

    @property
    def has_ready(self) -> bool:
        """Whether the first response in order is ready: `take` returns it."""
        return bool(self._slots) and self._slots[0].done

    def take(self) -> list[Part] | None:
        return self._slots.popleft().parts

    @property
    def next_is_done(self) -> bool:
        """Whether the first handler in order is done, although its callback has not run."""
        future = self._slots[0].future if self._slots else None
        return future is not None and future.done()

    def release_memory(self, memory_pool: MemoryPool) -> None:
        for slot in self._slots:
            memory_pool.release(slot.reserved)
            slot.reserved = 0

    def cancel(self) -> None:
        """Cancel all requests; the connection is closed."""
        for slot in self._slots:
            if slot.future is not None:
                slot.future.cancel()
        self._slots.clear()
