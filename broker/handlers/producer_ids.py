"""InitProducerId (v0-6): gives ids to idempotent producers.

The ids come from blocks that the controller allocates to this broker (KIP-730). Transactions are not
supported yet.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1
Allocate = Callable[[], Awaitable[tuple[ErrorCode, int, int]]]
"""Requests a block from the controller. Returns (error, first id, number of ids)."""


class ProducerIds:
    """Gives out the ids of one block, then requests the next. Callers that wait for it share the request."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return a producer id that is unique in the cluster.

        Raises KafkaError (COORDINATOR_LOAD_IN_PROGRESS, which clients retry) if the controller gives no
        block.
        """
        async with self._lock:
            if self._next == self._end:
                error, first, count = await self._allocate()
                if error is not ErrorCode.NONE or count < 1:
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {error.name}")
                self._next, self._end = first, first + count
            self._next += 1
            return self._next - 1


def init_producer_id_handler(ids: ProducerIds) -> Handler:
    @pending
    async def handle(context: RequestContext, request: InitProducerIdRequest) -> Reply:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            # KIP-360: a producer that already has an id sends it with its epoch. Without a transactional id
            # it gets a new one, as in Kafka.
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id without its epoch, or the reverse")
        if request.transactional_id is not None:
            if request.transactional_id == "":
                raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not supported by this broker")
        return InitProducerIdResponse(producer_id=await ids.take(), producer_epoch=0)

    return handle
