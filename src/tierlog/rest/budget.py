"""Budget of bytes: bounds the memory of all requests of the gateway together.

A request reserves the bytes of its body as they arrive, and a stream those that it fetches before they do.
Both release them when they are written to the other end. Those that have to wait get their turns in the order
of arrival.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tierlog.rest.errors import OVERLOADED, RETRY_AFTER_S, RestError


class Budget:
    """`most`: bytes that may be reserved. One request that needs more alone waits for all others to end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.refused = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_short(self) -> bool:
        """Whether a request waits for bytes, or more are held than may be."""
        return bool(self._waiting) or self.used > self.most

    def reserve_now(self, count: int, *, beside: int = 0) -> None:
        """Reserve at once. `beside`: bytes that the same request has reserved before; it continues while
        others wait, because they wait for it too. Raises RestError if that is too much now."""
        self.check(count, beside=beside)
        self.used += count

    def check(self, count: int, *, beside: int = 0) -> None:
        """Raises RestError if `reserve_now` would."""
        if (self._waiting and not beside) or not self._fits(count, beside):
            self.refused += 1
            raise RestError(
                OVERLOADED,
                f"the gateway holds {self.used} of {self.most} bytes now",
                retry_after_s=RETRY_AFTER_S,
            )

    async def reserve(self, count: int) -> None:
        """Reserve once there is space."""
        if not self._waiting and self._fits(count):
            self.used += count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = count, turn
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(count)
            else:
                with suppress(ValueError):  # a release in the meantime may have passed over it
                    self._waiting.remove(entry)
                self._give_turns()
            raise

    def resize(self, count: int, actual: int) -> None:
        """Change a reservation to the bytes that are there. If they are more, others wait longer."""
        self.used += actual - count
        self._give_turns()

    def release(self, count: int) -> None:
        self.used -= count
        self._give_turns()

    @asynccontextmanager
    async def held(self, count: int) -> AsyncIterator[None]:
        """`reserve` and `release`."""
        await self.reserve(count)
        try:
            yield
        finally:
            self.release(count)

    def _fits(self, count: int, beside: int = 0) -> bool:
        return self.used + count <= self.most or self.used <= beside

    def _give_turns(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, turn = self._waiting.popleft()
            if not turn.done():
                self.used += count
                turn.set_result(None)
