"""The network between nodes and clients: delay, loss, repetition, cut and clogged links, each per direction.

Two services over it. `post` is a message that may be lost, doubled or overtaken, as Raft's may. `call` is a
request on a connection: it is never doubled and never overtaken on its connection; it breaks when a link is
cut for long, or an end dies, and then nobody knows whether it was carried out.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from simulator.loop import Process, SimLoop
from tierlog.broker.records.batch import HEADER_SIZE, read_header

T = TypeVar("T")

DELAY_S = (0.0001, 0.003)
ECHO_S = (0.01, 6.0)
HELD_UP_S = (0.05, 0.05, 0.05, 3.0)
"""A message that others overtake; a few of them by an election."""

CLOGGED_S = (0.05, 1.5)
APART_S = 1e-6
"""Between two requests of a connection: what is due at one and the same time comes in any order."""

PATIENCE_S = 5.0
"""After that long without a way through, a connection is given up by its kernel."""


class Broken(ConnectionError):
    """The connection broke: whether the request was carried out is unknown."""


class Refused(ConnectionError):
    """The host answers, and nobody listens there: the process is dead."""


@dataclass(slots=True)
class Weather:
    """What messages of this run suffer; drawn from its seed."""

    loss: float = 0.0
    repetition: float = 0.0
    overtaking: float = 0.0
    echo: float = 0.0
    """Of requests between nodes: a copy that arrives long after it, or after the caller gave it up."""
    garbling: float = 0.0
    """Of fetched records: the checksums of TCP are weak."""


class Network:
    """Ends are known by name. Each has the process that listens there, or None while the host is up alone."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.weather = Weather()
        self._loop = loop
        self._rng = rng
        self._listening: dict[str, Process | None] = {}
        self._gone: set[str] = set()  # hosts without power
        self._cut: set[tuple[str, str]] = set()
        self._clogged: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str, int], float] = {}
        self._changed = loop.create_future()
        self.carried = self.garbled = 0

    # --- who is there, and what the links are like

    def listen(self, name: str, process: Process | None) -> None:
        self._listening[name] = process
        self._gone.discard(name)
        self._tell()

    def vanish(self, name: str) -> None:
        """Its host answers nothing, not even that nobody listens, until somebody listens again."""
        self._listening[name] = None
        self._gone.add(name)
        self._tell()

    def cut(self, sender: str, receiver: str) -> None:
        self._cut.add((sender, receiver))
        self._tell()

    def clog(self, sender: str, receiver: str) -> None:
        self._clogged.add((sender, receiver))

    def isolate(self, name: str) -> None:
        for other in sorted(self._listening):
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def heal(self) -> None:
        self._cut.clear()
        self._clogged.clear()
        self.weather = Weather()
        self._tell()

    def connects(self, one: str, other: str) -> bool:
        """Whether a connection can be made, and refused."""
        return (one, other) not in self._cut and (other, one) not in self._cut

    def _tell(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    # --- messages

    def post(self, sender: str, receiver: str, deliver: Callable[[], object]) -> None:
        """Calls `deliver` in the receiver's process: once, later, twice, or not at all."""
        rng, weather = self._rng, self.weather
        copies = 2 if rng.random() < weather.repetition else 1
        for _ in range(copies):
            if (sender, receiver) in self._cut or rng.random() < weather.loss:
                continue
            delay = self._delay(sender, receiver)
            if rng.random() < weather.overtaking:
                delay += rng.random() * rng.choice(HELD_UP_S)
            self._loop.call_later(delay, self._deliver, sender, receiver, deliver)

    def _deliver(self, sender: str, receiver: str, deliver: Callable[[], object]) -> None:
        process = self._listening.get(receiver)
        if process is not None and process.alive and (sender, receiver) not in self._cut:
            self.carried += 1
            self._loop.call_soon(deliver, context=process.context)

    def echoes(self) -> bool:
        return self._rng.random() < self.weather.echo

    def echo_delay(self) -> float:
        return self._rng.uniform(*ECHO_S)

    def connection(self) -> int:
        """A new one."""
        return self._rng.getrandbits(48)

    def garble(self, records: Iterable[object]) -> None:
        """A bit of the first batch flips, now and then; not of what no CRC covers."""
        for content in records:
            if isinstance(content, memoryview) and self._rng.random() < self.weather.garbling:
                end = read_header(content).size
                content[self._rng.randrange(HEADER_SIZE, end)] ^= 1 << self._rng.randrange(8)
                self.garbled += 1

    # --- requests

    async def call(self, sender: str, receiver: str, connection: int, serve: Callable[[], Awaitable[T]]) -> T:
        """Has `serve` run in the receiver's process and brings back what it returned or raised."""
        process = await self._way(sender, receiver)
        await self._travel(sender, receiver, connection)
        if not process.alive or self._listening.get(receiver) is not process:
            raise Broken(f"{receiver} died")
        self.carried += 1
        done: asyncio.Future[T] = self._loop.create_future()

        async def run() -> None:
            try:
                result = await serve()
            except Exception as failure:
                if not done.done():
                    done.set_exception(failure)
            else:
                if not done.done():
                    done.set_result(result)

        process.spawn(run())
        try:
            while not done.done():
                changed = self._changed
                await asyncio.wait([done, changed], return_when=asyncio.FIRST_COMPLETED)
                if not done.done() and not process.alive:
                    raise Broken(f"{receiver} died")
            await self._way(receiver, sender)
        finally:
            done.cancel()
        await self._travel(receiver, sender, connection)
        return done.result()

    async def _way(self, sender: str, receiver: str) -> Process:
        """Waits for the link, as TCP does; raises Refused or Broken."""
        deadline = self._loop.time() + PATIENCE_S
        while (sender, receiver) in self._cut or receiver in self._gone:
            left = deadline - self._loop.time()
            if left <= 0:
                raise Broken(f"no way from {sender} to {receiver}")
            await asyncio.wait([self._changed], timeout=left)
        process = self._listening.get(receiver)
        if process is None or not process.alive:
            raise Refused(f"{receiver} refuses connections")
        return process

    async def _travel(self, sender: str, receiver: str, connection: int) -> None:
        """In order within a connection."""
        key = (sender, receiver, connection)
        at = max(self._loop.time() + self._delay(sender, receiver), self._last.get(key, 0.0) + APART_S)
        self._last[key] = at
        await asyncio.sleep(at - self._loop.time())

    def _delay(self, sender: str, receiver: str) -> float:
        span = CLOGGED_S if (sender, receiver) in self._clogged else DELAY_S
        return self._rng.uniform(*span)
