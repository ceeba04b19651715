"""The rest of a Produce request some of whose batches take long to look at.

Its other batches have been appended; these are examined one by one and appended then, before any later
request of the connection is looked at: idempotent producers have five on their way. (Kafka mutes a connection
while a request of it is at work.) What is judged when a batch is appended is judged then: the partition may
have got another leader or other settings since, or be gone. Of a request that names a partition more
than once, what comes after such a batch waits for it too.

The bytes of the request are held until all is appended, not until it is acknowledged.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tierlog.broker.handlers.batch_validator import Examiner
from tierlog.broker.handlers.context import CLOSE, Reply, RequestContext
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.record_validation import BatchValidation, ValidationResult
from tierlog.protocol.messages.produce import PartitionProduceResponse, ProduceRequest

COPIED_BYTES = 256 * 1024
"""To copy so much takes some 20 microseconds."""


@dataclass(slots=True, eq=False)
class Unexamined:
    """A batch that was not appended; its answer is in the response and to be filled in. Without an
    examination it waits for one before it.
    """

    replica: Replica
    records: memoryview
    answer: PartitionProduceResponse
    examination: BatchValidation | None = None


def keep_bytes(context: RequestContext, request: ProduceRequest, unexamined: list[Unexamined]) -> None:
    """Of the request only these batches are held from here on; few bytes leave the receive buffer, which a
    view of them would keep whole.
    """
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None
    held = sum(len(batch.records) for batch in unexamined)
    if held > COPIED_BYTES:
        return context.keep_frame()
    context.hold_bytes(held)
    for batch in unexamined:
        batch.records = memoryview(bytearray(batch.records))
        if batch.examination is not None:
            batch.examination.move_to(batch.records)
    return None


async def append_examined(
    examiner: Examiner,
    unexamined: list[Unexamined],
    others_wait: "asyncio.Future[None]",
    append: Callable[[Unexamined, ValidationResult | None], None],
    finish: Callable[[], "Reply | Awaitable[Reply]"],
) -> Reply:
    """`append` leaves another examination in the batch if it needs one after all; `finish` answers."""
    unexamined.reverse()
    while unexamined:
        await _append_one(examiner, unexamined.pop(), append)
    reply = finish()
    if reply is not CLOSE:  # which ends the connection before any later request
        others_wait.set_result(None)
    return await reply if isinstance(reply, Awaitable) else reply


async def _append_one(
    examiner: Examiner, batch: Unexamined, append: Callable[[Unexamined, ValidationResult | None], None]
) -> None:
    if batch.examination is None:
        append(batch, None)
    while batch.examination is not None:
        append(batch, await examiner.examine(batch.examination))
