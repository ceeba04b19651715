"""Broker requests: batches of items to other brokers, with one request in flight to each.

Items that arrive while a request is in flight go out together in the next one. So a busy coordinator sends
few, large requests, and an idle one sends each item at once. Used for transaction markers and for
verifications.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from tierlog.base.network import Caller, Network, Unreachable
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.image import ClusterImage

PARTITIONS_PER_REQUEST = 10_000
"""Maximum number of partitions of one request, well below the elements that a frame may have (ADR 0033)."""

REQUEST_TIMEOUT_S = 5.0
"""After this time a broker counts as unreachable, and its items are sent again."""

_log = structlog.get_logger("tierlog.transactions")
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

Exchange = Callable[[Caller, list[I]], Awaitable[list[R]]]
"""Sends the items in one request, and returns a result for each of them, in their order."""


class BrokerRequests(Generic[I, R]):
    def __init__(
        self,
        network: Network,
        image: Callable[[], ClusterImage],
        tasks: TaskGroup,
        client_id: str,
        exchange: Exchange[I, R],
        partitions_of: Callable[[I], int],
    ) -> None:
        """`partitions_of`: number of partitions of an item, at most PARTITIONS_PER_REQUEST."""
        self._network = network
        self._image = image
        self._tasks = tasks
        self._client_id = client_id
        self._exchange = exchange
        self._partitions_of = partitions_of
        self._callers: dict[int, Caller] = {}
        self._queues: dict[int, list[tuple[I, asyncio.Future[R]]]] = {}
        """Items that wait, for each broker with a request in flight."""

    def send(self, broker_id: int, item: I) -> "asyncio.Future[R]":
        """The result of the item. Raises Unreachable if the broker did not answer: it may have got the
        item."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = []
            self._tasks.spawn(f"{self._client_id} to broker {broker_id}", self._run(broker_id, queue))
        queue.append((item, result))
        return result

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    async def _run(self, broker_id: int, queue: list[tuple[I, "asyncio.Future[R]"]]) -> None:
        try:
            while queue:
                count = self._fitting(queue)
                batch = queue[:count]
                del queue[:count]
                await self._send(broker_id, batch)
        finally:
            del self._queues[broker_id]
            for _, result in queue:
                result.cancel()

    def _fitting(self, queue: list[tuple[I, "asyncio.Future[R]"]]) -> int:
        """How many items the next request takes: at least one."""
        partitions = 0
        for count, (item, _) in enumerate(queue):
            partitions += self._partitions_of(item)
            if partitions > PARTITIONS_PER_REQUEST:
                return max(count, 1)
        return len(queue)

    async def _send(self, broker_id: int, batch: list[tuple[I, "asyncio.Future[R]"]]) -> None:
        try:
            caller = await self._caller(broker_id)
            found = await self._exchange(caller, [item for item, _ in batch])
            if len(found) != len(batch):
                raise Unreachable(f"broker {broker_id} answered {len(found)} of {len(batch)} items")
        except Exception as error:
            if not isinstance(error, Unreachable):
                _log.exception("transaction.response.invalid", broker=broker_id)
            for _, result in batch:
                if not result.done():
                    result.set_exception(Unreachable(str(error)))
            return
        except asyncio.CancelledError:
            for _, result in batch:
                result.cancel()
            raise
        for (_, result), each in zip(batch, found, strict=True):
            if not result.done():
                result.set_result(each)

    async def _caller(self, broker_id: int) -> Caller:
        caller = self._callers.get(broker_id)
        broker = self._image().brokers.get(broker_id)
        if broker is None:
            raise Unreachable(f"broker {broker_id} is not registered")
        if caller is None or not caller.is_open:
            caller = await self._network.connect(broker, self._client_id)
            self._callers[broker_id] = caller
        return caller
