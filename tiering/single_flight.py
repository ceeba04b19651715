"""Single flight: one concurrent load per key, shared by its readers; and an LRU cache with a budget on top of
it.

A reader that is cancelled does not cancel the load. A reader acquires a slot before it starts a load, so a
reader that is cancelled while it waits leaves no load behind. Read-ahead has no waiting reader, so its load
waits for the slot itself. A failed load is not kept. Called on one event loop, by
the caches of chunks, indexes and pages.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from itertools import islice
from typing import Any, Generic, TypeVar

from tierlog.base.failures import raise_again, without_frames
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import require
from tierlog.tiering.object_store import ObjectStoreError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Load = Callable[[], Coroutine[Any, Any, V]]


class SingleFlight(Generic[K, V]):
    """`find` returns a loaded value, `keep` stores one."""

    def __init__(
        self,
        tasks: TaskGroup,
        slots: asyncio.Semaphore,
        find: Callable[[K], V | None],
        keep: Callable[[K, V], None],
    ) -> None:
        """`slots`: bounds the concurrent loads; others may share it."""
        self.slots = slots
        self._tasks = tasks
        self._find = find
        self._keep = keep
        self._loads: dict[K, asyncio.Task[V | ObjectStoreError | OSError]] = {}
        self.waiting = 0
        """Readers that wait for a slot."""

    def is_loading(self, key: K) -> bool:
        return key in self._loads

    @property
    def loading(self) -> int:
        """Loads in progress, including read-ahead that waits for a slot."""
        return len(self._loads)

    async def get(self, key: K, load: Load[V]) -> V:
        """Return the value, and load it first if necessary. Raises the load's ObjectStoreError or OSError."""
        if (value := self._find(key)) is not None:
            return value
        if key not in self._loads:
            slots = self.slots
            self.waiting += 1
            try:
                await slots.acquire()
            finally:
                self.waiting -= 1
            value = self._find(key)
            if value is not None or key in self._loads:  # another reader had a slot first
                slots.release()
                if value is not None:
                    return value
            else:
                self.start(key, load).add_done_callback(lambda _: slots.release())
        result = await asyncio.shield(self._loads[key])
        if isinstance(result, (ObjectStoreError, OSError)):
            try:
                raise_again(result)
            finally:
                del result
        return result

    def start(self, key: K, load: Load[V]) -> "asyncio.Task[V | ObjectStoreError | OSError]":
        """Return the load in progress for the key, or start one without acquiring a slot. The key must have
        no value yet."""
        pending = self._loads.get(key)
        if pending is None:
            pending = self._tasks.spawn(f"load {key}", _as_value(load))
            self._loads[key] = pending
            pending.add_done_callback(lambda done: self._load_ended(key, done))
        return pending

    async def idle(self) -> None:
        """Wait until no load is running."""
        while self._loads:
            await asyncio.wait(list(self._loads.values()))

    def _load_ended(self, key: K, done: "asyncio.Task[V | ObjectStoreError | OSError]") -> None:
        del self._loads[key]
        if done.cancelled() or done.exception() is not None:
            return
        value = done.result()
        if not isinstance(value, (ObjectStoreError, OSError)):
            self._keep(key, value)


class SingleFlightCache(Generic[K, V]):
    """LRU cache of loaded values, with a budget."""

    def __init__(
        self,
        tasks: TaskGroup,
        budget: int,
        weigh: Callable[[V], int],
        slots: asyncio.Semaphore,
        group: Callable[[K, V], Hashable],
    ) -> None:
        """`group`: values of one group are evicted together (`forget`)."""
        self._budget = budget
        self._weigh = weigh
        self._group = group
        self._groups: dict[Hashable, dict[K, None]] = {}
        self._values: OrderedDict[K, V] = OrderedDict()
        self._flights: SingleFlight[K, V] = SingleFlight(tasks, slots, self.find, self._keep)
        self.weight = 0

    def find(self, key: K) -> V | None:
        """The value, if it is loaded."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    async def get(self, key: K, load: Load[V]) -> V:
        """Return the value, and load it first if necessary. Raises the load's ObjectStoreError or OSError."""
        return await self._flights.get(key, load)

    def forget(self, group: Hashable, is_obsolete: Callable[[K, V], bool], at_most: int) -> bool:
        """Evict matching values of a group. Returns whether there may be more. Loads in progress are not
        affected: their values are still added."""
        obsolete = (key for key in self._groups.get(group, ()) if is_obsolete(key, self._values[key]))
        keys = list(islice(obsolete, at_most))
        for key in keys:
            self._evict(key)
        return len(keys) == at_most

    def check(self) -> None:
        """Raises InvariantViolation if the weight is wrong or over the budget."""
        require(self.weight == sum(map(self._weigh, self._values.values())), "cached values are miscounted")
        require(self.weight <= self._budget or len(self._values) <= 1, "the cache is over its budget")
        grouped = sum(map(len, self._groups.values()))
        require(grouped == len(self._values) and all(self._groups.values()), "groups do not match")

    def _keep(self, key: K, value: V) -> None:
        self._values[key] = value
        self._groups.setdefault(self._group(key, value), {})[key] = None
        self.weight += self._weigh(value)
        while self.weight > self._budget and len(self._values) > 1:
            self._evict(next(iter(self._values)))

    def _evict(self, key: K) -> None:
        value = self._values.pop(key)
        self.weight -= self._weigh(value)
        group = self._group(key, value)
        del self._groups[group][key]
        if not self._groups[group]:
            del self._groups[group]


async def _as_value(load: Load[V]) -> V | ObjectStoreError | OSError:
    """A failure is returned as a value: only the waiting readers see it, not the log of failed tasks."""
    try:
        return await load()
    except (ObjectStoreError, OSError) as failure:
        return without_frames(failure)
