"""The bucket of a simulated cluster, and the way of each broker to it, on virtual time.

A request is the store's once it was sent: it is carried out though who sent it is paused, cut off or dead by
then, and a slow one long after others of the next leader. So an uploader that was deposed can still put what
it began. Whether a request is carried out and whether it is answered are two things, and each may fail alone.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol, TypeVar

from simulator.loop import SimLoop, current_process
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import Condition, ObjectInfo, ObjectNotFound, ObjectStoreError

T = TypeVar("T")
Effect = Callable[[], Coroutine[Any, Any, T]]
"""What a request does at the store, at once; it may raise what the port raises."""

TRAVEL_S = (0.001, 0.015)
SLOW_S = (0.3, 8.0)
PATIENCE_S = (0.3, 2.0)
"""After that long without an answer, the client of the store gives a request up."""

CALM_S, STORM_S = 1.2, (0.2, 3.0)
STORMS = ("away", "cut off", "cut off", "slow", "slow", "busy")


class Fate(Enum):
    """Of one request."""

    DONE = auto()
    REFUSED = auto()  # 503: it was not carried out, and that is told
    LOST = auto()  # neither carried out nor answered
    UNANSWERED = auto()  # carried out, not answered
    TORN = auto()  # carried out in part


@dataclass(slots=True)
class StoreWeather:
    """What requests suffer, as shares of them; drawn from the seed."""

    slow: float = 0.0
    refused: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    torn: float = 0.0
    garbled: float = 0.0
    """Of ranges that are read: only of a whole object does a store tell the checksum."""


class StoreWitness(Protocol):
    """Sees what the store does; raises what it has to say where `failed` hears it. `sender`: None if it is
    dead by then."""

    def stored(self, key: str, content: bytes, before: bytes | None, sender: str | None) -> None: ...
    def removes(self, keys: Sequence[str]) -> None: ...


class Bucket:
    """What all brokers of a cluster share."""

    def __init__(
        self, loop: SimLoop, rng: random.Random, witness: StoreWitness, failed: Callable[[Exception], None]
    ) -> None:
        self.loop, self.rng = loop, rng
        self.weather = StoreWeather()
        self.is_away = False
        self.out_of_reach: set[str] = set()  # brokers
        self.told: Counter[str] = Counter()
        self._objects = MemoryStore()
        self._witness, self._failed = witness, failed

    def content(self, key: str) -> bytes | None:
        try:
            return at_once(self._objects.get(key))
        except ObjectNotFound:
            return None

    def names(self) -> list[str]:
        return [info.key for info in at_once(self.listed(""))]

    async def listed(self, prefix: str) -> list[ObjectInfo]:
        return [info async for info in self._objects.list(prefix)]

    async def put(
        self,
        key: str,
        content: bytes,
        checksum: int | None,
        condition: Condition,
        sender: Callable[[], str | None] = lambda: None,
    ) -> ObjectInfo:
        before = self.content(key)
        info = await self._objects.put(key, content, crc32c=checksum, condition=condition)
        self._watch(lambda: self._witness.stored(key, content, before, sender()))
        return info

    async def get(self, key: str, start: int, end: int | None) -> bytes:
        content = await self._objects.get(key, start, end)
        if end is not None and content and self.rng.random() < self.weather.garbled:
            self.told["garbled reads"] += 1
            damaged = bytearray(content)
            damaged[self.rng.randrange(len(damaged))] ^= 1 << self.rng.randrange(8)
            return bytes(damaged)
        return content

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await self._objects.get_with_etag(key)

    async def head(self, key: str) -> ObjectInfo:
        return await self._objects.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        self._watch(lambda: self._witness.removes(keys))
        await self._objects.delete(keys)

    def _watch(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as failure:
            self._failed(failure)

    def draw(self) -> Fate:
        weather, drawn = self.weather, self.rng.random()
        for fate, share in (
            (Fate.REFUSED, weather.refused),
            (Fate.LOST, weather.lost),
            (Fate.UNANSWERED, weather.unanswered),
            (Fate.TORN, weather.torn),
        ):
            if drawn < share:
                return fate
            drawn -= share
        return Fate.DONE

    def delay_s(self) -> float:
        span = SLOW_S if self.rng.random() < self.weather.slow else TRAVEL_S
        return self.rng.uniform(*span)


class SimStore:
    """The object store port of one broker."""

    def __init__(self, bucket: Bucket, broker: str) -> None:
        self._bucket, self._broker = bucket, broker

    async def put(
        self, key: str, body: bytes | Path, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        content = body.read_bytes() if isinstance(body, Path) else bytes(body)
        bucket, process = self._bucket, current_process()
        sender = lambda: self._broker if process is not None and process.alive else None  # noqa: E731
        torn = None
        if key.endswith((".log", ".idx", ".page", "/root")):
            cut = bucket.rng.randrange(len(content))
            torn = lambda: bucket.put(key, content[:cut], None, condition, sender)  # noqa: E731
        return await self._ask(lambda: bucket.put(key, content, crc32c, condition, sender), torn)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._ask(lambda: self._bucket.get(key, start, end))

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await self._ask(lambda: self._bucket.get_with_etag(key))

    async def head(self, key: str) -> ObjectInfo:
        return await self._ask(lambda: self._bucket.head(key))

    async def delete(self, keys: Sequence[str]) -> None:
        doomed = list(keys)
        some = doomed[: self._bucket.rng.randrange(len(doomed) + 1)]
        await self._ask(lambda: self._bucket.delete(doomed), lambda: self._bucket.delete(some), owns_up=True)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in await self._ask(lambda: self._bucket.listed(prefix)):
            yield info

    async def close(self) -> None:
        return

    def _ask(
        self, effect: Effect[T], torn: Effect[T] | None = None, *, owns_up: bool = False
    ) -> "asyncio.Future[T]":
        """`torn`: what a part of it would do; unless it `owns_up`, the store may even call that done."""
        return _Request(self._bucket, self._broker, effect, torn, owns_up).answer


class _Request:
    """On its way; each step is the store's own, whatever becomes of the caller."""

    def __init__(
        self, bucket: Bucket, broker: str, effect: Effect[Any], torn: Effect[Any] | None, owns_up: bool
    ) -> None:
        self._bucket, self._broker = bucket, broker
        self._effect, self._torn, self._owns_up = effect, torn, owns_up
        self.answer: asyncio.Future[Any] = bucket.loop.create_future()
        self._fate = bucket.draw()
        self._after(bucket.delay_s(), self._arrive)

    def _arrive(self) -> None:
        bucket, fate = self._bucket, self._fate
        if bucket.is_away or self._broker in bucket.out_of_reach:
            fate = Fate.LOST
        if fate is Fate.TORN and self._torn is None:
            fate = Fate.UNANSWERED
        if fate is not Fate.DONE:
            bucket.told[fate.name.lower()] += 1
        match fate:
            case Fate.REFUSED:
                self._fail_after(TRAVEL_S, "503 slow down")
            case Fate.LOST:
                self._fail_after(PATIENCE_S, "no answer")
            case Fate.UNANSWERED:
                self._carry_out(self._effect, is_told=False)
            case Fate.TORN if self._torn is not None:
                self._carry_out(self._torn, is_told=not self._owns_up and bucket.rng.random() < 0.5)
            case _:
                self._carry_out(self._effect, is_told=True)

    def _carry_out(self, effect: Effect[Any], *, is_told: bool) -> None:
        try:
            result = at_once(effect())
        except ObjectStoreError as failure:
            self._after(self._bucket.rng.uniform(*TRAVEL_S), self._set_failure, failure)
            return
        if is_told:
            self._after(self._bucket.rng.uniform(*TRAVEL_S), self._set_result, result)
        else:
            self._fail_after(PATIENCE_S, "no answer")

    def _fail_after(self, span: tuple[float, float], why: str) -> None:
        self._after(self._bucket.rng.uniform(*span), self._set_failure, ObjectStoreError(why))

    def _set_result(self, result: object) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def _set_failure(self, failure: ObjectStoreError) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)

    def _after(self, delay_s: float, step: Callable[..., None], *arguments: object) -> None:
        self._bucket.loop.call_later(delay_s, step, *arguments, context=_NO_PROCESS)


_NO_PROCESS = Context()
"""The store goes on whoever dies."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What work gives that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise RuntimeError("it waits")


async def storms(bucket: Bucket, brokers: Sequence[str], rng: random.Random) -> None:
    """The store is away, out of one broker's reach, slow or busy for a while, again and again; whoever
    cancels it has fair weather."""
    usual = bucket.weather = StoreWeather(
        slow=rng.choice((0.0, 0.05, 0.2)),
        refused=rng.choice((0.0, 0.05)),
        lost=rng.choice((0.0, 0.03)),
        unanswered=rng.choice((0.0, 0.05, 0.1)),
        torn=rng.choice((0.0, 0.05)),
        garbled=rng.choice((0.0, 0.05)),
    )
    try:
        while True:
            await asyncio.sleep(rng.expovariate(1 / CALM_S))
            match rng.choice(STORMS):
                case "away":
                    bucket.is_away = True
                case "cut off":
                    bucket.out_of_reach = {rng.choice(brokers)}
                case "slow":
                    bucket.weather = StoreWeather(slow=0.7)
                case _:
                    bucket.weather = StoreWeather(refused=0.7)
            await asyncio.sleep(rng.uniform(*STORM_S))
            bucket.weather, bucket.is_away, bucket.out_of_reach = usual, False, set()
    finally:
        bucket.weather, bucket.is_away, bucket.out_of_reach = StoreWeather(), False, set()
