"""Simulated network between nodes and clients: delay, loss, duplication, cut and clogged links per direction.

`post` sends a message that may be lost, duplicated or reordered, as in Raft. `call` sends a request on a
connection, in order and once. It fails when a link is cut for long or an end dies. Whether it was executed is
then unknown.
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
LATE_RETRY_S = (0.01, 6.0)
REORDER_DELAY_S = (0.05, 0.05, 0.05, 3.0)
"""Delay of a reordered message. The longest outlasts an election."""

CLOGGED_S = (0.05, 1.5)
REQUEST_GAP_S = 1e-6
"""Gap between two requests of a connection, since callbacks that are due at the same time have no order."""

CONNECTION_TIMEOUT_S = 5.0
"""The kernel closes a connection whose link is cut for this long."""


class Broken(ConnectionError):
    """The connection broke: whether the request was carried out is unknown."""


class Refused(ConnectionError):
    """The host responds, but no process listens: it is dead."""


@dataclass(slots=True)
class MessageFaults:
    """Probabilities of message faults in this run, drawn from its seed."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    echo: float = 0.0
    """For requests between nodes: a copy arrives long after the original, or after the caller gave up."""
    corruption: float = 0.0
    """For fetched records, because the checksums of TCP are weak."""


class Responses:
    """Draws which messages get a response with the messages that wait for their sender. Only in some runs."""

    def __init__(self, seed: int, done: Counter[str]) -> None:
        self._rng, self._done = random.Random(f"responses {seed}"), done
        self._share = self._rng.choice((0.0, 0.0, 0.0, 0.2))

    def draw(self) -> bool:
        return self._rng.random() < self._share

    def count_messages(self, messages: int) -> None:
        self._done["messages in responses"] += messages


class Network:
    """Hosts by name, each with the process that listens there, or None if the host is up without one."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.message_faults = MessageFaults()
        self.responses: Responses | None = None
        self._loop = loop
        self._rng = rng
        self._listening: dict[str, Process | None] = {}
        self._without_power: set[str] = set()  # hosts without power
        self._cut: set[tuple[str, str]] = set()
        self._clogged: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str, int], float] = {}
        self._waiting: list[tuple[Callable[[], None], Context]] = []  # for a link
        self._in_service: dict[_Exchange, None] = {}
        self.carried = self.corrupted = 0

    # --- hosts and links

    def listen(self, name: str, process: Process | None) -> None:
        self._listening[name] = process
        self._without_power.discard(name)
        self._on_change()

    def lose_power_of(self, name: str) -> None:
        """The host does not even refuse connections until a process listens again."""
        self._listening[name] = None
        self._without_power.add(name)
        self._on_change()

    def cut(self, sender: str, receiver: str) -> None:
        self._cut.add((sender, receiver))
        self._on_change()

    def mend(self, sender: str, receiver: str) -> None:
        self._cut.discard((sender, receiver))
        self._on_change()

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
        self.message_faults = MessageFaults()
        self._on_change()

    def connects(self, one: str, other: str) -> bool:
        """Whether a connection attempt gets a response."""
        return (one, other) not in self._cut and (other, one) not in self._cut

    def _on_change(self) -> None:
        """Hosts or links changed: retry waiting requests, and fail those that a dead process was serving."""
        waiting, self._waiting = self._waiting, []
        for again, context in waiting:
            self._loop.call_soon(again, context=context)
        dead = [one for one in self._in_service if one.process is not None and not one.process.alive]
        for exchange in dead:
            del self._in_service[exchange]
            self._loop.call_soon(exchange.died, context=exchange.context)

    # --- messages

    def post(self, sender: str, receiver: str, deliver: Callable[[], object]) -> None:
        """Calls `deliver` in the receiver's process once, twice, or never."""
        rng, message_faults = self._rng, self.message_faults
        copies = 2 if rng.random() < message_faults.duplication else 1
        for _ in range(copies):
            if (sender, receiver) in self._cut or rng.random() < message_faults.loss:
                continue
            delay = self._delay(sender, receiver)
            if rng.random() < message_faults.reordering:
                delay += rng.random() * rng.choice(REORDER_DELAY_S)
            self._loop.call_later(delay, self._deliver, sender, receiver, deliver)

    def _deliver(self, sender: str, receiver: str, deliver: Callable[[], object]) -> None:
        process = self._listening.get(receiver)
        if process is not None and process.alive and (sender, receiver) not in self._cut:
            self.carried += 1
            process.call(deliver)

    def is_retried_late(self) -> bool:
        return self._rng.random() < self.message_faults.echo

    def late_retry_delay_s(self) -> float:
        return self._rng.uniform(*LATE_RETRY_S)

    def connection(self) -> int:
        """A new connection id."""
        return self._rng.getrandbits(48)

    def corrupt(self, records: Iterable[object]) -> None:
        """Sometimes flip a bit of the first batch, within the bytes that its CRC covers."""
        for content in records:
            if isinstance(content, memoryview) and self._rng.random() < self.message_faults.corruption:
                end = read_header(content).size
                content[self._rng.randrange(HEADER_SIZE, end)] ^= 1 << self._rng.randrange(8)
                self.corrupted += 1

    # --- requests

    def call(
        self, sender: str, receiver: str, connection: int, serve: Callable[[], Awaitable[T]]
    ) -> "asyncio.Future[T]":
        """Run `serve` in the receiver's process, and return its result or exception.

        If the caller cancels the future, a request that is still under way does not arrive.
        """
        exchange = _Exchange(self, sender, receiver, connection, serve)
        exchange.send()
        return exchange.response

    def _travel(
        self, sender: str, receiver: str, connection: int, arrive: Callable[[], None], context: Context
    ) -> None:
        """Schedule an arrival. Arrivals within a connection keep their order."""
        key = (sender, receiver, connection)
        at = max(self._loop.time() + self._delay(sender, receiver), self._last.get(key, 0.0) + REQUEST_GAP_S)
        self._last[key] = at
        self._loop.call_at(at, arrive, context=context)

    def _delay(self, sender: str, receiver: str) -> float:
        span = CLOGGED_S if (sender, receiver) in self._clogged else DELAY_S
        return self._rng.uniform(*span)


class _Exchange:
    """A request and its response. Each step is a callback of the caller's process, and ends with it."""

    __slots__ = (
        "_connection", "_deadline", "_loop", "_network", "_receiver", "_sender", "_serve", "_served",
        "context", "process", "response",
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
        self._deadline: Handle | None = None  # while the link is cut
        self._served: asyncio.Task[Any] | None = None
        self.process: Process | None = None  # the process that serves the request
        self.response: asyncio.Future[Any] = self._loop.create_future()

    def send(self) -> None:
        process = self._find_listener(self._sender, self._receiver, self.send)
        if process is not None:
            self.process = process
            self._travel(self._sender, self._receiver, self._arrive)

    def _arrive(self) -> None:
        network, process = self._network, self.process
        if process is None or self.response.done():
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
            served.exception()  # marks it as retrieved: the caller may be dead
            self._served = served
            self._send_response()

    def _send_response(self) -> None:
        if self._find_listener(self._receiver, self._sender, self._send_response) is not None:
            self._travel(self._receiver, self._sender, self._deliver_response)

    def _deliver_response(self) -> None:
        if self._served is None or self.response.done():
            return
        failure = self._served.exception()
        if failure is None:
            self.response.set_result(self._served.result())
        else:
            self.response.set_exception(failure)

    def _travel(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        self._network._travel(sender, receiver, self._connection, arrive, self.context)

    def _find_listener(self, sender: str, receiver: str, again: Callable[[], None]) -> Process | None:
        """The process that listens at the receiver.

        Returns None while the link is cut: `again` runs when the network changes, and the request fails after
        CONNECTION_TIMEOUT_S, as with TCP.
        """
        network = self._network
        if self.response.done():
            return None
        if (sender, receiver) in network._cut or receiver in network._without_power:
            if self._deadline is None:
                self._deadline = self._loop.call_later(CONNECTION_TIMEOUT_S, again, context=self.context)
            if self._loop.time() >= self._deadline.when_s:
                self._fail(Broken(f"no link from {sender} to {receiver}"))
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
        """The serving process died."""
        self._fail(Broken(f"{self._receiver} died"))

    def _fail(self, failure: ConnectionError) -> None:
        if not self.response.done():
            self.response.set_exception(failure)
