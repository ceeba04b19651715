"""Pending responses of one connection: they leave in the order of their requests, however late one is ready.

Called by the pump (`net.connection`).
"""

import asyncio
from collections import deque
from typing import Any

from tierlog.base.files import Part
from tierlog.broker.net.budget import Budget


class Slot:
    """The place of one response. `parts` of None end the connection."""

    __slots__ = ("done", "future", "parts", "request_bytes", "room")

    def __init__(self, request_bytes: int = 0) -> None:
        self.done = False
        self.future: asyncio.Future[Any] | None = None  # cancelled if the connection closes first
        self.parts: list[Part] | None = []
        self.request_bytes = request_bytes
        self.room = 0  # of the budget, for a frame that is kept


class Pending:
    """The slots in order, and the bytes of the requests whose responses are not ready."""

    __slots__ = ("_slots", "bytes")

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    def wait(self, slot: Slot) -> None:
        """Adds a request whose response is not ready."""
        self._slots.append(slot)
        self.bytes += slot.request_bytes

    def answer_later(self, parts: list[Part] | None) -> None:
        """Adds a response that is ready, but not the first in order."""
        slot = Slot()
        slot.done, slot.parts = True, parts
        self._slots.append(slot)

    def answer(self, slot: Slot, parts: list[Part] | None) -> None:
        """Makes a response ready."""
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
        """Whether the handler of the first in order is done, although its callback has not run."""
        future = self._slots[0].future if self._slots else None
        return future is not None and future.done()

    def give_room_back(self, budget: Budget) -> None:
        for slot in self._slots:
            budget.give(slot.room)
            slot.room = 0

    def cancel(self) -> None:
        """The connection is closed: nothing is sent any more."""
        for slot in self._slots:
            if slot.future is not None:
                slot.future.cancel()
        self._slots.clear()
