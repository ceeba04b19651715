"""The network between nodes and clients: delay, loss, repetition, cut and clogged links, each per direction.

Two services over it. `post` is a message that may be lost, doubled or overtaken, as Raft's may. `call` is a
request on a connection: it is never doubled and never overtaken on its connection; it breaks when a link is
cut for long, or an end dies, and then nobody knows whether it was carried out.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from simulator.loop import Handle, Process, SimLoop
from tierlog.records.batch import HEADER_SIZE, read_header

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


class Responses:
    """Which messages are answered at once with what waits for their sender. Drawn apart, and in some runs
    only, for the others to stay."""

    def __init__(self, seed: int, done: Counter[str]) -> None:
        self._rng, self._done = random.Random(f"responses {seed}"), done
        self._share = self._rng.choice((0.0, 0.0, 0.0, 0.2))

    def drawn(self) -> bool:
        return self._rng.random() < self._share

    def brought(self, messages: int) -> None:
        self._done["messages in responses"] += messages


class Network:
    """Ends are known by name. Each has the process that listens there, or None while the host is up alone."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.weather = Weather()
        self.responses: Responses | None = None
        self._loop = loop
        self._rng = rng
        self._listening: dict[str, Process | None] = {}
        self._gone: set[str] = set()  # hosts without power
        self._cut: set[tuple[str, str]] = set()
        self._clogged: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str, int], float] = {}
        self._waiting: list[tuple[Callable[[], None], Context]] = []  # for a way
        self._in_service: dict[_Exchange, None] = {}
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

    def mend(self, sender: str, receiver: str) -> None:
        self._cut.discard((sender, receiver))
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
        """Something has changed: who waits for a way looks again, and whom the dead served learns it."""
        waiting, self._waiting = self._waiting, []
        for again, context in waiting:
            self._loop.call_soon(again, context=context)
        dead = [one for one in self._in_service if one.process is not None and not one.process.alive]
        for exchange in dead:
            del self._in_service[exchange]
            self._loop.call_soon(exchange.died, context=exchange.context)

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
            process.call(deliver)

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

    def call(
        self, sender: str, receiver: str, connection: int, serve: Callable[[], Awaitable[T]]
    ) -> "asyncio.Future[T]":
        """Has `serve` run in the receiver's process and brings back what it returned or raised. Whoever gives
        the future up hears no more of it; what is under way to the receiver then does not arrive."""
        exchange = _Exchange(self, sender, receiver, connection, serve)
        exchange.set_out()
        return exchange.answer

    def _travel(
        self, sender: str, receiver: str, connection: int, arrive: Callable[[], None], context: Context
    ) -> None:
        """In order within a connection."""
        key = (sender, receiver, connection)
        at = max(self._loop.time() + self._delay(sender, receiver), self._last.get(key, 0.0) + APART_S)
        self._last[key] = at
        self._loop.call_at(at, arrive, context=context)

    def _delay(self, sender: str, receiver: str) -> float:
        span = CLOGGED_S if (sender, receiver) in self._clogged else DELAY_S
        return self._rng.uniform(*span)


class _Exchange:
    """A request and its answer. Each step is a callback of the caller's process, and ends with it."""

    __slots__ = (
        "_connection", "_deadline", "_loop", "_network", "_receiver", "_sender", "_serve", "_served",
        "answer", "context", "process",
    )  # fmt: skip

    def __init__(
        self,
        network: Network,
        sender: str,
        receiver: str,
        connection: int,
        serve: Callable[[], Awaitable[Any]],
    ) -> None:
        self._network, self._loop = network, network._loop
        self._sender, self._receiver, self._connection = sender, receiver, connection
        self._serve = serve
        self.context = copy_context()
        self._deadline: Handle | None = None  # while there is no way
        self._served: asyncio.Task[Any] | None = None
        self.process: Process | None = None  # that serves it
        self.answer: asyncio.Future[Any] = self._loop.create_future()

    def set_out(self) -> None:
        process = self._find_way(self._sender, self._receiver, self.set_out)
        if process is not None:
            self.process = process
            self._travel(self._sender, self._receiver, self._arrive)

    def _arrive(self) -> None:
        network, process = self._network, self.process
        if process is None or self.answer.done():
            return
        if not process.alive or network._listening.get(self._receiver) is not process:
            self.died()
            return
        network.carried += 1
        network._in_service[self] = None
        process.spawn(self._run()).add_done_callback(self._return, context=self.context)

    async def _run(self) -> Any:
        return await self._serve()

    def _return(self, served: "asyncio.Task[Any]") -> None:
        self._network._in_service.pop(self, None)
        if not served.cancelled():
            served.exception()  # the caller may have gone
            self._served = served
            self._set_out_back()

    def _set_out_back(self) -> None:
        if self._find_way(self._receiver, self._sender, self._set_out_back) is not None:
            self._travel(self._receiver, self._sender, self._bring)

    def _bring(self) -> None:
        if self._served is None or self.answer.done():
            return
        failure = self._served.exception()
        if failure is None:
            self.answer.set_result(self._served.result())
        else:
            self.answer.set_exception(failure)

    def _travel(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        self._network._travel(sender, receiver, self._connection, arrive, self.context)

    def _find_way(self, sender: str, receiver: str, again: Callable[[], None]) -> Process | None:
        """Who listens there. None while there is no way: it is looked for again when something changed, and
        given up after a while, as TCP does."""
        network = self._network
        if self.answer.done():
            return None
        if (sender, receiver) in network._cut or receiver in network._gone:
            if self._deadline is None:
                self._deadline = self._loop.call_later(PATIENCE_S, again, context=self.context)
            if self._loop.time() >= self._deadline.when_s:
                self._fail(Broken(f"no way from {sender} to {receiver}"))
            else:
                network._waiting.append((again, self.context))
            return None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        process = network._listening.get(receiver)
        if process is None or not process.alive:
            self._fail(Refused(f"{receiver} refuses connections"))
            return None
        return process

    def died(self) -> None:
        """Who serves it."""
        self._fail(Broken(f"{self._receiver} died"))

    def _fail(self, failure: ConnectionError) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)
