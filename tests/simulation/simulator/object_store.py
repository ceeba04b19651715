"""Simulated object store: the bucket of a cluster and each broker's client, on virtual time.

A request that was sent is executed even if its sender is paused, isolated or dead by then. A slow one may
be executed long after requests of the next leader, so a deposed leader's upload may still arrive. A request
may fail without being executed, or be executed without a response.
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
from tierlog.tiering.object_store import (
    Body,
    Condition,
    ObjectInfo,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    read_body,
)

T = TypeVar("T")
Effect = Callable[[], Coroutine[Any, Any, T]]
"""The effect of a request at the store. May raise the port's exceptions."""

TRAVEL_S = (0.001, 0.015)
SLOW_S = (0.3, 8.0)
REQUEST_TIMEOUT_S = (0.3, 2.0)
"""The store's client gives up a request without a response after this time."""

CALM_S, OUTAGE_S = 1.2, (0.2, 3.0)
OUTAGES = ("away", "cut off", "cut off", "slow", "slow", "busy")


class Fate(Enum):
    """The outcome of one request."""

    DONE = auto()
    REFUSED = auto()  # not executed, response 503
    LOST = auto()  # not executed, no response
    NO_RESPONSE = auto()  # executed, no response
    TORN = auto()  # executed in part


@dataclass(slots=True)
class RequestFaults:
    """Probabilities of request faults, drawn from the seed."""

    slow: float = 0.0
    refused: float = 0.0
    lost: float = 0.0
    no_response: float = 0.0
    torn: float = 0.0
    corrupted: float = 0.0
    """For range reads: a store returns a checksum only for a complete object."""


class StoreWitness(Protocol):
    """Checks each change of the store. Exceptions go to `failed`. `sender`: None if it is dead by then."""

    def put_done(self, key: str, content: bytes, before: bytes | None, sender: str | None) -> None: ...
    def deleted(self, keys: Sequence[str]) -> None: ...


class Bucket:
    """The bucket that all brokers share."""

    def __init__(
        self, loop: SimLoop, rng: random.Random, witness: StoreWitness, failed: Callable[[Exception], None]
    ) -> None:
        self.loop, self.rng = loop, rng
        self.request_faults = RequestFaults()
        self.is_down = False
        self.unreachable_from: set[str] = set()  # brokers
        self.faults: Counter[str] = Counter()
        self.damage: dict[str, int | None] = {}
        """Damaged objects: the position of a flipped byte, or None if brokers do not find the object."""
        self._objects = MemoryStore()
        self._witness, self._failed = witness, failed

    def content(self, key: str) -> bytes | None:
        try:
            return run_inline(self._objects.get(key))
        except ObjectNotFound:
            return None

    def names(self) -> list[str]:
        return [info.key for info in run_inline(self.listed(""))]

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
        if before is not None and self.damage.get(key) is not None:
            before = _flipped(before, 0, self.damage[key])
        info = await self._objects.put(key, content, crc32c=checksum, condition=condition)
        self.damage.pop(key, None)  # a new object
        self._report(lambda: self._witness.put_done(key, content, before, sender()))
        return info

    async def get(self, key: str, start: int, end: int | None) -> bytes:
        content = await self._objects.get(key, start, end)
        if (at := self._damage_of(key)) is not None:
            return _flipped(content, start, at)
        if end is not None and content and self.rng.random() < self.request_faults.corrupted:
            self.faults["garbled reads"] += 1
            damaged = bytearray(content)
            damaged[self.rng.randrange(len(damaged))] ^= 1 << self.rng.randrange(8)
            return bytes(damaged)
        return content

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        content, etag = await self._objects.get_with_etag(key)
        at = self._damage_of(key)
        return content if at is None else _flipped(content, 0, at), etag

    async def head(self, key: str) -> ObjectInfo:
        self._damage_of(key)
        return await self._objects.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        self._report(lambda: self._witness.deleted(keys))
        await self._objects.delete(keys)

    def _damage_of(self, key: str) -> int | None:
        """Raises ObjectNotFound."""
        if self.damage.get(key, -1) is None:
            raise ObjectNotFound(key)
        return self.damage.get(key)

    def _report(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as failure:
            self._failed(failure)

    def draw(self) -> Fate:
        request_faults, drawn = self.request_faults, self.rng.random()
        for fate, share in (
            (Fate.REFUSED, request_faults.refused),
            (Fate.LOST, request_faults.lost),
            (Fate.NO_RESPONSE, request_faults.no_response),
            (Fate.TORN, request_faults.torn),
        ):
            if drawn < share:
                return fate
            drawn -= share
        return Fate.DONE

    def delay_s(self) -> float:
        span = SLOW_S if self.rng.random() < self.request_faults.slow else TRAVEL_S
        return self.rng.uniform(*span)


def _flipped(content: bytes, start: int, at: int | None) -> bytes:
    """The content from `start` on, with a bit flipped at this position of the object."""
    if at is None or not start <= at < start + len(content):
        return content
    return content[: at - start] + bytes([content[at - start] ^ 1]) + content[at - start + 1 :]


class SimStore:
    """The object store port of one broker."""

    def __init__(self, bucket: Bucket, broker: str) -> None:
        self._bucket, self._broker = bucket, broker

    async def put(
        self, key: str, body: bytes | Path | Body, *, crc32c: int | None = None, condition: Condition = None
    ) -> ObjectInfo:
        content = await read_body(body)
        bucket, process = self._bucket, current_process()
        sender = lambda: self._broker if process is not None and process.alive else None  # noqa: E731
        torn = None
        if key.endswith((".log", ".idx", ".page", "/root")):
            cut = bucket.rng.randrange(len(content))
            torn = lambda: bucket.put(key, content[:cut], None, condition, sender)  # noqa: E731
        return await self._send(lambda: bucket.put(key, content, crc32c, condition, sender), torn)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._send(lambda: self._bucket.get(key, start, end))

    async def get_into(self, key: str, start: int, buffer: memoryview) -> None:
        buffer[:] = await self.get(key, start, start + len(buffer))

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return await self._send(lambda: self._bucket.get_with_etag(key))

    async def head(self, key: str) -> ObjectInfo:
        return await self._send(lambda: self._bucket.head(key))

    async def delete(self, keys: Sequence[str]) -> None:
        doomed = list(keys)
        some = doomed[: self._bucket.rng.randrange(len(doomed) + 1)]
        await self._send(
            lambda: self._bucket.delete(doomed), lambda: self._bucket.delete(some), reports_partial=True
        )

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in await self._send(lambda: self._bucket.listed(prefix)):
            yield info

    async def abort_uploads(self, prefix: str, older_than_s: float) -> int:
        return 0

    async def close(self) -> None:
        return

    def _send(
        self, effect: Effect[T], torn: Effect[T] | None = None, *, reports_partial: bool = False
    ) -> "asyncio.Future[T]":
        """`torn`: effect of a partial execution. The store may report success, unless `reports_partial`."""
        return _Request(self._bucket, self._broker, effect, torn, reports_partial).response


class _Request:
    """A request on its way. Its steps run in the store, whatever happens to the caller."""

    def __init__(
        self,
        bucket: Bucket,
        broker: str,
        effect: Effect[Any],
        torn: Effect[Any] | None,
        reports_partial: bool,
    ) -> None:
        self._bucket, self._broker = bucket, broker
        self._effect, self._torn, self._reports_partial = effect, torn, reports_partial
        self.response: asyncio.Future[Any] = bucket.loop.create_future()
        self._fate = bucket.draw()
        self._after(bucket.delay_s(), self._arrive)

    def _arrive(self) -> None:
        bucket, fate = self._bucket, self._fate
        if bucket.is_down or self._broker in bucket.unreachable_from:
            fate = Fate.LOST
        if fate is Fate.TORN and self._torn is None:
            fate = Fate.NO_RESPONSE
        if fate is not Fate.DONE:
            bucket.faults[fate.name.lower()] += 1
        match fate:
            case Fate.REFUSED:
                self._fail_after(TRAVEL_S, ObjectStoreUnavailable("503 slow down"))
            case Fate.LOST:
                self._fail_after(REQUEST_TIMEOUT_S, ObjectStoreTimeout("no answer"))
            case Fate.NO_RESPONSE:
                self._execute(self._effect, has_response=False)
            case Fate.TORN if self._torn is not None:
                self._execute(
                    self._torn, has_response=not self._reports_partial and bucket.rng.random() < 0.5
                )
            case _:
                self._execute(self._effect, has_response=True)

    def _execute(self, effect: Effect[Any], *, has_response: bool) -> None:
        try:
            result = run_inline(effect())
        except ObjectStoreError as failure:
            self._after(self._bucket.rng.uniform(*TRAVEL_S), self._set_failure, failure)
            return
        if has_response:
            self._after(self._bucket.rng.uniform(*TRAVEL_S), self._set_result, result)
        else:
            self._fail_after(REQUEST_TIMEOUT_S, ObjectStoreTimeout("no answer"))

    def _fail_after(self, span: tuple[float, float], failure: ObjectStoreError) -> None:
        self._after(self._bucket.rng.uniform(*span), self._set_failure, failure)

    def _set_result(self, result: object) -> None:
        if not self.response.done():
            self.response.set_result(result)

    def _set_failure(self, failure: ObjectStoreError) -> None:
        if not self.response.done():
            self.response.set_exception(failure)

    def _after(self, delay_s: float, step: Callable[..., None], *arguments: object) -> None:
        self._bucket.loop.call_later(delay_s, step, *arguments, context=_NO_PROCESS)


_NO_PROCESS = Context()
"""The store belongs to no process of the run."""


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise RuntimeError("it waits")


async def store_outages(bucket: Bucket, brokers: Sequence[str], rng: random.Random) -> None:
    """Make the store unavailable, unreachable for one broker, slow or busy from time to time, until
    cancelled."""
    usual = bucket.request_faults = RequestFaults(
        slow=rng.choice((0.0, 0.05, 0.2)),
        refused=rng.choice((0.0, 0.05)),
        lost=rng.choice((0.0, 0.03)),
        no_response=rng.choice((0.0, 0.05, 0.1)),
        torn=rng.choice((0.0, 0.05)),
        corrupted=rng.choice((0.0, 0.05)),
    )
    try:
        while True:
            await asyncio.sleep(rng.expovariate(1 / CALM_S))
            match rng.choice(OUTAGES):
                case "away":
                    bucket.is_down = True
                case "cut off":
                    bucket.unreachable_from = {rng.choice(brokers)}
                case "slow":
                    bucket.request_faults = RequestFaults(slow=0.7)
                case _:
                    bucket.request_faults = RequestFaults(refused=0.7)
            await asyncio.sleep(rng.uniform(*OUTAGE_S))
            bucket.request_faults, bucket.is_down, bucket.unreachable_from = usual, False, set()
    finally:
        bucket.request_faults, bucket.is_down, bucket.unreachable_from = RequestFaults(), False, set()
